"""What the Makefile runs beside the tests: bench, audit, manifests of Kubernetes, what targets need."""

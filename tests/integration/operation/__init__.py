"""What a person installs and starts: the command line, the wheel, an empty Debian, Helm, Kubernetes, health checks."""

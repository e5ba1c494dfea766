"""The control service: the state of services and pipelines over HTTP."""

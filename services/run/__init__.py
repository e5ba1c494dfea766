"""`cutline run` and the other commands: everything on this machine."""

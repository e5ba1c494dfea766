"""The command line: `cutline run`, which runs a whole pipeline on this machine, and the other commands."""

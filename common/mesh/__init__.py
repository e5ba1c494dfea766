"""The mesh: the snapshot algorithm, its messages and channels, and the host that runs a machine in a process."""

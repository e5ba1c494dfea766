"""The world of the mesh: the real machines on a simulated network, store, source and lake."""

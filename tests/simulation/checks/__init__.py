"""Invariants of the mesh's world, one checker a file. A check's docstring states its invariant; it raises Failure."""

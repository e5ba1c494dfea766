"""The incremental split: the real reader machine and the real cursor, on the bytes of a simulated server."""

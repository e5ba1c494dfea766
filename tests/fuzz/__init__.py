"""Damaged inputs for the decoders, under sanitizers: `make fuzz`."""

"""The sources that Cutline reads from."""

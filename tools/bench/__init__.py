"""`make bench`: one JSON line a measurement."""

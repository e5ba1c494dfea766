"""`make bench-peers`: other tools on the same table, in turn with Cutline."""

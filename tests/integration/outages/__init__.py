"""What hangs, falls silent, is full, locked or killed, and who must not notice."""

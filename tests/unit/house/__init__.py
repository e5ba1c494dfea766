"""The rules of the tree: what imports what, what is pure, what the pages say."""

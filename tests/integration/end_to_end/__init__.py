"""From the source to a reader of the lake: names, schema changes, commands, tables without a key."""

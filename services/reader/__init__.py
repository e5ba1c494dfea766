"""The reader: chunks by SELECT, changes from the binlog, both as Arrow batches."""

"""What is removed in time: snapshots, files of killed starts, earlier lives; nothing grows with a pipeline's age."""

"""What is kept: the journal and publications of a pipeline, their records, and the chain of checkpoints that counts."""

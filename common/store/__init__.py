"""Durable state: a pipeline's journal and publications, their records, and the chain of valid checkpoints."""

"""The enumerator: splits tables, hands splits out, takes checkpoints, leads a pipeline."""

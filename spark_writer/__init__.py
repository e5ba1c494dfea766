"""The Spark writer: applies completed checkpoints to the lake and commits them as publications."""

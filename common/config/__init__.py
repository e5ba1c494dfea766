"""What a person sets: the pipeline file and the environment."""

"""The writer: takes records of every reader and stages them as Parquet files."""

"""What a table's rows become before a sink gets them: rules in Spark SQL, which Spark's own Catalyst evaluates."""

"""Helpers of tests, the bench and the demo: real servers, the mesh as processes, a bench of Spark, records."""

"""What tests, the bench and the demo stand on: real servers, the mesh as processes, a bench of Spark, records."""

"""What the Spark writer keeps tables in: one package for each kind of sink."""

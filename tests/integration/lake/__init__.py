"""The Spark writer and its lake tables: applies, commits of others, layout, catalogues, who leads."""

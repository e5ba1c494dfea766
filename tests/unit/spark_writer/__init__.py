"""Tests of the Spark writer and its sink."""

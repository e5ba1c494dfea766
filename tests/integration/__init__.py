"""Tests on real servers and a real Spark, in rooms by what is under test."""

"""Tests of the simulation itself: loops, mutants, shrinking."""

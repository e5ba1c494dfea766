"""Tests of the command line and of a mesh on one machine."""

"""Tests of common/mesh/."""

"""Tests of common/journal/."""

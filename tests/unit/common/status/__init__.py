"""Tests of common/status/."""

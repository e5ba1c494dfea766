"""Tests of common/store/."""

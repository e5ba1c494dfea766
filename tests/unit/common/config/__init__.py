"""Tests of common/config/."""

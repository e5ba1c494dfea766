"""Tests of common/commands/."""

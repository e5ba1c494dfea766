"""Tests that need no server and no jar, in the folders of what they test."""

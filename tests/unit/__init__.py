"""Tests that need no server and no jar, in under a minute; a file is named after what it tests."""

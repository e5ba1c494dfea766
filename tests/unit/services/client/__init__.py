"""Tests of the client and its REST transport."""

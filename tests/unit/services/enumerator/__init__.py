"""Tests of the enumerator: leader, agenda, splits, driver."""

"""Tests of the writer: machine, staging, driver."""

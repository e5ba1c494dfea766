"""Tests of the reader: chunks, cursors, markers, driver."""

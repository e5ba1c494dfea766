"""Tests, and the servers, simulation and benchmarks they run on."""

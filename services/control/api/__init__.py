"""The REST API: one module for each resource; app.py puts them together."""

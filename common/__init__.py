"""Shared by every service: errors, schemas, positions, the mesh, the store and the configuration."""

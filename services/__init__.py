"""The services of the mesh: enumerator, readers, writers, control."""

"""Cutline's side of Iceberg: the catalogue, the lake tables and every commit made to them, through its Java API."""

"""Pipelines that are deleted and made again under one name: the real services on a simulated store, Redis and lake."""

"""Whole runs of the product, as a person would start them."""

"""Bridges and views of the environments."""

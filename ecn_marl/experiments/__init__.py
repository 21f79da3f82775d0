"""Experiments: recipes, comparisons, searches, and the work of the commands."""

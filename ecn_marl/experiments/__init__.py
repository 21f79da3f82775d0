"""Experiments: recipes, comparisons, searches, and what the commands do."""

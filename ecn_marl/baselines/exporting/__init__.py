"""Policies in one file that need neither JAX nor a simulator."""

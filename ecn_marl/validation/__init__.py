"""Comparisons of the simulator with theory and with recorded packet-level runs.

`ecn-marl validate` runs them all; `registry.SOURCES` lists them.
"""

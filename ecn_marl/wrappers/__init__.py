"""Bridges and views of the environments."""

from ecn_marl.wrappers.auto_reset import AutoReset, AutoResetState

__all__ = ["AutoReset", "AutoResetState"]

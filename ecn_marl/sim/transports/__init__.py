"""Senders: one file per congestion control, all behind the same four functions.

A transport is a frozen dataclass with `default_params()`, `init(slots)`, `start(state, params, new,
line)`, `rate(state)` and `update(state, params, cnp, sent, dt)`.
"""

from __future__ import annotations

from ecn_marl._errors import bad_value, unknown_name
from ecn_marl.sim.transports.dcqcn import Dcqcn, DcqcnParams, DcqcnState, preset

__all__ = ["Dcqcn", "DcqcnParams", "DcqcnState", "parse_transport", "preset"]


def parse_transport(text: str) -> Dcqcn:
    """Build senders from their short form `dcqcn:PRESET`.

    Raises:
        ValueError: unknown transport or preset.
    """
    kind, _, name = text.partition(":")
    if kind != "dcqcn":
        raise unknown_name("transport", kind, ["dcqcn"])
    if not name:
        raise bad_value("transport", text, "dcqcn:PRESET, e.g. dcqcn:hpcc-paper")
    return Dcqcn.of(name)

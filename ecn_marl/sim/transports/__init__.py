"""Senders: one file per congestion control, all behind `base.Transport`."""

from __future__ import annotations

from ecn_marl._errors import bad_value, unknown_name
from ecn_marl.sim.transports.base import Transport
from ecn_marl.sim.transports.dcqcn import Dcqcn, DcqcnParams, DcqcnState, preset

__all__ = ["Dcqcn", "DcqcnParams", "DcqcnState", "Transport", "parse_transport", "preset"]


def parse_transport(text: str) -> Transport:
    """Build senders from their short form `KIND:PRESET`.

    Raises:
        ValueError: unknown transport or preset.
    """
    kind, _, name = text.partition(":")
    if kind != "dcqcn":
        raise unknown_name("transport", kind, ["dcqcn"])
    if not name:
        raise bad_value("transport", text, "dcqcn:PRESET, e.g. dcqcn:hpcc-paper")
    if name.endswith("-vwin"):
        return Dcqcn.of(name.removesuffix("-vwin"), windowed=True)
    return Dcqcn.of(name)

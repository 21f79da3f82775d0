"""Rules that set ECN thresholds once per tuning interval, without learning.

    tuner = parse_tuner("pi:qref_kb=100", topology)
    state = tuner.init(net)
    state, ecn = tuner.update(state, stats, net, interval_us)     # after every interval

A tuner is a frozen dataclass of constants; `init` and `update` are pure functions over arrays of
ports, so they work under `jit`, `vmap` and `scan`. Sizes in KB are for a port of 25 Gb/s and grow
with the port's rate. For every input `0 <= kmin < kmax`, `0 < pmax <= 1`, and ports are
independent (but for `BufferCoupled` and `Relative`, whose ports share a buffer).

`EcnSharp` and `PiMarker` are published rules, adapted to one update per interval. `BufferCoupled`
is a published rule applied to another threshold, and `Relative` a vendor's. `UtilisationDriven` and
`QueueDriven` follow published ideas whose formulas were not found, so their rules are ours, and
`HillClimbing` is ours altogether.
"""

from __future__ import annotations

from dataclasses import replace

from ecn_marl._errors import bad_value, unknown_name
from ecn_marl.sim.network.topology import Topology
from ecn_marl.sim.tuners.adapted import HillClimbing, QueueDriven, Stepped, UtilisationDriven
from ecn_marl.sim.tuners.base import Ramped, Tuner, port_scale
from ecn_marl.sim.tuners.published import BufferCoupled, EcnSharp, PiMarker, Relative, Shared

__all__ = [
    "TUNERS",
    "BufferCoupled",
    "EcnSharp",
    "HillClimbing",
    "PiMarker",
    "QueueDriven",
    "Ramped",
    "Relative",
    "Shared",
    "Stepped",
    "Tuner",
    "UtilisationDriven",
    "parse_tuner",
    "port_scale",
]

TUNERS: dict[str, type[Tuner]] = {
    kind.name: kind
    for kind in (
        *(EcnSharp, PiMarker, BufferCoupled, Relative),
        *(UtilisationDriven, QueueDriven, HillClimbing),
    )
}
"""Tuners by name."""


def parse_tuner(text: str, topology: Topology | None = None) -> Tuner:
    """A tuner from its short form.

    Args:
        text: a name of `TUNERS`; other constants after a colon, `pi:qref_kb=100,sample_us=50`.
        topology: the network; `buffer` and `relative` need it where there are several switches.

    Raises:
        ValueError: an unknown tuner or constant (with the nearest names), or a bad value.
    """
    name, _, settings = text.strip().lower().partition(":")
    if name not in TUNERS:
        raise unknown_name("tuner", name, TUNERS)
    constants = TUNERS[name].constants()
    values: dict[str, float] = {}
    for part in filter(None, settings.split(",")):
        key, _, value = (piece.strip() for piece in part.partition("="))
        if key not in constants:
            raise unknown_name(f"constant of {name}", key, constants)
        try:
            values[key] = float(value)
        except ValueError:
            raise bad_value(f"{name}: {key}", value, "a number") from None
    tuner = TUNERS[name](**values)
    if isinstance(tuner, Shared) and topology is not None:
        tuner = replace(tuner, port_switch=tuple(int(s) for s in topology.port_switch()))
    return tuner

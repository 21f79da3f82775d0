"""The same networks packet by packet: event-driven, behind the interface of `ecn_marl.sim`.

For evaluation, fine-tuning and truth, not for training at scale: an episode takes seconds.

    env = ecn_marl.parallel_env("restore-serve-v0", backend="packets")
    result = ecn_marl.packets.replay(flows, topology, Settings(ecn=(5, 200, 0.01)))

What happens to a packet is in `hosts` and `switch`, and what an ACK does to its sender in
`senders`; `engine` is the loop over events, `heap` keeps them in order. `records` has all that is
remembered. `simulator` puts it behind the interface of `sim.Simulator`, with traffic from the
sources of `sim` (`arrivals`), and shows the network as a state of `sim` (`view`).

Needs Numba: `pip install 'ecn-marl[packets]'`.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ecn_marl._errors import bad_value

if TYPE_CHECKING:
    from ecn_marl.packets.replaying import replay
    from ecn_marl.packets.simulator import PacketSimulator, PacketState
    from ecn_marl.sim.simulator import Simulator

__all__ = ["PacketSimulator", "PacketState", "packet_simulator", "replay"]

_HOME = {"PacketSimulator": "simulator", "PacketState": "simulator", "replay": "replaying"}


def _module(name: str) -> Any:
    """A module of this package, which needs Numba."""
    if find_spec("numba") is None:
        allowed = "numba to be installed: pip install 'ecn-marl[packets]'"
        raise bad_value("backend", "packets", allowed)
    return import_module(f"ecn_marl.packets.{name}")


def packet_simulator(sim: Simulator, **options: bool) -> PacketSimulator:
    """The packet simulator of a network.

    Args:
        sim: its fluid simulator.
        **options: fields of `PacketSimulator` that a `Simulator` does not have.

    Raises:
        ValueError: settings that packets do not have, see `simulator.refuse`; or Numba is not
            installed.
    """
    made: PacketSimulator = _module("simulator").PacketSimulator.of(sim, **options)
    return made


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Load a public name on first use, so that Numba is asked for only then."""
        if name in _HOME:
            return getattr(_module(_HOME[name]), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

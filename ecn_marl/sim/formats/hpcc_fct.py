"""`fct.txt` of the HPCC simulator, written from a replay, so that its scripts evaluate it.

    SIP DIP SPORT DPORT SIZE START FCT STANDALONE

A line per finished flow, in the order of completion: addresses in hexadecimal, ports, bytes, and
times in ns. Slowdowns there are FCT over STANDALONE.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import numpy as np

from ecn_marl.sim.formats.hpcc_flows import HpccFlows
from ecn_marl.sim.formats.hpcc_topology import node_ids

if TYPE_CHECKING:
    from ecn_marl.sim.replay import Replay

FIRST_PORT = 10_000
"""Port of a host's first flow; the next ones count up."""

NETWORK, PER_256, PER_NODE = 0x0B000001, 0x10000, 0x100
"""Address of node 0, and steps to those of node 256 and 1."""


def address(node: int) -> int:
    """Address of a node."""
    return NETWORK + node // 256 * PER_256 + node % 256 * PER_NODE


def write_fct(result: Replay, flows: HpccFlows, file: io.TextIOBase) -> None:
    """Write a `fct.txt`.

    Args:
        result: a replay of these flows. STANDALONE is the completion time that its slowdowns are
            relative to; that simulator's is `Settings(ideal="standalone")`.
        flows: the flows, with their origin and ports; see `HpccFlows.of` for those of other files.
        file: a text file.
    """
    own, ids = result.flows, np.array(node_ids(result.topology))
    starts = np.argsort(own.start_ns, kind="stable")
    port = np.zeros(len(own), np.int64)
    used: dict[int, int] = {}
    for i in starts:  # ports are given when flows start
        src = int(own.src[i])
        port[i] = FIRST_PORT + used.get(src, 0)
        used[src] = used.get(src, 0) + 1
    done = np.flatnonzero(np.isfinite(result.fct_ns))
    done = done[np.argsort(own.start_ns[done] + result.fct_ns[done], kind="stable")]
    for i in done:
        src, dst = (address(int(ids[end[i]])) for end in (own.src, own.dst))
        start = flows.origin_ns + round(float(own.start_ns[i]))
        ideal = result.fct_ns[i] / result.slowdown[i]
        file.write(
            f"{src:08x} {dst:08x} {port[i]} {flows.port[i]} {own.size[i]} {start} "
            f"{result.fct_ns[i]:.0f} {ideal:.0f}\n"
        )

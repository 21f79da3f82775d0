"""Which regimes of `REGIMES` a configuration is in: there the fluid is known to be off."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from ecn_marl._regimes import REGIMES
from ecn_marl.sim.config import SimConfig
from ecn_marl.sim.traffic.jobs import FlowSets
from ecn_marl.sim.traffic.sizes import HEADER, PAYLOAD

PACKETS = 3.0
"""Packets below which a threshold is one of few packets."""

LONGEST_DT_US = {"dcqcn": 2.0}
"""Substeps up to which senders are true to recorded packets, µs; see `docs/validation.md`."""

HPCC_DT_US = 2.0
"""The substep whose noise stands for that of packets under HPCC, µs."""

RECORDED = ("dcqcn", "dctcp", "hpcc", "timely")
"""Kinds of senders of which there are recorded packet runs."""


MANY = 12
"""Flows that every NIC sends, and every host gets, in a balanced burst."""


def is_balanced(pairs: Sequence[tuple[int, int]]) -> bool:
    """Whether hosts that get many flows at once get as many as they send, each to several hosts.

    Args:
        pairs: source and destination of flows that begin together.
    """
    sent, got = (Counter(pair[i] for pair in pairs) for i in (0, 1))
    spread = Counter(source for source, _ in set(pairs))
    return sent == got and min(sent.values()) >= MANY and min(spread.values()) > 1


def regimes_of(cfg: SimConfig, kmin: float = np.inf) -> list[str]:
    """Names of the regimes that a network, its senders, its clock and its thresholds are in.

    Args:
        cfg: the configuration.
        kmin: lowest Kmin of any port, bytes.
    """
    found: set[str] = set()
    if kmin < PACKETS * (PAYLOAD + HEADER + cfg.transport.header):
        found.add("few-packets")
    for sender in getattr(cfg.transport, "members", (cfg.transport,)):
        if sender.kind not in RECORDED:
            found.add("unrecorded")
        if cfg.dt_us > LONGEST_DT_US.get(sender.kind, np.inf):
            found.add("coarse-clock")
        if sender.kind == "hpcc" and cfg.dt_us != HPCC_DT_US:
            found.add("hpcc-clock")
    if any(is_balanced(x.pairs) for x in cfg.traffic if isinstance(x, FlowSets)):
        found.add("balanced-bursts")
    if not cfg.pfc:
        found.add("losses")
    return [row.name for row in REGIMES if row.name in found]

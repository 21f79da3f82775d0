"""Closed forms of steady states that only tests compare with: Swift and ADPG at one bottleneck."""

from __future__ import annotations

import math
from typing import NamedTuple


class RateFixedPoint(NamedTuple):
    """Steady state of ADPG: rate of every flow over line rate, RTT over base RTT."""

    rate: float
    inflation: float


def swift_target(
    cwnd: float,
    hops: int,
    base: float,
    per_hop: float,
    fs_range: float,
    fs_min: float = 0.1,
    fs_max: float = 100.0,
) -> float:
    """Target delay of Swift with topology and flow scaling, µs (Kumar et al., SIGCOMM'20).

    `base + hops per_hop + clip(A / sqrt(cwnd) + B, 0, fs_range)` with `A` and `B` such that the
    last term is `fs_range` at `fs_min` packets and 0 at `fs_max`.

    Args:
        cwnd: window, packets.
        hops: switches on the path.
        base: target for no hops and large windows, µs.
        per_hop: more for each hop, µs.
        fs_range: most that flow scaling adds, µs.
        fs_min: window with the full addition, packets.
        fs_max: window with none, packets.
    """
    least = fs_max**-0.5
    scaling = fs_range * (cwnd**-0.5 - least) / (fs_min**-0.5 - least)
    return base + hops * per_hop + min(max(scaling, 0.0), fs_range)


def adpg_fixed_point(target: float, n: int) -> RateFixedPoint:
    """Steady state of flows that hold `inflation sqrt(rate)` at a target (ADPG, many to one).

    The reward `-(target - inflation sqrt(rate))²` is largest, for all flows at once, at equal rates
    `1 / n` and an RTT inflation of `target sqrt(n)`. An inflation below 1 is impossible: for
    `target < 1 / sqrt(n)` every flow stops at the rate `target²`, and the link is not full.

    Args:
        target: of the product.
        n: flows.
    """
    return RateFixedPoint(min(1.0 / n, target * target), max(target * math.sqrt(n), 1.0))

"""Flows whose bytes are on several paths at once, `SimConfig.load_balancing`.

With `ecmp` a flow has one way. With `spray` its bytes are spread evenly over all its equal-cost
paths (Dixit et al., INFOCOM'13, in the limit of small packets), with `flowlet` new bytes take one
path while older ones may still drain on another. The rows of `Flows.hop`, `backlog`, `due` and
`left` are levels times ways, `[L W, F]`: the `W` ways of the first level, then those of the second.
A way that is not in use has no queue at any level.

The queues do not know of ways: a level serves `W F` amounts of fluid, one way after the other.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Shaped

ECMP, FLOWLET, SPRAY = "ecmp", "flowlet", "spray"
BALANCINGS = (ECMP, FLOWLET, SPRAY)
"""Ways to choose among equal-cost paths."""

MAX_MARK = 1.0 - 2.0**-20
"""Largest marking probability per packet that is sampled; keeps the log-survival finite."""


def level(rows: Shaped[Array, "rows flows"], i: int, ways: int) -> Shaped[Array, " n"]:
    """Rows of level `i`, one way after the other, `[W F]`."""
    return rows[i] if ways == 1 else rows[i * ways : (i + 1) * ways].reshape(-1)


def per_way(values: Shaped[Array, " flows"], ways: int) -> Shaped[Array, " n"]:
    """A value of each flow for each of its ways, `[W F]`."""
    return values if ways == 1 else jnp.tile(values, ways)


def total(values: Float[Array, " n"], ways: int) -> Float[Array, " flows"]:
    """Sum over the ways of each flow, `[F]`."""
    return values if ways == 1 else values.reshape(ways, -1).sum(0)


def stacked(levels: list[Shaped[Array, " n"]], ways: int) -> Shaped[Array, "rows flows"]:
    """Rows of all levels, from those of each; the inverse of `level`."""
    rows = jnp.stack(levels)
    return rows if ways == 1 else rows.reshape(len(levels) * ways, -1)


def meetings(hop: Int[Array, " n"], ways: int) -> Float[Array, "ways ways flows"] | None:
    """1 where two ways of a flow have the same queue at a level, else 0; None with one way.

    Args:
        hop: queue of every way at the level, `[W F]`.
        ways: number of ways.
    """
    if ways == 1:
        return None
    rows = hop.reshape(ways, -1)
    return (rows[:, None] == rows).astype(jnp.result_type(float))


def together(
    values: Float[Array, " n"], meeting: Float[Array, "ways ways flows"] | None
) -> Float[Array, " n"]:
    """Sum over the ways of a flow that meet in a queue, for each way, `[W F]`.

    Args:
        values: a number of every way, `[W F]`.
        meeting: see `meetings`.
    """
    if meeting is None:
        return values
    return (meeting * values.reshape(meeting.shape[0], 1, -1)).sum(0).reshape(-1)


def longest(
    values: Float[Array, "rows flows"], ways: int, used: Bool[Array, "ways flows"] | None = None
) -> Float[Array, " flows"]:
    """Sum along each way, and the largest of those sums among the ways in use, `[F]`.

    Args:
        values: at least 0, of every level and way, `[L W, F]`.
        ways: number of ways.
        used: which count, None for all.
    """
    if ways == 1:
        return values.sum(0)
    sums = values.reshape(-1, ways, values.shape[-1]).sum(0)
    return (sums if used is None else jnp.where(used, sums, 0.0)).max(0)


def shares(
    hop: Int[Array, "rows flows"], ways: int, balancing: str, last: int
) -> Float[Array, "ways flows"] | None:
    """Share of each way in the bytes that its flow sends, `[W, F]`; None with one way.

    Args:
        hop: queue at every level of every way, see `Flows.hop`.
        ways: number of ways.
        balancing: one of `BALANCINGS`.
        last: number of queues at the last level, which stands for none there.
    """
    if ways == 1:
        return None
    real = jnp.result_type(float)
    if balancing == FLOWLET:
        first = jnp.arange(ways)[:, None] == 0
        return jnp.broadcast_to(first, (ways, hop.shape[1])).astype(real)
    used = (hop[-ways:] < last).astype(real)
    return used / jnp.maximum(used.sum(0), 1.0)


def crossings(
    ports: Int[Array, "rows flows"], sizes: list[int], ways: int, balancing: str
) -> list[Int[Array, " n"]]:
    """Port of every flow and way at each level, each port of a flow once, `[W F]` per level.

    Of flowlets only the way of new bytes counts.

    Args:
        ports: port at every level of every way, counted within the level.
        sizes: number of ports of each level, which stands for none.
        ways: number of ways.
        balancing: one of `BALANCINGS`.
    """
    if ways == 1:
        return list(ports)
    crossed = []
    for i, n in enumerate(sizes):
        level_ports = ports[i * ways : (i + 1) * ways]
        flowlets = balancing == FLOWLET
        repeated = [
            (level_ports[:k] == level_ports[k]).any(0) | (flowlets and k > 0) for k in range(ways)
        ]
        crossed.append(jnp.where(jnp.stack(repeated), n, level_ports).reshape(-1))
    return crossed


class Joined(NamedTuple):
    """Values of each flow over all its ways, `[F]`; names as in `hops.Moved`."""

    out: Float[Array, " flows"]
    log_survival: Float[Array, " flows"]
    wait: Float[Array, " flows"]


def slowest(
    values: Float[Array, " n"], share: Float[Array, "ways flows"] | None
) -> Float[Array, " flows"]:
    """Largest value of the ways that new bytes of a flow take, `[F]`.

    Args:
        values: at least 0, of each way, `[W F]`.
        share: share of each way, see `shares`; None with one way.
    """
    if share is None:
        return values
    return jnp.where(share > 0, values.reshape(share.shape), 0.0).max(0)


def joined(by_way: Joined, share: Float[Array, "ways flows"] | None) -> Joined:
    """Join the ways of each flow.

    A message is complete when the last byte of its slowest way arrives: `wait` is the largest of
    the ways that new bytes take. The marking probability is the mean over the bytes delivered.

    Args:
        by_way: leaves `[W F]`.
        share: share of each way, see `shares`; None with one way.
    """
    if share is None:
        return by_way

    def rows(x: Float[Array, " n"]) -> Float[Array, "ways flows"]:
        return x.reshape(share.shape)

    delivered = rows(by_way.out)
    out = delivered.sum(0)
    # The floor is large enough for derivatives in float32, as in `queues`.
    weight = jnp.where(out > 0, delivered / jnp.maximum(out, 1e-15), share)
    marked = (weight * -jnp.expm1(-rows(by_way.log_survival))).sum(0)
    return Joined(
        out=out,
        log_survival=-jnp.log1p(-jnp.minimum(marked, MAX_MARK)),
        wait=slowest(by_way.wait, share),
    )

"""Links between hosts and switches, and the checks that a list of them has to pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ecn_marl._errors import bad_value


@dataclass(frozen=True)
class Link:
    """One full-duplex link between two nodes.

    Attributes:
        a: name of one end.
        b: name of the other end.
        gbps: rate of each direction, Gb/s.
        delay_us: one-way propagation delay, µs.
    """

    a: str
    b: str
    gbps: float
    delay_us: float


def adjacency(
    hosts: Sequence[str], switches: Sequence[str], links: Sequence[Link]
) -> dict[str, list[str]]:
    """The nodes that each node has a link to, each once.

    Raises:
        ValueError: see `topology.from_links`.
    """
    neighbours: dict[str, list[str]] = {n: [] for n in (*hosts, *switches)}
    for node, count in Counter((*hosts, *switches)).items():
        if count > 1:
            raise bad_value("node name", node, "a name of its own for every host and switch")
    for ln in links:
        for end in (ln.a, ln.b):
            if end not in neighbours:
                raise bad_value("link end", end, "the name of a host or switch")
        if not ln.gbps > 0:
            raise bad_value("gbps", ln.gbps, "a rate > 0 Gb/s")
        if not ln.delay_us >= 0:
            raise bad_value("delay_us", ln.delay_us, "a delay >= 0 µs")
        if ln.b == ln.a:
            raise bad_value("link", (ln.a, ln.b), "two different nodes")
        neighbours[ln.a].append(ln.b)
        neighbours[ln.b].append(ln.a)
    known = set(switches)
    for h in hosts:
        if len(neighbours[h]) != 1 or neighbours[h][0] not in known:
            raise bad_value(f"links of {h}", neighbours[h], "exactly one link, to a switch")
    return {node: list(dict.fromkeys(ends)) for node, ends in neighbours.items()}


Rates = float | Sequence[float]
"""One rate for all hosts, or one for each, Gb/s."""


def each(names: Sequence[str], gbps: Rates) -> list[tuple[str, float]]:
    """Hosts and their rates."""
    rates = [float(gbps)] * len(names) if isinstance(gbps, int | float) else list(gbps)
    if len(rates) != len(names):
        raise bad_value("gbps", f"{len(rates)} rates", f"one rate, or one for each of {len(names)}")
    return list(zip(names, rates, strict=True))


def at_least(field: str, value: int, low: int) -> None:
    """Refuse a number below the lowest one allowed."""
    if value < low:
        raise bad_value(field, value, f"an integer >= {low}")

"""Links between hosts and switches, and checks of lists of links."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from ecn_marl._checks import Real, Whole, check, check_value
from ecn_marl._errors import bad_value
from ecn_marl._memory import in_words
from ecn_marl.errors import TooLarge

RATE = Real(above=0.0, high=1e5, unit="Gb/s")
"""Allowed rates of a link."""

DELAY = Real(low=0.0, high=1e6, unit="µs")
"""Allowed one-way delays of a link: up to a second."""


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
    gbps: Annotated[float, RATE]
    delay_us: Annotated[float, DELAY]


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
    for link in links:
        check(link)
        for end in (link.a, link.b):
            if end not in neighbours:
                raise bad_value("link end", end, "the name of a host or switch")
        if link.b == link.a:
            raise bad_value("link", (link.a, link.b), "two different nodes")
        neighbours[link.a].append(link.b)
        neighbours[link.b].append(link.a)
    switch_names = set(switches)
    for host in hosts:
        if len(neighbours[host]) != 1 or neighbours[host][0] not in switch_names:
            raise bad_value(f"links of {host}", neighbours[host], "exactly one link, to a switch")
    # Parallel links lead to one neighbour; unlike a set, `dict.fromkeys` keeps the order.
    return {node: list(dict.fromkeys(ends)) for node, ends in neighbours.items()}


Rates = float | Sequence[float]
"""One rate for all hosts, or one for each, Gb/s."""


def host_rates(names: Sequence[str], gbps: Rates) -> list[tuple[str, float]]:
    """Hosts and their rates."""
    if isinstance(gbps, Sequence | np.ndarray) and not isinstance(gbps, str):
        rates = list(gbps)
    else:
        check_value("gbps", gbps, RATE)
        rates = [float(gbps)] * len(names)
    if len(rates) != len(names):
        raise bad_value("gbps", f"{len(rates)} rates", f"one rate, or one for each of {len(names)}")
    return list(zip(names, rates, strict=True))


MOST_LINKS = 2**20
"""Links of a network; hosts have one each."""

LINK_BYTES = 1500.0
"""Memory of a link while a network is built, bytes: names, ports, and tables of neighbours."""


def check_links(topology: str, links: int) -> None:
    """Refuse a network that would take hours to build, before its first name is made.

    Raises:
        TooLarge: it has more than `MOST_LINKS`.
    """
    if links > MOST_LINKS:
        size = in_words(LINK_BYTES * links)
        allowed = f"at most {MOST_LINKS:,} links: these {links:,} would take about {size}"
        raise TooLarge("topology", topology, allowed)


def at_least(field: str, value: int, low: int) -> None:
    """Refuse a value that is no integer, or below the lowest one allowed."""
    check_value(field, value, Whole(low=low))

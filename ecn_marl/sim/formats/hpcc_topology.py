"""`topology.txt` of the HPCC simulator and ConWeave's.

    NODES SWITCHES LINKS
    ids of the switches ...
    SRC DST RATE DELAY ERROR_RATE      one line per link, e.g. 0 320 100Gbps 1000ns 0.000000

Nodes are numbered from 0; those that are no switches are hosts. Lines beyond the last link are not
read, as that simulator does not: its own file ends with more links and a legend.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from ecn_marl._errors import bad_value
from ecn_marl.errors import InvalidInput
from ecn_marl.sim.formats.lines import (
    TOPOLOGY,
    check_kind,
    microseconds,
    number,
    ordinal,
    plain,
    rate,
    text_lines,
    whole,
)
from ecn_marl.sim.network.links import DELAY, MOST_LINKS, RATE, Link
from ecn_marl.sim.network.topology import Topology, from_links
from ecn_marl.sim.traffic.trace import Place

FORM = "SRC DST RATE DELAY ERROR_RATE, e.g. 0 320 100Gbps 1000ns 0"
"""A link, in words."""


class Row(NamedTuple):
    """A link between two nodes: rate in Gb/s, delay in µs, share of packets that are lost."""

    src: int
    dst: int
    gbps: float
    delay_us: float
    loss: float = 0.0


@dataclass(frozen=True)
class HpccTopology:
    """What a `topology.txt` says.

    Attributes:
        nodes: number of nodes.
        switches: nodes that are switches, in the order of the file.
        links: links, in the order of the file.
        unread: lines of the file beyond the last link.
    """

    nodes: int
    switches: tuple[int, ...]
    links: tuple[Row, ...]
    unread: int = field(default=0, compare=False)

    @staticmethod
    def of(topology: Topology) -> HpccTopology:
        """The links of a network, to be written.

        Hosts have the numbers of `node_ids`, as in lists of flows. Switches have those in their
        names if the network was read from such a file, and otherwise what is left, in order.

        Raises:
            ValueError: a link has two rates or delays, one for each direction.
        """
        ids = _numbers(topology)
        nics = zip(topology.hosts, topology.nic_gbps, topology.nic_delay_us, strict=True)
        ends = {port.peer: port.switch for port in topology.ports}
        rows = {
            (host, ends[host], 0): Row(ids[host], ids[ends[host]], speed, delay)
            for host, speed, delay in nics
        }
        for port in topology.ports:
            back = rows.get((port.peer, port.switch, port.link))
            row = Row(ids[port.switch], ids[port.peer], port.gbps, port.delay_us)
            if back is None:
                rows[port.switch, port.peer, port.link] = row
            elif back[2:] != row[2:]:
                values = (back.gbps, row.gbps), (back.delay_us, row.delay_us)
                raise bad_value(f"link {port.name}", values, "one rate and delay both ways")
        switches = tuple(ids[name] for name in topology.switches)
        return HpccTopology(len(ids), switches, tuple(rows.values()))

    def topology(self, name: str = "topology.txt") -> Topology:
        """The network; node `i` is `host{i}` or `switch{i}`.

        Args:
            name: name of the network.

        Raises:
            ValueError: this is no network that can be simulated, see `from_links`.
        """
        switches = set(self.switches)
        names = [f"switch{i}" if i in switches else f"host{i}" for i in range(self.nodes)]
        hosts = [names[i] for i in range(self.nodes) if i not in switches]
        links = [Link(names[r.src], names[r.dst], r.gbps, r.delay_us) for r in self.links]
        return from_links(name, hosts, [names[i] for i in sorted(switches)], links)


def node_ids(topology: Topology) -> tuple[int, ...]:
    """Number of every host in files, the same in all of them.

    It is the one in its name if all hosts have one, and below the number of nodes; else its
    position.
    """
    found = [re.fullmatch(r"\D*(\d+)", name) for name in topology.hosts]
    ids = tuple(int(match[1]) for match in found if match)
    fits = len(set(ids)) == topology.n_hosts and max(ids) < topology.n_hosts + topology.n_switches
    return ids if fits else tuple(range(topology.n_hosts))


def _numbers(topology: Topology) -> dict[str, int]:
    """Number of every node by its name; switches have those in their names, or what is left."""
    hosts = node_ids(topology)
    left = [i for i in range(topology.n_hosts + topology.n_switches) if i not in set(hosts)]
    found = [re.fullmatch(r"switch(\d+)", name) for name in topology.switches]
    named = [int(match[1]) for match in found if match]
    switches = named if sorted(named) == left else left
    names = (*topology.hosts, *topology.switches)
    return dict(zip(names, (*hosts, *switches), strict=True))


def read_topology(path: str | Path) -> HpccTopology:
    """Read a `topology.txt`.

    Raises:
        InvalidInput: a file of another kind, a line that is no link, a node that is not there, a
            host with several links, or fewer links than the first line says; the message names the
            file, the line, and what is expected.
        OSError: the file cannot be opened.
    """
    path = Path(path)
    check_kind(path, TOPOLOGY, "numbers of nodes, switches and links")
    lines = text_lines(path)
    place, words = next(lines)
    columns = ("number of nodes", "number of switches", "number of links")
    nodes, n_switches, n_links = (whole(place, *pair) for pair in zip(columns, words, strict=True))
    for column, value in zip(columns, (nodes, n_switches, n_links), strict=True):
        if value > MOST_LINKS:
            raise place.error(column, value, f"at most {MOST_LINKS}")
    switches = _switches(lines, place, nodes, n_switches)
    links: list[Row] = []
    to_host: dict[int, int] = {}
    unread = 0
    for place, words in lines:
        if len(links) == n_links:
            unread += 1
            continue
        link = _link(place, words, nodes)
        for end, other in ((link.src, link.dst), (link.dst, link.src)):
            if end in switches:
                continue
            if other not in switches:
                raise place.error("link", f"{link.src} {link.dst}", "a switch at one of its ends")
            if end in to_host:
                allowed = f"one link per host; host {end} has one in line {to_host[end]}"
                raise place.error("link", f"{link.src} {link.dst}", allowed)
            to_host[end] = place.line
        links.append(link)
    if len(links) < n_links:
        allowed = f"no more than there are below: {len(links)}"
        raise Place(path, _first_line(path)).error("number of links", n_links, allowed)
    alone = [i for i in range(nodes) if i not in switches and i not in to_host]
    if alone:
        raise InvalidInput(f"{path}: host {alone[0]} has no link; expected one link per host")
    return HpccTopology(nodes, tuple(switches), tuple(links), unread)


def _first_line(path: Path) -> int:
    """Number of the first line with content."""
    return next(text_lines(path))[0].line


def _switches(
    lines: Iterator[tuple[Place, list[str]]], place: Place, nodes: int, count: int
) -> dict[int, int]:
    """The switches and the lines that they are named in; the list may have several lines."""
    found: dict[int, int] = {}
    while len(found) < count:
        place, words = next(lines, (place, []))
        if not words or len(found) + len(words) > count:
            raise place.error("switches", " ".join(words), f"the numbers of {count} nodes")
        for word in words:
            node = _node(place, "switch", word, nodes)
            if node in found:
                raise place.error("switch", word, "every switch only once")
            found[node] = place.line
    return found


def _node(place: Place, column: str, word: str, nodes: int) -> int:
    """A word as the number of a node."""
    if not 0 <= ordinal(word) < nodes:
        raise place.error(column, word, f"the number of a node, 0 to {nodes - 1}")
    return ordinal(word)


def _link(place: Place, words: list[str], nodes: int) -> Row:
    """A line as a link."""
    if len(words) != 5:
        raise place.error("link", " ".join(words), FORM)
    src, dst = (_node(place, *x, nodes) for x in zip(("SRC", "DST"), words[:2], strict=True))
    if src == dst:
        raise place.error("link", " ".join(words), "two different nodes")
    speed = float(rate(place, "RATE", words[2]) / 10**9)
    delay = microseconds(place, "DELAY", words[3])
    if not RATE.fits(speed):
        raise place.error("RATE", words[2], RATE.allowed)
    if not DELAY.fits(delay):
        raise place.error("DELAY", words[3], DELAY.allowed)
    share = "a share of packets from 0 to 1"
    loss = number(place, "ERROR_RATE", words[4], share)
    if loss > 1:
        raise place.error("ERROR_RATE", words[4], share)
    return Row(src, dst, speed, delay, float(loss))


def write_topology(topology: HpccTopology | Topology, file: io.TextIOBase) -> None:
    """Write a `topology.txt`.

    Args:
        topology: what to write; of a network see `HpccTopology.of`.
        file: a text file.

    Raises:
        ValueError: a link of the network has two rates or delays.
    """
    net = HpccTopology.of(topology) if isinstance(topology, Topology) else topology
    head = [f"{net.nodes} {len(net.switches)} {len(net.links)}", " ".join(map(str, net.switches))]
    rows = (
        f"{r.src} {r.dst} {plain(r.gbps)}Gbps {plain(r.delay_us)}us {plain(r.loss)}"
        for r in net.links
    )
    file.writelines(f"{line}\n" for line in chain(head, rows))

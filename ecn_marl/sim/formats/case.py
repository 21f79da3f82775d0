"""The files of an experiment read together: flows, network, and configuration."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ecn_marl.errors import InvalidInput
from ecn_marl.sim.formats import hpcc_flows
from ecn_marl.sim.formats.hpcc_config import read_config
from ecn_marl.sim.formats.hpcc_flows import HpccFlows
from ecn_marl.sim.formats.hpcc_senders import senders
from ecn_marl.sim.formats.hpcc_topology import read_topology
from ecn_marl.sim.formats.lines import CSV, FLOWS, UNKNOWN, kind_of, text_lines
from ecn_marl.sim.network.topology import Topology, is_shape, parse_topology
from ecn_marl.sim.traffic import trace


@dataclass(frozen=True)
class Case:
    """An experiment.

    Attributes:
        hpcc: the flows, with what only files of the HPCC simulator say.
        topology: the network.
        settings: fields of `replay.Settings` that the files fix.
        notes: what was read, and what is not simulated, a line each; empty for files of this
            package.
    """

    hpcc: HpccFlows
    topology: Topology
    settings: dict[str, Any]
    notes: tuple[str, ...]

    @property
    def flows(self) -> trace.FlowList:
        """The flows."""
        return self.hpcc.flows


def is_file(topology: str) -> bool:
    """Whether a topology is named by a file: what is no shape, and looks like a path or is one."""
    path = Path(topology)
    return not is_shape(topology) and bool(path.suffix or os.sep in topology or path.is_file())


def read_case(
    flows: str | Path,
    topology: str | Path,
    config: str | Path | None = None,
    *,
    gbps: float = 25.0,
    uplink_gbps: float = 100.0,
    delay_us: float = 1.0,
) -> Case:
    """Read the files of an experiment; each is recognised by its content.

    Args:
        flows: a CSV file, see `sim.traffic.trace`, or a `flow.txt`, see `hpcc_flows`.
        topology: a short form, see `parse_topology`, or a `topology.txt`, see `hpcc_topology`.
        config: a `config.txt`, see `hpcc_config`; None for none.
        gbps: rate of the links of hosts of a short form, Gb/s.
        uplink_gbps: the same of links between switches.
        delay_us: one-way delay of all its links, µs.

    Raises:
        ValueError: a file of another kind, or a line that is not allowed; names the file, the line,
            and what is expected.
        OSError: a file cannot be opened.
    """
    notes: list[str] = []
    if is_file(str(topology)):
        network = _network(Path(topology), notes)
    else:
        network = parse_topology(
            str(topology), gbps=gbps, uplink_gbps=uplink_gbps, delay_us=delay_us
        )
    rows = _flows(Path(flows), network, notes)
    settings: dict[str, Any] = {}
    if config is not None:
        file = read_config(config)
        found = senders(file, min(network.nic_gbps))
        settings = {"transport": found.transport, **file.settings(network, rows.origin_ns)}
        notes += [f"{config}: {note}" for note in (found.note, *file.left_out())]
    return Case(rows, network, settings, tuple(notes))


def _network(path: Path, notes: list[str]) -> Topology:
    """The network of a `topology.txt`."""
    file = read_topology(path)
    try:
        network = file.topology(path.name)
    except InvalidInput as error:
        raise InvalidInput(f"{path}: {error}") from None
    unread = f"; {file.unread} lines beyond the last link are not read" if file.unread else ""
    notes.append(
        f"{path}: topology of the HPCC simulator, hosts {network.n_hosts}, switches "
        f"{network.n_switches}, links {len(file.links)}{unread}"
    )
    lossy = [link.loss for link in file.links if link.loss]
    if lossy:
        worst = f"ERROR_RATE up to {max(lossy):g}, links with it {len(lossy)}"
        notes.append(f"{path}: not simulated: random loss ({worst})")
    return network


def _flows(path: Path, network: Topology, notes: list[str]) -> HpccFlows:
    """The flows of a file of either kind."""
    kind = kind_of(path)
    if kind == FLOWS:
        rows = hpcc_flows.read_flows(path, network)
        unread = f"; {rows.unread} lines beyond the last flow are not read" if rows.unread else ""
        notes.append(
            f"{path}: flow list of the HPCC simulator, flows {len(rows.flows)}, time 0 is "
            f"{rows.origin_ns / 1e9:g} s{unread}"
        )
        groups = np.unique(rows.group)
        if len(groups) > 1:
            numbers = ", ".join(str(group) for group in groups)
            notes.append(f"{path}: not simulated: priority groups (PG {numbers}); all are in one")
        return rows
    if kind not in (CSV, UNKNOWN):
        place, words = next(text_lines(path))
        allowed = f"the columns of a CSV file, or the number of flows alone; this is {kind}"
        raise place.error("first line", " ".join(words), allowed)
    return HpccFlows.of(trace.read_flows(path, network))

"""Thresholds of a policy, rule or table as the configuration of a switch: SONiC or Cumulus Linux.

What is written is what a switch would have set in one episode. Thresholds that never change are one
profile for all ports that share them. Thresholds that change are a profile for each such group of
ports, and the changes that follow, each at its time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ecn_marl._checks import Whole, check_value
from ecn_marl._errors import bad_value, unknown_name
from ecn_marl._files import json_text
from ecn_marl.errors import InvalidInput
from ecn_marl.experiments.evaluation import evaluate
from ecn_marl.experiments.policies import arena, resolve
from ecn_marl.sim.formats import nvue, sonic
from ecn_marl.sim.formats.wred import LARGEST_CELL, WredProfile

if TYPE_CHECKING:
    import pandas as pd

SONIC, NVUE = "sonic", "nvue"
SYSTEMS = (SONIC, NVUE)

COLUMNS = ("port", "kmin_bytes", "kmax_bytes", "pmax")
"""Columns of a table of thresholds; `start_us` is a further one, if they change."""

NAME = "ECN_MARL_{}"
"""Names of profiles, numbered from 0."""

QUEUES = 8
"""Queues of a port of a switch."""


@dataclass(frozen=True)
class SwitchOptions:
    """How thresholds are written.

    Attributes:
        system: `sonic` or `nvue`.
        cell: buffer cell of the switch, bytes; thresholds are multiples of it.
        queue: queue or traffic class that marks.
        interfaces: names of the switch's ports there, in the order of its ports here; empty to
            write profiles only.
    """

    system: str = SONIC
    cell: int = 1
    queue: int = 3
    interfaces: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check all fields."""
        if self.system not in SYSTEMS:
            raise unknown_name("system", self.system, SYSTEMS)
        check_value("cell", self.cell, Whole(low=1, high=LARGEST_CELL, unit="bytes"))
        check_value("queue", self.queue, Whole(low=0, high=QUEUES - 1))
        twice = [x for x in self.interfaces if self.interfaces.count(x) > 1]
        if twice:
            raise bad_value("interfaces", twice[0], "each of them once")


@dataclass(frozen=True)
class Group:
    """Ports of a switch that have the same thresholds at all times.

    Attributes:
        name: of their profile.
        ports: their names.
        at_us: times from which profiles are in force, the first 0.
        profiles: the profile from each of these times.
    """

    name: str
    ports: tuple[str, ...]
    at_us: tuple[float, ...]
    profiles: tuple[WredProfile, ...]


def read_table(path: Path) -> pd.DataFrame:
    """Thresholds from a CSV file with `COLUMNS`, and `start_us` if they change.

    Raises:
        InvalidInput: a column is missing, or the file cannot be read.
        OSError: it cannot be opened.
    """
    import pandas as pd

    try:
        frame = pd.read_csv(path)
    except (ValueError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path}: not a CSV file: {error}") from None
    for name in COLUMNS:
        if name not in frame:
            raise bad_value(f"{path}: columns", ",".join(frame), f"a column {name}")
    if "start_us" not in frame:
        frame["start_us"] = 0.0
    return frame


def thresholds(
    policy: str,
    switch: str | None,
    scenario: str | None,
    seed: int,
    checkpoint: str,
    options: Mapping[str, Any],
) -> tuple[pd.DataFrame, list[str]]:
    """What a policy sets in an episode, and the ports of a switch in their order.

    Args:
        policy: its name, or a CSV file, see `read_table`.
        switch: name of the switch; None for the only one.
        scenario: see `evaluation.evaluate`.
        seed: which episode.
        checkpoint: which policy of a run.
        options: options of `ecn_marl.make`.

    Returns:
        A table with `COLUMNS` and `start_us`, and names of ports, `SWITCH->PEER`.

    Raises:
        ValueError: see `evaluation.evaluate` and `read_table`; a scenario or options with a file;
            no such switch, or several and none is named.
    """
    if policy.lower().endswith(".csv"):
        given = {"scenario": scenario, "env": options or None}
        for name, value in given.items():
            if value is not None:
                raise bad_value(name, value, f"none: {policy} has the thresholds")
        frame = read_table(Path(policy))
        return frame, _of_switch([str(port) for port in frame["port"].unique()], switch)
    named = resolve(policy)
    topology = arena([named], scenario, **options).env(named).sim.topology
    ports = _of_switch([port.name for port in topology.ports], switch)
    result = evaluate(
        [policy],
        scenario,
        episodes=1,
        seed=seed,
        checkpoint=checkpoint,
        allow_flagged=True,
        **options,
    )
    return result.ports, ports


def _of_switch(ports: Sequence[str], switch: str | None) -> list[str]:
    """The ports of a switch; None for the only one."""
    switches = list(dict.fromkeys(port.partition("->")[0] for port in ports))
    if switch is None and len(switches) > 1:
        allowed = f"the name of one of the switches {', '.join(switches)}"
        raise bad_value("switch", None, allowed)
    if switch is not None and switch not in switches:
        raise unknown_name("switch", switch, switches)
    return [port for port in ports if port.partition("->")[0] == (switch or switches[0])]


def groups_of(frame: pd.DataFrame, ports: Sequence[str], cell: int = 1) -> list[Group]:
    """Ports that share their thresholds at all times, and those as profiles.

    Args:
        frame: rows with `COLUMNS` and `start_us`.
        ports: the ports, in the order of the switch.
        cell: buffer cell, bytes.

    Raises:
        ValueError: no row for a port, thresholds that are none, or several rows of one time.
    """
    found: dict[tuple[Any, ...], list[str]] = {}
    for port in ports:
        rows = frame[frame["port"] == port].sort_values("start_us", kind="stable")
        if rows.empty:
            raise bad_value("port", port, "rows of this port in the table of thresholds")
        times = rows["start_us"].to_numpy(float)
        if (np.diff(times) <= 0.0).any():
            raise bad_value("start_us", port, "one row of each time; is it more than one episode?")
        values = rows[list(COLUMNS[1:])].to_numpy(float)
        profiles = [WredProfile.of(kmin, kmax, pmax, cell) for kmin, kmax, pmax in values.tolist()]
        kept = [i for i in range(len(profiles)) if i == 0 or profiles[i] != profiles[i - 1]]
        starts = tuple(float(times[i] - times[0]) for i in kept)
        found.setdefault((starts, tuple(profiles[i] for i in kept)), []).append(port)
    return [
        Group(NAME.format(i), tuple(names), starts, profiles)
        for i, ((starts, profiles), names) in enumerate(found.items())
    ]


def configuration(groups: Sequence[Group], ports: Sequence[str], options: SwitchOptions) -> str:
    """The text of the file: profiles, the ports that use them, and changes with their times.

    Of SONiC it is a JSON patch if nothing changes. Otherwise it is a list of objects with `at_us`
    and `patch`, in the order in which to apply them. Of NVUE they are commands, and times are
    comments.

    Args:
        groups: groups of all ports of a switch.
        ports: the ports, in the order of the switch.
        options: how it is written.

    Raises:
        ValueError: not as many interfaces as ports.
    """
    if options.interfaces and len(options.interfaces) != len(ports):
        allowed = f"{len(ports)} names, for {', '.join(ports)}"
        raise bad_value("interfaces", ",".join(options.interfaces), allowed)
    interface = dict(zip(ports, options.interfaces, strict=bool(options.interfaces)))
    changes = sorted(
        (group.at_us[i], number, i)
        for number, group in enumerate(groups)
        for i in range(1, len(group.at_us))
    )
    write = _sonic if options.system == SONIC else _nvue
    return write(groups, interface, changes, options)


Changes = list[tuple[float, int, int]]
"""Time, number of the group, and number of its profile."""


def _sonic(
    groups: Sequence[Group], interface: dict[str, str], changes: Changes, options: SwitchOptions
) -> str:
    first = [op for group in groups for op in sonic.added(group.name, group.profiles[0])]
    for group in groups:
        for port in group.ports:
            if interface:
                first += sonic.bound(interface[port], options.queue, group.name)
    if not changes:
        return json_text(first) + "\n"
    steps: list[dict[str, Any]] = [{"at_us": 0.0, "patch": first}]
    for at_us, number, i in changes:
        group = groups[number]
        patches = sonic.changed(group.name, *group.profiles[i - 1 : i + 1])
        steps += [{"at_us": at_us, "patch": patch} for patch in patches]
    return json_text(steps) + "\n"


def _nvue(
    groups: Sequence[Group], interface: dict[str, str], changes: Changes, options: SwitchOptions
) -> str:
    lines = [x for g in groups for x in nvue.added(g.name, options.queue, g.profiles[0])]
    for group in groups:
        lines += [nvue.bound(interface[port], group.name) for port in group.ports if interface]
    lines.append(nvue.APPLY)
    last = 0.0
    for at_us, number, i in changes:
        group = groups[number]
        if at_us != last:
            lines += [*([nvue.APPLY] if last else []), f"# at {at_us:g} us"]
            last = at_us
        lines += nvue.changed(group.name, options.queue, *group.profiles[i - 1 : i + 1])
    if changes:
        lines.append(nvue.APPLY)
    return "\n".join(lines) + "\n"

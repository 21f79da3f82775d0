"""Leaf-spine fabric: completion times of recorded flow lists, by size class."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import combinations
from typing import NamedTuple

import numpy as np
from scipy.stats import kendalltau
from scipy.stats import t as student_t

from ecn_marl.validation import recorded
from ecn_marl.validation.lines import Basis, Case, Line, Outcome, Slowdowns, Tolerance, lines_of
from ecn_marl.validation.runs import Clock, Samples, has_senders, simulate
from ecn_marl.validation.substeps import scenario_clock

SEEDS = 3


class Recorded(NamedTuple):
    """A recorded flow list.

    Attributes:
        sizes: flow-size table.
        load: load, as in the table of queues.
        longest_ms: simulated time at most.
        slots: flows in progress at most; the recorded runs had up to 149, 34 and 52.
        basis: whether it was used during development.
    """

    sizes: str
    load: str
    longest_ms: float
    slots: int
    basis: Basis


LISTS = {
    "websearch-60": Recorded("WebSearch", "0.6", 140.0, 176, "tuned"),
    "websearch-30": Recorded("WebSearch", "0.3", 100.0, 64, "independent"),
    "fbhdp-30": Recorded("FbHdp", "0.3", 50.0, 80, "independent"),
}

MEAN, P99 = Tolerance(relative=0.04), Tolerance(relative=0.10)
SCENARIO_P99 = Tolerance(relative=0.12)
GROUP, SCENARIO_GROUP = "leaf-spine", "leaf-spine, scenario clock"
RANK = Tolerance(absolute=0.1)
OTHER_MEAN = Tolerance(relative=0.10)

CLASSES = {"≤100KB": (0, 1e5), "≤1MB": (1e5, 1e6), ">1MB": (1e6, np.inf)}
"""Payloads above the first bound, up to the second."""


def cases() -> Iterator[Case]:
    """One case per flow list and kind of sender."""
    for name in LISTS:
        for profile, cost in (("run", 30.0), ("paper", 9.0)):
            work = partial(_slowdowns, name, profile)
            quick = (name, profile) == ("websearch-60", "paper")
            yield Case(f"leaf-spine/{name}-{profile}", work, cost, quick, name)
            work = partial(_slowdowns, name, profile, True)
            case = f"leaf-spine/{name}-{profile}-scenario-clock"
            yield Case(case, work, cost / 2, program=f"{name}-scenario-clock")
    for profile in ("dctcp", "hpcc", "timely"):
        if has_senders(profile):
            yield Case(f"leaf-spine/websearch-60-{profile}", partial(_other_senders, profile), 15.0)


def _run(
    name: str, profile: str, clock: Clock | None = None
) -> tuple[list[str], Samples, dict[str, np.ndarray]]:
    """All recorded settings of a list and profile: their names, our samples, recorded times."""
    flows = recorded.flow_list(name.replace("-", "_"))
    times = recorded.arrays(f"{name.replace('-', '_')}_fct")
    names = [key.removeprefix(f"{profile}_") for key in times if key.startswith(f"{profile}_")]
    network = recorded.fabric()
    flow_set = LISTS[name]
    samples = simulate(
        profile,
        [(network, flows)],
        names,
        SEEDS,
        flow_set.longest_ms,
        slots=flow_set.slots,
        until_done=True,
        clock=clock,
    )
    return names, samples, times


def class_members(size: np.ndarray) -> dict[str, np.ndarray]:
    """Masks of the flows of each size class, by payload."""
    return {label: (size > low) & (size <= high) for label, (low, high) in CLASSES.items()}


def p99(slowdown: np.ndarray) -> float:
    """Mean over seeds of the 99th percentile over flows; NaN if a flow did not finish."""
    return float(np.percentile(slowdown, 99, axis=-1).mean())


def _slowdowns(name: str, profile: str, as_scenarios: bool = False) -> Outcome:
    """Mean and tail of the slowdown by size class under every recorded setting, and their ranks.

    With `as_scenarios`, these alone, at the clock that scenarios choose for the senders.
    """
    clock = scenario_clock(profile) if as_scenarios else None
    settings, samples, times = _run(name, profile, clock)
    size, alone = recorded.flow_list(name.replace("-", "_"))["size_B"], times["standalone_ns"]
    basis = LISTS[name].basis
    lines, curves = [], []
    for i, ecn in enumerate(settings):
        packets = times[f"{profile}_{ecn}"] / alone
        simulated = 1e3 * samples.fct_us[0, i] / alone
        case = f"{name} {profile} {ecn}"
        lines += _by_class(case, size, packets, simulated, basis, as_scenarios, _waited(samples, i))
        if not as_scenarios:
            lines += _single_flows(case, size, packets, simulated, basis)
            lines += _queues(name, profile, ecn, samples, i)
        curves.append(Slowdowns(f"{name} {profile}", ecn, size, packets, simulated))
    if len(curves) > 2:
        group = SCENARIO_GROUP if as_scenarios else GROUP
        lines += _ranks(group, f"{name} {profile}", curves, basis)
    return Outcome(lines, slowdowns=[] if as_scenarios else curves)


def _by_class(
    case: str,
    size: np.ndarray,
    packets: np.ndarray,
    simulated: np.ndarray,
    basis: Basis,
    as_scenarios: bool,
    note: str,
) -> list[Line]:
    """Mean and p99 of the slowdown of each size class."""
    group, tail = (SCENARIO_GROUP, SCENARIO_P99) if as_scenarios else (GROUP, P99)
    lines = []
    for label, members in class_members(size).items():
        ours, theirs = simulated[:, members], packets[members]
        table = (
            (f"slowdown mean {label}", "", theirs.mean(), ours.mean(), MEAN),
            (f"slowdown p99 {label}", "", p99(theirs[None]), p99(ours), tail),
        )
        lines += lines_of(group, case, table, basis, note)
    return lines


def _single_flows(
    case: str, size: np.ndarray, packets: np.ndarray, simulated: np.ndarray, basis: Basis
) -> list[Line]:
    """Errors of single flows against packets: median and p90 of |ours / packets - 1|, in %.

    Our times are means of the seeds. There is no tolerance, because two packet runs with different
    random marks differ, too.
    """
    lines = []
    for label, members in class_members(size).items():
        off = 100 * np.abs(simulated[:, members].mean(0) / packets[members] - 1.0)
        for statistic, share in (("median", 50), ("p90", 90)):
            quantity = f"error of single flows, {statistic} {label}"
            value = float(np.percentile(off, share))
            lines.append(Line(GROUP, case, quantity, "%", 0.0, value, None, basis))
    return lines


def _ranks(group: str, case: str, curves: list[Slowdowns], basis: Basis) -> list[Line]:
    """Kendall's tau between the orders of the settings here and on packets, by size class.

    Chance moves it by the pairs of settings that our seeds do not tell apart.
    """
    lines = []
    for label, members in class_members(curves[0].size).items():
        packets = np.array([c.recorded[members].mean() for c in curves])
        simulated = np.stack([c.simulated[:, members].mean(1) for c in curves])
        tau = float(kendalltau(packets, simulated.mean(1)).statistic)
        quantity = f"rank of the settings, tau {label}"
        noise = 2 * undecided(simulated)
        lines.append(Line(group, case, quantity, "", 1.0, tau, RANK, basis, noise=noise))
    return lines


def undecided(means: np.ndarray) -> float:
    """Share of pairs of settings whose order could be chance, at the 5 % level.

    Fisher's least significant difference: seeds have the same arrivals under all settings, so the
    spread that counts is what neither settings nor seeds explain. An exchange of one pair moves
    Kendall's tau by twice its share.

    Args:
        means: a number for every setting and seed, `[E, S]`. One seed decides nothing.
    """
    settings, seeds = means.shape
    if seeds < 2:
        return 1.0
    unexplained = means - means.mean(1, keepdims=True) - means.mean(0) + means.mean()
    freedom = (settings - 1) * (seeds - 1)
    spread = np.sqrt(2 * (unexplained**2).sum() / freedom / seeds)
    least = student_t.ppf(0.975, freedom) * spread
    pairs = combinations(means.mean(1), 2)
    return float(np.mean([not abs(a - b) > least for a, b in pairs]))


def _waited(samples: Samples, setting: int) -> str:
    """A note if flows had to wait for a slot, which means that the table was too small."""
    waited = int(samples.deferred[0, setting].max())
    return f"{waited} flows waited for a slot" if waited else ""


def _queues(name: str, profile: str, ecn: str, samples: Samples, setting: int) -> list[Line]:
    """Queues and utilisation of the ports to hosts from 5 ms to the end of the arrivals."""
    flow_set = LISTS[name]
    row = recorded.rows(
        "leaf_spine", dist=flow_set.sizes, load=flow_set.load, profile=profile, ecn=ecn
    )[0]
    rows = samples.window(5.0, float(row["arrival_ms"]))
    mean = rows.mean[0, setting].mean() / 1e3
    used = 100 * rows.utilisation[0, setting].mean()
    case = f"{name} {profile} {ecn}"
    table = (
        ("host queues, mean", "KB", float(row["q_mean_B_host"]) / 1e3, mean, None),
        ("host ports, utilisation", "%", 100 * float(row["util_host"]), used, None),
    )
    return lines_of(GROUP, case, table, flow_set.basis)


def _other_senders(profile: str) -> Outcome:
    """Other senders: mean slowdowns, of all flows and by size class."""
    name = "websearch-60"
    settings, samples, times = _run(name, profile)
    size, alone = recorded.flow_list("websearch_60")["size_B"], times["standalone_ns"]
    groups = {"all": np.ones(size.shape, bool)} | class_members(size)
    lines, curves = [], []
    for i, ecn in enumerate(settings):
        packets = times[f"{profile}_{ecn}"] / alone
        simulated = 1e3 * samples.fct_us[0, i] / alone
        for label, members in groups.items():
            lines.append(
                Line(
                    "leaf-spine, other senders",
                    f"{name} {profile} {ecn}",
                    f"slowdown mean {label}",
                    "",
                    float(packets[members].mean()),
                    float(simulated[:, members].mean()),
                    OTHER_MEAN,
                    note=_waited(samples, i),
                )
            )
        curves.append(Slowdowns(f"{name} {profile}", ecn, size, packets, simulated))
    return Outcome(lines, slowdowns=curves)

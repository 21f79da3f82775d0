"""Incast: N endless flows into one port. Steady state, start-up, link delays, small buffers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from ecn_marl.sim.replay.samples import SAMPLE_US
from ecn_marl.validation import recorded
from ecn_marl.validation.lines import Basis, Case, Line, Outcome, Tolerance, Trace
from ecn_marl.validation.runs import Samples, has_senders, incast_flows, simulate

SEEDS = 4

MEAN = Tolerance(relative=0.10, absolute=3.0)
STD = Tolerance(relative=0.20, absolute=3.0)
"""Queue mean and standard deviation; absolute parts in KB."""

FIRST_BURST = Tolerance(relative=0.15)
OTHER_MEAN = Tolerance(relative=0.20, absolute=5.0)
OTHER_UTILISATION = Tolerance(absolute=2.0)


def cases() -> Iterator[Case]:
    """All incast cases."""
    for profile in ("run", "paper"):
        for n in (2, 8, 16, 64):
            cost = (3 + 0.3 * n) * (1.0 if profile == "run" else 0.3)
            work = partial(_long_run, profile, n)
            yield Case(f"incast/{profile}-n{n}", work, cost, n in (8, 16), f"incast-n{n}")
        yield Case(f"delay/{profile}-n16", partial(_delays, profile), 20, program="delay")
    for n in (16, 64):
        yield Case(f"buffer/run-8mib-n{n}", partial(_small_buffer, n), 5, n == 16, f"incast-n{n}")
    if has_senders("run_vwin"):
        for n in (2, 8, 16, 64):
            yield Case(f"incast/run_vwin-n{n}", partial(_window, n), 5)
    for profile in ("dctcp", "hpcc", "timely"):
        if has_senders(profile):
            for n in (2, 16):
                yield Case(f"incast/{profile}-n{n}", partial(_other_senders, profile, n), 5)


def utilisation_tolerance(n: int) -> Tolerance:
    """Points of utilisation that an incast of `n` may be off."""
    return Tolerance(absolute=1.0 if n <= 16 else 2.0)


def steady(samples: Samples, setting: int, window: tuple[float, float], v: int = 0) -> np.ndarray:
    """Queue mean and std (KB), utilisation (%) over a window in ms: means of the seeds, `[3]`."""
    rows = samples.window(*window)
    mean = rows.mean[v, setting].mean(-1)
    # The difference of a constant queue is zero up to rounding, and may come out negative.
    std = np.sqrt(np.maximum(rows.square[v, setting].mean(-1) - mean**2, 0.0))
    used = 100 * rows.utilisation[v, setting].mean(-1)
    return np.stack([mean / 1e3, std / 1e3, used]).mean(1)


def steady_lines(
    group: str,
    case: str,
    row: dict[str, str],
    simulated: np.ndarray,
    n: int,
    basis: Basis,
    suffix: str = "",
    note: str = "",
) -> list[Line]:
    """Queue mean, std and utilisation against a recorded row.

    Args:
        group: group of the lines.
        case: what was run.
        row: recorded row with `q_mean_B`, `q_std_B` and `util`, each with `suffix`.
        simulated: what `steady` returns.
        n: number of senders.
        basis: where the row comes from.
        suffix: of the row's columns.
        note: of the lines.
    """
    mean, std, used = (float(row[name + suffix]) for name in ("q_mean_B", "q_std_B", "util"))
    table = (
        ("queue mean", "KB", mean / 1e3, MEAN),
        ("queue std", "KB", std / 1e3, STD),
        # Recorded utilisation reaches 1.0011, as that simulator cuts packet times to whole ns.
        ("utilisation", "%", 100 * min(used, 1.0), utilisation_tolerance(n)),
    )
    return [
        Line(group, case, name, unit, reference, float(value), tolerance, basis, note)
        for (name, unit, reference, tolerance), value in zip(table, simulated, strict=True)
    ]


def _long_run(profile: str, n: int) -> Outcome:
    """200 ms under three settings: steady state over the second half, start-up over the first."""
    table = recorded.rows("incast_200ms", profile=profile, N=n)
    names = [row["ecn"] for row in table]
    samples = simulate(profile, [(recorded.star(n + 1), incast_flows(n))], names, SEEDS, 200.0)
    lines = []
    for i, row in enumerate(table):
        case = f"{profile} N={n} {row['ecn']}"
        last = int(row["t_last_exceed_mean4std_ms"])
        note = f"recorded bursts until {last} ms" if last > 50 else ""
        simulated = steady(samples, i, (100, 200))
        steady_state = steady_lines("incast, steady", case, row, simulated, n, "tuned", note=note)
        # A recorded window that still holds start-up bursts is no steady state, so only report it.
        lines += (
            [replace(line, tolerance=None) for line in steady_state] if last > 100 else steady_state
        )
    if n == 64:
        lines += _start_up(samples, profile, n, names, "tuned", profile)
    bursts, traces = _bursts(samples, profile, n, names)
    return Outcome(lines + bursts, traces)


def _start_up(
    samples: Samples, label: str, n: int, names: Sequence[str], basis: Basis, profile: str
) -> list[Line]:
    """Mean queue of the first millisecond, and the bursts after it."""
    lines = []
    for i, name in enumerate(names):
        row = recorded.rows("incast_40ms", profile=profile, N=n, ecn=name)[0]
        first = samples.window(0, 1).mean[0, i].mean() / 1e3
        later = samples.window(5, 20).mean[0, i].mean() / 1e3
        late = samples.window(20, 40).mean[0, i].mean() / 1e3
        peak = samples.window(0, 40).peak[0, i].max(-1).mean() / 1e3
        pauses = float(samples.window(0, 40).pauses[0, i, :, -1].mean())
        recorded_pauses = int(row["pfc_pause"])
        kind = "in kind" if (recorded_pauses > 0) == (pauses > 0) else "NOT in kind"
        case = f"{label} N={n} {name}"
        table = (
            ("queue mean, 0..1 ms", "KB", float(row["q_mean_B_0_1ms"]) / 1e3, first, FIRST_BURST),
            ("queue mean, 5..20 ms", "KB", float(row["q_mean_B_5_20"]) / 1e3, later, None),
            ("queue mean, 20..40 ms", "KB", float(row["q_mean_B_20_40"]) / 1e3, late, None),
            ("queue max, 0..40 ms", "KB", float(row["q_max_B_all"]) / 1e3, peak, None),
            ("pauses, 0..40 ms", "", float(recorded_pauses), pauses, None),
        )
        for quantity, unit, reference, simulated, tolerance in table:
            note = kind if quantity.startswith("pauses") else ""
            lines.append(
                Line(
                    "incast, start-up",
                    case,
                    quantity,
                    unit,
                    reference,
                    float(simulated),
                    tolerance,
                    basis,
                    note,
                )
            )
    return lines


def first_burst(queue: np.ndarray) -> tuple[float, float]:
    """Peak of the first burst of a queue, KB, and the time when it has fallen to a tenth, ms.

    Args:
        queue: bytes, every 10 µs from the start, `[T]`.
    """
    top = np.maximum.accumulate(queue)
    low = np.flatnonzero(queue < 0.1 * top)
    if not low.size:
        return float(top[-1]) / 1e3, math.nan
    return float(top[low[0]]) / 1e3, float(low[0] + 1) * SAMPLE_US / 1e3


def _bursts(
    samples: Samples, profile: str, n: int, names: Sequence[str]
) -> tuple[list[Line], list[Trace]]:
    """Peak and drain time of the first burst where the queue was recorded, and the traces."""
    lines, traces = [], []
    store = recorded.arrays("incast_queues")
    for i, name in enumerate(names):
        if (packets := store.get(f"{profile}_{n}_{name}")) is None:
            continue
        simulated = samples.rows.queue[0, i, :, : len(packets)]
        case = f"{profile} N={n} {name}"
        measured = np.mean([first_burst(queue) for queue in simulated], axis=0)
        pairs = zip(
            ("peak", "drained at"), ("KB", "ms"), first_burst(packets), measured, strict=True
        )
        for statistic, unit, reference, value in pairs:
            quantity = f"first burst, {statistic}"
            lines.append(
                Line("incast, start-up", case, quantity, unit, reference, float(value), FIRST_BURST)
            )
        time_ms = (np.arange(len(packets)) + 1) * SAMPLE_US / 1e3
        traces.append(Trace(f"n{n}", f"{profile}, N = {n}, {name}", time_ms, packets, simulated[0]))
    return lines, traces


def _delays(profile: str) -> Outcome:
    """Steady state of an incast of 16 over links of several delays."""
    table = recorded.rows("delay_sweep", profile=profile)
    delays = sorted({float(row["link_delay_us"]) for row in table})
    names = sorted({row["ecn"] for row in table})
    networks = [(recorded.star(17, delay_us=delay), incast_flows(16)) for delay in delays]
    samples = simulate(profile, networks, names, 3, 200.0)
    lines = []
    for row in table:
        delay = float(row["link_delay_us"])
        simulated = steady(samples, names.index(row["ecn"]), (100, 200), delays.index(delay))
        case = f"{profile} N=16 {row['ecn']} {delay:g} µs"
        lines += steady_lines("link delay", case, row, simulated, 16, _basis(row, "incast_200ms"))
    return Outcome(lines)


def _basis(row: dict[str, str], table: str, suffix: str = "") -> Basis:
    """Whether a row of statistics is one of a table that the simulator was developed against."""
    columns = [f"{name}{suffix}" for name in ("q_mean_B", "q_std_B", "util")]
    tuned = recorded.rows(table, profile=row["profile"], N=row["N"], ecn=row["ecn"])
    matches = any(all(float(row[c]) == float(tuned_row[c]) for c in columns) for tuned_row in tuned)
    return "repeated" if matches else "independent"


def _small_buffer(n: int) -> Outcome:
    """8 MiB per switch. At N = 16 queues fit as in 32 MiB, at N = 64 the switch sends pauses."""
    table = recorded.rows("incast_40ms", profile="run_b8", N=n)
    names = [row["ecn"] for row in table]
    network = [(recorded.star(n + 1), incast_flows(n))]
    samples = simulate("run", network, names, SEEDS, 40.0, buffer_mib=8.0)
    if n == 64:
        lines = _start_up(samples, "run 8 MiB", n, names, "independent", "run_b8")
        lines = [line for line in lines if not line.quantity.startswith("queue max")]
        return Outcome(lines + under_pauses(samples, table))
    lines = []
    for i, row in enumerate(table):
        case = f"run 8 MiB N={n} {row['ecn']}"
        simulated = steady(samples, i, (20, 40))
        basis = _basis(row | {"profile": "run"}, "incast_40ms", "_20_40")
        lines += steady_lines("8 MiB buffers", case, row, simulated, n, basis, "_20_40")
    return Outcome(lines)


def under_pauses(
    samples: Samples,
    table: Sequence[dict[str, str]],
    group: str = "8 MiB buffers",
    suffix: str = "",
) -> list[Line]:
    """The effects of pauses: the largest queue and the utilisation of the link.

    Args:
        samples: 8 MiB of buffer, one setting for each row.
        table: recorded rows.
        group: of the lines.
        suffix: of the names of the cases.
    """
    lines = []
    for i, row in enumerate(table):
        case = f"run 8 MiB N={row['N']} {row['ecn']}{suffix}"
        peak = samples.rows.peak[0, i].max(-1).mean() / 1e3
        used = 100 * samples.window(20, 40).utilisation[0, i].mean()
        limit = utilisation_tolerance(int(row["N"]))
        pairs = (
            ("queue max", "KB", float(row["q_max_B_all"]) / 1e3, peak, FIRST_BURST),
            ("utilisation, 20..40 ms", "%", 100 * float(row["util_20_40"]), used, limit),
        )
        for quantity, unit, reference, simulated, tolerance in pairs:
            lines.append(
                Line(
                    group,
                    case,
                    quantity,
                    unit,
                    min(reference, 100.0) if unit == "%" else reference,
                    float(simulated),
                    tolerance,
                    "independent",
                )
            )
    return lines


def _window(n: int) -> Outcome:
    """Senders with a window over 20..40 ms."""
    return Outcome(_short_run("run_vwin", "incast_40ms", n, MEAN, STD, utilisation_tolerance(n)))


def _other_senders(profile: str, n: int) -> Outcome:
    """Other senders over 20..40 ms; the standard deviation of their queue is only reported."""
    table = "incast_other_senders"
    return Outcome(_short_run(profile, table, n, OTHER_MEAN, None, OTHER_UTILISATION))


def _short_run(
    profile: str,
    table: str,
    n: int,
    mean: Tolerance,
    std: Tolerance | None,
    utilisation: Tolerance,
) -> list[Line]:
    """Steady state over 20..40 ms of every setting recorded in a table."""
    recorded_rows = recorded.rows(table, profile=profile, N=n)
    names = [row["ecn"] for row in recorded_rows]
    samples = simulate(profile, [(recorded.star(n + 1), incast_flows(n))], names, SEEDS, 40.0)
    lines = []
    for i, row in enumerate(recorded_rows):
        simulated = steady(samples, i, (20, 40))
        columns = (
            ("queue mean", "KB", float(row["q_mean_B_20_40"]) / 1e3, mean),
            ("queue std", "KB", float(row["q_std_B_20_40"]) / 1e3, std),
            ("utilisation", "%", 100 * min(float(row["util_20_40"]), 1.0), utilisation),
        )
        group = "incast, window" if profile == "run_vwin" else "incast, other senders"
        case = f"{profile} N={n} {row['ecn']}"
        for (quantity, unit, reference, tolerance), value in zip(columns, simulated, strict=True):
            lines.append(Line(group, case, quantity, unit, reference, float(value), tolerance))
    return lines

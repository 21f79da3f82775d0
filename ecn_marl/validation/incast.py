"""Incast: N endless flows into one port. Steady state, start-up, link delays, small buffers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from ecn_marl.sim.replay.samples import SAMPLE_US
from ecn_marl.validation import recorded
from ecn_marl.validation.lines import Basis, Case, Line, Outcome, Tolerance, Trace, lines_of
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


def steady_tolerances(n: int) -> tuple[Tolerance, Tolerance, Tolerance]:
    """Tolerances of what `steady` returns for an incast of `n`."""
    return MEAN, STD, utilisation_tolerance(n)


def steady(samples: Samples, setting: int, window: tuple[float, float], v: int = 0) -> np.ndarray:
    """Queue mean and std (KB), utilisation (%) over a window in ms: means of the seeds, `[3]`."""
    rows = samples.window(*window)
    mean = rows.mean[v, setting].mean(-1)
    # The difference of a constant queue is zero up to rounding, and may come out negative.
    std = np.sqrt(np.maximum(rows.square[v, setting].mean(-1) - mean**2, 0.0))
    used = 100 * rows.utilisation[v, setting].mean(-1)
    return np.stack([mean / 1e3, std / 1e3, used]).mean(1)


def steady_table(
    references: Iterable[float], simulated: Iterable[float], tolerances: Iterable[Tolerance | None]
) -> Iterator[tuple[str, str, float, float, Tolerance | None]]:
    """What `steady` returns beside references, as `lines_of` takes it."""
    names, units = ("queue mean", "queue std", "utilisation"), ("KB", "KB", "%")
    return zip(names, units, references, simulated, tolerances, strict=True)


def steady_lines(
    group: str,
    case: str,
    row: dict[str, str],
    simulated: np.ndarray,
    tolerances: Sequence[Tolerance | None],
    basis: Basis = "tuned",
    suffix: str = "",
    note: str = "",
) -> list[Line]:
    """Queue mean, std and utilisation against a recorded row.

    Args:
        group: group of the lines.
        case: what was run.
        row: recorded row with `q_mean_B`, `q_std_B` and `util`, each with `suffix`.
        simulated: what `steady` returns.
        tolerances: of the three.
        basis: where the row comes from.
        suffix: of the row's columns.
        note: of the lines.
    """
    mean, std, used = (float(row[name + suffix]) for name in ("q_mean_B", "q_std_B", "util"))
    # Recorded utilisation reaches 1.0011, as that simulator cuts packet times to whole ns.
    references = (mean / 1e3, std / 1e3, 100 * min(used, 1.0))
    return lines_of(group, case, steady_table(references, simulated, tolerances), basis, note)


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
        limits = steady_tolerances(n)
        steady_state = steady_lines("incast, steady", case, row, simulated, limits, note=note)
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
        )
        paused = [("pauses, 0..40 ms", "", recorded_pauses, pauses, None)]
        lines += lines_of("incast, start-up", case, table, basis)
        lines += lines_of("incast, start-up", case, paused, basis, kind)
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
        peak, drained = first_burst(packets)
        table = (
            ("first burst, peak", "KB", peak, measured[0], FIRST_BURST),
            ("first burst, drained at", "ms", drained, measured[1], FIRST_BURST),
        )
        lines += lines_of("incast, start-up", case, table)
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
        basis = _basis(row, "incast_200ms")
        lines += steady_lines("link delay", case, row, simulated, steady_tolerances(16), basis)
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
        limits = steady_tolerances(n)
        lines += steady_lines("8 MiB buffers", case, row, simulated, limits, basis, "_20_40")
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
            (
                "utilisation, 20..40 ms",
                "%",
                min(100 * float(row["util_20_40"]), 100.0),
                used,
                limit,
            ),
        )
        lines += lines_of(group, case, pairs, "independent")
    return lines


def _window(n: int) -> Outcome:
    """Senders with a window over 20..40 ms."""
    return Outcome(_short_run("run_vwin", "incast_40ms", n, steady_tolerances(n)))


def _other_senders(profile: str, n: int) -> Outcome:
    """Other senders over 20..40 ms; the standard deviation of their queue is only reported."""
    tolerances = (OTHER_MEAN, None, OTHER_UTILISATION)
    return Outcome(_short_run(profile, "incast_other_senders", n, tolerances))


def _short_run(
    profile: str, table: str, n: int, tolerances: Sequence[Tolerance | None]
) -> list[Line]:
    """Steady state over 20..40 ms of every setting recorded in a table."""
    recorded_rows = recorded.rows(table, profile=profile, N=n)
    names = [row["ecn"] for row in recorded_rows]
    samples = simulate(profile, [(recorded.star(n + 1), incast_flows(n))], names, SEEDS, 40.0)
    lines = []
    for i, row in enumerate(recorded_rows):
        simulated = steady(samples, i, (20, 40))
        group = "incast, window" if profile == "run_vwin" else "incast, other senders"
        case = f"{profile} N={n} {row['ecn']}"
        lines += steady_lines(group, case, row, simulated, tolerances, suffix="_20_40")
    return lines

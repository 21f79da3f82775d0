"""The clock that scenarios use against a substep of 0.25 µs, and against packets under pauses."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from ecn_marl.sim.clocks import choose_clock
from ecn_marl.sim.transports import parse_transport
from ecn_marl.validation import recorded
from ecn_marl.validation.incast import steady, steady_table, steady_tolerances, under_pauses
from ecn_marl.validation.lines import Case, Outcome, lines_of
from ecn_marl.validation.runs import SENDERS, Clock, incast_flows, simulate

FINE = Clock(0.25, 20)
SETTINGS = ("SECN1", "SECN2", "E3")
SEEDS = 8
INTERVAL_US = 100.0
PAUSED_KB = 1000.0
"""Queues above this are limited by pauses, not by marks; their statistics are only reported."""
LENGTH_MS = 60.0
TICKS_US = (10.0, 20.0)
"""Ticks of the scenarios, those of plain traffic among them."""


def cases() -> Iterator[Case]:
    """Every preset with timers, few to many senders."""
    for profile in ("paper", "run", "mellanox"):
        for n in (2, 8, 32):
            work = partial(_against_fine, profile, n)
            yield Case(f"substeps/{profile}-n{n}", work, 12 + 0.5 * n, program=f"substeps-{n}")
    for tick_us in TICKS_US:
        yield Case(f"substeps/pauses-n64-{tick_us:g}us", partial(_pauses, tick_us), 6.0)


def scenario_clock(profile: str) -> Clock:
    """The clock that `dt_us="auto"` gives for these senders on a star at 25 Gb/s."""
    senders = parse_transport(SENDERS[profile])
    return Clock(*choose_clock(senders, recorded.star(2), INTERVAL_US))


def _against_fine(profile: str, n: int) -> Outcome:
    """Steady incast at the scenarios' clock and at the fine one; both are means of seeds."""
    clock = scenario_clock(profile)
    network = [(recorded.star(n + 1), incast_flows(n))]
    coarse, fine = (
        simulate(profile, network, SETTINGS, SEEDS, LENGTH_MS, clock=c) for c in (clock, FINE)
    )
    lines = []
    for i, ecn in enumerate(SETTINGS):
        coarse_stats, fine_stats = (
            steady(s, i, (LENGTH_MS / 2, LENGTH_MS)) for s in (coarse, fine)
        )
        case = f"{profile} N={n} {ecn}, dt = {clock.dt_us:g} µs"
        paused = bool(max(fine_stats[0], coarse_stats[0]) > PAUSED_KB)
        note = "held by pauses" if paused else ""
        tolerances = (None, None, None) if paused else steady_tolerances(n)
        table = steady_table(fine_stats, coarse_stats, tolerances)
        lines += lines_of("substeps", case, table, "finer", note)
    return Outcome(lines)


def _pauses(tick_us: float) -> Outcome:
    """8 MiB of buffer and 64 senders; the simulator decides pauses once per tick."""
    table = recorded.rows("incast_40ms", profile="run_b8", N=64)
    names = [row["ecn"] for row in table]
    network = [(recorded.star(65), incast_flows(64))]
    dt_us = scenario_clock("run").dt_us
    clock = Clock(dt_us, round(tick_us / dt_us))
    samples = simulate("run", network, names, SEEDS, 40.0, buffer_mib=8.0, clock=clock)
    return Outcome(under_pauses(samples, table, "substeps", f", tick of {tick_us:g} µs"))

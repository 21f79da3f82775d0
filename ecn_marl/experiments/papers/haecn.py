"""HAECN (Hu et al.): its cells and its claims, §2 and §5.

DCQCN has SECN1 here, the setting of its own paper. TIMELY and HPCC are other senders in the same
episodes. ACC and HAECN set the thresholds of switches with DCQCN senders. Their decisions take as
long as on this machine, since late inference is the paper's argument against ACC.
"""

from __future__ import annotations

from typing import Any

from ecn_marl.envs.scenarios.haecn_fabric import LINKS
from ecn_marl.experiments.papers import port_figures as port_figures  # registers figures
from ecn_marl.experiments.papers import rows as rw
from ecn_marl.experiments.papers.measures import Across, Change, Extreme
from ecn_marl.experiments.papers.suite import Cell, Claim, Plot, Suite, Training

SENDERS = {"timely": "timely:hpcc", "hpcc": "hpcc:hpcc"}
"""Other congestion controls, with the constants of HPCC's simulator; the paper states none."""

KINDS = {"bursty": "Figs. 2, 6", "gradual": "Figs. 3, 7"}

WINDOWS = 14
"""Parts of an episode of Figs. 3 and 7."""

CLAIMED = {36: (-30.0, -24.0, -22.0, -16.0), 48: (-33.0, -28.0, -25.0, -21.0)}
"""Mean FCT of HAECN against DCQCN, TIMELY, HPCC and ACC by links per leaf, %."""

THROUGHPUT = (47.0, 34.0, 32.0, 24.0)
"""Throughput against the same, up to, %."""

OPPONENTS = ("dcqcn", "timely", "hpcc", "acc")

_DCQCN = "static:secn1"


def suite(small: bool) -> Suite:
    """The suite.

    Args:
        small: whether it takes minutes on two cores instead of a cluster.
    """
    end = "-small-v0" if small else "-v0"
    return Suite(
        name="haecn",
        title="HAECN: Hierarchical Automatic ECN Tuning with Ultra-low Overhead",
        trainings=(
            Training("bursty", f"haecn-bursty-24{end}", steps=24_000 if small else 240_000),
        ),
        cells=_cells(end),
        rows=(*_LEARNING, *rw.STATIC, *rw.RULES, *rw.REFERENCES),
        claims=(*_fct_claims(), *_throughput_claims()),
        plots=_plots(),
        notes=(*_NOTES, *(_SMALL_NOTES if small else ())),
        episodes=16 if small else 32,
    )


_LEARNING = (
    *(rw.HAECN, rw.HAECN_READING, rw.HAECN_TUNED),
    *(rw.ACC, rw.ACC_READING, rw.ACC_TUNED),
)

_NOTES = (
    "The paper states no load, delays, buffer or constants of senders. Here every sender has one "
    "flow of 5 MB after the other; links have 1 µs, switches 32 MiB, and DCQCN has the constants "
    "of its authors.",
    "Decisions of learners are late by the time that the inferences for all ports of the largest "
    "switch take on this machine, one after the other. The cell of 48 links is also run without "
    "this delay.",
    "Learners are trained once, with 24 links and without this delay.",
    "Beside the flows of 5 MB, one ping of 1 KB per 100 µs goes to the same server. FCT is that of "
    "the flows above 1 MB.",
)

_SMALL_NOTES = (
    "Small: 4 leaves with half of the links in place of 12, 2 spines in place of 6: 4 to 24 "
    "senders in place of 36 to 144.",
    "Small: the 200 ms to the change of Figs. 3 and 7 are 20 ms.",
)


def _cells(end: str) -> tuple[Cell, ...]:
    """Both kinds of traffic on four networks, each also with other senders."""
    all_rows = (*rw.names(_LEARNING, rw.STATIC, rw.RULES), "static:best")
    cells = []
    for kind, where in KINDS.items():
        for n in LINKS:
            fields: dict[str, Any] = {"x": n, "windows": WINDOWS if kind == "gradual" else 0}
            place = (where, f"haecn-{kind}-{n}{end}", "bursty")
            name = f"{kind}-{n}"
            cells.append(Cell(name, *place, all_rows, **fields, measured_delay=True))
            for senders, transport in SENDERS.items():
                options = {"transport": transport}
                cells.append(Cell(f"{name}-{senders}", *place, (_DCQCN,), options, **fields))
    without_delay = ("§2, without inference delay", f"haecn-bursty-48{end}", "bursty")
    cells.append(Cell("bursty-48-instant", *without_delay, (*rw.names(_LEARNING), _DCQCN), x=48))
    return tuple(cells)


def _measure(cell: str, figure: str, opponent: str, pick: str) -> Change | Across:
    """HAECN against an opponent: a row of the same cell, or senders of another one."""
    if opponent in SENDERS:
        return Across(((cell, f"{cell}-{opponent}"),), figure, "haecn", _DCQCN, pick)
    return Change((cell,), figure, "haecn", "acc" if opponent == "acc" else _DCQCN, pick)


def _fct_claims() -> tuple[Claim, ...]:
    """Fig. 6: mean FCT of flows of 5 MB."""
    return tuple(
        Claim(
            f"fct-{n}-{opponent}",
            f"mean FCT with {n} links per leaf, HAECN against {opponent.upper()}",
            paper,
            "%",
            "§5.1, Fig. 6",
            _measure(f"bursty-{n}", "long mean", opponent, "lowest"),
        )
        for n, figures in CLAIMED.items()
        for opponent, paper in zip(OPPONENTS, figures, strict=True)
    )


def _throughput_claims() -> tuple[Claim, ...]:
    """Fig. 7: throughput, the highest gain over the networks."""
    return tuple(
        Claim(
            f"throughput-{opponent}",
            f"throughput as traffic settles, HAECN against {opponent.upper()}",
            paper,
            "%",
            "§5.2, Fig. 7",
            Extreme(
                tuple(_measure(f"gradual-{n}", "throughput", opponent, "highest") for n in LINKS),
                "highest",
            ),
            "Up to, over the four networks.",
        )
        for opponent, paper in zip(OPPONENTS, THROUGHPUT, strict=True)
    )


def _plots() -> tuple[Plot, ...]:
    """Figures in the paper's form."""
    bursty = tuple(f"bursty-{n}" for n in LINKS)
    gradual = tuple(f"gradual-{n}" for n in LINKS)
    cost = ("activations", "inferences saved")
    axis = "links per leaf"
    return (
        Plot("Bursts", "Figs. 2, 6", bursty, ("long mean", "short p99", "bottleneck queue"), axis),
        Plot("Traffic that settles", "Fig. 7", gradual, ("throughput", "bottleneck queue"), axis),
        Plot("What decisions cost", "§2", bursty, cost, axis),
        Plot(
            *("From one sender in 12 to one in 6", "Figs. 3, 7", ("gradual-48",)),
            *(("delivered", "queue"), "time, ms"),
            over_time=True,
        ),
    )

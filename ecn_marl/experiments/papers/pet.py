"""PET (Cheng et al.): its cells and its claims, §5.

"Up to" a reduction is the largest over the loads. The paper does not say which flows are mice in
its figures; §4.2.1 calls flows above 1 MB elephants, so mice are all others here.
"""

from __future__ import annotations

from typing import Any

from ecn_marl.experiments.papers import rows as rw
from ecn_marl.experiments.papers.measures import Change, Value
from ecn_marl.experiments.papers.suite import Cell, Claim, Plot, Suite, Training

LOADS = (10, 20, 30, 40, 50, 60, 70, 80, 90)
SMALL_LOADS = (30, 60, 90)
"""Loads of the cells, %."""

STATIC = ("static:secn1", "static:secn2")

_LEARNERS = rw.names(rw.PET, rw.PET_TUNED, rw.ACC, rw.ACC_TUNED)


def suite(small: bool) -> Suite:
    """The suite, on 12 hosts if small, else on the paper's 288.

    Args:
        small: whether it takes minutes on two cores instead of a cluster.
    """
    end = "-small-v0" if small else "-v0"
    loads = SMALL_LOADS if small else LOADS
    rows = (rw.PET, rw.PET_TUNED, rw.PET_ABLATED, rw.ACC, rw.ACC_TUNED, *rw.STATIC, *rw.REFERENCES)
    return Suite(
        name="pet",
        title="PET: Multi-agent Independent PPO-based Automatic ECN Tuning",
        trainings=_trainings(end, small),
        cells=_load_cells(end, loads),
        rows=rows,
        claims=_load_claims(loads),
        plots=_load_plots(loads),
    )


def _trainings(end: str, small: bool) -> tuple[Training, ...]:
    """Offline pre-training (§4.4.1), its loads drawn anew for every episode (Algorithm 1)."""
    steps = 40_000 if small else 400_000
    common: dict[str, Any] = {"steps": steps, "randomise": {"load": 3.0}}
    return (
        Training("websearch", f"pet-websearch{end}", {"load": 0.3, "slots": 512}, **common),
        Training("datamining", f"pet-datamining{end}", {"load": 0.3, "slots": 512}, **common),
    )


def _load_cells(end: str, loads: tuple[int, ...]) -> tuple[Cell, ...]:
    """Figs. 4, 5, 8, 9 and Table 1: both tables of sizes at every load."""
    cells = []
    for table, where in (
        ("websearch", "Figs. 4, 5(a), 8, 9; Table 1"),
        ("datamining", "Fig. 5(b)"),
    ):
        learners = _LEARNERS if table == "datamining" else (*_LEARNERS, rw.PET_ABLATED.name)
        for load in loads:
            cells.append(
                Cell(
                    f"{table}-{load}",
                    where,
                    f"pet-{table}{end}",
                    table,
                    (*learners, *rw.names(rw.STATIC), "static:best"),
                    {"load": load / 100.0, "slots": 512},
                    x=load,
                )
            )
    return tuple(cells)


_OPPONENTS = {"ACC": "acc", "SECN1": "static:secn1", "SECN2": "static:secn2"}


def _load_claims(loads: tuple[int, ...]) -> tuple[Claim, ...]:
    """Reductions by up to so many percent, over the loads."""
    web = tuple(f"websearch-{load}" for load in loads)
    mining = tuple(f"datamining-{load}" for load in loads)
    short = "Latency is not defined in the paper: the FCT of flows up to 100 KB is mostly delay."
    figures = (
        ("overall", "overall mean FCT", "all mean", web, "Fig. 4(a)", (-3.9, -5.8, -17.6), ""),
        ("mice-mean", "mean FCT of mice", "mice mean", web, "Fig. 4(b)", (-2.6, -5.2, -18.4), ""),
        ("mice-p99", "p99 FCT of mice", "mice p99", web, "Fig. 4(c)", (-9.9, -23.6, -48.6), ""),
        (
            "elephants",
            "mean FCT of elephants",
            "long mean",
            web,
            "Fig. 4(d)",
            (-4.9, -9.6, -8.7),
            "",
        ),
        ("web", "FCT, WebSearch", "all mean", web, "Fig. 5(a)", (-8.2, -23.2, -67.3), ""),
        ("mining", "FCT, DataMining", "all mean", mining, "Fig. 5(b)", (-3.7, -7.6, -13.4), ""),
        ("latency", "latency", "short mean", web, "Fig. 8", (-3.0, -7.2, -18.3), short),
    )
    claims = []
    for key, text, figure, cells, where, paper, note in figures:
        for (name, family), value in zip(_OPPONENTS.items(), paper, strict=True):
            claims.append(
                Claim(
                    f"{key}-{name.lower()}",
                    f"{text}, PET against {name}",
                    value,
                    "%",
                    where,
                    Change(cells, figure, "pet", family),
                    note,
                )
            )
    return (*claims, *_queue_claims())


def _queue_claims() -> tuple[Claim, ...]:
    """Table 1; its "variance" has the unit KB, and is read as a standard deviation."""
    claims = []
    for family, mean, spread in (("pet", 5.3, 10.2), ("acc", 6.1, 14.1)):
        for figure, paper, text in (
            ("queue", mean, "mean queue"),
            ("queue spread", spread, "spread of the queue"),
        ):
            claims.append(
                Claim(
                    f"{figure.replace(' ', '-')}-{family}",
                    f"{text} at 60 % load, {family.upper()}",
                    paper,
                    "KB",
                    "Table 1",
                    Value("websearch-60", figure, family),
                    "All ports; the paper does not say which queues it counts.",
                )
            )
    return tuple(claims)


def _load_plots(loads: tuple[int, ...]) -> tuple[Plot, ...]:
    web = tuple(f"websearch-{load}" for load in loads)
    mining = tuple(f"datamining-{load}" for load in loads)
    four = ("all mean", "mice mean", "mice p99", "long mean")
    return (
        Plot("FCT with WebSearch", "Fig. 4", web, four),
        Plot("FCT with DataMining", "Fig. 5(b)", mining, four),
    )

"""PET (Cheng et al.): its cells and its claims, §5.

"Up to" a reduction is the largest over the loads. The paper does not say which flows are mice in
its figures; §4.2.1 calls flows above 1 MB elephants, so mice are all others here.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

from ecn_marl.envs.scenarios import pet_failures as failures
from ecn_marl.envs.scenarios import pet_switching as switching
from ecn_marl.experiments.papers import rows as rw
from ecn_marl.experiments.papers.measures import Change, Value
from ecn_marl.experiments.papers.suite import READING, Cell, Claim, Plot, Suite, Training

LOADS = (10, 20, 30, 40, 50, 60, 70, 80, 90)
SMALL_LOADS = (30, 60, 90)
"""Loads of the cells, %."""

SLOTS, SMALL_SLOTS = 8192, 320
"""Most flows in progress: 90 % load under deep thresholds had 265 on the small network."""

WINDOWS, SMALL_WINDOWS = 100, 20
"""Parts of a run of Figs. 6 and 7, and updates of the learner that learns online."""

PRIORITY = {"websearch": "latency", "datamining": "throughput"}
"""beta_1 of 0.3 and 0.7 (§5.2), and ACC's omega_1."""

_TRAINED = (
    *(rw.PET, rw.PET_READING, rw.PET_TUNED),
    *(rw.ACC, rw.ACC_READING, rw.ACC_TUNED),
)
_LEARNERS = rw.names(_TRAINED)


def suite(small: bool) -> Suite:
    """The suite, on 12 hosts if small, else on the paper's 288.

    Args:
        small: whether it takes minutes on two cores instead of a cluster.
    """
    end = "-small-v0" if small else "-v0"
    loads = SMALL_LOADS if small else LOADS
    learners = (*_TRAINED, rw.PET_ONLINE, rw.PET_ABLATED, rw.PET_PER_SWITCH)
    slots = SMALL_SLOTS if small else SLOTS
    windows = SMALL_WINDOWS if small else WINDOWS
    return Suite(
        name="pet",
        title="PET: Multi-agent Independent PPO-based Automatic ECN Tuning",
        trainings=_trainings(end, small, slots),
        cells=(*_load_cells(end, loads, slots), *_other_cells(end, windows)),
        rows=(*learners, *rw.STATIC, *rw.REFERENCES),
        claims=(*_load_claims(loads), *_dynamic_claims(loads, windows)),
        plots=_plots(loads),
        notes=_SMALL_NOTES if small else _FULL_NOTES,
        episodes=16 if small else 32,
    )


_NOTES = (
    "PET states no link delay, buffer or constants of the senders. Here links have 1 µs, switches "
    "32 MiB, and DCQCN has the constants of HPCC's simulator, whose traffic generator PET uses. "
    "ACKs and CNPs have a class of their own.",
    "Offline training draws the load of every episode from 10 to 90 %, evenly in its logarithm "
    "(Algorithm 1 samples the dynamics; the range is not stated).",
    "By load, episodes begin with the flows that are in progress under processor sharing, so that "
    "links carry the load from the start; other episodes start empty. Except in Figs. 6 and 7, "
    "flows that begin in the first 4 ms or in the last 10 ms are not measured.",
    "Every port is an agent, except in `pet:per-switch`, where every switch is one for all its "
    "ports. All agents share one offline model, as PET installs it on every switch. Online each "
    "port trains its own copy.",
)

_SMALL_NOTES = (
    *_NOTES,
    "Small: 12 hosts on 3 leaves with 2 spines in place of 288 on 12 with 6, links of the same "
    "rates; leaves have twice as much bandwidth up as down, where the paper has as much.",
    "Small: the times of Figs. 6 and 7 are divided by 100. So is the largest flow of DataMining, "
    "10 MB in place of 1 GB (larger ones are cut), so that it lasts the same share of a run.",
    "Small: 1 of 6 links fails, 17 %: 10 % would be less than one.",
    f"Small: loads of {', '.join(map(str, SMALL_LOADS))} %, searches over named and 30 other "
    "settings.",
)

_FULL_NOTES = (
    *_NOTES,
    "Full size with the paper's seconds. It is meant for many machines: one episode of Fig. 6 is "
    "10 s of 432 ports. By load, episodes are 40 ms, with DataMining 400 ms: its largest flow "
    "takes 320 ms alone.",
)


def _trainings(end: str, small: bool, slots: int) -> tuple[Training, ...]:
    """Offline pre-training (§4.4.1), its loads drawn anew for every episode (Algorithm 1)."""
    steps = 100_000 if small else 400_000
    common: dict[str, Any] = {"steps": steps, "randomise": {"load": 3.0}}
    return (
        Training("websearch", f"pet-websearch{end}", at_load(0.3, slots, "latency"), **common),
        Training("datamining", f"pet-datamining{end}", at_load(0.3, slots, "throughput"), **common),
    )


def at_load(load: float, slots: int, priority: str) -> dict[str, Any]:
    """Options of a load. All loads have the `slots` that 90 % needs. §5.2 has the priorities."""
    options = {"load": load, "slots": slots, "priority": priority}
    if slots == SMALL_SLOTS:
        return options
    # `pet-websearch-v0` itself is shorter and has ACKs in the class of the data. It stays so, since
    # earlier timings were made with it.
    max_steps = 400 if priority == "latency" else 4000
    return {**options, "max_steps": max_steps, "memory_us": 1024.0, "ack_priority": True}


def _load_cells(end: str, loads: tuple[int, ...], slots: int) -> tuple[Cell, ...]:
    """Figs. 4, 5, 8, 9 and Table 1: both tables of sizes at every load."""
    cells = []
    for table, where in (
        ("websearch", "Figs. 4, 5(a), 8, 9; Table 1"),
        ("datamining", "Fig. 5(b)"),
    ):
        others = () if table == "datamining" else (rw.PET_ABLATED.name, rw.PET_PER_SWITCH.name)
        learners = (*_LEARNERS, *others)
        for load in loads:
            cells.append(
                Cell(
                    f"{table}-{load}",
                    where,
                    f"pet-{table}{end}",
                    table,
                    (*learners, *rw.names(rw.STATIC), "static:best"),
                    at_load(load / 100.0, slots, PRIORITY[table]),
                    x=load,
                )
            )
    return tuple(cells)


def _other_cells(end: str, windows: int) -> tuple[Cell, ...]:
    """Figs. 6 and 7, where PET also learns online, and cells without a figure."""
    online = (*_LEARNERS, rw.PET_ONLINE.name)
    static = (*rw.names(rw.STATIC), "static:best")
    return (
        Cell(
            *("switching", "Fig. 6", f"pet-switching{end}", "websearch"),
            (*online, *static, "oracle"),
            windows=windows,
        ),
        Cell(
            *("failures", "Fig. 7", f"pet-failures{end}", "websearch"),
            (*online, *static),
            windows=windows,
        ),
        Cell("many-to-one", "§5.3", f"pet-many-to-one{end}", "websearch", (*_LEARNERS, *static)),
        Cell("two-queues", "§4.5.2", f"pet-two-queues{end}", "websearch", (*_LEARNERS, *static)),
    )


_OPPONENTS = {"ACC": "acc", "SECN1": "static:secn1", "SECN2": "static:secn2"}


def _load_claims(loads: tuple[int, ...]) -> tuple[Claim, ...]:
    """Largest reductions over the loads, in percent."""
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
                    Change(
                        cells, figure, "pet", family, "mean" if key == "elephants" else "lowest"
                    ),
                    note,
                )
            )
    return (*claims, *_queue_claims())


def _queue_claims() -> tuple[Claim, ...]:
    """Table 1; its "variance" has the unit KB, and is read as a standard deviation."""
    claims = []
    for family, mean, deviation in (("pet", 5.3, 10.2), ("acc", 6.1, 14.1)):
        for figure, paper, text in (
            ("queue", mean, "mean queue"),
            ("queue spread", deviation, "spread of the queue"),
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


def _within(begin_s: float, end_s: float, windows: int) -> tuple[int, ...]:
    """Windows of a run of 10 s that lie entirely between two times."""
    per_s = windows / (switching.AT_US[-1] / 1e6)
    # Rounding must not push a time on the edge of a window into its neighbour.
    return tuple(range(math.ceil(begin_s * per_s - 1e-9), math.floor(end_s * per_s + 1e-9)))


def _parts(windows: int) -> tuple[str, ...]:
    """Windows after each switch of Fig. 6, as spans."""
    times = [at / 1e6 for at in switching.AT_US[1:]]
    inside = (_within(begin, end, windows) for begin, end in pairwise(times))
    return tuple(f"{span[0]}-{span[-1]}" for span in inside if span)


def _down(windows: int) -> tuple[str, ...]:
    """Windows of Fig. 7 in which links are down, one by one."""
    span = _within(failures.DOWN_US / 1e6, failures.UP_US / 1e6, windows)
    return tuple(f"{i}-{i}" for i in span)


def _dynamic_claims(loads: tuple[int, ...], windows: int) -> tuple[Claim, ...]:
    """Figs. 6, 7 and 9: switching, failures, ablation; Table 1 as a change."""
    web = tuple(f"websearch-{load}" for load in loads)
    online = rw.PET_ONLINE.name

    def over_time(
        key: str, text: str, paper: float, where: str, figure: str, spans: tuple[str, ...]
    ) -> Claim:
        cells = (key.partition("-")[0],)
        measure = Change(cells, figure, "pet", "acc", online=online, spans=spans)
        return Claim(key, f"{text}, PET against ACC", paper, "%", where, measure, _ONLINE)

    def change(
        key: str, text: str, paper: float, where: str, measure: Change, note: str = ""
    ) -> Claim:
        return Claim(key, text, paper, "%", where, measure, note)

    parts, down = _parts(windows), _down(windows)
    sixty = ("websearch-60",)
    return (
        over_time(
            *("switching-elephants", "FCT of elephants after a switch", -2.1),
            *("§5.5.4, Fig. 6(a)", "long mean", parts),
        ),
        over_time(
            *("switching-mice", "FCT of mice after a switch", -7.2),
            *("§5.5.4, Fig. 6(b)", "mice mean", parts),
        ),
        over_time(
            *("failures-fct", "mean FCT while links are down", -26.0),
            *("§5.5.5, Fig. 7", "all mean", down),
        ),
        change(
            *("ablation", "overall mean FCT, with incast degree and M/E ratio", -6.3),
            "§5.5.7, Fig. 9",
            Change(
                web,
                "all mean",
                "pet",
                "pet",
                fixed_against=rw.PET_ABLATED.name,
                columns=(READING,),
            ),
            "Against the best reading of PET without the two states.",
        ),
        change(
            *("queue-change", "mean queue at 60 % load, PET against ACC", -13.1),
            "Table 1: 5.3 against 6.1 KB",
            Change(sixty, "queue", "pet", "acc"),
        ),
        change(
            *("queue-spread-change", "spread of the queue at 60 % load, PET against ACC", -27.7),
            "Table 1: 10.2 against 14.1 KB",
            Change(sixty, "queue spread", "pet", "acc"),
        ),
    )


_ONLINE = "The best reading learns online here. Lowest of the windows after a switch or failure."


def _plots(loads: tuple[int, ...]) -> tuple[Plot, ...]:
    """Figures in the paper's form."""
    web = tuple(f"websearch-{load}" for load in loads)
    mining = tuple(f"datamining-{load}" for load in loads)
    fct = ("all mean", "mice mean", "mice p99", "long mean")
    return (
        Plot("FCT with WebSearch", "Fig. 4", web, fct),
        Plot("FCT with DataMining", "Fig. 5(b)", mining, fct),
        Plot("Latency: FCT of flows up to 100 KB, and queues", "Fig. 8, Table 1", web, _QUEUES),
        *(
            Plot(title, where, (cell,), _OVER_TIME, "time, ms", over_time=True)
            for cell, title, where in (
                ("switching", "Traffic that changes abruptly", "Fig. 6"),
                ("failures", "Links that fail", "Fig. 7"),
            )
        ),
    )


_QUEUES = ("short mean", "queue", "queue spread", "utilisation")
_OVER_TIME = ("mice mean", "long mean", "queue", "delivered")

"""ACC (Yan et al., SIGCOMM'21): its cells and its claims, §5.

The paper compares with "SECN", its two static settings. Where it does not say which, the claim is
measured against both, and "up to" is the larger gain. Mice are flows up to 100 KB here;
the paper has messages shorter than 10 KB (Fig. 7) and, in its simulations, does not say.
"""

from __future__ import annotations

from typing import Any

from ecn_marl.envs.scenarios import acc_incast, acc_messages
from ecn_marl.experiments.papers import port_figures as port_figures  # registers figures
from ecn_marl.experiments.papers import rows as rw
from ecn_marl.experiments.papers.measures import Change, Extreme, Value
from ecn_marl.experiments.papers.pet import SLOTS, SMALL_SLOTS, at_load
from ecn_marl.experiments.papers.suite import PUBLISHED, READING, Cell, Claim, Plot, Suite, Training

LOADS = (30, 60, 90)
"""Loads of Fig. 1 and of the large simulation, %; the excerpt has no numbers of either."""

MESSAGE_LOADS = (20, 60)

WINDOWS = 30
"""Parts of an episode of Figs. 2 and 6: ten for each draw of senders and flows."""

_SECN = ("static:secn1", "static:secn2")
_TRAINED = (rw.ACC, rw.ACC_READING, rw.ACC_TUNED)
_LEARNERS = rw.names(_TRAINED)
_RULES = (*rw.names(rw.STATIC, rw.RULES), "static:best")


def suite(small: bool) -> Suite:
    """The suite.

    Args:
        small: whether it takes minutes on two cores instead of a cluster.
    """
    end = "-small-v0" if small else "-v0"
    return Suite(
        name="acc",
        title="ACC: Automatic ECN Tuning for High-Speed Datacenter Networks",
        trainings=_trainings(end, small),
        cells=(*_incast_cells(end, small), *_testbed_cells(end, small), *_fabric_cells(end, small)),
        rows=(*_TRAINED, rw.ACC_ONLINE, rw.C_ACC, *rw.STATIC, *rw.RULES, *rw.REFERENCES),
        claims=_claims(),
        plots=_plots(small),
        notes=(*_NOTES, *(_SMALL_NOTES if small else _FULL_NOTES)),
        episodes=16 if small else 32,
    )


_NOTES = (
    "Senders are ConnectX-5 with the constants of its firmware, as the paper states none. PFC "
    "pauses an ingress at 1/9 of the free buffer (§5.1).",
    "Offline training has the paper's mix of incasts (§4.3), without its traces of storage, HPC "
    "and training, which are not published. Where traffic changes (Fig. 6), ACC is scored both as "
    "the offline model and learning online from it, each port with its own copy. Claims are "
    "measured with the offline model.",
    "Only an excerpt of the paper up to Fig. 8 and notes on the other sections were at hand. So "
    "block sizes of the storage, the size of the training, and degrees and loads of Fig. 1 are our "
    "choice.",
    "In Figs. 2 and 6 streams are always busy. Here every new flow starts at line rate; in the "
    "paper's Perftest a queue pair keeps its rate.",
    "Mice are flows up to 100 KB, on the testbed together with pings of 1 KB.",
)

_SMALL_NOTES = (
    "Small: 8 servers of two NICs in place of 24, two uplinks per leaf in place of four.",
    "Small: the 100 s between changes of Fig. 6 are 10 ms (divided by 10 000), a training step is "
    "1/10 of ResNet-50's, and senders have up to 8 queue pairs.",
    "Small: Fig. 7 on one switch with the three servers that take part; the large simulation on 12 "
    "hosts in place of 288.",
)

_FULL_NOTES = (
    "The 100 s between changes of Fig. 6 are 100 ms (divided by 1000). It is meant for many "
    "machines.",
)


def _trainings(end: str, small: bool) -> tuple[Training, ...]:
    """The offline mix, and the large network, whose size a central controller depends on."""
    steps = 45_000 if small else 450_000
    fabric = at_load(0.3, SMALL_SLOTS if small else SLOTS, "latency")
    return (
        Training("offline", f"acc-offline{end}", steps=steps),
        Training("fabric", f"pet-websearch{end}", fabric, steps, {"load": 3.0}),
    )


def _incast_cells(end: str, small: bool) -> tuple[Cell, ...]:
    """Fig. 1: rules only, since it shows which static setting is best."""
    degrees = acc_incast.SMALL_DEGREES if small else acc_incast.DEGREES
    return tuple(
        Cell(
            *(f"incast-{n}-{load}", "Fig. 1", f"acc-incast-{n}{end}", "offline", _RULES),
            {"load": load / 100.0},
            x=load,
        )
        for n in degrees
        for load in LOADS
    )


def _testbed_cells(end: str, small: bool) -> tuple[Cell, ...]:
    """Figs. 2, 6, 7 and 8, storage and training."""
    rows = (*_LEARNERS, *_RULES)

    def cell(name: str, where: str, scenario: str, online: str = "", **fields: Any) -> Cell:
        cell_rows = (online, *rows) if online else rows
        return Cell(name, where, f"acc-{scenario}{end}", "offline", cell_rows, **fields)

    messages = tuple(
        cell(
            *(f"messages-{load}", "Fig. 7", "messages"),
            options={"load": acc_messages.load_of(small, load / 100.0)},
            x=load,
        )
        for load in MESSAGE_LOADS
    )
    return (
        cell(
            *("heterogeneous", "Figs. 2, 6", "heterogeneous", rw.ACC_ONLINE.name),
            windows=WINDOWS,
        ),
        *messages,
        *(cell(f"tcp-{n}", "Fig. 8", f"tcp-{n}", x=n) for n in (2, 7)),
        cell("storage", "§5.3, IOPS", "storage"),
        cell("training", "Fig. 10", "training"),
    )


def _fabric_cells(end: str, small: bool) -> tuple[Cell, ...]:
    """The large simulation, and its distributed against its central controller (Fig. 14)."""
    slots = SMALL_SLOTS if small else SLOTS
    return tuple(
        Cell(
            *(f"fabric-{load}", "§5.4, Fig. 14", f"pet-websearch{end}", "fabric"),
            (*_LEARNERS, rw.C_ACC.name, *_RULES),
            at_load(load / 100.0, slots, "latency"),
            x=load,
        )
        for load in LOADS
    )


def _against_secn(
    cells: tuple[str, ...], figure: str, gain: str, opponents: tuple[str, ...] = _SECN
) -> Extreme:
    """Change against both static settings; `gain` picks the `lowest` or the `highest`."""
    return Extreme(
        tuple(Change(cells, figure, "acc", opponent, gain) for opponent in opponents), gain
    )


def _claims() -> tuple[Claim, ...]:
    """Claims of the paper."""
    note = "Against whichever of SECN1 and SECN2 the change is larger; the paper does not say."
    fabric = tuple(f"fabric-{load}" for load in LOADS)
    return (
        Claim(
            *("throughput", "mean throughput of changing traffic, ACC against SECN", 26.1, "%"),
            "§5.2, Fig. 6",
            _against_secn(("heterogeneous",), "throughput", "highest"),
            note,
        ),
        Claim(
            *("queue", "mean queue of changing traffic, ACC against SECN", -90.0, "%"),
            "§5.2, Fig. 6",
            _against_secn(("heterogeneous",), "bottleneck queue", "lowest"),
            f"The paper: an order of magnitude. {note}",
        ),
        *_message_claims(),
        *_queue_claims(),
        *_tcp_claims(),
        Claim(
            *("iops", "operations per second of storage, ACC against SECN, at least", 20.0, "%"),
            "§5.3 (notes)",
            _against_secn(("storage",), "iops", "lowest"),
            "The paper: 20 to 30 %. Against whichever setting the gain is smaller.",
        ),
        Claim(
            *("iops-most", "operations per second of storage, ACC against SECN, up to", 30.0, "%"),
            "§5.3 (notes)",
            _against_secn(("storage",), "iops", "highest"),
            "The paper: 20 to 30 %. Against whichever setting the gain is larger.",
        ),
        Claim(
            *(
                "mice-mean",
                "mean FCT of mice in the large simulation, ACC against SECN",
                -17.3,
                "%",
            ),
            "§5.4 (notes)",
            _against_secn(fabric, "short mean", "lowest"),
            note,
        ),
        Claim(
            *("mice-p99", "p99 FCT of mice in the large simulation, ACC against SECN", -47.5, "%"),
            "§5.4 (notes)",
            _against_secn(fabric, "short p99", "lowest"),
            note,
        ),
        Claim(
            *("idle", "inferences with the idle rule against without", -10.0, "%"),
            "§4.2",
            Value("fabric-60", "inferences saved", "acc", columns=(PUBLISHED, READING)),
            "The paper: about 10 % of the CPU's time; ours counts inferences.",
        ),
    )


def _message_claims() -> tuple[Claim, ...]:
    """Fig. 7: tails are shorter by a factor; a factor of 1.5 is a reduction of 33 %."""
    claims = []
    for load, smallest, largest in ((20, 1.5, 3.0), (60, 2.0, 7.0)):
        for word, factor, pick in (("at least", smallest, "highest"), ("up to", largest, "lowest")):
            claims.append(
                Claim(
                    f"tail-{load}-{word.split()[-1]}",
                    f"p99 FCT of mice at {load} % load, ACC against SECN, {word}",
                    round(100.0 * (1.0 / factor - 1.0), 1),
                    "%",
                    "§5.2, Fig. 7",
                    _against_secn((f"messages-{load}",), "short p99", pick),
                    f"The paper: SECN's tail is {smallest:g} to {largest:g} times as long.",
                )
            )
    return tuple(claims)


def _queue_claims() -> tuple[Claim, ...]:
    """Fig. 7(c): queue of the port to the receiver at 60 % load, as it is and against SECN."""
    claims = []
    stated = {"acc": (5.6, 13.3), "static:secn1": (20.4, 49.6), "static:secn2": (37.5, 109.3)}
    for figure, i, text in (
        ("bottleneck queue", 0, "mean queue"),
        ("bottleneck queue spread", 1, "standard deviation of the queue"),
    ):
        for family, values in stated.items():
            who = family.removeprefix("static:")
            key = f"{figure.replace(' ', '-')}-{who}"
            value = Value("messages-60", figure, family)
            claim_text = f"{text} at 60 % load, {who.upper()}"
            claims.append(Claim(key, claim_text, values[i], "KB", "§5.2, Fig. 7(c)", value))
            if family != "acc":
                reduction = round(100.0 * (stated["acc"][i] / values[i] - 1.0), 1)
                change = Change(("messages-60",), figure, "acc", family)
                against = f"{text} at 60 % load, ACC against {who.upper()}"
                where = f"§5.2: {stated['acc'][i]:g} against {values[i]:g} KB"
                claims.append(Claim(f"{key}-change", against, reduction, "%", where, change))
    return tuple(claims)


def _tcp_claims() -> tuple[Claim, ...]:
    """Fig. 8: shortfall of RDMA's throughput from its 70 % under the setting of DCQCN's paper."""
    claims = []
    for word, paper, pick in (("at least", -10.0, "highest"), ("up to", -20.0, "lowest")):
        parts = tuple(Value(f"tcp-{n}", "rdma share", "static:secn1") for n in (2, 7))
        claims.append(
            Claim(
                f"tcp-{word.split()[-1]}",
                f"throughput of RDMA beside TCP against its 70 %, SECN1, {word}",
                paper,
                "%",
                "§5.2, Fig. 8",
                Extreme(parts, pick),
                "Of 2 and 7 senders. TCP takes what RDMA lacks.",
            )
        )
    return tuple(claims)


def _plots(small: bool) -> tuple[Plot, ...]:
    """Figures in the paper's form."""
    degrees = acc_incast.SMALL_DEGREES if small else acc_incast.DEGREES
    messages = tuple(f"messages-{load}" for load in MESSAGE_LOADS)
    fabric = tuple(f"fabric-{load}" for load in LOADS)
    queue = ("bottleneck queue", "bottleneck queue spread")
    return (
        *(
            Plot(
                f"Static settings, {n} to 1",
                "Fig. 1",
                tuple(f"incast-{n}-{load}" for load in LOADS),
                ("short p99", "long mean", "throughput", "bottleneck queue"),
            )
            for n in degrees
        ),
        Plot(
            *("Traffic that changes", "Figs. 2, 6", ("heterogeneous",)),
            *(("queue", "delivered"), "time, ms"),
            over_time=True,
        ),
        Plot("Messages of two senders", "Fig. 7", messages, ("short mean", "short p99", *queue)),
        Plot("RDMA beside TCP", "Fig. 8", ("tcp-2", "tcp-7"), ("rdma share",), "senders"),
        Plot("Storage", "§5.3", ("storage",), ("iops", "short p99"), "storage"),
        Plot("Distributed training", "Fig. 10", ("training",), ("step time", "pauses"), "training"),
        Plot("Large simulation", "§5.4, Fig. 14", fabric, ("short mean", "short p99", "long mean")),
    )

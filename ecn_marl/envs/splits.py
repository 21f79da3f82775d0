"""Splits for generalisation: the variants that policies are trained in, and those that score them.

`ecn-marl bench --split NAME` trains policies in the unchanged scenario and scores them in every
test variant, without training them again. `train` lists further variants that may be trained in, as
`pretrained:generalist` is; the test variants must not. Splits are frozen: a change of any test
variant is a new `SPLITS_VERSION`, which results state.

Every variant is a scenario, too: `make("restore-serve-v0:senders/mellanox")`.

Sizes of flow sets follow the link rate, so the load is the same at other rates and round trips.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ecn_marl.envs.scenarios import restore_serve as rs
from ecn_marl.sim.network.topology import Topology, dumbbell, leaf_spine
from ecn_marl.sim.traffic.jobs import FlowSets, Requests

SPLITS_VERSION = 3

Variant = Callable[[], dict[str, Any]]
"""Makes options of `ecn_marl.make`."""


@dataclass(frozen=True)
class Split:
    """Where policies are trained and where they are scored.

    Attributes:
        scenario: the scenario; as it is, it belongs to the train side.
        about: what differs between the sides.
        train: further variants of the train side, by name.
        test: the variants that are scored, by name.
    """

    scenario: str
    about: str
    train: Mapping[str, Variant]
    test: Mapping[str, Variant]


SENDERS = "dcqcn:hpcc-paper,ai=2.5,hai=25"
"""Those of `restore-serve-v0`."""


def _rates(
    gbps: float, transport: str = SENDERS, buffer_mib: float = 32.0, width: int = 12
) -> dict[str, Any]:
    """`restore-serve-v0` at another link rate, with as many requests per byte."""
    sources = rs.tenant(tuple(range(rs.RACK)), rpc_per_us=0.2 * gbps / 100.0)
    return {
        "topology": rs.network(gbps, 8.0 * gbps),
        "traffic": tuple(
            replace(s, width=width) if isinstance(s, Requests) else s for s in sources
        ),
        "transport": transport,
        "buffer_mib": buffer_mib,
    }


def _rtt(delay_us: float) -> dict[str, Any]:
    """`restore-serve-v0` with storage nearer or further away."""
    network = dumbbell(rs.RACK, rs.STORAGE, gbps=100.0, uplink_gbps=800.0, uplink_delay_us=delay_us)
    return {"topology": network}


def _requests(factor: float) -> dict[str, Any]:
    """`restore-serve-v0` with more or fewer requests."""
    return {"traffic": rs.tenant(tuple(range(rs.RACK)), rpc_per_us=0.2 * factor)}


def _fill(factor: float) -> dict[str, Any]:
    """`restore-serve-v0` with flow sets that fill more or less of a phase."""
    sources = rs.tenant(tuple(range(rs.RACK)))
    return {
        "traffic": tuple(
            replace(s, fill=s.fill * factor) if isinstance(s, FlowSets) else s for s in sources
        )
    }


def _sizes(smallest_kb: float, largest_kb: float) -> dict[str, Any]:
    """`restore-serve-v0` with requests of other sizes."""
    sources = rs.tenant(tuple(range(rs.RACK)))
    return {
        "traffic": tuple(
            replace(s, smallest_kb=smallest_kb, largest_kb=largest_kb)
            if isinstance(s, Requests)
            else s
            for s in sources
        )
    }


def _streams(streams: int) -> dict[str, Any]:
    """`restore-serve-v0` with the same bytes in more, smaller flows."""
    return {"traffic": rs.tenant(tuple(range(rs.RACK)), streams=streams), "slots": 224}


def _senders(transport: str) -> dict[str, Any]:
    """Other constants of DCQCN."""
    return {"transport": transport}


def _fabric(leaves: int, hosts: int, spines: int) -> dict[str, Any]:
    """`websearch-v0` on another leaf-spine network of the same rates."""
    net: Topology = leaf_spine(leaves, hosts, spines, gbps=25.0, uplink_gbps=50.0)
    return {"topology": net, "slots": 8 * leaves * hosts}


def _failed(share: float, at_us: float, repair_us: float | None) -> dict[str, Any]:
    """`websearch-v0` with links between switches that fail, and are repaired or not."""
    return {"failing": {"share": share, "at_us": at_us, "repair_us": repair_us}}


def _each(make: Callable[..., dict[str, Any]], **cases: tuple[object, ...]) -> dict[str, Variant]:
    """Variants by name, each made by `make` from its own arguments."""
    # Made when they are used, so that importing this module builds no networks.
    return {name.replace("_", "-"): partial(make, *case) for name, case in cases.items()}


def _trained(variants: Mapping[str, Variant]) -> dict[str, Variant]:
    """Variants to train in, with the slots of `restore-serve-v0`: more would only take longer."""

    def with_slots(make: Variant) -> dict[str, Any]:
        return {**make(), "slots": rs.SLOTS}

    return {name: partial(with_slots, make) for name, make in variants.items()}


SPLITS: dict[str, Split] = {
    "loads": Split(
        "restore-serve-v0",
        "requests per µs, and how much of a phase the large flows fill",
        _trained(
            _each(
                _requests,
                requests_35=(0.35,),
                requests_80=(0.8,),
                requests_120=(1.2,),
                requests_150=(1.5,),
            )
            | _each(_fill, fill_90=(0.9,))
        ),
        _each(_requests, requests_25=(0.25,), requests_50=(0.5,), requests_200=(2.0,))
        | _each(_fill, fill_75=(0.75,), fill_110=(1.1,)),
    ),
    "sizes": Split(
        "restore-serve-v0",
        "sizes of requests, number and so size of the large flows",
        _trained(_each(_sizes, requests_1_to_50_KB=(1.0, 50.0), requests_5_to_70_KB=(5.0, 70.0))),
        _each(_sizes, requests_1_to_10_KB=(1.0, 10.0), requests_10_to_100_KB=(10.0, 100.0))
        | _each(_streams, streams_12=(12,)),
    ),
    "rates": Split(
        "restore-serve-v0",
        "link rates of 25 to 400 Gb/s; in training 100, or 35 and 150",
        _trained(_each(_rates, g35=(35.0, "dcqcn:hpcc-paper"), g150=(150.0,))),
        # At 400 Gb/s PFC's headroom alone takes 47 MiB, and eight requests arrive per tick.
        _each(
            _rates,
            g25=(25.0, "dcqcn:hpcc-paper"),
            g50=(50.0,),
            g200=(200.0,),
            g400=(400.0, SENDERS, 64.0, 26),
        ),
    ),
    "rtt": Split(
        "restore-serve-v0",
        "one-way delay between rack and storage; in training 40 µs",
        _trained(_each(_rtt, d15=(15.0,), d35=(35.0,), d45=(45.0,))),
        _each(_rtt, d10=(10.0,), d20=(20.0,), d60=(60.0,)),
    ),
    "senders": Split(
        "restore-serve-v0",
        "constants of DCQCN; in training those of the HPCC paper with a slow increase, or others",
        _each(
            _senders,
            np50us=("dcqcn:sigcomm15-np50us",),
            hpcc_run=("dcqcn:hpcc-run",),
            hpcc_config=("dcqcn:hpcc-config",),
        ),
        _each(
            _senders,
            hpcc_paper=("dcqcn:hpcc-paper",),
            sigcomm=("dcqcn:paper",),
            mellanox=("dcqcn:mellanox",),
        ),
    ),
    "topology": Split(
        "websearch-v0",
        "size of a leaf-spine network; in training 2 leaves of 4 hosts, 2 spines",
        {},
        _each(_fabric, leaves_2_hosts_8=(2, 8, 4), leaves_4_hosts_4=(4, 4, 2)),
    ),
    "failures": Split(
        "websearch-v0",
        "links between switches that fail; in training none",
        {},
        _each(_failed, one_fails=(0.01, 5000.0, None), half_for_5_ms=(0.5, 5000.0, 10000.0)),
    ),
}
"""Splits by name."""


def variants(scenario: str) -> dict[str, Variant]:
    """All variants of a scenario, of both sides, by `SPLIT/VARIANT`."""
    return {
        f"{name}/{variant}": make
        for name, split in SPLITS.items()
        if split.scenario == scenario
        for variant, make in {**split.train, **split.test}.items()
    }

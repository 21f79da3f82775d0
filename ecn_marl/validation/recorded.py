"""The recorded runs in `data/` (see its README), and the networks that they were made on."""

from __future__ import annotations

import csv
import gzip
import io
from functools import cache
from importlib import resources

import numpy as np

from ecn_marl.sim.network import topology
from ecn_marl.sim.network.topology import Topology

LINK_GBPS, UPLINK_GBPS = 8 * 1048 / 335, 8 * 1048 / 83
"""Actual rates of the "25" and "100" Gb/s links of the recorded runs, Gb/s. A packet of 1048 B
takes 335.36 and 83.84 ns there, which are cut to whole nanoseconds."""


def star(hosts: int, delay_us: float = 1.0) -> Topology:
    """Hosts on one switch; delay of a link in µs."""
    return topology.star(hosts, gbps=LINK_GBPS, delay_us=delay_us)


def fabric() -> Topology:
    """The leaf-spine network of the flow lists: 32 hosts, 4 leaves, 2 spines."""
    return topology.leaf_spine(4, 8, 2, gbps=LINK_GBPS, uplink_gbps=UPLINK_GBPS)


def _bytes(name: str) -> bytes:
    return resources.files("ecn_marl.validation").joinpath("data", name).read_bytes()


def rows(name: str, **columns: str | int) -> list[dict[str, str]]:
    """Rows of a table.

    Args:
        name: file name without `.csv`.
        **columns: columns and the values they must have.
    """
    table = csv.DictReader(io.StringIO(_bytes(f"{name}.csv").decode()))
    return [row for row in table if all(row[key] == str(value) for key, value in columns.items())]


@cache
def flow_list(name: str) -> dict[str, np.ndarray]:
    """Columns of a flow list, int64 `[N]` each, in order of the starts."""
    table = list(csv.DictReader(io.StringIO(gzip.decompress(_bytes(f"{name}.csv.gz")).decode())))
    return {key: np.array([int(row[key]) for row in table]) for key in table[0]}


@cache
def arrays(name: str) -> dict[str, np.ndarray]:
    """Arrays of an npz file as float64."""
    with np.load(io.BytesIO(_bytes(f"{name}.npz"))) as file:
        return {key: file[key].astype(np.float64) for key in file.files}

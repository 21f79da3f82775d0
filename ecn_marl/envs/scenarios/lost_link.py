"""`lost-link-v0`: `storage-train-v0`, and one of its uplinks is lost for half of the episode.

A leaf has half of its bandwidth to the other one left, so ports that were uncongested before hold
the ring and the reads up, and flows that shared two paths share one.
"""

from __future__ import annotations

from dataclasses import replace

from ecn_marl.envs.scenario import Scenario
from ecn_marl.envs.scenarios import storage_train

FAILING = {"share": 0.1, "at_us": 12_000.0, "repair_us": 36_000.0}
"""A tenth of the links between switches, but at least one: of four one, of a cluster's 32 three."""


def scenario() -> Scenario:
    """A random link between switches is down from 12 to 36 ms of 48 ms."""
    return replace(storage_train.scenario(), failing=FAILING)


def full() -> Scenario:
    """`storage-train-full-v0` with three of 32 links between switches down for as long."""
    return replace(storage_train.full(), failing=FAILING)

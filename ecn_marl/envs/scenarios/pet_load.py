"""`pet-websearch-small-v0`, `pet-datamining-v0`, `pet-datamining-small-v0` (PET, Figs. 4, 5, 8).

Poisson arrivals between all hosts, sizes of WebSearch or DataMining, 60 % load by default
(`load=0.1` to `0.9` for others). The full WebSearch scenario is `pet-websearch-v0`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ecn_marl.envs.scenario import PRIORITIES, Scenario
from ecn_marl.envs.scenarios import pet_network as pn
from ecn_marl.sim.traffic.poisson import Poisson


def _scenario(table: str, priority: str, small: bool, **fields: Any) -> Scenario:
    weight = {"utilisation_weight": PRIORITIES[priority]}
    return Scenario(
        traffic=(Poisson(load=0.6, table=table, width=8 if small else 32, warm=True),),
        reward_options=weight,
        slowdown_weights=pn.weights(table.partition("_")[0], small),
        **pn.common(small),
        **fields,
    )


def websearch_small() -> Scenario:
    """12 hosts, WebSearch, episodes of 40 ms."""
    return _scenario("WebSearch", "latency", True, slots=320)


def datamining() -> Scenario:
    """288 hosts, DataMining as measured: flows of up to 1 GB; episodes of 400 ms."""
    return replace(_scenario("DataMining", "throughput", False, slots=1024), max_steps=4000)


def datamining_small() -> Scenario:
    """12 hosts, DataMining with flows of up to 10 MB, episodes of 40 ms."""
    return _scenario(pn.LARGEST_TABLE, "throughput", True, slots=320)

"""`acc-storage-v0`, `acc-storage-small-v0`: distributed storage with operations per second (ACC).

The paper runs FIO on the testbed and reports IOPS. Block sizes and queue depths are not in the
excerpt used here: transactions of 8 KB, 16 outstanding per client, and analytics of 1 MiB, 4
outstanding (the notes on the paper name both, OLTP and OLAP). Seven of ten operations are reads.
Half of the servers are clients, the other half store the data.
"""

from __future__ import annotations

from typing import Any

from ecn_marl.envs.scenario import Scenario
from ecn_marl.envs.scenarios import acc_network as an
from ecn_marl.sim.traffic.loops import ClosedLoop

REQUEST_KB = 0.1
"""Payload of the command of a read, and of the acknowledgement of a write."""


def _scenario(small: bool) -> Scenario:
    shared = an.common(small)
    nics = an.first_nics(shared["topology"])
    half = len(nics) // 2
    loop: dict[str, Any] = {
        **{"clients": nics[:half], "servers": nics[half:], "request": REQUEST_KB},
        **{"read_share": 0.7, "service_us": 10.0},
    }
    return Scenario(
        traffic=(
            ClosedLoop(depth=4 if small else 16, response=8.0, think_us=5.0, **loop),
            ClosedLoop(depth=2 if small else 4, response=1048.576, think_us=5.0, **loop),
        ),
        max_steps=200,
        **shared,
    )


def full() -> Scenario:
    """12 clients and 12 storage servers, episodes of 20 ms."""
    return _scenario(False)


def small() -> Scenario:
    """4 clients with fewer outstanding operations, 4 storage servers, episodes of 20 ms."""
    return _scenario(True)

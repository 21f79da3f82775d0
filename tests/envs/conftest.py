"""Shared by the tests of the environments and their layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import jax.numpy as jnp
import pytest

import ecn_marl
from ecn_marl.envs.parallel import EcnParallelEnv
from ecn_marl.sim.simulator import PortStats


@pytest.fixture(scope="session")
def port_stats() -> Callable[..., PortStats]:
    """Builds statistics of ports: fields not given are zero; scalars go to every port.

    `class_bytes` is `[ports, 3]`.
    """

    def build(num_ports: int = 1, **values: Any) -> PortStats:
        zeros = {field.name: 0.0 for field in fields(PortStats)}
        assert set(values) <= set(zeros), f"unknown fields {set(values) - set(zeros)}"
        leaves = {
            name: jnp.broadcast_to(
                jnp.asarray(value, jnp.float32),
                (num_ports, 3) if name == "class_bytes" else (num_ports,),
            )
            for name, value in (zeros | values).items()
        }
        return PortStats(**leaves)

    return build


@pytest.fixture
def small() -> EcnParallelEnv:
    """Seventeen ports, six steps."""
    return ecn_marl.parallel_env("incast-v0", features="pet", reward="pet", max_cycles=6)

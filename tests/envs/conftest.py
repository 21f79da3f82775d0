"""Shared by the tests of the observation, reward and action layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import jax.numpy as jnp
import pytest

from ecn_marl.sim.simulator import PortStats


@pytest.fixture(scope="session")
def port_stats() -> Callable[..., PortStats]:
    """Builds statistics of ports: fields not given are zero; scalars go to every port."""

    def build(num_ports: int = 1, **given: Any) -> PortStats:
        zeros = {field.name: 0.0 for field in fields(PortStats)}
        assert set(given) <= set(zeros), f"unknown fields {set(given) - set(zeros)}"
        leaves = {
            name: jnp.broadcast_to(jnp.asarray(value, jnp.float32), (num_ports,))
            for name, value in (zeros | given).items()
        }
        return PortStats(**leaves)

    return build

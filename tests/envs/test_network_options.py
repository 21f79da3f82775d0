"""Networks by their short form, other links, single sources, checked environments, names."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ecn_marl
from ecn_marl._errors import MANY
from ecn_marl.envs.scenario import Scenario
from ecn_marl.sim import Incast, star
from ecn_marl.sim.config import base_rtt

BURSTS = Incast(load=0.5, n_max=2, flow_kb=50.0, width=8)


def test_a_network_by_its_short_form_and_a_single_source():
    env = ecn_marl.make("incast-v0", topology="star:6", traffic=BURSTS, slots=8)
    assert env.sim.topology == star(6, gbps=25.0, delay_us=1.0)
    assert env.sim.traffic[0].load == 0.5
    assert Scenario(topology="star:6", traffic=BURSTS).topology == star(6)
    with pytest.raises(ValueError, match="did you mean 'star'"):
        ecn_marl.make("incast-v0", topology="sta:6", traffic=BURSTS)


def test_other_links():
    """Base RTTs by hand: 2 links of 1 µs there and back, and two store-and-forwards of 1000 B."""
    plain = ecn_marl.make("incast-v0", topology="star:6", traffic=BURSTS, slots=8)
    far = ecn_marl.make(
        "incast-v0", topology="star:6", traffic=BURSTS, slots=8, delay_us=5.0, link_gbps=100.0
    )
    stored = 2 * 1000 / (25e9 / 8e6)
    assert base_rtt(plain.sim.topology) == pytest.approx(4.0 + stored)
    assert base_rtt(far.sim.topology) == pytest.approx(20.0 + stored / 4)
    assert {p.gbps for p in far.sim.topology.ports} == set(far.sim.topology.nic_gbps) == {100.0}
    assert np.allclose(far.port_scale(far.default_params.sim), 4.0)
    spines = ecn_marl.make("incast-v0", topology="leaf-spine:2,2,2", traffic=BURSTS, uplink_gbps=40)
    rates = {(p.kind, p.gbps) for p in spines.sim.topology.ports}
    assert rates == {("host", 25.0), ("leaf-up", 40.0), ("spine-down", 40.0)}
    with pytest.raises(ValueError, match=r"delay_us = -1 "):
        ecn_marl.make("incast-v0", delay_us=-1)


def test_checked_environments_refuse_actions_out_of_range():
    options = {"topology": "star:3", "traffic": BURSTS, "slots": 8}
    env = ecn_marl.make("incast-v0", checked=True, **options)
    params = env.default_params
    _, state = env.reset(jax.random.key(0), params)
    with pytest.raises(ValueError, match=r"action of port_0, kmin = 99 .* \[0, 8\]"):
        env.step(jax.random.key(0), state, jnp.full((3, 3), 99, jnp.int32), params)


def test_lengths_and_names():
    with pytest.raises(ValueError, match="it is called max_steps"):
        ecn_marl.make("incast-v0", max_cycles=5)
    assert ecn_marl.parallel_env("incast-v0", max_steps=5).max_cycles == 5
    with pytest.raises(ValueError, match="none beside max_steps"):
        ecn_marl.parallel_env("incast-v0", max_cycles=5, max_steps=5)
    # The same episodes: 300 us do not divide those of the scenario, and margins follow the length.
    options = {"interval_us": 300.0, "margins_us": (9e3, 9e3), "features": "ports"}
    cycles = ecn_marl.parallel_env("incast-v0", max_cycles=50, **options)
    steps = ecn_marl.parallel_env("incast-v0", max_steps=50, **options)
    assert cycles.max_cycles == 50 and cycles.core == steps.core
    count = len(ecn_marl.scenarios())
    assert count > MANY
    with pytest.raises(ValueError, match=rf"did you mean 'incast-v0'.*\? {count} are known$"):
        ecn_marl.make("incst-v0")
    with pytest.raises(ValueError, match=r"scenario of wrong-v0 = 3 is not allowed"):
        ecn_marl.register("wrong-v0", lambda: 3)
    assert "wrong-v0" not in ecn_marl.scenarios()

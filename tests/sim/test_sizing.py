"""Widths and slots that follow from the traffic, against simulation and closed forms."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiers import tiers

import ecn_marl
from ecn_marl import Scenario
from ecn_marl.sim import Incast, Poisson, leaf_spine, scaled_ecn, star
from ecn_marl.sim.network.topology import GBPS
from ecn_marl.sim.traffic import sizing
from ecn_marl.sim.traffic.sizes import size_table

SETTINGS = ((5.0, 200.0, 0.01), (100.0, 400.0, 0.2), (5.0, 10.0, 1.0), (640.0, 5120.0, 0.01))
TICK = 20.0


def demand(source, network):
    return sizing.demand_of(source, network, TICK)


def test_loads_of_links_are_those_of_the_traffic():
    """Uniform traffic at load L: receivers get L of their link, uplinks the share between racks."""
    network, source = leaf_spine(4, 4, 2, gbps=25.0, uplink_gbps=50.0), Poisson(load=0.5)
    d = demand(source, network)
    loads = sizing.link_loads([d], network)
    payload = float(size_table("WebSearch").mean)
    wire = 0.5 * d.wire / payload
    assert wire == pytest.approx(0.5 * 1.048, rel=0.01)
    kinds = {kind: loads[16 + network.ports_of_kind(kind)] for kind in ("host", "leaf-up")}
    np.testing.assert_allclose(loads[:16], wire, rtol=1e-9)
    np.testing.assert_allclose(kinds["host"], wire, rtol=1e-9)
    np.testing.assert_allclose(kinds["leaf-up"], wire * 4 * 25 / 100 * 12 / 15, rtol=1e-9)
    moved = loads * np.array([25.0] * 16 + [p.gbps for p in network.ports]) * GBPS
    hops = 1 + 1 + 2 * 12 / 15  # NIC, last port, and two more for those that leave the rack
    assert moved.sum() == pytest.approx(hops * d.per_us * d.wire, rel=1e-9)


def test_width_holds_a_tick():
    network = star(8)
    d = demand(Poisson(load=0.6, table="GoogleRPC2008"), network)
    counts = np.random.default_rng(0).poisson(d.per_us * TICK, 100_000)
    width = sizing.width_for(d, TICK)
    assert counts.max() <= width < 2 * d.per_us * TICK
    assert sizing.width_for(demand(Incast(n_max=40), network), TICK) == 40


LOADS = (("GoogleRPC2008", 0.6), ("FbHdp", 0.8), ("WebSearch", 0.6))


@pytest.mark.parametrize(("table", "load"), tiers(LOADS, ("WebSearch", 0.6)))
def test_automatic_slots_hold_every_flow(table, load):
    """Nothing waits for a slot or a place in an offer, under shallow and deep thresholds."""
    scenario = Scenario(star(4), (Poisson(load=load, table=table),), max_steps=100)
    env = ecn_marl.make(scenario)
    params = env.default_params.sim

    @jax.jit
    def run(setting):
        ecn = scaled_ecn(params.net, *SETTINGS[0])
        ecn = jax.tree.map(lambda x, y: jnp.full_like(x, y), ecn, tuple_to_ecn(ecn, setting))

        def interval(state, _):
            return env.sim.interval(state, params, ecn)[0], None

        state, _ = jax.lax.scan(interval, env.sim.init(jax.random.key(1), params), None, length=100)
        return state.totals.started, state.totals.deferred, env.sim.waiting(state, params)

    for setting in SETTINGS:
        scale = np.array([1e3, 1e3, 1.0])
        started, deferred, waiting = run(jnp.asarray(np.array(setting) * scale, jnp.float32))
        expected = demand(scenario.traffic[0], scenario.topology).per_us * 10_000
        assert started + waiting == pytest.approx(expected, abs=5 * np.sqrt(expected) + 5)
        assert deferred + waiting <= 1e-3 * started, setting


def tuple_to_ecn(ecn, values):
    return replace(ecn, kmin=values[0], kmax=values[1], pmax=values[2])


def test_make_makes_room():
    """Other traffic gets the slots and widths it needs; other settings of the scenario stay."""
    rpc = Poisson(load=0.6, table="GoogleRPC2008")
    env = ecn_marl.make("websearch-star-v0", traffic=(rpc,))
    assert env.sim.traffic[0].width > 52  # flows that arrive per tick on average
    assert env.sim.slots > 1000
    assert ecn_marl.make("websearch-star-v0").sim.slots == 64
    assert ecn_marl.make("websearch-star-v0", load=0.3).sim.slots == 64
    assert ecn_marl.make("websearch-star-v0", load=0.9).sim.slots > 64
    assert ecn_marl.make("websearch-star-v0", load=0.9, slots=80).sim.slots == 80


def test_too_little_room_is_refused():
    rpc = Poisson(load=0.6, table="GoogleRPC2008", width=8)
    with pytest.raises(ValueError, match=r"width = 8 .* at least 91: 51\.9 flows .* per tick"):
        ecn_marl.make("websearch-star-v0", traffic=(rpc,))
    with pytest.raises(ValueError, match=r"slots = 4 .* auto, or at least 6"):
        ecn_marl.make("websearch-star-v0", slots=4)
    with pytest.raises(ValueError, match=r"slots = 'auto' .* 105 % of its rate"):
        ecn_marl.make("websearch-star-v0", slots="auto", load=1.0)
    with pytest.raises(ValueError, match=r"slots = 'many' .* or auto"):
        ecn_marl.make("websearch-star-v0", slots="many")
    with pytest.raises(ValueError, match=r"width = 'wide' .* or auto"):
        ecn_marl.make("websearch-star-v0", traffic=(Poisson(width="wide"),))


def test_sources_without_demand_need_numbers():
    class Silent(Poisson):
        demand = None

    with pytest.raises(ValueError, match=r"width = 'auto' .* Silent has no demand"):
        ecn_marl.make("websearch-star-v0", traffic=(Silent(),))
    with pytest.raises(ValueError, match=r"slots = 'auto' .* Silent has no demand"):
        ecn_marl.make("websearch-star-v0", traffic=(Silent(width=4),), slots="auto")
    assert ecn_marl.make("websearch-star-v0", traffic=(Silent(width=4),)).sim.slots == 64

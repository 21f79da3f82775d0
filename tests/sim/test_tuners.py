"""Properties of all tuners: allowed thresholds, ports are alike, short forms, errors."""

from __future__ import annotations

from dataclasses import fields, replace

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from portcases import INTERVAL, SPINE, SWITCH, network, statistics
from roundoff import U

from ecn_marl.sim import Simulator
from ecn_marl.sim.network.topology import GBPS
from ecn_marl.sim.state import PortStats
from ecn_marl.sim.tuners import (
    TUNERS,
    BufferCoupled,
    EcnSharp,
    PiMarker,
    QueueDriven,
    Relative,
    Shared,
    UtilisationDriven,
    parse_tuner,
)

SHARED = {name for name, kind in TUNERS.items() if issubclass(kind, Shared)}
RATES = np.array([10, 25, 25, 50, 100, 400]) * GBPS
PORTS = len(RATES)


def stats_from(rng, least=1.0):
    """Random statistics from an idle port to a buffer overrun; queues peak above `least` bytes.

    Less than a packet counts as no queue at any rate, so tests of scaling need larger queues.
    """
    busy = rng.random(PORTS) < 0.8
    peak = busy * np.exp(rng.uniform(np.log(least), np.log(4e7), PORTS))
    low = peak * rng.random(PORTS)
    mean = (low + peak) / 2
    values = {
        "queue": rng.uniform(low, peak),
        "queue_mean": mean,
        "queue_sq": mean**2 + (peak - low) ** 2 / 12,
        "queue_max": peak,
        "tx_bytes": RATES * INTERVAL * rng.random(PORTS) * busy,
        "utilisation": busy * rng.random(PORTS),
        "marked_bytes": peak,
        "paused": rng.random(PORTS) * busy,
    }
    others = {f.name: np.zeros(PORTS) for f in fields(PortStats)}
    return PortStats(**{k: jnp.asarray(v, jnp.float32) for k, v in (others | values).items()})


def on_switches(tuner, switch):
    return (
        replace(tuner, port_switch=tuple(map(int, switch))) if isinstance(tuner, Shared) else tuner
    )


def thresholds(tuner, net, history):
    """Thresholds `[T, 3, P]` after each of several intervals."""
    state, rows = tuner.init(net), []
    for stats in history:
        state, ecn = tuner.update(state, stats, net, INTERVAL)
        rows.append(np.stack([ecn.kmin, ecn.kmax, ecn.pmax]))
    return np.stack(rows)


def assert_allowed(rows):
    kmin, kmax, pmax = rows[:, 0], rows[:, 1], rows[:, 2]
    assert np.isfinite(rows).all()
    assert (kmin >= 0).all()
    assert (kmin < kmax).all()
    assert (pmax > 0).all()
    assert (pmax <= 1).all()


@pytest.mark.parametrize("name", TUNERS)
@settings(max_examples=8)
@given(seed=st.integers(0, 2**32 - 1))
@example(seed=1558895)  # a full buffer: another order of the queues is another rounding
def test_thresholds_are_allowed_and_ports_are_alike(name, seed):
    """Any statistics give allowed thresholds; permuting the ports permutes them."""
    rng = np.random.default_rng(seed)
    switch = rng.integers(0, 3, PORTS)
    net = network(RATES, switches=3)
    tuner = on_switches(parse_tuner(name), switch)
    history = [statistics(PORTS)] + [stats_from(rng) for _ in range(4)]
    rows = thresholds(tuner, net, history)
    assert_allowed(rows)
    order = rng.permutation(PORTS)
    moved = thresholds(
        on_switches(tuner, switch[order]),
        replace(net, port_rate=net.port_rate[order]),
        [jax.tree.map(lambda x: x[order], stats) for stats in history],
    )
    # Functions of a port may be computed in another lane, to 8 u. The free buffer of a switch is
    # what a sum of 6 queues leaves of it, from 1.2 % of it upwards: 6 u of all are 500 u of that.
    near = 512 * U if name in SHARED else 8 * U
    np.testing.assert_allclose(moved, rows[:, :, order], rtol=near)


@pytest.mark.parametrize(
    ("name", "constant"), [(name, c) for name, kind in TUNERS.items() for c in kind.constants()]
)
def test_every_allowed_constant_gives_allowed_thresholds(name, constant):
    """At the ends of its range and far from its default; what is not allowed says so by name."""
    rng = np.random.default_rng(0)
    net, built = network(RATES), 0
    history = [statistics(PORTS)] + [stats_from(rng) for _ in range(10)]
    for value in (1e-9, 1e-3, 0.5, 1.0, 1.5, 10.0, 50.0, 1e3, 1e9):
        try:
            tuner = parse_tuner(f"{name}:{constant}={value}")
        except ValueError as error:
            assert f"{name}: " in str(error) and "is not allowed" in str(error)
            continue
        built += 1
        assert_allowed(thresholds(tuner, net, history))
    assert built >= 1


@pytest.mark.parametrize("name", sorted(set(TUNERS) - SHARED))
def test_thresholds_grow_with_the_rate(name):
    """Queues and rate twice as large: thresholds twice as large."""
    rng = np.random.default_rng(3)
    history = [stats_from(rng, least=5e3) for _ in range(6)]

    def double(stats):
        sizes = {n: 2 * getattr(stats, n) for n in ("queue", "queue_mean", "queue_max", "tx_bytes")}
        return replace(stats, queue_sq=4 * stats.queue_sq, **sizes)

    tuner = parse_tuner(name)
    base = thresholds(tuner, network(RATES), history)
    doubled = thresholds(tuner, network(2 * RATES), [double(stats) for stats in history])
    np.testing.assert_allclose(doubled[:, :2], 2 * base[:, :2], rtol=1e-5)


def test_parse_tuner():
    assert parse_tuner("ecn-sharp") == EcnSharp()
    assert parse_tuner(" PI:qref_kb=100, a=4e-5") == PiMarker(qref_kb=100.0, a=4e-5)
    assert parse_tuner("queue:lead=2") == QueueDriven(lead=2.0)
    assert parse_tuner("utilisation") == UtilisationDriven()
    assert parse_tuner("buffer:alpha=0.02", SPINE) == BufferCoupled(
        alpha=0.02, port_switch=tuple(SWITCH.tolist())
    )
    assert hash(parse_tuner("buffer", SPINE)) == hash(parse_tuner("buffer", SPINE))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("pie", "unknown tuner 'pie': did you mean 'pi'"),
        ("pi:qref=1", "unknown constant of pi 'qref': did you mean 'qref_kb'"),
        ("buffer:port_switch=1", "unknown constant of buffer 'port_switch'"),
        ("pi:qref_kb=x", "pi: qref_kb = 'x' is not allowed: expected a number"),
        ("pi:qref_kb", "pi: qref_kb = '' is not allowed"),
        ("pi:qref_kb=-1", "pi: qref_kb = -1.0 is not allowed"),
        ("pi:qref_kb=nan", "pi: qref_kb = nan is not allowed"),
        ("pi:a=1e-6", "pi: b = 2.906e-05 is not allowed: expected less than a"),
        ("ecn-sharp:target_us=20", "ecn-sharp: target_us = 20.0 is not allowed"),
        ("queue:pmax=1.5", "queue: pmax = 1.5 is not allowed: expected a probability"),
        ("queue:kmax_over_kmin=1", "queue: kmax_over_kmin = 1.0 is not allowed"),
        ("utilisation:start_kb=500", "utilisation: start_kb = 500.0 is not allowed"),
        ("utilisation:up=0.9", "utilisation: up = 0.9 is not allowed"),
    ],
)
def test_bad_tuners_are_named(text, message):
    with pytest.raises(ValueError, match=r".") as error:
        parse_tuner(text)
    assert message in str(error.value)


def test_buffer_coupled_must_know_the_switches():
    net = Simulator(SPINE, ()).default_params().net
    for tuner in (BufferCoupled(), BufferCoupled(port_switch=(0,) * 13), Relative()):
        with pytest.raises(ValueError, match="give parse_tuner a topology"):
            tuner.init(net)

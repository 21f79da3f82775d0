"""CNPs that receivers pace: against the rule written in events, and as senders hear them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from netcases import ROWS, flow_list

from ecn_marl.sim import Ecn, Schedule, Simulator, schedule, star
from ecn_marl.sim import feedback as fb
from ecn_marl.sim.config import TrafficClass
from ecn_marl.sim.transports import Dcqcn, DcqcnFluid, Dctcp, Mixed, preset, transports

FLOWS, STEPS = 4, 2000


def receiver(marks, interval):
    """Times of the CNPs for marked packets at `marks` (µs, one flow), by SIGCOMM'15, Fig. 6.

    Without a CNP in the last interval, one leaves at once. Else, if anything was marked within the
    interval, one leaves at its end.
    """
    sent, end, pending = [], -np.inf, False
    for now in marks:
        if pending and end < now:
            sent.append(end)
            end, pending = end + interval, False
        if now >= end:
            sent.append(now)
            end, pending = now + interval, False
        else:
            pending = True
    return [*sent, end] if pending else sent


@partial(jax.jit, static_argnums=(0, 1))
def paced(transport, dt, params, marks):
    """Which substeps send a CNP, `[T, F]`."""
    state = transport.init(FLOWS)
    state = transport.start(state, params, jnp.ones(FLOWS, bool), jnp.full(FLOWS, 3125.0))

    def step(state, marked):
        return transport.notify(state, params, marked, dt)

    return jax.lax.scan(step, state, marks)[1]


@given(seed=st.integers(0, 2**32 - 1), interval=st.integers(2, 60), dt=st.sampled_from([1.0, 0.5]))
@settings(max_examples=20)
def test_the_rule(seed, interval, dt):
    """Random marks, dense and sparse by turns: every CNP when the rule in events sends it."""
    rng = np.random.default_rng(seed)
    chance = np.repeat(rng.choice([0.0, 0.01, 0.1, 1.0], (STEPS // 50, FLOWS)), 50, axis=0)
    marks = rng.random((STEPS, FLOWS)) < chance
    transport = Dcqcn.of("sigcomm15-np50us")
    params = preset("sigcomm15-np50us", cnp_interval_us=float(interval))
    got = np.asarray(paced(transport, dt, params, jnp.asarray(marks)))
    for flow in range(FLOWS):
        want = receiver(np.flatnonzero(marks[:, flow]), interval / dt)
        want = [t for t in want if t < STEPS]
        np.testing.assert_array_equal(np.flatnonzero(got[:, flow]), want)


@pytest.mark.parametrize(("dt", "interval"), [(1.0, 50.0), (3.0, 50.0), (2.0, 7.0), (0.3, 4.0)])
def test_a_receiver_that_always_owes_one(dt, interval):
    """One per interval, also where substeps do not divide it: none is lost or gained over time."""
    params = preset("sigcomm15-np50us", cnp_interval_us=interval)
    marks = jnp.ones((STEPS, FLOWS), bool)
    got = np.asarray(paced(Dcqcn.of("sigcomm15-np50us"), dt, params, marks))[:, 0]
    assert got.sum() == pytest.approx(STEPS * dt / interval, abs=1.01)
    assert np.diff(np.flatnonzero(got)).min() * dt > interval - dt


def test_an_interval_of_zero_sends_a_cnp_for_every_mark():
    marks = jnp.asarray(np.random.default_rng(0).random((STEPS, FLOWS)) < 0.3)
    params = preset("sigcomm15-np50us", cnp_interval_us=0.0)
    sent = paced(Dcqcn.of("sigcomm15-np50us"), 1.0, params, marks)
    np.testing.assert_array_equal(sent, marks)


def test_without_pacing_there_is_no_state():
    for text in transports():
        kind, name = text.split(":")
        if kind == "dcqcn" and name != "sigcomm15-np50us":
            state = Dcqcn.of(name).init(FLOWS)
            assert state.cnp_left is None
            assert state.cnp_owed is None


# --- in a network ---------------------------------------------------------------------------------

LISTENER = Dcqcn.of("sigcomm15-np50us")


class Counting(Dcqcn):
    """Steady senders that count the CNPs which reach them in `bdp`, which nothing else reads."""

    def update(self, state, params, heard, dt):
        """Count, and keep the rate."""
        after = super().update(state, params, heard, dt)
        return replace(after, rate=state.rate, bdp=state.bdp + heard.cnp)


SIM = Simulator(
    star(3),
    (Schedule(1.0, ROWS),),
    Counting(LISTENER.name, LISTENER.byte_counter, cnp_paced=True),
    dt_us=1.0,
    tick_steps=10,
    interval_steps=1000,
    slots=4,
    scheduled=ROWS,
)
INIT, RUN = jax.jit(SIM.init), jax.jit(SIM.interval)


def counted(interval_us, milliseconds=4):
    """CNPs that two flows into one port hear in each millisecond, `[T, 2]`; all is marked."""
    sim = SIM
    rows = [(sender, 0, 10**8, 0.0) for sender in (1, 2)]
    params = sim.default_params(traffic=(schedule(flow_list(rows), 1.0),))
    interval = jnp.asarray(interval_us, params.transport.cnp_interval_us.dtype)
    params = replace(params, transport=replace(params.transport, cnp_interval_us=interval))
    state = INIT(jax.random.key(0), params)
    ecn = Ecn(jnp.full(3, 1.0), jnp.full(3, 2.0), jnp.ones(3))
    counts = []
    for _ in range(milliseconds):
        state, _ = RUN(state, params, ecn)
        counts.append(np.asarray(state.flows.transport.bdp[:2]))
    return np.diff(np.array(counts), axis=0)


def test_a_saturated_flow_hears_one_cnp_per_interval():
    """Every packet is marked: 1000 / 50 CNPs per millisecond, and many more without pacing.

    The queue of these steady senders grows, ACKs do not wait in it: the delay stays.
    """
    assert (counted(50.0) == 1000 / 50).all()
    assert (counted(0.0) > 500).all()


def test_classes_pace_their_own():
    """Beside DCTCP: the receivers of each class decide on its marks."""
    mixed = Mixed((Dctcp(), LISTENER))
    params = mixed.default_params()
    state = mixed.assign(mixed.init(FLOWS), jnp.array([0, 1, 0, 1]))
    state = mixed.start(state, params, jnp.ones(FLOWS, bool), jnp.full(FLOWS, 3125.0), 8.0)
    marked, cnps = jnp.ones(FLOWS, bool), []
    for _ in range(3):
        state, sent = mixed.notify(state, params, marked, 1.0)
        cnps.append(np.asarray(sent))
    np.testing.assert_array_equal(cnps, [[1, 1, 1, 1], [1, 0, 1, 0], [1, 0, 1, 0]])


def test_signals_are_as_before():
    """Pacing needs no other signal, and the fluid model has no pacing."""
    assert LISTENER.needs == Dcqcn.of("paper").needs == {fb.CNP}
    assert not hasattr(DcqcnFluid.of("paper"), "notify")
    assert TrafficClass("rdma", LISTENER).transport == LISTENER

"""Signals of senders are exact: in a batch, over a gigabyte, when counters wrap around."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ear import (
    ALL,
    CHUNK,
    STAR,
    STAR_FAST,
    listen,
    prepare,
    recorder,
    recording,
    round_trip,
)
from netcases import QUICK, start

from ecn_marl.sim import scaled_ecn
from ecn_marl.sim.metrics import counter_bytes


@pytest.mark.thorough
def test_alone_and_in_a_batch():
    """The same bits under vmap."""
    rows = [(1, 0, 300_000, 0.0), (2, 0, 300_000, 4.0), (0, 1, 200_000, 9.0), (3, 1, 70_000, 20.0)]
    sim, settings = STAR, [(1.0, 20e3), (0.4, 1e9), (0.9, 3e3)]
    params = [prepare(sim, rows, {}, share=s, window=w) for s, w in settings]
    ecn = scaled_ecn(params[0].net, 20, 80, 0.5)
    keys = [jax.random.key(k) for k in range(3)]
    states = [start(sim)(k, p) for k, p in zip(keys, params, strict=True)]
    singles = [recording(sim, CHUNK)(s, p, ecn) for s, p in zip(states, params, strict=True)]
    stack = (
        jax.tree.map(lambda *x: jnp.stack(x), *states),
        jax.tree.map(lambda *x: np.stack(x), *params),
    )
    batch = jax.jit(jax.vmap(recorder(sim, CHUNK), (0, 0, None)))(*stack, ecn)
    for i, (_, (log, snapshots)) in enumerate(singles):
        batch_log, batch_snapshots = jax.tree.map(lambda x, i=i: x[i], batch[1])
        # The only signal that is an exponential: its last bit follows from how loops are cut.
        np.testing.assert_allclose(log.pop("mark"), batch_log.pop("mark"), atol=1e-7)
        for a, b in zip(
            *map(jax.tree.leaves, ((log, snapshots), (batch_log, batch_snapshots))), strict=True
        ):
            np.testing.assert_array_equal(a, b)
    assert sum(float(log["marked"].sum()) for _, (log, _) in singles) > 10


def test_a_gigabyte_is_counted_to_the_packet():
    """10^6 ACKs, all of them marked, at 5 µs per substep."""
    rows = [(1, 0, 10**9, 0.0)]
    params = prepare(STAR_FAST, rows, {})
    state = start(STAR_FAST)(jax.random.key(0), params)

    @partial(jax.jit, compiler_options=QUICK)
    def run(state):
        def tick(carry, _):
            state, sums = carry
            state, _ = STAR_FAST.interval(state, params, ALL)
            log = state.flows.transport.log
            new = jnp.stack([log["acked"].sum(), (256 * log["marked"]).sum()])
            return (state, sums + new.astype(jnp.int32)), None

        return jax.lax.scan(tick, (state, jnp.zeros(2, jnp.int32)), None, length=3400)[0]

    state, (acked, marked) = run(state)
    assert np.isfinite(state.fct_log[0])
    assert acked == 10**6
    assert marked / 256 == 10**6


def test_counts_may_wrap_around():
    """Long after 2^31 packets: the counters are only ever read as differences."""

    def shifted(state):
        high = np.int32(2**31 - 40)
        acks = state.echo.acks
        acks = replace(
            acks, arrived=acks.arrived + high, known=acks.known + high, log=acks.log + high
        )
        return replace(state, echo=replace(state.echo, acks=acks))

    rows = [(1, 0, 300_000, 0.0), (2, 3, 300_000, 0.0)]
    usual = listen(STAR, rows, 100, ecn=ALL, window=9e3)
    wrapped = listen(STAR, rows, 100, ecn=ALL, window=9e3, change=shifted)
    assert usual.acked.sum() == 600
    for name in ("acked", "marked", "sent"):
        np.testing.assert_array_equal(usual.signals[name], wrapped.signals[name])


@pytest.mark.parametrize(("delay_us", "late"), [(60.0, False), (66.0, True)])
def test_feedback_from_beyond_the_memory_is_counted(delay_us, late):
    """256 µs of history: the count rises once per tick and flow for which they are too short."""
    delays = {"nic_delay": delay_us, "port_delay": delay_us}
    rows = [(1, 0, 10**8, 0.0), (2, 3, 10**8, 100.0)]
    heard = listen(STAR, rows, 100, net=delays)
    assert (round_trip(delay_us) > STAR.memory_us) == late
    assert counter_bytes(heard.state.totals.late_feedback) == (100 + 80 if late else 0)

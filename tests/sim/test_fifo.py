"""Order of service in deep queues: batches beside a queue that knows the order of its bytes."""

from __future__ import annotations

from collections import deque

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ecn_marl.sim.core import fifo

TICK_US, DT_US, RATE = 10.0, 2.0, 12500.0
STEPS = round(TICK_US / DT_US)
FLOWS = 4


@jax.jit
def plan(batches, backlog, due, waiting, wait):
    queues = jnp.zeros((1, FLOWS), jnp.int32)
    is_open = jnp.ones(1, bool)
    return fifo.plan(batches, backlog, due, waiting, queues, wait, is_open, TICK_US, DT_US)


def in_batches(arrivals, waiting=fifo.WAITING):
    """Bytes that leave in each tick, `[T, F]`, if service goes by batches, then by backlog."""
    backlog, due = np.zeros(FLOWS), jnp.zeros((1, FLOWS))
    batches, later = fifo.empty(1, jnp.float32), (jnp.zeros((1, FLOWS)),) * fifo.WAITING
    left = np.zeros_like(arrivals)
    for t, arriving in enumerate(arrivals):
        wait = jnp.asarray([backlog.sum() / RATE])
        got = plan(batches, jnp.asarray(backlog)[None], due, later, wait)
        batches, due, later = got
        assert float(batches.left[0]) + sum(float(s[0]) for s in batches.spans) <= wait[0] + TICK_US
        for _ in range(STEPS):
            backlog = backlog + arriving / STEPS
            out = np.minimum(np.asarray(due[0], float), backlog)
            out *= min(1.0, RATE * DT_US / max(out.sum(), 1e-9))
            rest = backlog - out
            free = max(RATE * DT_US - out.sum(), 0.0)
            out = out + rest * min(1.0, free / max(rest.sum(), 1e-9))
            backlog = backlog - out
            left[t] += out
    return left


def in_order(arrivals):
    """The same of a queue that sends byte for byte in the order of arrival."""
    queue, left = deque(), np.zeros_like(arrivals)
    for t, arriving in enumerate(arrivals):
        for _ in range(STEPS):
            queue.append(arriving / STEPS)
            free = RATE * DT_US
            while queue and free > 0:
                part = queue.popleft()
                share = min(1.0, free / max(part.sum(), 1e-9))
                left[t] += part * share
                free -= part.sum() * share
                if share < 1.0:
                    queue.appendleft(part * (1.0 - share))
                    break
    return left


def mean_departure(left):
    """Mean time at which the bytes of each flow leave, µs, `[F]`."""
    times = (np.arange(len(left)) + 0.5) * TICK_US
    return (left * times[:, None]).sum(0) / left.sum(0)


@pytest.mark.parametrize("queued_us", [100.0, 400.0])
def test_a_flow_that_speeds_up_waits_for_its_turn(queued_us):
    """A flow that was slow and jumps to line rate is noticed after the bytes ahead of it.

    In proportion to backlog its bytes would appear at once; by batches the first tenth of them
    leaves within a third of the queue of when it should.
    """
    ticks = 200
    arrivals = np.zeros((ticks, FLOWS))
    standing = round(queued_us / TICK_US)
    arrivals[:standing, 0] = 2.0 * RATE * TICK_US
    arrivals[standing:, 0] = RATE * TICK_US
    arrivals[:, 1] = 0.001 * RATE * TICK_US
    jump = standing + 37
    arrivals[jump : jump + 5] = 0.0
    arrivals[jump : jump + 5, 1] = RATE * TICK_US
    arrivals[ticks - 60 :] = 0.0
    ours, exact = in_batches(arrivals), in_order(arrivals)
    for left in (ours, exact):
        np.testing.assert_allclose(left.sum(0), arrivals.sum(0), rtol=1e-3)

    def tenth(left):
        seen = np.cumsum(left[jump:, 1]) / arrivals[jump : jump + 5, 1].sum()
        return (np.argmax(seen > 0.1) + 1) * TICK_US

    tolerance = queued_us / (fifo.WAITING + 1) + 2 * TICK_US
    assert tenth(exact) >= queued_us
    assert abs(tenth(ours) - tenth(exact)) <= tolerance


RATES = st.lists(st.floats(0.0, 1.0), min_size=FLOWS, max_size=FLOWS)


@settings(deadline=None, max_examples=30)
@given(
    phases=st.lists(
        st.tuples(st.integers(3, 25), RATES, st.floats(0.5, 1.6)), min_size=2, max_size=6
    )
)
def test_bytes_leave_in_order_to_a_batch(phases):
    """All bytes leave, no sooner than they came, and each flow's on average when they should.

    Loads between half the link and 1.6 of it, shared anew in every phase.
    """
    rows = []
    for ticks, shares, load in phases:
        total = sum(shares)
        row = np.array(shares) / total if total > 0 else np.full(FLOWS, 1.0 / FLOWS)
        rows += [row * load * RATE * TICK_US] * ticks
    arrivals = np.array(rows + [np.zeros(FLOWS)] * (len(rows) + 5))
    ours, exact = in_batches(arrivals), in_order(arrivals)
    total = arrivals.sum(0)
    np.testing.assert_allclose(ours.sum(0), total, rtol=1e-3, atol=10.0)
    slack = 1e-4 * total.max() + 1.0
    assert (np.cumsum(ours, 0) <= np.cumsum(arrivals, 0) + slack).all()
    deepest = (np.cumsum(arrivals.sum(1)) - np.cumsum(exact.sum(1))).max() / RATE
    sent = total > 10 * TICK_US * RATE / 100
    error = np.abs(mean_departure(ours[:, sent]) - mean_departure(exact[:, sent]))
    assert (error <= deepest / (fifo.WAITING + 1) + 2 * TICK_US).all()

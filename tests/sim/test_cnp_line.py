"""The delay line of the CNPs: every mark comes back, and when it should."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ecn_marl.sim.core import lifecycle as life
from ecn_marl.sim.feedback import Line, cnp

WORDS, STEPS = 2, 1200
"""Words of the near part, and substeps that are looked at."""


@partial(jax.jit, static_argnums=(2, 3))
def arrivals(delay: jax.Array, hit: jax.Array, tick: int, fine: int) -> tuple[jax.Array, jax.Array]:
    """Substeps with a CNP, `[STEPS]`, and whether the line was ever too short."""
    coarse = cnp.far_step(tick)
    flows = life.empty_flows(1, 1, WORDS, None, jnp.float32, late_words=coarse // fine)
    zero, no = jnp.zeros(1), jnp.zeros(1, bool)

    def one_tick(carry, marked):
        flows, step = carry
        flows, far, late = cnp.refresh(flows, delay, step, coarse)
        line = Line(delay, far, zero, no, jnp.zeros((1, 1), jnp.int32), None, zero)
        heard = []
        for i in range(tick):
            flows, received = cnp.move(flows, marked[i], line, step + i, fine)
            heard.append(received[0])
        return (flows, step + tick), (jnp.stack(heard), late[0])

    rows = hit.reshape(-1, tick, 1)
    _, (heard, late) = jax.lax.scan(one_tick, (flows, jnp.int32(0)), rows)
    return heard.reshape(-1), late.any()


@settings(deadline=None, max_examples=40)
@given(
    delay=st.integers(0, 500),
    gaps=st.lists(st.integers(5, 60), min_size=1, max_size=9),
    shape=st.sampled_from([(5, 4), (10, 4), (3, 2), (5, 20)]),
)
def test_every_mark_comes_back_in_time(delay, gaps, shape):
    tick, fine = shape
    marks = np.cumsum(gaps)
    hit = np.isin(np.arange(STEPS), marks)
    heard, late = arrivals(jnp.array([delay]), jnp.asarray(hit), tick, fine)
    arrived = np.flatnonzero(heard)
    assert not late
    if delay < 32 * WORDS:  # near: to the substep
        np.testing.assert_array_equal(arrived, marks + delay)
    elif fine <= 4:  # far: marks that are a bit apart stay apart
        assert len(arrived) == len(marks)
        assert np.abs(arrived - marks - delay).max() <= fine
    else:  # one long bit, where CNPs never come that late
        assert 1 <= len(arrived) <= len(marks)
        assert np.abs(arrived[0] - marks[0] - delay) <= fine


def test_marks_beyond_the_line_are_reported():
    hit = jnp.arange(STEPS) == 7
    _, late = arrivals(jnp.array([700]), hit, 5, 4)
    assert late


@pytest.mark.parametrize(("coarse", "fine"), [(20, 4), (18, 2), (15, 1), (32, 4), (31, 1)])
def test_bits_divide_the_time_between_moves(coarse, fine):
    assert cnp.fine_step(coarse) == fine
    assert (coarse // fine) * fine == coarse

"""Look-ups, sums and masks that replace plain indexing give the same numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from roundoff import U

from ecn_marl.sim.core.lifecycle import empty_flows
from ecn_marl.sim.core.slots import in_use, kept, look_up, look_up_fields, look_up_one, segment_sum


def floats(low, high, size):
    numbers = st.floats(low, high, width=32, allow_subnormal=False)
    return npst.arrays(np.float32, size, elements=numbers)


def f32(values):
    return jnp.asarray(np.asarray(values, np.float32))


@given(floats(-1e9, 1e9, (5, 2)), npst.arrays(np.int32, 9, elements=st.integers(0, 4)))
def test_look_up_is_exact(table, index):
    np.testing.assert_array_equal(jax.jit(look_up)(f32(table), jnp.asarray(index)), table[index])


@given(floats(0, 1e6, 8), npst.arrays(np.int32, 8, elements=st.integers(0, 3)))
def test_segment_sum_leaves_out_the_last(values, index):
    got = segment_sum(f32(values), jnp.asarray(index), 3)
    want = [values[index == k].astype(np.float64).sum() for k in range(3)]
    np.testing.assert_allclose(got, want, rtol=7 * U)  # sums of up to 8 numbers


@given(floats(-1e9, 1e9, 5), npst.arrays(np.int32, (2, 9), elements=st.integers(0, 4)))
def test_look_up_of_one_column(table, index):
    look_up_column = jax.jit(look_up_one)
    np.testing.assert_array_equal(look_up_column(f32(table), jnp.asarray(index)), table[index])
    flags = look_up_column(jnp.asarray(table > 0), jnp.asarray(index))
    assert flags.dtype == bool
    np.testing.assert_array_equal(flags, (table > 0)[index])


class Columns(NamedTuple):
    a: Any
    b: Any
    c: Any = None


@given(floats(-1e9, 1e9, (4, 2)), npst.arrays(np.int32, 9, elements=st.integers(0, 4)))
def test_look_up_of_named_columns(table, index):
    """One row beyond the table may be read, too."""
    columns = Columns(f32(table[:, 0]), f32(table[:, 1]))
    got = jax.jit(lambda x, i: look_up_fields(x, i, {"b": 7.0}))(columns, jnp.asarray(index))
    want = np.append(table, np.array([[0, 7]], np.float32), 0)[index]
    np.testing.assert_array_equal(got.a, want[:, 0])
    np.testing.assert_array_equal(got.b, want[:, 1])
    assert got.c is None


def test_free_slots_stay_as_they_were():
    """Leaves `[F]` and `[L, F]`, and the senders' `[F]`; other leaves of senders may change."""
    busy = jnp.array([True, False, True])
    senders = {"rate": jnp.zeros(3), "shared": jnp.zeros(2)}
    before = empty_flows(3, 2, 1, senders, jnp.float32)
    changed = jax.tree.map(lambda x: x + 1, before)
    flows = kept(changed, before, busy)
    np.testing.assert_array_equal(flows.src, [1, 0, 1])
    np.testing.assert_array_equal(flows.backlog, [[1, 0, 1], [1, 0, 1]])
    np.testing.assert_array_equal(flows.transport["rate"], [1, 0, 1])
    np.testing.assert_array_equal(flows.transport["shared"], [1, 1])
    same = kept(replace(changed, src=before.src), before, busy)
    assert same.src is before.src
    np.testing.assert_array_equal(in_use(changed.payload + 4, busy), [5, 0, 5])

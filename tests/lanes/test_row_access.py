"""Rows that lanes share or do not share, in and out of bounds: read and written as XLA does."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from xla_and_lanes import CHEAP, check

from ecn_marl import lanes

ROWS, WIDTH, BATCH = 40, 6, 16
"""More rows than are compared one by one (`register_sums.DENSE`)."""

PLACES = {
    "one row": np.full(BATCH, 7),
    "last row": np.full(BATCH, ROWS - 1),
    "two rows": np.where(np.arange(BATCH) < 15, 7, 8),
    "a row each": np.arange(BATCH) * 2,
    "one row beyond": np.full(BATCH, ROWS + 3),
    "some beyond": np.where(np.arange(BATCH) % 3 == 0, ROWS + 1, 0),
    "some below": np.where(np.arange(BATCH) % 3 == 0, -ROWS - 5, 1),
}
"""Rows that the lanes of a vector mean."""


def histories(dtype):
    """Numbers that differ from element to element."""
    numbers = np.arange(BATCH * ROWS * WIDTH).reshape(BATCH, ROWS, WIDTH)
    return jnp.asarray(numbers, dtype)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.int32])
@pytest.mark.parametrize("mode", ["clip", "fill", "drop"])
def test_rows_are_those_of_xla(mode, dtype):
    """All rows of `PLACES` in one program: read, written, and read again."""
    reading = "fill" if mode == "drop" else mode
    writing = "drop" if mode == "fill" else mode

    def program(log, at, row):
        before = log.at[at].get(mode=reading, fill_value=-1 if reading == "fill" else None)
        after = log.at[at].set(row, mode=writing)
        return before, after, after.at[at].get(mode="clip") + row

    rows = -1 - jnp.arange(BATCH * WIDTH).reshape(BATCH, WIDTH).astype(dtype)
    axes, log = (0, 0, 0), histories(dtype)
    expected, found = (
        jax.jit(jax.vmap(program, axes), compiler_options=CHEAP),
        jax.jit(lanes.vmap(program, axes)),
    )
    for place in PLACES.values():
        at = jnp.asarray(place, jnp.int32)
        for a, b in zip(expected(log, at, rows), found(log, at, rows), strict=True):
            assert a.dtype == b.dtype
            np.testing.assert_array_equal(b, a)


def test_rows_of_a_batch_that_does_not_fill_its_vector():
    """Lanes past the end of the batch repeat its last environment, wherever it writes."""

    def program(log, at, row):
        return log.at[at % ROWS].set(row), log[(at + 1) % ROWS]

    rows = jnp.ones((BATCH, WIDTH))
    for size in (1, 5, 13):
        at = jnp.arange(size, dtype=jnp.int32) // 4
        check(program, (0, 0, 0), histories(jnp.float32)[:size], at, rows[:size])

"""Replay memories against plain Python lists: what they hold, draw, and exchange."""

from __future__ import annotations

from collections import deque
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ecn_marl._memory import tree_bytes
from ecn_marl.baselines.rl import replay

CAPACITY = 7
append = jax.jit(replay.append)
append_each = jax.jit(jax.vmap(replay.append))
sampling_table = jax.jit(replay.sampling_table)
draw = jax.jit(replay.draw, static_argnums=(2, 3))
exchange = jax.jit(partial(replay.exchange, up=4, down=5))


def row(number):
    """Rows told apart by a number: leaves of two shapes."""
    number = np.asarray(number, np.float32)
    return {"id": number, "pair": np.stack([number, -number], -1)}


def rings(agents, capacity=CAPACITY):
    """Empty rings, one per agent, as `empty` and `copies` make them."""
    zero = np.zeros(agents, np.int32)
    rows = row(np.zeros((agents, capacity)))
    return replay.Ring(rows, zero, zero)


def stored_ids(ring, agent=None):
    """Ids that a ring holds, the oldest first."""
    ids, head, size = (np.asarray(x) for x in (ring.rows["id"], ring.head, ring.size))
    if agent is not None:
        ids, head, size = ids[agent], head[agent], size[agent]
    order = (head - size + np.arange(size)) % len(ids)
    return [int(i) for i in ids[order]]


@given(st.lists(st.lists(st.booleans(), min_size=10, max_size=10), max_size=5))
def test_a_ring_is_a_deque_and_counts_what_it_loses(batches):
    ring = replay.empty(row(0), CAPACITY)
    expected: deque[int] = deque(maxlen=CAPACITY)
    number = lost = 0
    for keep in batches:
        ids = np.arange(number, number + len(keep))
        number += len(keep)
        ring, n_lost = append(ring, row(ids), jnp.asarray(keep, bool))
        lost += int(n_lost)
        expected.extend(int(i) for i, k in zip(ids, keep, strict=True) if k)
    assert stored_ids(ring) == list(expected)
    assert lost == sum(map(sum, batches)) - len(expected)
    np.testing.assert_array_equal(ring.rows["pair"][:, 0], ring.rows["id"])
    np.testing.assert_array_equal(ring.rows["pair"][:, 1], -np.asarray(ring.rows["id"]))


def reference_probabilities(score, size, exponent):
    """Probabilities in float64."""
    s = np.asarray(score[:size], np.float64)
    score_range = s.max() - s.min()
    p = (replay.FLOOR + (s - s.min()) / (score_range or 1.0)) ** exponent
    return np.concatenate([p / p.sum(), np.zeros(len(score) - size)])


@pytest.mark.parametrize("exponent", [0.0, 0.6, 2.0])
@pytest.mark.parametrize("size", [1, 5, 7])
def test_draws_follow_the_priorities_and_the_weights_undo_them(exponent, size):
    score = np.array([0.3, -1.0, 2.0, 0.3, 1.1, 50.0, -50.0], np.float32)
    p = reference_probabilities(score, size, exponent)
    table = sampling_table(jnp.asarray(score), jnp.int32(size), exponent)
    np.testing.assert_allclose(table.probability, p, rtol=1e-5)

    n = 100_000
    slot, weight = draw(jax.random.key(1), table, n, 1.0)
    share = np.bincount(np.asarray(slot), minlength=len(score)) / n
    assert np.abs(share - p).max() < 5 * np.sqrt(0.25 / n)  # five standard errors
    assert share[size:].sum() == 0
    least = p[p > 0].min()
    np.testing.assert_allclose(weight, least / p[np.asarray(slot)], rtol=1e-4)
    # weighted, the rows drawn count as if drawn uniformly
    weighted = np.bincount(np.asarray(slot), np.asarray(weight), minlength=len(score))
    np.testing.assert_allclose(weighted[:size] / weighted.sum(), 1 / size, atol=0.02)
    assert set(np.asarray(draw(jax.random.key(1), table, n, 0.0)[1])) == {1.0}


def test_equal_rewards_and_empty_slots():
    score = jnp.array([0.5, 0.5, jnp.nan, 9.0])  # the last two slots are empty
    table = sampling_table(score, jnp.int32(2), 0.6)
    np.testing.assert_allclose(table.probability, [0.5, 0.5, 0, 0])
    empty = sampling_table(score, jnp.int32(0), 0.6)
    slot, _ = draw(jax.random.key(0), empty, 4, 1.0)
    assert np.all(np.asarray(slot) == 0)


def test_every_agent_draws_its_own_rows():
    ids = np.arange(12).reshape(3, 4)

    @jax.jit
    def run(local, rows, key):
        local, _ = jax.vmap(replay.append)(local, rows)
        table = jax.vmap(replay.sampling_table, (0, 0, None))(local.rows["id"], local.size, 0.0)
        return replay.draw_each(key, local, table, 50, 1.0)

    rows, weight = run(rings(3), row(ids), jax.random.key(2))
    assert weight.shape == (50, 3)
    for agent in range(3):
        assert set(np.asarray(rows["id"])[:, agent].astype(int)) == set(ids[agent])
    np.testing.assert_array_equal(rows["pair"][..., 0], rows["id"])


def memories(filled):
    """Three local rings with ids 100 * agent + i, and an empty global one of 20 rows."""
    ids = 100 * np.arange(3)[:, None] + np.arange(6)
    keep = np.broadcast_to(np.arange(6) < filled, ids.shape)
    local, _ = append_each(rings(3), row(ids), keep)
    return local, jax.tree.map(lambda x: x[0], rings(1, 20))


def test_exchange_copies_both_ways_and_counts_lost_rows():
    local, shared = memories(filled=6)
    ids_before = [stored_ids(local, i) for i in range(3)]
    local, shared, moved = exchange(jax.random.key(3), local, shared)
    assert (int(moved.up), int(moved.down)) == (12, 15)
    assert (int(moved.lost_up), int(moved.lost_down)) == (0, 3 * (6 + 5 - CAPACITY))
    globally = stored_ids(shared)
    # four rows from each agent, in their order, and each from that agent's memory
    assert [i // 100 for i in globally] == [0] * 4 + [1] * 4 + [2] * 4
    assert all(i in ids_before[i // 100] for i in globally)
    for agent in range(3):
        ids_after = stored_ids(local, agent)
        assert ids_after[:2] == ids_before[agent][-2:]  # the oldest rows made room
        assert len(ids_after) == CAPACITY
        assert set(ids_after[2:]) <= set(globally)
    assert any(i // 100 != 0 for i in stored_ids(local, 0))  # experience of others arrived

    local, shared, moved = exchange(jax.random.key(4), local, shared)
    assert len(stored_ids(shared)) == 20 and int(moved.lost_up) == 12 + 12 - 20
    assert stored_ids(shared)[:8] == globally[4:]
    assert int(moved.lost_down) == 15


def test_a_memory_never_gives_more_than_it_holds():
    local, shared = memories(filled=1)
    local, shared, moved = exchange(jax.random.key(5), local, shared)
    assert stored_ids(shared) == [0, 100, 200]
    assert (int(moved.up), int(moved.down), int(moved.lost_down)) == (3, 9, 0)
    assert [len(stored_ids(local, i)) for i in range(3)] == [4, 4, 4]


def test_memories_start_empty():
    ring = jax.jit(lambda: replay.copies(replay.empty(row(0), CAPACITY), 2))()
    for leaf, expected in zip(jax.tree.leaves(ring), jax.tree.leaves(rings(2)), strict=True):
        np.testing.assert_array_equal(leaf, expected)
        assert leaf.dtype == expected.dtype
    assert jax.tree.map(lambda x: x[0], ring).capacity == CAPACITY


def test_bytes_of_a_row():
    assert tree_bytes(row(0)) == 12

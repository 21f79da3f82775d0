"""Keys of episodes: streams share none, for any seeds."""

from __future__ import annotations

from itertools import combinations

import jax
import numpy as np
import pytest

from ecn_marl.baselines.evaluation.episodes import evaluation_keys
from ecn_marl.baselines.evaluation.streams import (
    PARTS,
    TUNING_ROOT,
    root_key,
    stream_keys,
    training_key,
    tuning_keys,
)
from ecn_marl.experiments.sealed import _ROOT

SEEDS = (*range(200), 2000, 0xE7A1, 0x5C02, 2**31, 2**32 - 1)


def words(keys) -> set[tuple[int, int]]:
    data = np.asarray(jax.random.key_data(keys)).reshape(-1, 2)
    return {tuple(row) for row in data.tolist()}


def tuning(part):
    return set().union(*(words(tuning_keys(part, seed, 64)) for seed in SEEDS))


def training():
    """Keys that training can hold: those of seeds, and two levels of splits and folds of them."""
    all_words = set()
    for seed in SEEDS:
        key = training_key(seed)
        for parent in (key, *jax.random.split(key, 5)):
            all_words |= words(parent) | words(jax.random.split(parent, 1024))
            all_words |= words(jax.random.fold_in(parent, 0xE7A1))
    return all_words


@pytest.fixture(scope="module")
def streams():
    sealed = set().union(*(words(stream_keys(root_key(_ROOT), seed, 256)) for seed in SEEDS[:20]))
    return {"training": training(), "sealed": sealed, **{part: tuning(part) for part in PARTS}}


def test_streams_share_no_key(streams):
    parts = {"checkpoints", "search", "trials", "report", "rewards"}
    assert set(streams) == {"training", "sealed", *parts}
    for a, b in combinations(streams, 2):
        assert not streams[a] & streams[b], (a, b)


def test_all_episodes_differ(streams):
    for part in PARTS:
        assert len(streams[part]) == len(SEEDS) * 64


def test_no_seed_gives_a_root():
    """The first word of a seed's key is 0 and of a root is not, and roots differ."""
    assert all(np.asarray(jax.random.key_data(training_key(s)))[0] == 0 for s in SEEDS)
    assert TUNING_ROOT[0] != 0 and _ROOT[0] != 0 and TUNING_ROOT[0] != _ROOT[0]
    assert words(root_key(_ROOT)) == {_ROOT}


def test_the_former_test_seed_is_a_tuning_seed(streams):
    reported = words(evaluation_keys(2000, 64))
    assert reported <= streams["report"]
    assert not reported & streams["sealed"]


def test_first_episodes_do_not_depend_on_their_number():
    few, many = (jax.random.key_data(tuning_keys("search", 3, n)) for n in (4, 9))
    np.testing.assert_array_equal(few, many[:4])


def test_bad_values_are_named():
    with pytest.raises(ValueError, match="unknown part of the tuning stream 'serach'"):
        tuning_keys("serach", 0, 1)
    for seed in (-1, 2**32):
        with pytest.raises(ValueError, match=f"seed = {seed}"):
            tuning_keys("search", seed, 1)
    with pytest.raises(ValueError, match="episodes = 0"):
        tuning_keys("search", 0, 0)

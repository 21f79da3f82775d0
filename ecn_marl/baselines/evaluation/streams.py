"""Keys of episodes: separate streams for training, tuning and tests.

A stream is a root key; an episode's key is a hash (Threefry) of the root, a seed and a number.

    training    `jax.random.key(seed)`, whose first word is 0
    tuning      episodes for every choice by score: checkpoints, settings found by search,
                hyperparameters; also the default of `eval`, `headroom` and `bench`
    sealed      the test episodes of `ecn-marl bench --sealed`; not in this module

The roots of tuning and sealed episodes have a first word that no `jax.random.key(seed)` has, so
streams cannot overlap. A tag folded into a seed's own key would not ensure that: `fold_in(key, n)`
is entry `n` of `split(key)`, so a large enough batch of training environments would hold that key.

Tuning has parts, so that reported episodes are not those on which settings were searched.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, UInt

from ecn_marl._checks import check_seed
from ecn_marl._errors import bad_value, unknown_name

TUNING_ROOT = (0x54554E45, 0x00000001)
"""Words of the root of tuning episodes."""

PARTS = {
    "checkpoints": 1,
    "search": 2,
    "trials": 3,
    "report": 4,
    "rewards": 5,
}
"""Parts of the tuning stream: scores of checkpoints; searches for static settings, oracle and rule;
trials of hyperparameters; reported results; references of relative rewards (`reward_reference`)."""


def training_key(seed: int | UInt[Array, ""]) -> jax.Array:
    """The key that all of a learner's training follows from.

    Args:
        seed: its seed, 0 to 2^32 - 1; may be traced.
    """
    return jax.random.key(seed)


def tuning_keys(part: str, seed: int, episodes: int) -> jax.Array:
    """Keys of tuning episodes, `[episodes]`; the first ones do not depend on their number.

    Args:
        part: their purpose, a name in `PARTS`.
        seed: which episodes of that part.
        episodes: number of episodes.

    Raises:
        ValueError: unknown part, a seed outside of 0 to 2^32 - 1, or `episodes` below 1.
    """
    if part not in PARTS:
        raise unknown_name("part of the tuning stream", part, PARTS)
    root = jax.random.fold_in(root_key(TUNING_ROOT), PARTS[part])
    return stream_keys(root, seed, episodes)


def root_key(words: tuple[int, int]) -> jax.Array:
    """The key whose two words these are."""
    return jax.random.wrap_key_data(jnp.asarray(words, jnp.uint32), impl="threefry2x32")


def stream_keys(root: jax.Array, seed: int, episodes: int) -> jax.Array:
    """Keys of a seed's episodes under a root, `[episodes]`.

    Raises:
        ValueError: a seed outside of 0 to 2^32 - 1, or `episodes` below 1.
    """
    check_seed(seed)
    if episodes < 1:
        raise bad_value("episodes", episodes, "an integer >= 1")
    seed_key = jax.random.fold_in(root, np.uint32(seed))
    return jax.vmap(lambda n: jax.random.fold_in(seed_key, n))(np.arange(episodes, dtype=np.uint32))

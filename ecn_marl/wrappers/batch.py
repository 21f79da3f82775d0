"""Many networks at once: compiled reset, step and choice between states, over a leading axis."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import PyTree

from ecn_marl._checks import Whole, check_value
from ecn_marl._errors import bad_value
from ecn_marl._fork import check_process
from ecn_marl._memory import check_memory
from ecn_marl._programs import Programs
from ecn_marl.envs.face import MAX_CYCLES, check_length

if TYPE_CHECKING:  # JAX is started at the first reset, not at import
    import jax

    from ecn_marl.envs.ecn import EcnEnv
    from ecn_marl.envs.episode import EnvParams, EnvState


def check_batches(core: EcnEnv) -> None:
    """Refuse an environment that cannot be traced, so not batched either.

    Raises:
        ValueError: its simulator runs on the host.
    """
    if core.sim.on_host:
        raise bad_value("backend", "packets", "fluid for batches")


def batch_steps(core: EcnEnv, num_networks: int, max_steps: object) -> np.ndarray:
    """Steps per episode of every network of a batch, int32 `[num_networks]`.

    Args:
        core: the functional environment.
        num_networks: networks in the batch.
        max_steps: one number, one for each network, or None for the environment's.

    Raises:
        ValueError: a value that is not allowed, or an environment that cannot be batched.
    """
    check_batches(core)
    check_value("num_networks", num_networks, Whole(low=1))
    needed = num_networks * core.sim.state_bytes
    check_memory("num_networks", num_networks, needed, f"so many states of {core.name}")
    steps = np.asarray(core.horizon if max_steps is None else max_steps)
    fits = steps.dtype.kind in "iu" and steps.shape in ((), (num_networks,))
    if not fits or steps.min() < 1 or steps.max() > MAX_CYCLES:
        allowed = f"an integer in [1, {MAX_CYCLES}], or {num_networks} of them"
        raise bad_value("max_steps", max_steps, allowed)
    for length in {int(steps.min()), int(steps.max())}:
        check_length(core, length, "max_steps")
    return np.broadcast_to(steps.astype(np.int32), (num_networks,)).copy()


def with_steps(options: Mapping[str, Any], max_steps: object) -> dict[str, Any]:
    """Options of `make` with the steps of a batch's longest episode.

    So `make` checks other options against these episodes, and not against the scenario's. What is
    no number of steps is left to `batch_steps`.
    """
    steps = np.asarray(max_steps)
    if steps.dtype.kind not in "iu" or not steps.size:
        return dict(options)
    return {**options, "max_steps": int(steps.max())}


def compiled(core: EcnEnv, user: object = None) -> tuple[Callable[..., Any], ...]:
    """`compile_batch` of an environment's `program`, unless this process cannot run it.

    Args:
        core: the `program`.
        user: object that keeps them in use; see `Programs`.

    Raises:
        ForkedProcess: see `check_process`.
    """
    check_process()
    return PROGRAMS.of(core, user)


def compile_batch(core: EcnEnv) -> tuple[Callable[..., Any], ...]:
    """Compiled functions for all batches of a functional environment.

    Args:
        core: the environment.

    Returns:
        `reset(words, params, max_steps) -> obs, state`, `words` uint32 `[N, 2]` the keys' data;
        `step(state, action, params, max_steps)` as `EcnEnv.step`;
        `choose(mask, new, old)`, `new` where `mask` `[N]` is set. Of the parameters only
        `max_steps` `[N]` differs from network to network.
    """
    import jax

    from ecn_marl import lanes

    def reset(words: jax.Array, params: EnvParams, max_steps: jax.Array) -> PyTree:
        def reset_one(word: jax.Array, steps: jax.Array) -> PyTree:
            # Keys come as words, so that numpy draws them; the generator is that of `parallel_env`.
            key = jax.random.wrap_key_data(word, impl="threefry2x32")
            return core.reset(key, replace(params, max_steps=steps))

        return jax.vmap(reset_one)(words, max_steps)

    def step(state: EnvState, action: jax.Array, params: EnvParams, max_steps: jax.Array) -> PyTree:
        unused = jax.random.key(0)  # an episode's randomness is in its state

        def step_one(
            state: EnvState, action: jax.Array, steps: jax.Array, params: EnvParams
        ) -> PyTree:
            return core.step(unused, state, action, replace(params, max_steps=steps))

        mapped_step = lanes.mapped(step_one, load=lambda state, *rest: core.load(state))
        return jax.vmap(mapped_step, (0, 0, 0, None))(state, action, max_steps, params)

    def choose(mask: jax.Array, new: PyTree, old: PyTree) -> PyTree:
        select = jax.vmap(jax.lax.select)
        return jax.tree.map(lambda a, b: select(mask, a, b), new, old)

    return jax.jit(reset), jax.jit(step), jax.jit(choose)


PROGRAMS = Programs(compile_batch)
"""Compiled functions of all batches."""

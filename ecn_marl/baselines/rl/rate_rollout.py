"""Rollouts of rate agents, sorted by flow: the training data of every learner of rates.

Flows act when their RTT packets come back, each at its own times, so a row of a rollout holds the
events of those flows that acted then. `keyed` puts those of each flow together (the paper's
`KeySeparatedTemporalReplay`; Tessler et al. 2021, appendix A).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from ecn_marl.baselines.rl.rollout import roll
from ecn_marl.envs.rate.env import RateEnv, RateParams, RateState


class Events(NamedTuple):
    """Events of flows in a batch of environments; leading axes `[T, E, F]`.

    Attributes:
        valid: whether there is such an event.
        obs: observation of the flow, `[..., obs_dim]`.
        action: its action.
        error: x / target - 1 at the event, see `envs.rate.env`.
    """

    valid: Bool[Array, "t envs flows"]
    obs: Float[Array, "t envs flows obs"]
    action: Array
    error: Float[Array, "t envs flows"]


Act = Callable[[PyTree, jax.Array, Float[Array, "flows obs"]], Array]
"""`(actor, key, obs) -> action` of all flows of an environment, pure."""


def roll_rates(
    env: RateEnv,
    act: Act,
    state: RateState,
    key: jax.Array,
    steps: int,
    params: RateParams,
    actor: PyTree,
) -> tuple[RateState, Events]:
    """Run a batch of environments under a policy; row t holds the events before step t.

    Args:
        env: the environment.
        act: the policy.
        state: states, leading axis E.
        key: PRNG key.
        steps: steps per environment.
        params: parameters, the same for all environments.
        actor: parameters of the policy.

    Returns:
        States after, and rows `[steps, E, F]` in order of time; `keyed` sorts them.
    """

    def step(
        key: jax.Array, carry: tuple[RateState], params: RateParams, actor: PyTree
    ) -> tuple[tuple[RateState], Events]:
        (state,) = carry
        obs = env.observe(state)
        action = act(actor, key, obs)
        row = Events(state.acts, obs, action, state.x / params.target - 1.0)
        return (env.advance(state, action, params)[0],), row

    (state,), rows = roll(env, step, (state,), key, steps, params, actor)
    return state, rows


def keyed(rows: Events, events: int) -> tuple[Events, Int[Array, ""]]:
    """The events of every flow one after the other, the first `events` of each.

    Args:
        rows: events in order of time, `[steps, E, F]`.
        events: how many are kept of each flow.

    Returns:
        Events `[events, E, F]`, 0 where there is none, and the number of those left out.
    """
    slot = jnp.cumsum(rows.valid, 0) - 1
    # Rows without an event go out of range, where the scatter drops them, like events too many.
    slot = jnp.where(rows.valid, slot, events)
    _, envs, flows = rows.valid.shape
    e, f = jnp.meshgrid(jnp.arange(envs), jnp.arange(flows), indexing="ij")

    def sort(column: Array) -> Array:
        empty = jnp.zeros((events, *column.shape[1:]), column.dtype)
        return empty.at[slot, e[None], f[None]].set(column, mode="drop")

    left_out = (rows.valid & (slot >= events)).sum()
    return jax.tree.map(sort, rows), left_out.astype(jnp.int32)


def restarted(env: RateEnv, state: RateState, key: jax.Array, params: RateParams) -> RateState:
    """A batch of environments, those at their horizon replaced by fresh ones.

    Learners call it between rollouts, so that no rollout holds a fresh start in its middle.
    """
    over = state.steps >= params.max_steps
    keys = jax.random.split(key, over.shape[0])
    # All are reset, and most of it thrown away: shapes are fixed when the program is compiled.
    _, fresh = jax.vmap(env.reset, (0, None))(keys, params)

    def choose(new: Array, old: Array) -> Array:
        return jnp.where(over.reshape(-1, *(1,) * (old.ndim - 1)), new, old)

    return jax.tree.map(choose, fresh, state)

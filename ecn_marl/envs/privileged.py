"""What no switch knows, for critics while a policy is trained: the phase of the traffic, its clock.

    names(env)                          serve, restore, spent_ms, left_ms
    privileged(env, state, params)      [P, len(names)]

A policy that is to run on a switch must not see it. `EcnEnv.global_state` has what all ports see.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ecn_marl.sim.traffic.jobs import clock_of

if TYPE_CHECKING:
    from ecn_marl.envs.ecn import EcnEnv
    from ecn_marl.envs.episode import EnvParams, EnvState

CLOCK = ("spent_ms", "left_ms")
"""Time since the timeline's phase began, and until it ends."""


def names(env: EcnEnv) -> tuple[str, ...]:
    """Names of the columns: those of the phases, then `CLOCK`."""
    return (*env.phase_names, *CLOCK)


def privileged(env: EcnEnv, state: EnvState, params: EnvParams) -> Float[Array, "ports columns"]:
    """Phase and clock at the start of the next interval.

    Args:
        env: the environment.
        state: its state.
        params: its parameters.

    Returns:
        For every port 1 in the column of its phase and 0 in the others; ms that the timeline's
        phase has lasted and will last, 0 in scenarios without a timeline.
    """
    phase = jax.nn.one_hot(env.phase(state, params), len(env.phase_names))
    clock = clock_of(env.sim.traffic, state.sim.traffic)
    times = (
        jnp.zeros((2,)) if clock is None else jnp.stack([clock.spent, clock.length - clock.spent])
    )
    return jnp.concatenate([phase, jnp.broadcast_to(times / 1000.0, (len(phase), 2))], -1)


__all__ = ["CLOCK", "names", "privileged"]

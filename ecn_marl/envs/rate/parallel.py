"""The PettingZoo face of rate control: `rate_parallel_env()`.

All flows are agents all the time. A step runs until the RTT packet of at least one flow is back (or
the episode is over). Then `infos[a]["acts"]` is True for the flows whose turn it is, and their
actions in the next step count. A `ParallelEnv` needs actions of all other agents as well: these are
ignored, the agents' observations do not change, and their rewards are 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import gymnasium
import numpy as np
from jaxtyping import PyTree

from ecn_marl._programs import Programs
from ecn_marl.envs.face import Face
from ecn_marl.envs.rate.env import MOST_IN_LANES, RateEnv, RateParams, RateState
from ecn_marl.envs.rate.scenarios import RateScenario, make_rate


def _compile(core: RateEnv) -> tuple[Callable[..., Any], ...]:
    """Compiled reset and step to the next event; a batch of one, for the sake of lanes."""
    import jax
    import jax.numpy as jnp

    from ecn_marl import lanes

    def one(key: jax.Array, state: RateState, action: jax.Array, params: RateParams) -> PyTree:
        return core.step(key, state, action, params)

    few = core.sim.slots <= MOST_IN_LANES
    mapped: Callable[..., Any] = lanes.mapped(one) if few else one

    def step(key: jax.Array, state: RateState, action: jax.Array, params: RateParams) -> PyTree:
        def over(carry: PyTree) -> jax.Array:
            *_, truncated, info = carry
            return jnp.any(truncated) | jnp.any(info["acts"])

        def go_on(carry: PyTree) -> PyTree:
            batch = jax.tree.map(lambda x: jnp.asarray(x)[None], (key, carry[1], action))
            after = jax.vmap(mapped, (0, 0, 0, None))(*batch, params)
            return jax.tree.map(lambda x: x[0], after)

        # A step passes before the first test. The last step's rewards are all there are, because no
        # flow acts in those before.
        first = go_on((None, state))
        return jax.lax.while_loop(lambda c: ~over(c), go_on, first)

    return jax.jit(core.reset), jax.jit(step)


PROGRAMS = Programs(_compile)
"""Compiled functions of all faces."""


class RateParallelEnv(Face):
    """A `ParallelEnv` whose agents are flows: `flow_0`, `flow_1` and so on; see `Face`.

    No flow acts at a reset: infos are `acts`, False, then.

    Attributes:
        core: the functional environment.
        max_cycles: simulator steps per episode, see `RateEnv.step_us`; several may pass in a
            `step` of this face.
    """

    core: RateEnv

    programs: ClassVar[Programs[RateEnv]] = PROGRAMS

    def __init__(self, core: RateEnv, max_cycles: int | None = None) -> None:
        """Wrap a functional environment.

        Raises:
            ValueError: `max_cycles` is no integer in [1, 2^31 - 1].
        """
        box = gymnasium.spaces.Box(-np.inf, np.inf, (core.obs_dim,), np.float32)
        super().__init__(core, max_cycles, box)

    def _checked(self, actions: list[object]) -> np.ndarray:
        codec = self.core.action
        pairs = zip(self.agents, actions, strict=True)
        return np.array([codec.check(agent, action) for agent, action in pairs], codec.dtype)


def rate_parallel_env(
    scenario: str | RateScenario = "many-to-one-8-v0",
    max_cycles: int | None = None,
    **options: Any,
) -> RateParallelEnv:
    """A PettingZoo `ParallelEnv` whose agents are flows.

    Args:
        scenario: name of a registered scenario of rate control, or a `RateScenario`.
        max_cycles: simulator steps per episode, that of the scenario if None.
        **options: as in `make_rate`, e.g. `actions="discrete"`, `target=0.1`.

    Raises:
        ValueError: an unknown name or a value that is not allowed.
    """
    return RateParallelEnv(make_rate(scenario, **options), max_cycles)

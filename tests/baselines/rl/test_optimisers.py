"""Learning rates that fall: under a constant gradient, the steps of Adam are the rate."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ecn_marl
from ecn_marl.baselines.ddqn import DDQN, DDQNConfig
from ecn_marl.baselines.haecn import HAECN, HAECNConfig
from ecn_marl.baselines.ippo import IPPO, IPPOConfig
from ecn_marl.baselines.mappo import MAPPO, MAPPOConfig
from ecn_marl.baselines.rl.optimisers import FINAL_RATE, adam

LR = 0.25


def rates(optimiser: Any, steps: int, agents: tuple[int, ...] = ()) -> np.ndarray:
    """Length of each step under a gradient of 1; it is the learning rate (bias is corrected)."""
    weights = jnp.ones((*agents, 1))

    def step(state: Any, _: None) -> tuple[Any, Any]:
        update, state = optimiser.update(jnp.ones_like(weights), state, weights)
        return state, -update.ravel()[0]

    return np.asarray(jax.lax.scan(step, optimiser.init(weights), None, length=steps)[1])


def test_a_rate_falls_linearly_and_then_stays() -> None:
    passed = np.minimum(np.arange(30) / 20, 1.0)
    expected = LR * (1.0 - (1.0 - FINAL_RATE) * passed)
    np.testing.assert_allclose(rates(adam(LR, 1.0, 20), 30), expected, rtol=1e-3)
    np.testing.assert_allclose(rates(adam(LR, 1.0), 30), LR, rtol=1e-3)


@pytest.mark.parametrize("shared", [True, False])
def test_every_trainer_counts_in_updates(shared: bool) -> None:
    """Two updates: PPO makes epochs x minibatches steps in each, Q-learning `gradient_steps`."""
    env = ecn_marl.make("websearch-star-v0", actions="discrete")
    ppo: dict[str, Any] = {"epochs": 2, "minibatches": 4, "actor_lr": LR, "critic_lr": LR}
    q: dict[str, Any] = {"gradient_steps": 8, "lr": LR}
    common: dict[str, Any] = {"anneal_updates": 2, "shared": shared}
    ippo = IPPO(env, IPPOConfig(**ppo, **common))
    mappo = MAPPO(env, MAPPOConfig(**ppo, **common))
    ddqn, haecn = DDQN(env, DDQNConfig(**q, **common)), HAECN(env, HAECNConfig(**q, **common))
    per_agent: tuple[int, ...] = () if shared else (3,)
    optimisers = [(o, per_agent) for o in (ippo.actor_opt, ippo.critic_opt, mappo.actor_opt)]
    optimisers += [(mappo.critic_opt, ())]
    optimisers += [(o.opt, ()) for o in (ddqn.learner, haecn.decision, haecn.policy)]
    for optimiser, agents in optimisers:
        rate_at = rates(optimiser, 17, agents)
        np.testing.assert_allclose(
            rate_at[[8, 16]], [LR * (1 + FINAL_RATE) / 2, LR * FINAL_RATE], rtol=1e-3
        )


def test_a_negative_length_is_refused() -> None:
    for config in (IPPOConfig, MAPPOConfig, DDQNConfig, HAECNConfig):
        with pytest.raises(ValueError, match="anneal_updates = -1"):
            config(anneal_updates=-1)

"""Policies that differ in their numbers only are evaluated by one program, others never."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from toy import ToyEnv, ToyParams

from ecn_marl.baselines.evaluation.episodes import evaluate
from ecn_marl.baselines.evaluation.merit import Greedy
from ecn_marl.baselines.training.trainer import Trainer

PARAMS = ToyParams(max_steps=10)
TRACES: list[object] = []
"""An entry whenever a policy is traced."""


@dataclass(frozen=True)
class Settings:
    """Settings of `Always`."""

    envs: int = 1
    steps_per_update: int = 1
    base: int = 0


class Always(Trainer):
    """Every agent takes the action `base` plus the number that is the actor."""

    config_class = Settings

    def init(self, key, params):
        raise NotImplementedError

    def update(self, state, params):
        raise NotImplementedError

    def __init__(self, env, config):
        self.env, self.config = env, config

    def act(self, actor, key, obs, greedy=False):
        TRACES.append(self)
        return jnp.full((3,), self.config.base + actor, jnp.int32)


class Never(Always):
    """Another class of the same settings: the lowest action."""

    def act(self, actor, key, obs, greedy=False):
        TRACES.append(self)
        return jnp.zeros((3,), jnp.int32)


@dataclass(frozen=True)
class Held:
    """A controller with an array beside its actor, by which it cannot be found again."""

    actor: Any
    offset: np.ndarray

    def __call__(self, key, obs):
        TRACES.append(self)
        return jnp.full((3,), self.actor + self.offset[0], jnp.int32)


class Changing:
    """A controller whose action is an attribute that its owner may change."""

    ecn = None

    def __init__(self, action):
        self.action = action

    def __call__(self, key, obs):
        return jnp.full((3,), self.action, jnp.int32)


def rewards(controller, params=PARAMS):
    """Rewards of five episodes, and how often the policy was traced for them."""
    TRACES.clear()
    found = evaluate(ToyEnv(), params, controller, name="x", episodes=5, seed=1).episodes["reward"]
    return found, len(TRACES)


def policy(actor, kind=Always, base=0):
    # Made anew for every policy, as commands make a run's trainer.
    return Greedy(kind(ToyEnv(), Settings(base=base)), jnp.int32(actor))


def alone(action, params=PARAMS):
    """Rewards of an action by a program of its own."""
    return rewards(lambda key, obs: jnp.full((3,), action, jnp.int32), params)[0]


def test_weights_are_arguments_of_one_program():
    first, traces = rewards(policy(1))
    assert traces > 0
    for actor in (3, 1, 0):
        again, traces = rewards(policy(actor))
        np.testing.assert_array_equal(again, alone(actor))
        assert traces == 0
    assert (alone(1) != alone(3)).any()
    np.testing.assert_array_equal(first, alone(1))


@pytest.mark.parametrize("differ", ["settings", "class", "length", "shape"])
def test_other_policies_have_programs_of_their_own(differ):
    rewards(policy(1))
    params = replace(PARAMS, max_steps=PARAMS.max_steps + 2) if differ == "length" else PARAMS
    actor = jnp.int32([3, 1, 1]) if differ == "shape" else 1
    kind, base = (Never if differ == "class" else Always), int(differ == "settings")
    found, traces = rewards(policy(actor, kind, base), params)
    assert traces > 0
    action = {"settings": 2, "class": 0, "length": 1, "shape": jnp.int32([3, 1, 1])}[differ]
    np.testing.assert_array_equal(found, alone(action, params))


def test_what_may_change_is_traced_each_time():
    changing = Changing(1)
    rewards(changing)
    changing.action = 3
    np.testing.assert_array_equal(rewards(changing)[0], alone(3))
    for offset in (1, 3):
        np.testing.assert_array_equal(rewards(Held(0, np.array([offset])))[0], alone(offset))

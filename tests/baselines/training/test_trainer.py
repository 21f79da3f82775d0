"""The contract of a trainer: what is missing is named before anything is trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct
from toy import ToyEnv, ToyParams

from ecn_marl._registry import REGISTRIES
from ecn_marl.baselines.algorithms import ALGORITHMS, RATE_ALGORITHMS, RESERVED, algorithm_config
from ecn_marl.baselines.evaluation.episodes import StatefulController
from ecn_marl.baselines.oracle import RULES
from ecn_marl.baselines.training.trainer import Trainer, TrainingState, as_trainer, check_training
from ecn_marl.experiments.jobs import convert_settings
from ecn_marl.experiments.recipes import _OWN, LEARNERS, learners, recipe

PARAMS = ToyParams(jnp.int32(4))


@dataclass(frozen=True)
class Config:
    envs: int = 2
    hidden: tuple[int, ...] = (4,)
    nested: tuple[tuple[float, ...], ...] = ((1.0,),)
    name: str = ""
    maybe: float | None = None

    @property
    def steps_per_update(self) -> int:
        return self.envs


class Fixed(Trainer):
    """Always does the same; learns how often it was updated."""

    config_class = Config

    def init(self, key, params):
        obs, env = jax.vmap(self.env.reset, (0, None))(jax.random.split(key, 2), params)
        return TrainingState(jnp.zeros(()), env, obs, key)

    def act(self, actor, key, obs, greedy=False):
        return jnp.zeros(obs.shape[:-1], jnp.int32)

    def update(self, state, params):
        return state.replace(actor=state.actor + 1.0), {"updates": state.actor}


def trainer(**changes: Any) -> type:
    return type("Changed", (Fixed,), changes)


@pytest.fixture
def registered(monkeypatch):
    monkeypatch.setattr(REGISTRIES["algorithm"], "registered", {"fixed": Fixed})


def test_the_package_keeps_its_own_contract():
    for name in ALGORITHMS.builtin:
        assert as_trainer(name, ALGORITHMS[name]) is ALGORITHMS[name]
    assert {*LEARNERS, *RATE_ALGORITHMS, *RULES} <= {*RESERVED, *ALGORITHMS.builtin}


@pytest.mark.parametrize(
    ("candidate", "message"),
    [
        (object, "not derived from ecn_marl.Trainer; init.. is missing; update.. is missing; act"),
        (
            trainer(init=Trainer.init, act=Trainer.act),
            r"Trainer: init\(\) is missing; act\(\) \(or",
        ),
        (trainer(act=lambda self, obs: obs), r"act\(self, actor: .*, obs.* is expected"),
        (trainer(update=lambda self: None), r"update\(self, state: .* is expected"),
        (trainer(config_class=None), "config_class, a frozen dataclass of settings, is missing"),
        (trainer(config_class=struct.dataclass(type("C", (), {}))), "C needs envs, an integer"),
        (Fixed(ToyEnv(), Config()), "expected a class, derived from ecn_marl.Trainer"),
    ],
)
def test_missing_members_are_named(candidate, message):
    with pytest.raises(ValueError, match=rf"trainer of mine = .*{message}"):
        as_trainer("mine", candidate)


def test_settings_need_defaults_that_json_can_hold():
    @dataclass(frozen=True)
    class Needs(Config):
        what: Any = jnp.zeros

    with pytest.raises(ValueError, match=r"config_class Needs needs defaults .*not JSON serial"):
        as_trainer("mine", trainer(config_class=Needs))
    with pytest.raises(ValueError, match=r"frozen=True \(unhashable type: 'Loose'\)"):
        as_trainer("mine", trainer(config_class=dataclass(type("Loose", (), {}))))


def test_names_of_the_package_and_of_rules_are_not_free():
    for name in ("ippo", "pet", "oracle", "adpg", "static"):
        with pytest.raises(ValueError, match=f"algorithm name = '{name}' .*the package"):
            ALGORITHMS.register(name, Fixed)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"update": lambda self, state, params: state.obs @ jnp.zeros(7)},
            r"update\(\) of mine = 'TypeError: .*, line \d+' .*a method that runs",
        ),
        ({"init": lambda self, key, params: {"key": key}}, "expected a pytree dataclass with"),
        ({"update": lambda self, state, params: state}, r"update\(\) of mine = .*\(state, dict"),
        (
            {"update": lambda self, state, params: (state.replace(actor=jnp.zeros(3)), {})},
            r"after update\(\) = '\.actor' .*float32\[\], not float32\[3\]",
        ),
        (
            {"update": lambda self, state, params: (state, {"loss": jnp.zeros(3)})},
            r"metric loss of mine = \[3\] .*a scalar",
        ),
        ({"__init__": lambda self, env, config: None}, r"one that sets self\.env"),
    ],
)
def test_states_and_metrics_are_checked_by_shapes(changes, message):
    instance = trainer(**changes)(ToyEnv(), Config())
    with pytest.raises(ValueError, match=message):
        check_training("mine", instance, PARAMS)


def test_a_minimal_trainer_is_enough():
    instance = Fixed(ToyEnv(), Config())
    check_training("fixed", instance, PARAMS)
    obs, actor = jnp.zeros((3, 2)), jnp.zeros(())
    controller = instance.controller(actor, instance.env)
    assert not isinstance(controller, StatefulController)
    np.testing.assert_array_equal(controller(jax.random.key(0), obs), np.zeros(3))
    assert (instance.flops, instance.modules(actor), instance.network(actor)) == (None, {}, None)
    assert instance.exchanged_bytes(instance.env, []) == 0.0 and controller.costs() == {}


def test_settings_come_from_texts_and_from_json(registered):
    texts = ["hidden=[8,8]", "nested=[[1,2],[3]]", "name=mine", "maybe=0.5"]
    values = convert_settings("fixed", Config, texts)
    assert algorithm_config("fixed", **values) == Config(2, (8, 8), ((1, 2), (3,)), "mine", 0.5)
    assert convert_settings("fixed", Config, ["hidden=8,4"]) == {"hidden": (8, 4)}
    assert convert_settings("fixed", Config, ["hidden=[]"]) == {"hidden": ()}
    assert algorithm_config("fixed", hidden=[3], nested=[[1.0]]).nested == ((1.0,),)
    with pytest.raises(ValueError, match=r"hidden = '\[8' .*a list, e.g. \[64,64\]"):
        convert_settings("fixed", Config, ["hidden=[8"])
    with pytest.raises(ValueError, match="setting of fixed 'hiden': did you mean 'hidden'"):
        algorithm_config("fixed", hiden=())


def test_a_registered_algorithm_is_a_learner_of_the_benchmark(registered, monkeypatch):
    assert learners() == (*LEARNERS, "fixed")
    assert dict(recipe("websearch-star-v0", "fixed").options) == _OWN
    monkeypatch.setattr(Fixed, "recipe", {"features": "acc"})
    assert dict(recipe("websearch-star-v0", "fixed").options) == {"features": "acc"}
    with pytest.raises(ValueError, match=r"unknown learner 'fixd': did you mean 'fixed'"):
        recipe("websearch-star-v0", "fixd")

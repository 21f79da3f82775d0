"""DAgger: finds what its teacher does from what agents see, and refuses what has no teacher."""

from __future__ import annotations

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ring_job import TWO, ring_job
from toy import ToyEnv, ToyParams

from ecn_marl.baselines.dagger import Dagger, DaggerConfig
from ecn_marl.baselines.training.loop import initial_state, train
from ecn_marl.envs import privileged
from ecn_marl.envs.registry import make, register, scenarios
from ecn_marl.experiments.jobs import new_job

PARAMS = ToyParams(max_steps=10)
SMALL = DaggerConfig(
    envs=16, rollout=16, teacher=(4, 2), batch=256, gradient_steps=16, capacity=2048, lr=3e-3
)


@dataclass(frozen=True)
class Phased(ToyEnv):
    """The toy with a phase of every agent, its target, which says nothing of rewards."""

    phase_names: tuple[str, ...] = ("first", "second")

    def phase(self, state, params):
        return state.target.astype(jnp.int32)


@pytest.fixture(scope="module")
def trained():
    trainer = Dagger(Phased(), SMALL)
    return trainer, train(trainer, PARAMS, steps=30 * 256, seed=3)


def test_does_what_the_teacher_does_not_what_pays(trained) -> None:
    trainer, result = trained
    shown, progress = np.meshgrid([0.0, 1.0], np.arange(10) / 10)
    obs = np.stack([shown, progress], -1).reshape(-1, 1, 2).repeat(3, 1).astype(np.float32)
    action = trainer.act(result.state.actor, jax.random.key(0), jnp.asarray(obs), greedy=True)
    np.testing.assert_array_equal(action, np.where(obs[..., 0] == 0, 4, 2))
    rows = result.metrics
    assert rows[0]["agreement"] < 0.9 < 0.999 < rows[-1]["agreement"]
    assert rows[-1]["loss"] < 0.2 * rows[0]["loss"]
    expected = 0.8 ** np.arange(30)
    np.testing.assert_allclose([row["teacher_chance"] for row in rows], expected, rtol=1e-4)


def test_memory_holds_the_phases_of_the_latest_observations(trained) -> None:
    memory = trained[1].state.memory
    obs, phase = (np.asarray(x) for x in memory.rows)
    assert memory.size == len(obs) == SMALL.capacity
    np.testing.assert_array_equal(phase, obs[:, 0])


def test_the_teacher_acts_alone_in_the_first_update() -> None:
    """Its actions 0 and 4 earn 3/4 and 3/4; the student's, where it is wrong, 1/4."""
    trainer = Dagger(Phased(), replace(SMALL, teacher=(0, 4), teacher_decay=0.0))
    state = initial_state(trainer, PARAMS, 1)
    state, first = trainer.update(state, PARAMS)
    assert (first["teacher_chance"], first["reward"]) == (1.0, 0.75)
    assert first["agreement"] < 0.9
    _, second = trainer.update(state, PARAMS)
    assert second["teacher_chance"] == 0.0


def test_ports_are_told_the_phase_of_the_next_interval() -> None:
    """In a job's steps: they are the phases that critics are told."""
    if "ring-job-v0" not in scenarios():
        register("ring-job-v0", ring_job)
    env = make("ring-job-v0", **TWO)
    trainer, params = Dagger(env, DaggerConfig()), env.default_params
    step, known = jax.jit(env.step), jax.jit(lambda s: privileged.privileged(env, s, params))
    places = jax.jit(trainer.places)
    _, state = jax.jit(env.reset)(jax.random.key(0), params)
    phases = []
    for key in jax.random.split(jax.random.key(1), 12):
        told = np.asarray(known(state))[:, :2].argmax(-1)
        np.testing.assert_array_equal(places(state, params), told)
        phases.append(told[0])
        state = step(key, state, np.zeros(env.num_agents, np.int32), params)[1]
    assert set(phases) == {0, 1}


@pytest.mark.parametrize(
    ("env", "settings", "message"),
    [
        (ToyEnv(), {}, "one with phases"),
        (Phased(), {"teacher": (1,)}, "an action below 5 for each of the phases first, second"),
        (Phased(), {"teacher": (1, 5)}, "an action below 5"),
        (Phased(), {"teacher": ()}, "an action below 5"),
    ],
)
def test_refusals(env, settings, message) -> None:
    with pytest.raises(ValueError, match=message):
        Dagger(env, replace(SMALL, **settings))


def test_settings_are_checked() -> None:
    for name, value in (("teacher", (-1,)), ("capacity", 0), ("teacher_decay", 1.5), ("lr", 0.0)):
        with pytest.raises(ValueError, match=name):
            DaggerConfig(**{name: value})


def test_its_settings_are_those_of_the_oracle() -> None:
    job = new_job("dagger", {"scenario": "restore-serve-v0"}, {}, [])
    oracle = ((640.0, 2560.0, 1.0), (2.5, 5.0, 1.0))
    assert job.options["action_options"] == {"template": oracle}
    own = {"template": ((5.0, 20.0, 1.0), (10.0, 40.0, 1.0))}
    job = new_job("dagger", {"scenario": "restore-serve-v0"}, {"action_options": own}, [])
    assert job.options["action_options"] == own
    with pytest.raises(ValueError, match="scenario with phases"):
        new_job("dagger", {"scenario": "websearch-load-v0"}, {}, [])

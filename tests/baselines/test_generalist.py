"""The generalist: one policy for several networks."""

from __future__ import annotations

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_dagger import Phased
from toy import ToyParams

import ecn_marl
from ecn_marl.baselines import runs
from ecn_marl.baselines.dagger import Dagger
from ecn_marl.baselines.evaluation.merit import Merits, merit_function
from ecn_marl.baselines.generalist import Generalist, GeneralistConfig, Student, _pooled
from ecn_marl.baselines.rl.networks import moments
from ecn_marl.baselines.rl.replay import Ring
from ecn_marl.baselines.runs import resume_run, train_run
from ecn_marl.baselines.trained import run_state, trainer_of
from ecn_marl.baselines.training.checkpoint import read_config
from ecn_marl.baselines.training.loop import TrainResult, train
from ecn_marl.envs.scenario import Scenario
from ecn_marl.sim import Incast, star

NAMES = ("three-hosts-v0", "four-hosts-v0")

SIZES = {
    **{"envs": 2, "rollout": 4, "gradient_steps": 4, "batch": 16, "capacity": 64},
    **{"hidden": (8,), "standardise": 8},
}

CHOICES = 4

VIEW = {
    "actions": "discrete",
    "action_options": {"template": tuple((5.0 * 4**i, 20.0 * 4**i, 1.0) for i in range(CHOICES))},
}

COSTS = (
    ((tuple(0.1 * i for i in range(CHOICES)),),),
    ((tuple(0.1 * abs(i - 2) for i in range(CHOICES)),),),
)
"""Each scenario has one phase and one group; the second one likes deeper thresholds."""

CONFIG = GeneralistConfig(**SIZES, also=NAMES[1:], costs=COSTS)


@dataclass(frozen=True)
class Busy(Phased):
    """The toy with ports that are used."""

    port_groups: tuple[str, ...] = ()

    def step(self, key, state, action, params):
        *results, info = super().step(key, state, action, params)
        return (*results, info | {"utilisation": jnp.ones(self.num_agents)})


def scenario(hosts: int) -> Scenario:
    """Bursts to hosts of a switch; two intervals."""
    bursts = Incast(load=0.6, n_max=2, flow_kb=50.0, width=2)
    return Scenario(topology=star(hosts), traffic=(bursts,), slots=16, max_steps=2, pfc=False)


@pytest.fixture(scope="module")
def envs():
    """Environments with three and four agents."""
    for name, hosts in zip(NAMES, (3, 4), strict=True):
        if name not in ecn_marl.scenarios():
            ecn_marl.register(name, lambda hosts=hosts: scenario(hosts))
    return tuple(ecn_marl.make(name, **VIEW) for name in NAMES)


RUN = {"options": VIEW, "settings": {**SIZES, "also": NAMES[1:], "costs": COSTS}, "seeds": 2}


@dataclass(frozen=True)
class Named(Busy):
    """The toy as a scenario, whose agents see numbers `offset` larger."""

    name: str = "b"
    offset: float = 3.0

    @property
    def default_params(self):
        return ToyParams(max_steps=10)

    def _obs(self, state):
        return super()._obs(state) + self.offset


def test_where_phases_look_alike_the_mean_cost_decides():
    """Three of four rows are in a phase that wants 4; a 4 in the other one costs ten times more."""
    costs = (((0.3, 0.3, 0.3, 0.1, 0.0),), ((0.0, 0.5, 1.0, 2.0, 3.0),))
    rng = np.random.default_rng(0)
    phase = (rng.random(4096) < 0.25).astype(np.int32)
    env = Busy()
    carried = rng.random(4096).astype(np.float32)
    rows = (jnp.ones((4096, env.obs_dim)), jnp.asarray(phase), jnp.asarray(carried))
    memory = Ring(rows, jnp.int32(0), jnp.int32(4096))
    settings = GeneralistConfig(hidden=(8,), gradient_steps=400, lr=1e-2, costs=(costs,))
    trainer = Generalist(env, settings)
    actor = trainer.init(jax.random.key(0), ToyParams(max_steps=10)).actor
    actor, _, _ = jax.jit(trainer._learn)(
        actor, trainer.opt.init(actor), (memory,), jax.random.key(1)
    )
    out = np.asarray(trainer.net.apply(actor, jnp.ones(env.obs_dim)))
    # A phase's cost is spread over its rows, so that the share of its rows cancels in the mean.
    np.testing.assert_allclose(out, -np.sum(costs, (0, 1)), atol=0.05)
    assert out.argmax() == 0, "of the answers alone, 4 would be right three times of four"


def test_phases_that_are_seen_are_taught_apart():
    costs = (((0.0, 1.0, 2.0, 3.0, 4.0),), ((4.0, 3.0, 2.0, 1.0, 0.0),))
    trainer = Generalist(
        Busy(), GeneralistConfig(**{**SIZES, "capacity": 4096}, lr=1e-2, costs=(costs,))
    )
    rows = train(trainer, ToyParams(max_steps=10), steps=40 * 8, seed=0).metrics
    assert rows[0]["agreement"] < 0.9 < rows[-1]["agreement"]
    assert rows[-1]["loss"] < 0.2 * rows[0]["loss"]


def test_groups_of_ports_are_taught_apart():
    """A place for each phase and group, phases first."""
    env = Busy(port_groups=("a", "b", "a"))
    costs = tuple(
        tuple(tuple(np.roll(np.arange(5.0), p + 2 * g).tolist()) for g in (0, 1)) for p in (0, 1)
    )
    trainer = Generalist(env, GeneralistConfig(**SIZES, costs=(costs,)))
    assert trainer.teacher == (0, 2, 1, 3)
    params = ToyParams(max_steps=10)
    for key in jax.random.split(jax.random.key(0), 4):
        _, state = env.reset(key, params)
        phase = np.asarray(env.phase(state, params))
        np.testing.assert_array_equal(trainer.places(state, params), 2 * phase + [0, 1, 0])


@pytest.mark.thorough
def test_every_scenario_counts_alike(envs):
    """The loss is the mean of those of its students, each with its own rows and costs."""
    trainer = Generalist(envs[0], CONFIG, envs[1:])
    state = jax.jit(trainer.init)(jax.random.key(1), envs[0].default_params)
    state, _ = jax.jit(trainer.update)(state, envs[0].default_params)
    key = jax.random.key(2)
    each = [
        Student.loss(student, state.actor, memory, own)
        for student, memory, own in zip(
            trainer._students, state.memory, jax.random.split(key, 2), strict=True
        )
    ]
    assert each[0] != each[1]
    np.testing.assert_allclose(
        trainer.loss(state.actor, state.memory, key), np.mean(each), rtol=1e-6
    )


def test_observations_of_all_scenarios_are_standardised_together():
    rng = np.random.default_rng(0)
    samples = [rng.normal(m, s, (5000, 3)) for m, s in ((0.2, 0.1), (0.7, 0.3))]
    mean, deviation = _pooled([(jnp.asarray(x.mean(0)), jnp.asarray(x.std(0))) for x in samples])
    both = np.concatenate(samples)
    np.testing.assert_allclose(mean, both.mean(0), rtol=1e-5)
    np.testing.assert_allclose(deviation, both.std(0), rtol=1e-5)
    costs = (((0.0, 1.0, 2.0, 3.0, 4.0),),) * 2
    config = GeneralistConfig(**SIZES, also=("b",), costs=(costs, costs))
    toys = Busy(), Named()
    trainer = Generalist(toys[0], config, toys[1:])

    @jax.jit
    def centres():
        key, params = jax.random.key(0), ToyParams(max_steps=10)
        starts = [
            Dagger.init(student, own, params)
            for student, own in zip(trainer._students, jax.random.split(key, 2), strict=True)
        ]
        actors = (trainer.init(key, params).actor, *(start.actor for start in starts))
        return [moments(actor)[0] for actor in actors]

    together, *each = centres()
    assert np.min(each[1] - each[0]) > 2.0
    np.testing.assert_allclose(together, np.mean(each, 0), rtol=1e-5)


@pytest.mark.thorough
def test_a_run_stops_and_goes_on(envs, tmp_path):
    common = {**RUN, "eval_every": 1, "eval_episodes": 2}
    result = train_run("generalist", NAMES[0], steps=32, out=tmp_path / "whole", **common)
    assert [row["steps"] for row in result.metrics] == [16, 32]
    assert all(len(row["merit"]) == 2 for row in result.metrics)
    train_run("generalist", NAMES[0], steps=16, out=tmp_path / "run", **common)
    resumed = resume_run(tmp_path / "run", steps=32)
    for a, b in zip(*map(jax.tree.leaves, (resumed.state, result.state)), strict=True):
        if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        np.testing.assert_array_equal(a, b)
    trainer = trainer_of(read_config(tmp_path / "whole"))
    each = []
    for env in envs:
        merit = merit_function(trainer, env, env.default_params, episodes=2, seeds=2)
        each.append(merit(result.state).value)
    np.testing.assert_allclose(result.metrics[-1]["merit"], np.mean(each, 0), rtol=1e-5)


def test_one_policy_acts_in_every_network(envs, tmp_path):
    """A run of an update with two seeds."""
    out = tmp_path / "run"
    settings = {**RUN["settings"], "standardise": 0}
    steps = CONFIG.steps_per_update
    train_run(
        "generalist", NAMES[0], **{**RUN, "settings": settings}, steps=steps, eval_every=0, out=out
    )
    found = ecn_marl.evaluate(str(out), NAMES[1], episodes=2, records=False, allow_flagged=True)
    assert {row["episodes"] for row in found.summary["policies"]} == {2}
    actor = run_state(out).actor
    assert jax.tree.leaves(actor)[0].ndim < 3  # no axis of agents


@pytest.mark.parametrize(("by", "expected"), [("reward", [-5.0, -13.0]), ("objective", [-4, -12])])
def test_merits_are_means_over_scenarios(envs, tmp_path, monkeypatch, by, expected):
    """What a run measures in the loop, from merits that are given for each of its scenarios."""
    given = {NAMES[0]: (np.array([-2.0, -8.0]), ""), NAMES[1]: (np.array([-8.0, -18.0]), "few")}
    measured = []

    def merit_of(trainer, env, params, **options):
        assert len(params.sim.net.port_rate) == env.num_agents
        assert (options["seeds"], options["by"]) == (2, by)
        value, refused = given[env.name]
        return lambda state: Merits(value, refused=refused)

    def train(trainer, params, *, merit, **options):
        measured.append(merit(None))
        return TrainResult(None, [])

    monkeypatch.setattr(runs, "merit_function", merit_of)
    monkeypatch.setattr(runs, "train", train)
    train_run(
        "generalist", NAMES[0], **RUN, steps=1, eval_every=1, best_by=by, out=tmp_path / "run"
    )
    np.testing.assert_allclose(measured[0].value, expected)
    assert measured[0].refused == "few"


def test_what_does_not_fit_is_refused(envs):
    first, _ = envs
    with pytest.raises(ValueError, match=r"others = .*environments of \('four-hosts-v0',\)"):
        Generalist(first, CONFIG)
    with pytest.raises(ValueError, match=r"also = .* look like three-hosts-v0 to a port"):
        Generalist(first, CONFIG, (ecn_marl.make(NAMES[1], features="pet", **VIEW),))
    for wrong in ({"also": ("a", "a")}, {"teacher": (1,)}, {"costs": COSTS}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            GeneralistConfig(**SIZES, **wrong)
    with pytest.raises(ValueError, match=r"costs = \(\) .* a table for each scenario"):
        Generalist(first, replace(CONFIG, costs=()), envs[1:])
    for few, message in (
        ((((0.0, 1.0),),), r"4 settings of four-hosts-v0"),
        ((((0.0,) * 4,) * 2,), r"each of 1 phases and 1 groups of ports of four-hosts-v0"),
        ((((0.0,) * 4, (1.0,)),), "finite numbers"),
        ((((0.0, 1.0, 2.0, np.nan),),), "finite numbers"),
    ):
        with pytest.raises(ValueError, match=f"costs = .*{message}"):
            Generalist(first, replace(CONFIG, costs=(COSTS[0], few)), envs[1:])
    with pytest.raises(ValueError, match="unknown"):
        train_run(
            "generalist",
            NAMES[0],
            settings={**SIZES, "also": ("no-such-v0",), "costs": COSTS},
            steps=1,
            out="x",
        )

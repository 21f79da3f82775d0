"""Exported policies where runs can stand: the same actions, in the view that they were made for."""

from __future__ import annotations

import functools
import json
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from commands import TINY, failure, run
from tiers import tiers

import ecn_marl
from ecn_marl.baselines.evaluation.episodes import evaluate
from ecn_marl.baselines.exported import digest, episodes_of, exported_controller, view_of
from ecn_marl.baselines.exporting import files
from ecn_marl.baselines.exporting.export import export_policy
from ecn_marl.baselines.exporting.files import read_policy, save_policy
from ecn_marl.baselines.rl.distributions import head_for
from ecn_marl.baselines.rl.networks import Mlp, apply_network, init_network
from ecn_marl.baselines.runs import train_run
from ecn_marl.baselines.trained import run_controller, run_policy
from ecn_marl.experiments import policies as po
from ecn_marl.experiments.engine import _request
from ecn_marl.experiments.plan import Plan

pytestmark = pytest.mark.usefixtures("tiny_scenario")

SETTINGS = {
    **{"envs": 2, "rollout": 4, "minibatches": 1, "epochs": 4, "hidden": (8,)},
    **{"actor_lr": 0.05, "max_grad_norm": 100.0},
}
OPTIONS = {
    "multidiscrete": {"actions": "multidiscrete", "action_options": {"alpha_kb": 20.0}},
    "discrete": {"actions": "discrete", "features": "ports", "history": 2},
}


def trained(folder, actions, shared=True, memory=0, **extra):
    """A run of two updates with intervals twice as long as the scenario's, and its file."""
    options = {**OPTIONS[actions], "interval_us": 80.0, "max_steps": 6, "reward": "pet", **extra}
    settings = {**SETTINGS, "shared": shared, "standardise": 4, "memory": memory}
    train_run("ippo", TINY, steps=16, options=options, settings=settings, out=folder, eval_every=0)
    save_policy(run_policy(folder), folder.parent / f"{folder.name}.npz")
    return folder, folder.parent / f"{folder.name}.npz"


@pytest.fixture(scope="module")
def shared_run(tmp_path_factory, tiny_scenario):
    return trained(tmp_path_factory.mktemp("runs") / "all", "discrete")


@pytest.fixture(scope="module")
def own_run(tmp_path_factory, tiny_scenario):
    return trained(tmp_path_factory.mktemp("runs") / "own", "multidiscrete", shared=False)


@pytest.fixture(scope="module")
def own_file(tmp_path_factory, tiny_scenario):
    """A policy that was not trained, with a network per port."""
    env = ecn_marl.make(TINY, **OPTIONS["multidiscrete"])
    head = head_for(env.action)
    actor = init_network(Mlp((8,), head.outputs), jax.random.key(2), env.obs_dim, 3, False)
    options = OPTIONS["multidiscrete"]
    file = tmp_path_factory.mktemp("files") / "own.npz"
    save_policy(export_policy(env, head, actor, algorithm="ippo", options=options), file)
    return file


@pytest.fixture
def shipped(shared_run, tmp_path, monkeypatch):
    """A package that ships one policy."""
    monkeypatch.setattr(files, "SHIPPED", tmp_path)
    shutil.copy(shared_run[1], tmp_path / "tiny-ippo.npz")
    return "pretrained:tiny-ippo"


@functools.cache
def played(env):
    """`reset` and `step`, compiled once for equal environments."""
    return jax.jit(env.reset), jax.jit(env.step)


def acts_as_its_run(folder, file):
    """Both choose the same in every interval of an episode; numpy alone agrees."""
    arena = po.arena([str(file)], None)
    env, theirs = arena.env(str(file)), arena.controller(str(file))
    ours = run_controller(folder, env)
    policy, params, key = read_policy(file), env.default_params, jax.random.key(3)
    reset, step = played(env)
    obs, state = reset(key, params)
    outputs = []
    for _ in range(env.horizon):
        action = ours(key, obs)
        np.testing.assert_allclose(theirs(key, obs), action, atol=1e-5)
        np.testing.assert_allclose(policy(np.asarray(obs)), action, atol=1e-5)
        outputs.append(policy.outputs(np.asarray(obs)))
        np.testing.assert_allclose(theirs.outputs(obs), outputs[-1], atol=1e-4)
        obs, state, *_ = step(key, state, action, params)
    assert np.ptp(outputs, axis=(0, 1)).max() > 0.01
    return env


def test_acts_as_its_run(shared_run):
    env = acts_as_its_run(*shared_run)
    assert (env.feature.names, env.feature.history) == (
        ecn_marl.make(TINY, features="ports").feature.names,
        2,
    )
    assert (env.interval_us, env.horizon, env.reward.name) == (80.0, 6, "pet")


@pytest.mark.slow
@pytest.mark.thorough
def test_acts_as_its_run_with_a_network_per_port(own_run):
    assert acts_as_its_run(*own_run).action.alpha_kb == 20.0


def pqn_run(folder, memory):
    """A run of pqn, whose layers are normalised, and its file."""
    settings = {**{name: SETTINGS[name] for name in ("envs", "rollout", "hidden")}, "lr": 0.05}
    settings |= {"minibatches": 1, "epochs": 4, "memory": memory}
    options = {**OPTIONS["discrete"], "interval_us": 80.0, "max_steps": 6, "reward": "pet"}
    train_run("pqn", TINY, steps=16, options=options, settings=settings, out=folder, eval_every=0)
    file = folder.parent / "pqn.npz"
    save_policy(run_policy(folder), file)
    return folder, file


@pytest.mark.thorough
def test_normalised_layers_act_as_their_run(tmp_path):
    acts_as_its_run(*pqn_run(tmp_path / "run", 0))


@pytest.mark.slow
@pytest.mark.parametrize("learner", tiers(["ippo", "pqn"], "pqn"))
def test_a_memory_acts_as_its_run(learner, tmp_path):
    """A trained run, its file in an evaluation, and by numpy alone: through an episode."""
    if learner == "ippo":
        folder, file = trained(tmp_path / "gru", "discrete", memory=4)
    else:
        folder, file = pqn_run(tmp_path / "run", 4)
    env = ecn_marl.make(TINY, **view_of(read_policy(file)), max_steps=6)
    ours, theirs = run_controller(folder, env), exported_controller(env, read_policy(file))
    policy, params, key = read_policy(file), env.default_params, jax.random.key(3)
    reset, step = played(env)
    obs, state = reset(key, params)
    decide, deploy = jax.jit(ours.decide), jax.jit(theirs.decide)
    memory, deployed, remembered = ours.init(), theirs.init(), None
    for _ in range(env.horizon):
        action, memory = decide(key, obs, memory)
        again, deployed = deploy(key, obs, deployed)
        chosen, remembered = policy.step(np.asarray(obs), remembered)
        np.testing.assert_array_equal(again, action)
        np.testing.assert_array_equal(chosen, action)
        np.testing.assert_allclose(deployed, memory, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(remembered, memory, rtol=1e-4, atol=1e-5)
        obs, state, *_ = step(key, state, action, params)
    assert np.abs(remembered).max() > 0.01


@pytest.mark.parametrize("shared", [True, False])
def test_gives_the_means_of_continuous_actions(shared):
    options = {"features": "queue,kmin", "action_options": {"pmax": [0.1, 0.5]}}
    env = ecn_marl.make(TINY, actions="box", **options)
    head = head_for(env.action)
    net = Mlp((8,), head.outputs)
    actor = init_network(net, jax.random.key(1), env.obs_dim, env.num_agents, shared)
    policy = export_policy(env, head, actor, algorithm="ippo")
    again = ecn_marl.make(TINY, **view_of(policy))
    assert again.action == env.action
    rng = np.random.default_rng(0)
    obs = rng.uniform(size=(env.num_agents, env.obs_dim)).astype(np.float32)
    action = exported_controller(again, policy)(jax.random.key(0), jnp.asarray(obs))
    np.testing.assert_allclose(action, policy(obs), atol=1e-6)
    mean = head.mode(apply_network(net, actor, jnp.asarray(obs), shared))
    np.testing.assert_allclose(action, mean, atol=1e-6)
    assert np.std(mean) > 0.1


def test_keeps_its_view_in_other_episodes(shared_run):
    """Episodes of the arena last as long as the arena's, in intervals of the policy."""
    arena = po.arena(["static:secn1", str(shared_run[1])], "incast-v0", max_steps=8)
    assert arena.env("static:secn1").horizon == 8  # of 100 µs
    env = arena.env(str(shared_run[1]))
    assert (env.name, env.horizon, env.interval_us) == ("incast-v0", 10, 80.0)
    assert arena.controller(str(shared_run[1])).costs()["inferences_per_decision"] == 1.0


def test_eval_scores_a_file_as_its_run(shared_run, shipped):
    folder, file = shared_run
    result = run("eval", file, shipped, "--episodes", 2, "--json")
    assert result.exit_code == 0, result.output
    by_file, by_name = json.loads(result.stdout)["evaluation"]["policies"]
    env = po.arena([str(file)], None).env(str(file))
    alone = evaluate(env, env.default_params, run_controller(folder, env), name="run", episodes=2)
    assert by_file["reward"] == by_name["reward"]
    assert by_file["reward"]["mean"] == pytest.approx(alone.summary()["reward"]["mean"], rel=1e-4)
    assert po.resolve(str(file)).label == "IPPO all"
    assert po.resolve(shipped).label == "IPPO tiny-ippo"


def test_names_of_shipped_policies(shipped):
    assert ecn_marl.pretrained_policies() == ("tiny-ippo",)
    assert ecn_marl.load_policy(shipped).header["scenario"] == TINY
    message = r"unknown pretrained policy 'tiny-ipo': did you mean 'tiny-ippo'\? known: tiny-ippo"
    with pytest.raises(ValueError, match=message):
        ecn_marl.load_policy("pretrained:tiny-ipo")
    assert "did you mean 'tiny-ippo'" in failure("eval", "pretrained:tiny-ipo")


def test_wrong_files_are_refused(shared_run, tmp_path):
    not_a_policy, bare = tmp_path / "other.npz", tmp_path / "bare.npz"
    np.savez(not_a_policy, x=np.zeros(2))
    policy = read_policy(shared_run[1])
    header = {name: x for name, x in policy.header.items() if name != "interval_us"}
    save_policy(files.Policy(header, policy.layers, policy.settings), bare)
    written = "is not allowed: expected a file that `ecn-marl export` has written"
    assert written in failure("eval", tmp_path / "none.npz")
    assert written in failure("eval", not_a_policy)
    assert "its header has no interval_us" in failure("eval", bare)
    assert "expected the folder of a run, FILE.npz, pretr" in failure("eval", "runs/none")


def test_wrong_scenarios_are_refused(own_file, shared_run):
    file = own_file
    message = failure("eval", file, "--scenario", "websearch-v0", "--episodes", 1)
    assert "scenario = 'websearch-v0 (" in message
    assert "expected one with 3 ports" in message
    shared = read_policy(shared_run[1])
    with pytest.raises(ValueError, match="observations = "):
        exported_controller(ecn_marl.make(TINY), shared)
    view = view_of(shared) | {"actions": "box", "action_options": {}}
    with pytest.raises(ValueError, match="expected discrete actions with the options of mine"):
        exported_controller(ecn_marl.make(TINY, **view), shared, "mine")


def test_options_of_its_episodes(shared_run):
    scenario, options = episodes_of(read_policy(shared_run[1]))
    assert (scenario, options) == (TINY, {"max_steps": 12, "reward": "pet"})


def test_bench_takes_files_and_knows_when_they_change(shared_run, own_file, shipped, tmp_path):
    plan = Plan((TINY,), (str(shared_run[1]), shipped), tmp_path)
    place = plan.places()[0]
    before = _request(plan, place, shipped)
    assert before["file"] == digest(shipped) == _request(plan, place, str(shared_run[1]))["file"]
    shutil.copy(own_file, files.SHIPPED / "tiny-ippo.npz")
    assert _request(plan, place, shipped) != before
    with pytest.raises(ValueError, match="expected one with 3 ports"):
        Plan(("restore-serve-v0",), (str(own_file),), tmp_path)
    with pytest.raises(ValueError, match="expected a file that"):
        Plan((TINY,), ("none.npz",), tmp_path)


def test_shipped_policies_are_small_documented_and_fit():
    folder = Path(ecn_marl.__file__).parent / "pretrained"
    readme = (folder / "README.md").read_text()
    assert sum(path.stat().st_size for path in folder.rglob("*")) < 2_000_000
    assert {path.suffix for path in folder.iterdir()} <= {".md", ".npz"}
    for name in ecn_marl.pretrained_policies():
        assert f"| `{name}` |" in readme, f"{folder}/README.md does not say how {name} was made"
        policy = f"pretrained:{name}"
        arena = po.arena([policy], None)
        env = arena.env(policy)
        shapes = jax.eval_shape(env.reset, jax.random.key(0), env.default_params)
        jax.eval_shape(arena.controller(policy), jax.random.key(0), shapes[0])

"""The training loop: checkpoints, logs, stops; evaluation on traffic not used in training."""

from __future__ import annotations

import inspect
import json
import sys
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from commands import TINY
from jax.extend.core import jaxprs_in_params
from scipy import stats
from toy import ToyEnv, ToyParams

from ecn_marl import lanes
from ecn_marl._lock import LOCK, locked
from ecn_marl.baselines import runs
from ecn_marl.baselines.evaluation.episodes import (
    episodes_runner,
    evaluate,
    evaluation_keys,
)
from ecn_marl.baselines.evaluation.merit import Merits, evaluations_every
from ecn_marl.baselines.evaluation.statistics import mean_interval
from ecn_marl.baselines.ippo import IPPO, IPPOConfig
from ecn_marl.baselines.training.checkpoint import Checkpoints, config_to_resume, read_config
from ecn_marl.baselines.training.logs import scalars
from ecn_marl.baselines.training.loop import (
    Saving,
    TrainingDiverged,
    TrainResult,
    initial_state,
    train,
)
from ecn_marl.errors import FolderInUse

PARAMS = ToyParams(max_steps=10)
CONFIG = IPPOConfig(envs=4, rollout=4, epochs=1, minibatches=1)


def test_checkpoint_holds_the_whole_state(tmp_path):
    algorithm = IPPO(ToyEnv(), CONFIG)
    result = train(algorithm, PARAMS, steps=48, seed=1, out=tmp_path)
    checkpoints = Checkpoints(tmp_path)
    like = jax.eval_shape(lambda: initial_state(algorithm, PARAMS, 0))
    restored = checkpoints.restore(like)
    assert checkpoints.latest == 3
    checkpoints.close()
    assert jax.tree.structure(restored) == jax.tree.structure(result.state)
    for a, b in zip(jax.tree.leaves(restored), jax.tree.leaves(result.state), strict=True):
        assert a.dtype == b.dtype
        if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        np.testing.assert_array_equal(a, b)


def decomposed(jaxpr):
    """Shapes of the matrices that a program decomposes: the first operand of each QR."""
    shapes = []
    for line in jaxpr.eqns:
        if line.primitive.name in ("geqrf", "householder_product", "qr"):
            shapes.append(line.invars[0].aval.shape)
        for inner in jaxprs_in_params(line.params):
            shapes += decomposed(inner)
    return shapes


@pytest.mark.parametrize("shared", [True, False])
def test_weights_are_drawn_one_matrix_at_a_time(shared):
    """Batches of QR decompositions can deadlock jaxlib's thread pool, see `init_network`."""
    algorithm = IPPO(ToyEnv(), replace(CONFIG, shared=shared))
    program = jax.make_jaxpr(lambda: initial_state(algorithm, PARAMS, 0, seeds=3))()
    shapes = decomposed(program.jaxpr)
    assert shapes and all(len(shape) == 2 for shape in shapes), shapes
    batched = jax.make_jaxpr(jax.vmap(algorithm.net.init, (0, None)))
    keys = jax.random.split(jax.random.key(0), 3)
    assert any(len(shape) == 3 for shape in decomposed(batched(keys, jnp.zeros(2)).jaxpr))


@pytest.mark.thorough
def test_seeds_trained_together_start_as_each_alone():
    """`test_ippo` compares them after three updates in every run."""
    algorithm = IPPO(ToyEnv(), CONFIG)
    several = initial_state(algorithm, PARAMS, 5, seeds=3)
    for i in range(3):
        alone = initial_state(algorithm, PARAMS, 5 + i)
        for a, b in zip(jax.tree.leaves(several.actor), jax.tree.leaves(alone.actor), strict=True):
            np.testing.assert_allclose(a[i], b, rtol=1e-6, atol=1e-7)


def test_restore_without_a_checkpoint_names_the_folder(tmp_path):
    with pytest.raises(ValueError, match=r"checkpoint = .*saved checkpoint"):
        Checkpoints(tmp_path).restore({})


def test_log_has_a_line_per_update(tmp_path):
    result = train(IPPO(ToyEnv(), CONFIG), PARAMS, steps=40, out=tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert rows == result.metrics
    assert [row["steps"] for row in rows] == [16, 32, 48]


def test_a_refused_merit_makes_no_checkpoint_the_best(tmp_path):
    """The second of three merits would be the highest; flows had waited in its episodes."""
    merits = iter((1.0, 5.0, 2.0))

    def merit(state):
        value = next(merits)
        return Merits(np.array([value]), refused="9 % of flows" if value == 5.0 else "")

    saving = Saving(updates=1, eval_every=1)
    rows = train(
        IPPO(ToyEnv(), CONFIG), PARAMS, steps=48, out=tmp_path, saving=saving, merit=merit
    ).metrics
    assert [row.get("merit") for row in rows] == [1.0, None, 2.0]
    assert [row.get("merit_refused") for row in rows] == [None, "9 % of flows", None]
    written = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert json.loads(written[1])["merit_refused"] == "9 % of flows"
    checkpoints = Checkpoints(tmp_path)
    assert checkpoints.best() == (3, 2.0)
    checkpoints.close()
    assert "merit_refused" not in scalars(rows[1])


def test_without_a_merit_that_counts_the_latest_checkpoint_is_used(tmp_path):
    refused = Merits(np.array([1.0]), refused="why")
    saving = Saving(updates=1, eval_every=1)
    algorithm = IPPO(ToyEnv(), CONFIG)
    train(algorithm, PARAMS, steps=32, out=tmp_path, saving=saving, merit=lambda state: refused)
    checkpoints = Checkpoints(tmp_path)
    assert checkpoints.best() is None
    assert checkpoints.find("best") == 2
    checkpoints.close()


class Diverging:
    """Its loss is NaN at the third update."""

    config = CONFIG

    def init(self, key, params):
        return {"n": jnp.zeros(())}

    def update(self, state, params):
        n = state["n"]
        return {"n": n + 1}, {"loss": jnp.where(n >= 2, jnp.nan, n)}


class Counting(Diverging):
    """Its loss is finite."""

    def update(self, state, params):
        return {"n": state["n"] + 1}, {"loss": state["n"]}


@pytest.mark.parametrize(("updates", "intervals"), [(22, 17), (8, 1), (50, 10), (5, 100)])
def test_first_and_last_policy_and_six_between_are_scored(tmp_path, updates, intervals):
    """As long as eight evaluations cost under a fifth of the time; evenly spaced.

    An evaluated step costs half of a training step, so `affordable` evaluations are a fifth.
    """
    affordable = 0.2 * updates * CONFIG.steps_per_update / (0.5 * intervals)
    every = evaluations_every(updates, CONFIG, 1, intervals)
    scored = []

    def merit(state):
        scored.append(int(state["n"]))
        return Merits(np.array([float(state["n"])]))

    saving = Saving(eval_every=every, ends=True)
    steps = updates * CONFIG.steps_per_update
    run = {"saving": saving, "merit": merit, "out": tmp_path}
    rows = train(Counting(), PARAMS, steps=steps, **run).metrics
    assert scored[0] == 0 and scored[-1] == updates and rows[0]["start_merit"] == 0.0
    most = max(min(int(affordable), 21, updates + 1), 2)
    assert len(scored) == most, "as many as a fifth of the time allows, and no more"
    assert np.ptp(np.diff(scored)) <= 1
    if affordable >= 8:
        assert len(scored) >= 8


def test_nan_stops_and_saves(tmp_path):
    with pytest.raises(TrainingDiverged, match="loss = nan at update 3 of seed 7") as stop:
        train(Diverging(), None, steps=48, seed=7, out=tmp_path)
    assert str(tmp_path / "diverged" / "3") in str(stop.value)
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert len(lines) == 3
    assert json.loads(lines[-1])["loss"] is None
    checkpoints = Checkpoints(tmp_path)
    assert checkpoints.latest is None, "nothing to go on with"
    checkpoints.folder = tmp_path / "diverged"
    assert float(checkpoints.restore({"n": jnp.zeros(())})["n"]) == 3.0
    checkpoints.close()


class BadState(Diverging):
    """Its losses are fine, its state is NaN after the second update."""

    def update(self, state, params):
        n = state["n"] + 1
        return {"n": jnp.where(n >= 2, jnp.nan, n)}, {"loss": n}


def test_no_checkpoint_holds_nan(tmp_path):
    saving = Saving(updates=1)
    with pytest.raises(TrainingDiverged, match="n of the state is not finite at update 2"):
        train(BadState(), None, steps=48, out=tmp_path, saving=saving)
    checkpoints = Checkpoints(tmp_path)
    assert checkpoints.steps == [1]
    checkpoints.close()


@pytest.mark.parametrize("field", ["steps", "seeds"])
def test_bad_lengths_are_named(field):
    with pytest.raises(ValueError, match=f"{field} = 0"):
        train(Diverging(), None, **{"steps": 1, field: 0})


def test_read_config_wants_a_run(tmp_path):
    with pytest.raises(ValueError, match=r"run = .*config\.json"):
        read_config(tmp_path)


def test_evaluation_covers_each_episode_once_whatever_the_batch():
    def act(key, obs):
        return jnp.ones((3,), jnp.int32)

    a = evaluate(ToyEnv(), PARAMS, act, name="one", episodes=5, seed=2, batch=2)
    b = evaluate(ToyEnv(), PARAMS, act, name="one", episodes=5, seed=2, batch=32)
    np.testing.assert_array_equal(a.episodes["reward"], b.episodes["reward"])
    assert a.episodes["reward"].shape == (5,)


def test_episodes_are_compiled_whole(monkeypatch):
    """Of rules and of networks, whose parameters all environments share."""
    names, mapped = [], lanes.mapped

    def noted(fun, *args):
        names.append(fun.__name__)
        return mapped(fun, *args)

    monkeypatch.setattr(lanes, "mapped", noted)
    rewards = []
    for build in (lambda p: lambda key, obs: jnp.ones((3,), jnp.int32) * p, Doubling):
        names.clear()
        run = episodes_runner(ToyEnv(), PARAMS, build)
        rewards.append(run(jnp.int32(1), evaluation_keys(2, 3))["reward"])
        assert "episode" in names
    np.testing.assert_allclose(*rewards, rtol=1e-6)


class Doubling:
    """A policy with a parameter, 1 for choice 1, and costs."""

    def __init__(self, one):
        self.one = one

    def __call__(self, key, obs):
        return (2 * self.one - 1) * jnp.ones((3,), jnp.int32)

    def costs(self):
        return {"inferences_per_decision": 1.0}


def test_evaluation_keys_are_not_those_of_training():
    keys = jax.random.key_data(evaluation_keys(0, 4))
    near = jax.random.key_data(jax.random.split(jax.random.key(0), 64))
    assert not any((row == near).all(-1).any() for row in keys)


def test_confidence_interval_is_students():
    values = np.array([1.0, 2.0, 4.0, 7.0])
    mean, half = mean_interval(values)
    low, high = stats.t.interval(0.95, 3, loc=values.mean(), scale=stats.sem(values))
    assert (mean - half, mean + half) == pytest.approx((low, high))


@pytest.mark.usefixtures("tiny_scenario")
def test_a_folder_has_one_training_at_a_time(tmp_path, monkeypatch):
    """Started, started over it, or gone on with, while the first one is at work."""
    out = tmp_path / "run"
    started = {"steps": 8, "settings": {"envs": 2, "rollout": 2, "minibatches": 1}, "out": out}

    def at_work(folder, config, session, resume):
        for again in (
            lambda: runs.train_run("ippo", TINY, **started, overwrite=True),
            lambda: runs.resume_run(out),
        ):
            with pytest.raises(FolderInUse, match=r"in use by process \d+ .*\(train.*, since"):
                again()
        with pytest.raises(ValueError, match=r"out = .*new or empty"):
            runs.train_run("ippo", TINY, **started)
        return TrainResult(None, [{"steps": config["steps"]}])

    monkeypatch.setattr(runs, "_train", at_work)
    assert runs.train_run("ippo", TINY, **started).metrics[0]["steps"] == 8
    assert runs.resume_run(out, steps=16).metrics[0]["steps"] == 16
    assert [path.name for path in out.iterdir()] == ["config.json"]
    (out / LOCK).write_text('{"pid": 1}')  # of one that was killed
    runs.train_run("ippo", TINY, **started, overwrite=True)


@pytest.mark.usefixtures("tiny_scenario")
@pytest.mark.parametrize(
    ("session", "message"),
    [
        ({"devices": len(jax.devices()) + 1}, "devices = .* the cpu devices"),
        ({"devices": 0}, "devices = 0 "),
        ({"wandb": "queues"}, "wandb = 'queues' .*installed"),
        ({"save_seconds": 0.0}, "save_seconds"),
    ],
)
def test_a_session_that_cannot_be_leaves_the_former_run(tmp_path, monkeypatch, session, message):
    """Neither a new training over it nor one that goes on has touched a file."""
    monkeypatch.setitem(sys.modules, "wandb", None)
    monkeypatch.setattr(runs, "_train", lambda *_, **__: TrainResult(None, []))
    out = tmp_path / "run"
    started = {"steps": 8, "settings": {"envs": 2, "rollout": 2, "minibatches": 1}, "out": out}
    runs.train_run("ippo", TINY, **started)
    (out / "checkpoints").mkdir()
    (out / "checkpoints" / "of-a-day").touch()
    files = {path: path.is_file() and path.read_bytes() for path in out.rglob("*")}
    broken = runs.Session(**session)
    with pytest.raises(ValueError, match=message):
        runs.train_run("ippo", TINY, **started | {"steps": 16}, overwrite=True, session=broken)
    with pytest.raises(ValueError, match=message):
        runs.resume_run(out, steps=16, session=broken)
    assert files == {path: path.is_file() and path.read_bytes() for path in out.rglob("*")}


def test_two_that_start_at_once_in_a_new_folder(tmp_path):
    """The other one comes after both have seen that the folder is new."""
    with locked(tmp_path / "run", "train"):
        assert runs.check_folder(tmp_path / "run", overwrite=False)
        with pytest.raises(FolderInUse), runs.training_lock(tmp_path / "run", "train"):
            raise AssertionError


@pytest.mark.usefixtures("tiny_scenario")
def test_steps_of_a_run_are_whole_numbers(tmp_path, monkeypatch):
    """1e6 in the configuration would make the run one that nothing reads any more."""
    monkeypatch.setattr(runs, "_train", lambda *_, **__: TrainResult(None, []))
    out = tmp_path / "run"
    settings = {"envs": 2, "rollout": 2, "minibatches": 1}
    counts = {"steps": np.int64(8), "seeds": np.int64(1), "eval_episodes": np.int32(2)}
    # As users call it, without the suite's type checks.
    inspect.unwrap(runs.train_run)("ippo", TINY, settings=settings, out=out, **counts)
    assert {name: read_config(out)[name] for name in counts} == counts
    with pytest.raises(ValueError, match=r"steps = 16\.0 .*an integer"):
        inspect.unwrap(config_to_resume)(out, 16.0)
    assert type(inspect.unwrap(config_to_resume)(out, np.int64(16))["steps"]) is int

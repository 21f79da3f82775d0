"""PET's hybrid training through runs: one model trained, then installed on every port."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from ring_job import TWO, ring_job

from ecn_marl.baselines.ippo import IPPO, IPPOConfig
from ecn_marl.baselines.runs import train_run
from ecn_marl.baselines.trained import run_controller, shared_networks
from ecn_marl.envs.registry import make, register
from ecn_marl.envs.scenario import Scenario
from ecn_marl.sim import Incast, star

pytestmark = pytest.mark.slow

SMALL = {"envs": 2, "rollout": 2, "epochs": 1, "minibatches": 1, "hidden": (4,)}


def network(hosts: int) -> Scenario:
    return Scenario(
        topology=star(hosts),
        traffic=(Incast(n_max=2, flow_kb=50.0, width=2),),
        slots=4,
        max_steps=4,
        interval_us=40.0,
        bins=0,
    )


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A model trained offline on three hosts, then online on four."""
    register("hybrid-three-v0", lambda: network(3))
    register("hybrid-four-v0", lambda: network(4))
    folder = tmp_path_factory.mktemp("runs")
    options = {"features": "pet", "reward": "pet"}
    offline, online = folder / "offline", folder / "online"
    common = {"steps": 4, "options": options, "eval_every": 0}
    train_run("ippo", "hybrid-three-v0", settings=SMALL, out=offline, **common)
    settings = SMALL | {"shared": False, "pretrained": str(offline), "actor_lr": 1e-6}
    result = train_run("ippo", "hybrid-four-v0", settings=settings, out=online, **common)
    return offline, online, result.state.actor


def test_every_port_starts_from_the_model(runs):
    offline, _, copies = runs
    env = make("hybrid-four-v0", features="pet", reward="pet")
    actor, _ = shared_networks(offline, env)
    for model, copy in zip(jax.tree.leaves(actor), jax.tree.leaves(copies), strict=True):
        assert copy.shape == (4, *model.shape)
        np.testing.assert_allclose(copy, np.broadcast_to(model, copy.shape), atol=1e-5)
        assert (np.asarray(copy) != np.asarray(model)).any() or not np.asarray(model).any()


def test_runs_that_do_not_fit_are_named(runs, tmp_path):
    offline, online, _ = runs
    other_env = make("hybrid-four-v0", features="acc")
    with pytest.raises(ValueError, match=r"pretrained = .*see and do as in"):
        shared_networks(offline, other_env)
    with pytest.raises(ValueError, match=r"pretrained = .*share parameters"):
        shared_networks(online, make("hybrid-four-v0", features="pet"))
    names = make("hybrid-four-v0", features="pet").feature.names
    with pytest.raises(ValueError, match=r"pretrained = .*see and do as in"):
        shared_networks(offline, make("hybrid-four-v0", features=names[::-1]))
    with pytest.raises(ValueError, match=r"value_norm = True .*False, here and in"):
        own = make("hybrid-four-v0", features="pet")
        shared_networks(offline, own, {"hidden": [4], "value_norm": True})
    settings = SMALL | {"pretrained": str(tmp_path / "nothing")}
    with pytest.raises(ValueError, match="run = "):
        train_run("ippo", "hybrid-four-v0", steps=4, settings=settings, out=tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_run_does_not_need_the_model_it_came_from(runs, tmp_path):
    """The policy of an online run is complete without the folder of the offline one."""
    offline, online, _ = runs
    moved = offline.rename(tmp_path / "moved")
    try:
        env = make("hybrid-four-v0", features="pet", reward="pet")
        assert callable(run_controller(online, env))
    finally:
        moved.rename(offline)


def test_ippo_goes_on_from_a_policy_that_imitates(tmp_path):
    """The policy is taken over, the critic is fresh; another width of the layers is named."""
    register("hybrid-job-v0", ring_job)
    taught = {"envs": 2, "rollout": 2, "batch": 4, "gradient_steps": 1, "hidden": (4,)}
    common = {"steps": 4, "options": TWO, "eval_every": 0}
    first = train_run("dagger", "hybrid-job-v0", settings=taught, out=tmp_path / "first", **common)
    settings = SMALL | {"pretrained": str(tmp_path / "first"), "actor_lr": 1e-9}
    # As `train_run` does, whose updates are above.
    env = make("hybrid-job-v0", **TWO)
    start = shared_networks(tmp_path / "first", env, settings)
    trainer = IPPO(env, IPPOConfig(**settings), start=start)
    then = jax.jit(trainer.init)(jax.random.key(0), env.default_params)
    jax.tree.map(np.testing.assert_array_equal, first.state.actor, then.actor)
    fresh = jax.jit(IPPO(env, IPPOConfig(**SMALL)).init)(jax.random.key(0), env.default_params)
    jax.tree.map(np.testing.assert_array_equal, fresh.critic, then.critic)
    for change, message in (
        ({"hidden": (8,)}, r"hidden = .*8.* expected \[4\], as .*first has it"),
        ({"standardise": 4}, r"standardise = 4 .* expected 0, as .*first has it"),
        ({"memory": 4}, r"memory = 4 .* expected 0, as .*first has it"),
    ):
        with pytest.raises(ValueError, match=message):
            out = tmp_path / "other"
            train_run("ippo", "hybrid-job-v0", settings=settings | change, out=out, **common)

"""What a run left behind: its trainer, training states, and policies to act or to be exported."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from ecn_marl._errors import bad_value
from ecn_marl.baselines.algorithms import ALGORITHMS, algorithm_config
from ecn_marl.baselines.evaluation.episodes import Controller, StatefulController
from ecn_marl.baselines.evaluation.merit import greedy_controller
from ecn_marl.baselines.exporting.export import export_policy
from ecn_marl.baselines.exporting.policy import Policy
from ecn_marl.baselines.training.checkpoint import Checkpoints, read_config, warn_of_versions
from ecn_marl.baselines.training.loop import state_shapes
from ecn_marl.baselines.training.trainer import Trainer
from ecn_marl.envs.ecn import EcnEnv
from ecn_marl.envs.interface import PortEnvironment
from ecn_marl.envs.registry import make
from ecn_marl.wrappers.randomised import Randomised, ranges_of


def trainer_of(config: dict[str, Any], start: tuple[PyTree, PyTree] | None = None) -> Trainer:
    """The algorithm of a run, from its configuration; `start`: networks it starts from."""
    settings = algorithm_config(config["algorithm"], **config["settings"])

    def trained_in(scenario: str) -> PortEnvironment:
        env: PortEnvironment = make(scenario, **config["options"])
        drawn = config.get("randomise")
        return Randomised(env, ranges_of(drawn)) if drawn else env

    optional: dict[str, Any] = {} if start is None else {"start": start}
    if also := getattr(settings, "also", ()):
        optional["others"] = [trained_in(name) for name in also]
    return ALGORITHMS[config["algorithm"]](trained_in(config["scenario"]), settings, **optional)


def shared_networks(
    run: str | Path, env: EcnEnv, settings: Mapping[str, Any] = MappingProxyType({})
) -> tuple[PyTree, PyTree | None]:
    """Networks of a run of ippo or dagger, to be installed on every port of another network.

    Args:
        run: folder of the run; of several seeds the first is taken.
        env: environment in which their training continues.
        settings: those of the training that continues; its networks are to have the same form.

    Returns:
        Actor and critic; a run of dagger has no critic.

    Raises:
        ValueError: not such a run, parameters that are not shared, or networks, observations or
            actions that do not fit.
    """
    config = read_config(run)
    if config["algorithm"] not in STARTS or not config["settings"].get("shared", True):
        allowed = "a run of ippo whose agents share parameters, or of dagger"
        raise bad_value("pretrained", str(run), allowed)
    trained = make(config["scenario"], **config["options"])
    if not _alike(env, trained):
        raise bad_value("pretrained", str(run), f"a run whose agents see and do as in {env.name}")
    own_critic = config["algorithm"] == "ippo"
    if own_critic and (settings.get("value_norm") or config["settings"].get("value_norm")):
        allowed = f"False, here and in {run}: its critic goes on, but not the scale of its values"
        raise bad_value("value_norm", True, allowed)
    own, other = _form(settings), _form(config["settings"])
    for name in (x for x in other if settings and own[x] != other[x]):
        raise bad_value(name, settings.get(name), f"{other[name]}, as {run} has it (pretrained)")
    state = run_state(run)
    return state.actor, getattr(state, "critic", None)


def _alike(env: EcnEnv, trained: EcnEnv) -> bool:
    """Whether agents of two environments see and do the same, at whatever interval."""
    own, other = ((x.feature.names, x.feature.history, x.obs_dim, x.action) for x in (env, trained))
    return bool(own == other)


STARTS = ("ippo", "dagger")
"""Trainers whose policies ippo can start from."""


def _form(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The form of a policy's network, by the settings that make it."""
    return {
        "hidden": list(settings.get("hidden", ())),
        "memory": settings.get("memory", 0),
        "standardise": "above 0" if settings.get("standardise") else 0,
    }


def run_state(run: str | Path, learner: int = 0, which: str = "best") -> PyTree:
    """Training state of one of a run's learners.

    Args:
        run: folder of the run.
        learner: which of its seeds.
        which: `best` (the latest if none was evaluated) or `latest`.

    Raises:
        ValueError: not a run, no such learner, or no checkpoint.
    """
    config = read_config(run)
    if not 0 <= learner < config["seeds"]:
        raise bad_value("learner", learner, f"0 to {config['seeds'] - 1}")
    return _learners(run, config, which, (learner,))[0]


def _learners(
    run: str | Path,
    config: dict[str, Any],
    which: str,
    learners: Sequence[int],
    select: Callable[[PyTree], PyTree] = lambda state: state,
) -> list[PyTree]:
    """A selected part of the training states of learners, each from its own checkpoint."""
    warn_of_versions(run, config)
    params = make(config["scenario"], **config["options"]).default_params
    like = state_shapes(trainer_of(config), params, config["seeds"])
    checkpoints = Checkpoints(run)
    steps = {learner: checkpoints.find(which, learner) for learner in learners}
    states = {}
    # A checkpoint holds all learners, so each is read once.
    for step in sorted(set(steps.values())):
        state = select(checkpoints.restore(like, step))
        for learner in learners:
            if steps[learner] == step:
                states[learner] = _learner_state(state, learner, config["seeds"])
    checkpoints.close()
    return [states[learner] for learner in learners]


def _learner_state(states: PyTree, learner: int, seeds: int) -> PyTree:
    return states if seeds == 1 else jax.tree.map(lambda x: x[learner], states)


def run_controller(
    run: str | Path, env: EcnEnv, learner: int = 0, which: str = "best"
) -> Controller | StatefulController:
    """The greedy policy of a run.

    Args:
        run: folder of the run.
        env: environment it is to act in; observations and actions must be those of the training.
        learner: which of its seeds.
        which: the checkpoint, `best` (the latest if none was evaluated) or `latest`.

    Raises:
        ValueError: not a run, no such learner, or observations or parameters that do not fit.
    """
    config = read_config(run)
    settings = algorithm_config(config["algorithm"], **config["settings"])
    trained = make(config["scenario"], **config["options"])
    if not _alike(env, trained):
        raise bad_value("scenario", env.name, f"one whose agents see and do as in {trained.name}")
    if not getattr(settings, "shared", True) and env.num_agents != trained.num_agents:
        raise bad_value("scenario", env.name, f"{trained.num_agents} agents, one policy for each")
    controller: Controller | StatefulController = greedy_controller(
        trainer_of(config), run_state(run, learner, which).actor, env
    )
    return controller


def run_actors(run: str | Path, which: str = "best") -> tuple[Trainer, list[PyTree]]:
    """The algorithm of a run, and the parameters of the policy of each of its seeds.

    Args:
        run: folder of the run.
        which: the checkpoint, `best` (the latest if none was evaluated) or `latest`.

    Raises:
        ValueError: not a run, or no checkpoint.
    """
    config = read_config(run)
    actors = _learners(run, config, which, range(config["seeds"]), lambda state: state.actor)
    return trainer_of(config), actors


def run_policy(run: str | Path, learner: int = 0, which: str = "best") -> Policy:
    """The greedy policy of a run as `ecn_marl.load_policy` gives it, to be saved.

    Args:
        run: folder of the run.
        learner: which of its seeds.
        which: the checkpoint, `best` (the latest if none was evaluated) or `latest`.

    Raises:
        ValueError: not a run, no such learner, or a policy that cannot be exported.
    """
    config = read_config(run)
    env = make(config["scenario"], **config["options"])
    actor = run_state(run, learner, which).actor
    trainer = trainer_of(config)
    if trainer.env.num_agents != env.num_agents:
        raise bad_value("algorithm", config["algorithm"], "a trainer whose agents are ports")
    checkpoints = Checkpoints(run)
    step, best = checkpoints.find(which, learner), checkpoints.best(learner)
    checkpoints.close()
    network = trainer.network(actor)
    if network is None:
        allowed = "a trainer whose policy is one network from a port's observation to its action"
        raise bad_value("algorithm", config["algorithm"], f"{allowed} (Trainer.network)")
    policy = export_policy(
        env,
        network.head,
        network.layers,
        algorithm=config["algorithm"],
        activation=network.activation,
        message=network.message,
        options=config["options"],
        settings=config["settings"],
        seed=config["seed"] + learner,
        update=step,
        merit=best.merit if best is not None and best.step == step else None,
        versions=config["versions"],
        imports=config.get("imports", {}),
    )
    if config["algorithm"] in ALGORITHMS.added:
        _check_export(policy, trainer.controller(actor, env), env)
    return policy


def _check_export(policy: Policy, controller: Controller | StatefulController, env: EcnEnv) -> None:
    """Check that an exported policy acts as its trainer does, on random observations."""
    name = policy.header["algorithm"]
    if isinstance(controller, StatefulController):
        raise bad_value("algorithm", name, "a trainer whose policy has no memory, to be exported")
    obs = jax.random.uniform(jax.random.key(0), (64, env.num_agents, env.obs_dim))
    expected = np.asarray(jax.vmap(lambda x: controller(jax.random.key(1), x))(obs), np.float64)
    equal = np.isclose(policy(np.asarray(obs)), expected, atol=1e-3)
    if equal.mean() < 0.99:  # rounding may change which of two actions is the best
        allowed = "layers, head and activation that act as act(greedy=True) does"
        raise bad_value(f"network() of {name}", f"{equal.mean():.0%} of the same actions", allowed)

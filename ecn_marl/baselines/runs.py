"""Runs: a folder with a training's configuration, checkpoints, metrics and results.

config.json       scenario, its options, algorithm, its settings, seeds, imports, versions
run.toml          the same as a file for `train --config`, if started from the command line
metrics.jsonl     one line per update
tensorboard/      the same for TensorBoard
checkpoints/      the whole training state: the latest, the best of each seed (see `best.json`)
diverged/         a state that is not finite, if that stopped the training
evaluation.json   results on episodes that are not used in training
references.json   merits of SECN1 and, where they are known, static:best and oracle, as in `metrics`
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jaxtyping import PyTree

from ecn_marl._checks import Whole, check_seed, check_value
from ecn_marl._errors import bad_value, unknown_name
from ecn_marl._imports import needed_imports
from ecn_marl._lock import LOCK, locked
from ecn_marl._memory import check_memory
from ecn_marl.baselines.algorithms import ALGORITHMS, algorithm_config
from ecn_marl.baselines.evaluation.episodes import Controller, StatefulController
from ecn_marl.baselines.evaluation.merit import (
    MERITS,
    evaluations_every,
    greedy_controller,
    mean_merits,
    merit_function,
)
from ecn_marl.baselines.exporting.export import export_policy
from ecn_marl.baselines.exporting.policy import Policy
from ecn_marl.baselines.training.checkpoint import (
    CONFIG,
    DIVERGED,
    FOLDER,
    Checkpoints,
    config_to_resume,
    read_config,
    warn_of_versions,
    write_json,
)
from ecn_marl.baselines.training.logs import METRICS, TENSORBOARD, Log, WeightsAndBiases
from ecn_marl.baselines.training.loop import Saving, TrainResult, state_shapes, train
from ecn_marl.baselines.training.trainer import Trainer, check_training
from ecn_marl.envs.ecn import EcnEnv
from ecn_marl.envs.interface import PortEnvironment
from ecn_marl.envs.recorded import Recorded
from ecn_marl.envs.registry import lookup, make
from ecn_marl.parallelism import env_mesh
from ecn_marl.wrappers.randomised import Randomised, ranges_of

RUN_FILES = (
    *(CONFIG, METRICS, "run.toml", "evaluation.json"),
    *("learning_curve.png", "references.json", "queues.png", "wandb.json"),
)
RUN_FOLDERS = (FOLDER, TENSORBOARD, DIVERGED, "wandb")
"""Files and folders of a run; `--overwrite` removes these and nothing else."""


@dataclass(frozen=True)
class Session:
    """Options of a training that do not change its result, but for rounding.

    Attributes:
        save_updates: updates between checkpoints, None to go by time.
        save_seconds: time between checkpoints at most, s.
        devices: devices that share the environments, None for one, or for all if there are several
            processes.
        wandb: project of Weights & Biases to log to, None for none.
        progress: called with every row of metrics.
    """

    save_updates: int | None = None
    save_seconds: float = 300.0
    devices: int | None = None
    wandb: str | None = None
    progress: Callable[[dict[str, Any]], None] | None = None


def check_folder(out: str | Path, overwrite: bool) -> Path:
    """Check that a run may be written to a folder.

    Raises:
        ValueError: it holds something and `overwrite` is False, or it is not a run's folder.
    """
    folder = Path(out)
    taken = folder.exists() and not folder.is_dir()
    if taken or (folder.exists() and any(path.name != LOCK for path in folder.iterdir())):
        if not overwrite:
            raise bad_value("out", str(out), "a folder that is new or empty (or --overwrite)")
        if not (folder / CONFIG).is_file():
            raise bad_value("out", str(out), f"the folder of a run (there is no {CONFIG} in it)")
    return folder


def prepare_folder(out: str | Path, overwrite: bool) -> Path:
    """Make an empty folder for a run; the caller has locked it.

    Raises:
        ValueError: see `check_folder`.
    """
    folder = check_folder(out, overwrite)
    for name in RUN_FILES:
        (folder / name).unlink(missing_ok=True)
    for name in RUN_FOLDERS:
        shutil.rmtree(folder / name, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def training_lock(folder: str | Path, work: str) -> AbstractContextManager[None]:
    """`locked`, by the first of several processes that share one training.

    Raises:
        FolderInUse: another process works in the folder.
    """
    return locked(folder, work) if jax.process_index() == 0 else nullcontext()


def train_run(
    algorithm: str,
    scenario: str,
    *,
    steps: int,
    options: dict[str, Any] | None = None,
    settings: Mapping[str, object] | None = None,
    seed: int = 0,
    seeds: int = 1,
    out: str | Path,
    overwrite: bool = False,
    eval_every: float | None = None,
    eval_episodes: int = 16,
    best_by: str = "reward",
    about: Mapping[str, object] | None = None,
    randomise: Mapping[str, object] | None = None,
    session: Session | None = None,
    notes: Mapping[str, str] | None = None,
    allow_flagged: bool = False,
) -> TrainResult:
    """Train and write a run.

    Args:
        algorithm: name in `ALGORITHMS`.
        scenario: name of a registered scenario.
        steps: environment steps per seed.
        options: options of `ecn_marl.make`.
        settings: settings of the algorithm.
        seed: first seed.
        seeds: number of seeds.
        out: folder of the run.
        overwrite: replace a former run there.
        eval_every: updates between evaluations of the greedy policy, which decide on the best
            checkpoint, those of first and last state apart; 0: never, None: `evaluations_every`.
        eval_episodes: episodes per evaluation.
        best_by: kind of merit, `reward` or `objective`, see `merit_function`.
        randomise: ranges of parameters drawn for every training episode, see
            `wrappers.randomised.ranges_of`; evaluations are in the scenario as it is.
        about: facts for `config.json`, such as the version of the code.
        session: checkpoints, devices, logs.
        notes: texts of further files of the run, by name.
        allow_flagged: whether scores count although structures of fixed size were too small, see
            `completion.invalid_reasons`.

    Returns:
        Final state and metrics.

    Raises:
        ValueError: anything unknown or not allowed; nothing is written then.
        FolderInUse: another process trains there.
    """
    config = algorithm_config(algorithm, **(settings or {}))
    env = make(scenario, **(options or {}))
    check_value("steps", steps, Whole(low=1, high=2**53))
    check_value("seeds", seeds, Whole(low=1))
    seed = check_seed(seed, count=seeds)
    check_value("eval_episodes", eval_episodes, Whole(low=1))
    if best_by not in MERITS:
        raise unknown_name("best_by", best_by, MERITS)
    scenes = [env, *(make(name, **(options or {})) for name in getattr(config, "also", ()))]
    needed = config.envs * seeds * sum(one.sim.state_bytes for one in scenes)
    check_memory("envs, seeds", (config.envs, seeds), needed, f"so many states of {env.name}")
    updates = -(-steps // config.steps_per_update)
    if eval_every is None:
        eval_every = evaluations_every(updates, config, eval_episodes, env.horizon)
    written = {
        "algorithm": algorithm,
        "scenario": scenario,
        "options": options or {},
        "settings": asdict(config),
        "steps": steps,
        "seed": seed,
        "seeds": seeds,
        "eval_every": eval_every,
        "eval_episodes": eval_episodes,
        "best_by": best_by,
        "allow_flagged": allow_flagged,
        "about": dict(about or {}),
        "randomise": dict(randomise or {}),
        "imports": needed_imports(algorithm, scenario, options, asdict(config), lookup(scenario)),
        "versions": {name: version(name) for name in ("ecn-marl", "jax", "numpy")},
        "sha256": flow_lists(env),
    }
    session = session or Session()
    _saving(session, written)
    # Made for their checks alone, before anything is written; `_train` makes them again.
    _pretrained(written, env)
    trainer = trainer_of(written)
    if algorithm in ALGORITHMS.added:
        check_training(algorithm, trainer, env.default_params)
    check_folder(out, overwrite)
    with training_lock(out, "train"):
        if jax.process_index() == 0:
            folder = prepare_folder(out, overwrite)
            write_json(folder / CONFIG, written)
            for name, text in (notes or {}).items():
                (folder / name).write_text(text, encoding="utf-8")
        if jax.process_count() > 1:
            multihost_utils.sync_global_devices("folder of the run")
        return _train(Path(out), written, session, resume=False)


def resume_run(
    run: str | Path, *, steps: int | None = None, session: Session | None = None
) -> TrainResult:
    """Resume a stopped run, with the result of a run that was not stopped.

    Args:
        run: its folder.
        steps: environment steps per seed in all, at least as many as it was started with.
        session: checkpoints, devices, logs.

    Returns:
        Final state, and the metrics of all updates.

    Raises:
        ValueError: not a run, fewer steps than it was started with, or the file of its flow list
            has another content.
        FolderInUse: another process still trains it.
        DamagedCheckpoint: the files of its latest checkpoint have changed.
    """
    config = config_to_resume(run, steps)
    _check_flow_lists(config)
    session = session or Session()
    _saving(session, config)
    with training_lock(run, "train --resume"):
        if jax.process_index() == 0:
            write_json(Path(run) / CONFIG, config)
        # Without a checkpoint the training starts again.
        return _train(Path(run), config, session, resume=Checkpoints(run).latest is not None)


def flow_lists(env: EcnEnv) -> dict[str, str]:
    """SHA-256 of the files whose flows an environment replays, by path."""
    return {s.path: s.digest for s in env.sim.traffic if isinstance(s, Recorded)}


def _check_flow_lists(config: dict[str, Any]) -> None:
    """Refuse to resume with other traffic. Old runs without digests are not checked.

    Raises:
        InvalidValue: a file has changed since the run began.
    """
    current = flow_lists(make(config["scenario"], **config["options"]))
    for path, digest in config.get("sha256", {}).items():
        if current.get(path) != digest:
            allowed = f"the file that the run began with (SHA-256 {digest[:12]}…); it has changed"
            raise bad_value("flows", path, allowed)


def _saving(session: Session, config: dict[str, Any]) -> Saving:
    every = config.get("eval_every", 0)
    return Saving(session.save_updates, session.save_seconds, every, ends=True)


def _pretrained(config: dict[str, Any], env: EcnEnv) -> tuple[PyTree, PyTree] | None:
    """Networks that ippo's training starts from; None for fresh ones."""
    source = config["settings"].get("pretrained", "") if config["algorithm"] == "ippo" else ""
    return shared_networks(source, env, config["settings"]) if source else None


def _train(folder: Path, config: dict[str, Any], session: Session, resume: bool) -> TrainResult:
    env = make(config["scenario"], **config["options"])
    trainer = trainer_of(config, None if resume else _pretrained(config, env))
    params, mesh, merit = env.default_params, None, None
    if (session.devices or 1) > 1 or jax.process_count() > 1:
        mesh = env_mesh(session.devices)
    if config.get("eval_every", 0):
        by = config.get("best_by", "reward")
        others = (make(name, **config["options"]) for name in config["settings"].get("also", ()))
        each = [
            merit_function(
                trainer,
                own,
                own.default_params,
                episodes=config["eval_episodes"],
                seed=config["seed"],
                seeds=config["seeds"],
                by=by,
                allow_flagged=config.get("allow_flagged", False),
            )
            for own in (env, *others)
        ]
        merit = each[0] if len(each) == 1 else partial(mean_merits, each, by)
    logs: list[Log] = []
    if session.wandb is not None and jax.process_index() == 0:
        logs.append(WeightsAndBiases(folder, session.wandb, config))
    return train(
        trainer,
        params,
        steps=config["steps"],
        seed=config["seed"],
        seeds=config["seeds"],
        out=folder,
        progress=session.progress,
        resume=resume,
        saving=_saving(session, config),
        merit=merit,
        logs=logs,
        mesh=mesh,
    )


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
    if (env.obs_dim, env.action) != (trained.obs_dim, trained.action):
        raise bad_value("pretrained", str(run), f"a run whose agents see and do as in {env.name}")
    own, other = _form(settings), _form(config["settings"])
    for name in (x for x in other if settings and own[x] != other[x]):
        raise bad_value(name, settings.get(name), f"{other[name]}, as {run} has it (pretrained)")
    state = run_state(run)
    return state.actor, getattr(state, "critic", None)


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
    if (env.obs_dim, env.action) != (trained.obs_dim, trained.action):
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

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
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
from jax.experimental import multihost_utils
from jax.sharding import Mesh
from jaxtyping import PyTree

from ecn_marl._checks import Whole, check_seed, check_value
from ecn_marl._errors import bad_value, unknown_name
from ecn_marl._imports import needed_imports
from ecn_marl._lock import LOCK, locked
from ecn_marl._memory import check_memory
from ecn_marl.baselines.algorithms import ALGORITHMS, algorithm_config
from ecn_marl.baselines.evaluation.merit import (
    MERITS,
    evaluations_every,
    mean_merits,
    merit_function,
)
from ecn_marl.baselines.trained import shared_networks, trainer_of
from ecn_marl.baselines.training.checkpoint import (
    CONFIG,
    DIVERGED,
    FOLDER,
    Checkpoints,
    config_to_resume,
    write_json,
)
from ecn_marl.baselines.training.logs import (
    METRICS,
    TENSORBOARD,
    Log,
    WeightsAndBiases,
    check_wandb,
)
from ecn_marl.baselines.training.loop import Saving, TrainResult, train
from ecn_marl.baselines.training.trainer import check_training
from ecn_marl.envs.ecn import EcnEnv
from ecn_marl.envs.recorded import Recorded
from ecn_marl.envs.registry import lookup, make
from ecn_marl.parallelism import env_mesh

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
    check_value("eval_episodes", eval_episodes, Whole(low=1))
    # JSON has no numbers of numpy.
    steps, seeds, eval_episodes = (int(number) for number in (steps, seeds, eval_episodes))
    seed = check_seed(seed, count=seeds)
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
    _check_session(session, written, config.envs)
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
    envs = algorithm_config(config["algorithm"], **config["settings"]).envs
    _check_session(session, config, envs)
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


def _mesh(session: Session, envs: int) -> Mesh | None:
    """The devices that share the environments; None for a single one.

    Raises:
        ValueError: there are not as many devices, or they do not divide the environments.
    """
    if session.devices in (None, 1) and jax.process_count() == 1:
        return None
    mesh = env_mesh(session.devices)
    if envs % mesh.size:
        raise bad_value("devices", mesh.size, f"a divisor of the {envs} envs")
    return mesh


def _check_session(session: Session, config: dict[str, Any], envs: int) -> None:
    """Check the options of a training before it writes anything, or replaces a former run."""
    _saving(session, config)
    _mesh(session, envs)
    if session.wandb is not None:
        check_wandb(session.wandb)


def _pretrained(config: dict[str, Any], env: EcnEnv) -> tuple[PyTree, PyTree] | None:
    """Networks that ippo's training starts from; None for fresh ones."""
    source = config["settings"].get("pretrained", "") if config["algorithm"] == "ippo" else ""
    return shared_networks(source, env, config["settings"]) if source else None


def _train(folder: Path, config: dict[str, Any], session: Session, resume: bool) -> TrainResult:
    env = make(config["scenario"], **config["options"])
    trainer = trainer_of(config, None if resume else _pretrained(config, env))
    params, mesh, merit = env.default_params, _mesh(session, trainer.config.envs), None
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

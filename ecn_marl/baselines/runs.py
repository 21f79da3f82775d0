"""Runs: a folder that holds what was trained, how, and how well it did.

config.json       scenario, its options, algorithm, its settings, seeds, versions
metrics.jsonl     one line per update
checkpoints/      the whole training state
evaluation.json   results on episodes that training never saw
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import asdict, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax

from ecn_marl._errors import bad_value, unknown_name
from ecn_marl.baselines.common.checkpoint import (
    CONFIG,
    FOLDER,
    Checkpoints,
    read_config,
    write_json,
)
from ecn_marl.baselines.common.evaluation import Controller
from ecn_marl.baselines.common.training import METRICS, TrainResult, train
from ecn_marl.baselines.ippo import IPPO, IPPOConfig
from ecn_marl.baselines.mappo import MAPPO, MAPPOConfig
from ecn_marl.envs.ecn import EcnEnv
from ecn_marl.envs.registry import make

ALGORITHMS: dict[str, tuple[Any, Any]] = {
    "ippo": (IPPO, IPPOConfig),
    "mappo": (MAPPO, MAPPOConfig),
}
"""Trainers by name: the algorithm and its settings."""


RUN_FILES = (CONFIG, METRICS, "evaluation.json", "learning_curve.png", "queues.png")
"""Files of a run beside its checkpoints; `--overwrite` removes these and nothing else."""


def algorithm_config(algorithm: str, **settings: Any) -> Any:
    """Settings of an algorithm by name, defaults where nothing is given.

    Raises:
        ValueError: unknown algorithm or setting, or a value that is not allowed.
    """
    if algorithm not in ALGORITHMS:
        raise unknown_name("algorithm", algorithm, ALGORITHMS)
    kind = ALGORITHMS[algorithm][1]
    known = [f.name for f in fields(kind)]
    for name in settings:
        if name not in known:
            raise unknown_name(f"setting of {algorithm}", name, known)
    if "hidden" in settings:
        settings["hidden"] = tuple(settings["hidden"])
    return kind(**settings)


def prepare_folder(out: str | Path, overwrite: bool) -> Path:
    """Make an empty folder for a run.

    Raises:
        ValueError: it holds something and `overwrite` is False, or it is not a run's folder.
    """
    folder = Path(out)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        if not overwrite:
            raise bad_value("out", str(out), "a folder that is new or empty (or --overwrite)")
        if not (folder / CONFIG).is_file():
            raise bad_value("out", str(out), f"the folder of a run (there is no {CONFIG} in it)")
        for name in RUN_FILES:
            (folder / name).unlink(missing_ok=True)
        shutil.rmtree(folder / FOLDER, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def train_run(
    algorithm: str,
    scenario: str,
    *,
    steps: int,
    options: dict[str, Any] | None = None,
    settings: dict[str, Any] | None = None,
    seed: int = 0,
    seeds: int = 1,
    out: str | Path,
    overwrite: bool = False,
    progress: Callable[[dict[str, Any]], None] | None = None,
) -> TrainResult:
    """Train and leave a run behind.

    Args:
        algorithm: name in `ALGORITHMS`.
        scenario: name of a registered scenario.
        steps: environment steps per seed.
        options: options of `ecn_marl.make`.
        settings: settings of the algorithm.
        seed: first seed.
        seeds: number of seeds.
        out: folder of the run.
        overwrite: replace what a former run left there.
        progress: called with every row of metrics.

    Returns:
        Final state and metrics.

    Raises:
        ValueError: anything unknown or not allowed; nothing is written then.
    """
    config = algorithm_config(algorithm, **(settings or {}))
    env = make(scenario, **(options or {}))
    for name, value in (("steps", steps), ("seeds", seeds)):
        if value < 1:
            raise bad_value(name, value, "an integer >= 1")
    source = getattr(config, "pretrained", "")
    pretrained = shared_networks(source, env) if source else None
    folder = prepare_folder(out, overwrite)
    write_json(
        folder / CONFIG,
        {
            "algorithm": algorithm,
            "scenario": scenario,
            "options": options or {},
            "settings": asdict(config),
            "steps": steps,
            "seed": seed,
            "seeds": seeds,
            "versions": {name: version(name) for name in ("ecn-marl", "jax", "numpy")},
        },
    )
    start = {"start": pretrained} if pretrained is not None else {}
    trainer = ALGORITHMS[algorithm][0](env, config, **start)
    return train(
        trainer,
        env.default_params,
        steps=steps,
        seed=seed,
        seeds=seeds,
        out=folder,
        progress=progress,
    )


def run_controller(run: str | Path, env: EcnEnv, learner: int = 0) -> Controller:
    """The greedy policy of a run's latest checkpoint.

    Args:
        run: folder of the run.
        env: environment it is to act in; observations and actions must be those of the training.
        learner: which of its seeds.

    Raises:
        ValueError: not a run, no such learner, or observations or parameters that do not fit.
    """
    config = read_config(run)
    settings = algorithm_config(config["algorithm"], **config["settings"])
    trained = make(config["scenario"], **config["options"])
    if (env.obs_dim, env.action) != (trained.obs_dim, trained.action):
        raise bad_value("scenario", env.name, f"one whose agents see and do as in {trained.name}")
    if not settings.shared and env.num_agents != trained.num_agents:
        raise bad_value("scenario", env.name, f"{trained.num_agents} agents, one policy for each")
    if not 0 <= learner < config["seeds"]:
        raise bad_value("learner", learner, f"0 to {config['seeds'] - 1}")
    trainer = ALGORITHMS[config["algorithm"]][0](trained, settings)
    actor = _final_state(run, config, trainer, trained, learner).actor
    return lambda key, obs: trainer.act(actor, key, obs, greedy=True)


def shared_networks(run: str | Path, env: EcnEnv) -> tuple[Any, Any]:
    """Actor and critic of a run of ippo, to be installed on every port of another network.

    Args:
        run: folder of the run; of several seeds the first is taken.
        env: environment they are to go on in.

    Raises:
        ValueError: not such a run, parameters that are not shared, or observations or actions that
            do not fit.
    """
    config = read_config(run)
    if config["algorithm"] != "ippo" or not config["settings"]["shared"]:
        raise bad_value("pretrained", str(run), "a run of ippo whose agents share parameters")
    settings = algorithm_config("ippo", **config["settings"])
    trained = make(config["scenario"], **config["options"])
    if (env.obs_dim, env.action) != (trained.obs_dim, trained.action):
        raise bad_value("pretrained", str(run), f"a run whose agents see and do as in {env.name}")
    state = _final_state(run, config, IPPO(trained, settings), trained, 0)
    return state.actor, state.critic


def _final_state(run: str | Path, config: Any, trainer: Any, trained: EcnEnv, learner: int) -> Any:
    """Latest training state of one of a run's learners."""

    def shapes(key: jax.Array) -> Any:
        params = trained.default_params
        if config["seeds"] == 1:
            return trainer.init(key, params)
        keys = jax.random.split(key, config["seeds"])
        return jax.vmap(trainer.init, (0, None))(keys, params)

    checkpoints = Checkpoints(run)
    state = checkpoints.restore(jax.eval_shape(shapes, jax.random.key(0)))
    checkpoints.close()
    return jax.tree.map(lambda x: x[learner], state) if config["seeds"] > 1 else state

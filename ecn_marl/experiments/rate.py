"""`train` and `eval` where flows are the agents: learners of rates, and rule-based senders.

A policy is named by the folder of a run, is a file that `ecn-marl export` has written, or the short
form of senders that set their rates themselves, e.g. `swift:htsim`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from jaxtyping import Array, PyTree

from ecn_marl._checks import Whole, check_seed, check_value
from ecn_marl._errors import unknown_name
from ecn_marl.baselines.algorithms import RATE_ALGORITHMS, algorithm_config
from ecn_marl.baselines.exported import is_exported
from ecn_marl.baselines.exporting.rate_export import export_rate_policy
from ecn_marl.baselines.exporting.rate_policy import RatePolicy
from ecn_marl.baselines.rate_exported import (
    Deployed,
    device_arrays,
    is_rate_file,
    rate_view,
    read_rate_exported,
)
from ecn_marl.baselines.rl.rate_learning import RateConfig, RateTrainer
from ecn_marl.baselines.runs import check_folder, prepare_folder, training_lock
from ecn_marl.baselines.training.checkpoint import (
    CONFIG,
    RUN,
    Checkpoints,
    config_to_resume,
    read_config,
    warn_of_versions,
    write_json,
)
from ecn_marl.baselines.training.loop import Saving, state_shapes, train
from ecn_marl.envs.rate.measure import OwnRates, Steered, Subject
from ecn_marl.envs.rate.scenarios import RateScenario, make_rate, rate_scenarios, with_options
from ecn_marl.experiments.jobs import convert_settings
from ecn_marl.sim.transports import TRANSPORTS, parse_transport

UPDATES = 2000
"""Updates of a run by default."""

Progress = Callable[[dict[str, Any], int], None]
"""Called with a row of metrics and the total number of updates."""

PER_CALL = 20
"""Updates per compiled call."""


def is_rate_run(policy: str) -> bool:
    """Whether a policy is the folder of a run of a learner of rates."""
    path = Path(policy)
    return (path / CONFIG).is_file() and read_config(path, RUN).get("algorithm") in RATE_ALGORITHMS


def is_senders(policy: str) -> bool:
    """Whether a name is the short form of senders that set their rates themselves."""
    return policy.partition(":")[0] in TRANSPORTS and not Path(policy).exists()


def is_rate_evaluation(policies: Sequence[str], scenario: str | None) -> bool:
    """Whether `eval` is about rates: by the scenario, else by the first policy."""
    if scenario is not None:
        return scenario in rate_scenarios()
    first = policies[0]
    return is_rate_run(first) or is_rate_file(first) or is_senders(first)


def train_rate(
    algorithm: str,
    out: str | Path,
    *,
    settings: Sequence[str] = (),
    steps: int | None = None,
    seed: int = 0,
    overwrite: bool = False,
    saving: Saving | None = None,
    progress: Progress | None = None,
) -> list[dict[str, Any]]:
    """Train and write a run: `config.json`, `metrics.jsonl`, checkpoints.

    Args:
        algorithm: name in `RATE_ALGORITHMS`.
        out: folder of the run.
        settings: settings of the trainer, `name=value`.
        steps: environment steps, summed over environments; `UPDATES` updates if None.
        seed: seed of everything random.
        overwrite: replace a former run in the folder.
        saving: when checkpoints are made.
        progress: called with every row of metrics, and the total number of updates.

    Returns:
        Rows of metrics.

    Raises:
        ValueError: anything unknown or not allowed; nothing is written then.
        FolderInUse: another process trains there.
    """
    kind = _learner(algorithm)
    config = kind.config_class(**convert_settings(algorithm, kind.config_class, settings))
    steps = UPDATES * config.steps_per_update if steps is None else steps
    check_value("steps", steps, Whole(low=1, high=2**53))
    run_config = {
        "algorithm": algorithm,
        "settings": asdict(config),
        "steps": int(steps),
        "seed": check_seed(seed),
        "versions": {name: version(name) for name in ("ecn-marl", "jax", "numpy")},
    }
    trainer = kind(config)
    check_folder(out, overwrite)
    with training_lock(out, "train"):
        write_json(prepare_folder(out, overwrite) / CONFIG, run_config)
        return _train(trainer, Path(out), run_config, False, saving, progress)


def resume_rate(
    run: str | Path,
    *,
    steps: int | None = None,
    saving: Saving | None = None,
    progress: Progress | None = None,
) -> list[dict[str, Any]]:
    """Go on with a stopped run; the result is the same as without the stop.

    Raises:
        ValueError: not a run, or fewer steps than it was started with.
        FolderInUse: another process still trains it.
    """
    config = config_to_resume(run, steps, RUN)
    with training_lock(run, "train --resume"):
        write_json(Path(run) / CONFIG, config)
        # A run that was stopped before its first checkpoint starts again.
        has_checkpoint = Checkpoints(run).latest is not None
        return _train(_trainer(config), Path(run), config, has_checkpoint, saving, progress)


def _train(
    trainer: RateTrainer,
    folder: Path,
    config: dict[str, Any],
    resume: bool,
    saving: Saving | None,
    progress: Progress | None,
) -> list[dict[str, Any]]:
    # Whole compiled calls are run, so progress counts up to a multiple of `PER_CALL`.
    per_call = trainer.config.steps_per_update * PER_CALL
    total = -(-config["steps"] // per_call) * PER_CALL
    return train(
        trainer,
        trainer.default_params,
        steps=config["steps"],
        seed=config["seed"],
        out=folder,
        resume=resume,
        saving=saving,
        progress=None if progress is None else partial(_report, progress, total),
        updates_per_call=PER_CALL,
    ).metrics


def _report(progress: Progress, total: int, row: dict[str, Any]) -> None:
    progress(row, total)


def _learner(algorithm: str) -> type[RateTrainer]:
    if algorithm not in RATE_ALGORITHMS:
        raise unknown_name("learner of rates", algorithm, RATE_ALGORITHMS)
    return RATE_ALGORITHMS[algorithm]


def _trainer(config: dict[str, Any]) -> RateTrainer:
    """The algorithm of a run, from its configuration."""
    name = config["algorithm"]
    return _learner(name)(algorithm_config(name, **config["settings"]))


@dataclass(frozen=True)
class TrainedPolicy:
    """The deterministic policy of a trainer, for `Steered`.

    A value that is equal for equal settings, so that `measure` compiles once for all seeds of a
    learner.

    Attributes:
        algorithm: name in `RATE_ALGORITHMS`.
        config: settings.
    """

    algorithm: str
    config: RateConfig

    def __call__(self, actor: PyTree, obs: Array) -> Array:
        """Actions of all flows."""
        action: Array = RATE_ALGORITHMS[self.algorithm](self.config).act(actor, obs)
        return action


def run_actor(run: str | Path, which: str = "latest") -> tuple[RateTrainer, PyTree, int]:
    """The trainer of a run, the parameters of its policy at a checkpoint, and that update's number.

    Args:
        run: folder of the run.
        which: the checkpoint, `best` (the latest if none was evaluated) or `latest`.

    Raises:
        ValueError: not a run, or no checkpoint.
    """
    config = read_config(run, RUN)
    warn_of_versions(run, config)
    trainer = _trainer(config)
    checkpoints = Checkpoints(run)
    shapes, step = state_shapes(trainer, trainer.default_params), checkpoints.find(which)
    state = checkpoints.restore(shapes, step)
    checkpoints.close()
    return trainer, state.actor, step


def rate_policy_of(
    run: str | Path, which: str = "best", *, int8: bool = False, depth: int | None = None
) -> RatePolicy:
    """The policy of a run, to be written to a file by `save_policy`.

    Args:
        run: folder of the run.
        which: see `run_actor`.
        int8: quantised, see `baselines.exporting.quantise`.
        depth: a tree of this depth in its place, see `baselines.exporting.distil`.

    Raises:
        ValueError: not a run, or see `export_rate_policy`.
    """
    config = read_config(run, RUN)
    trainer, actor, step = run_actor(run, which)
    names = ("algorithm", "seed", "settings", "versions")
    about = {name: config[name] for name in names}
    return export_rate_policy(trainer, actor, int8=int8, depth=depth, update=step, **about)


def subject_of(
    policy: str, scenario: str | RateScenario, options: dict[str, Any], checkpoint: str = "latest"
) -> tuple[Subject, RateScenario, PyTree]:
    """How a policy is measured: the subject, its scenario, and its parameters.

    Args:
        policy: folder of a run, a file, or the short form of senders.
        scenario: name of a scenario of rate control, or the scenario.
        options: fields of it.
        checkpoint: of a run, see `run_actor`.

    Raises:
        ValueError: an unknown name, or a value that is not allowed.
    """
    if is_exported(policy):
        file = read_rate_exported(policy)
        spec = with_options(scenario, options)
        steered = Steered(make_rate(spec, **rate_view(file)), Deployed(file.model))
        return steered, spec, device_arrays(file)
    if not is_rate_run(policy):
        spec = with_options(scenario, {**options, "transport": parse_transport(policy)})
        return OwnRates(spec.simulator(), spec.ecn), spec, None
    trainer, actor, _ = run_actor(policy, checkpoint)
    spec = with_options(scenario, options)
    c = trainer.config
    env = make_rate(spec, target=c.target, offset=c.offset, **trainer.view)
    return (
        Steered(env, TrainedPolicy(read_config(policy, RUN)["algorithm"], trainer.config)),
        spec,
        actor,
    )

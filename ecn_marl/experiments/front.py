"""The verbs `ecn_marl.train` and `ecn_marl.bench`, which are also the commands of these names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ecn_marl._errors import bad_value, unknown_name
from ecn_marl._garbage import seldom_collected
from ecn_marl.baselines.algorithms import ALGORITHMS, RATE_ALGORITHMS
from ecn_marl.baselines.runs import Session
from ecn_marl.baselines.search import Effort, Progress
from ecn_marl.baselines.training.checkpoint import RUN, read_config
from ecn_marl.baselines.training.logs import read_rows
from ecn_marl.envs.registry import FLUID, check_name
from ecn_marl.experiments import bench as bn
from ecn_marl.experiments import plan as pl
from ecn_marl.experiments import rate
from ecn_marl.experiments import workflow as wf
from ecn_marl.experiments.curves import CURVE, draw_learning_curve
from ecn_marl.experiments.jobs import Job, new_job, not_none
from ecn_marl.experiments.publish import TABLE, publish
from ecn_marl.experiments.recipes import trainer_of
from ecn_marl.experiments.records import Record
from ecn_marl.experiments.taught import is_taught, search_length
from ecn_marl.render.bars import notebook_progress

if TYPE_CHECKING:
    import pandas as pd


class Run:
    """A run: a folder with configuration, metrics and checkpoints. It is a policy, too.

    Attributes:
        folder: the folder.
    """

    def __init__(self, folder: str | PathLike[str]) -> None:
        """Open a run.

        Raises:
            ValueError: it is none.
        """
        self.folder = Path(folder)
        self.config: dict[str, Any] = read_config(self.folder, RUN)

    def __fspath__(self) -> str:
        """The folder, so that a run is taken wherever its folder is."""
        return fspath(self.folder)

    def __repr__(self) -> str:
        """One line: what was trained, how long."""
        steps = self.metrics[-1]["steps"] if self.metrics else 0
        where = f" in {self.config['scenario']}" if "scenario" in self.config else ""
        return f"<Run {self.folder}: {self.config['algorithm']}{where}, {steps:,} steps>"

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """Rows of `metrics.jsonl`, one for each update."""
        return read_rows(self.folder)

    @property
    def frame(self) -> pd.DataFrame:
        """The metrics as a data frame."""
        import pandas as pd

        return pd.DataFrame(self.metrics)

    def _repr_png_(self) -> bytes | None:
        """The learning curve, for notebooks."""
        file = self.folder / CURVE
        return file.read_bytes() if file.is_file() else None


@seldom_collected()
def train(
    algorithm: str,
    scenario: str | None = None,
    *,
    steps: int | None = None,
    seeds: int | None = None,
    seed: int = 0,
    out: str | PathLike[str] | None = None,
    overwrite: bool = False,
    env: Mapping[str, Any] | None = None,
    eval_every: int | None = None,
    eval_episodes: int | None = None,
    randomise: Mapping[str, Sequence[float]] | None = None,
    allow_flagged: bool = False,
    show: wf.Show | None = None,
    **settings: Any,
) -> Run:
    """Train a policy by its recipe; configuration, metrics, checkpoints and curve go to a folder.

    Args:
        algorithm: name of the learner: of ports (`ippo`, `mappo`, `ddqn-fct`, …) or of flows
            (`adpg`, `ppo`, …), whose scenarios follow from the setting `senders`.
        scenario: name of a scenario; None for `restore-serve-v0`.
        steps: environment steps per seed; None for the recipe's, else 1,000,000.
        seeds: learners trained at once, with the seeds `seed`, `seed` + 1, …
        seed: seed of everything random.
        out: folder of the run; None for `runs/ALGORITHM-SCENARIO-seedSEED`.
        overwrite: replace an earlier run in the folder.
        env: options of `ecn_marl.make`, over those of the recipe.
        eval_every: updates between two evaluations, 0 for none, see `train_run`.
        eval_episodes: episodes per evaluation.
        randomise: ranges drawn for every training episode, see `wrappers.randomised.ranges_of`.
        allow_flagged: see `train_run`.
        show: moves a progress bar, `show(steps done, note)`; None for one in notebooks.
        **settings: settings of the learner, e.g. `gamma=0.98`, over those of the recipe.

    Raises:
        ValueError: an unknown name, or a value that is not allowed; nothing is written then.
        FolderInUse: another process trains there.
        TrainingDiverged: a metric or the state is not finite any more.
    """
    if algorithm in RATE_ALGORITHMS:
        of_ports = not_none(
            scenario=scenario,
            env=env or None,
            randomise=randomise or None,
            eval_every=eval_every,
            eval_episodes=eval_episodes,
            seeds=None if seeds == 1 else seeds,
            allow_flagged=allow_flagged or None,
        )
        for name, value in of_ports.items():
            instead = "one run for each seed" if name == "seeds" else "settings, as senders=(4, 8)"
            allowed = f"none with {algorithm}, whose agents are flows: {instead}"
            raise bad_value(name, value, allowed)
        texts = [f"{name}={_text(value)}" for name, value in settings.items()]
        folder = Path(out or Path("runs") / f"{algorithm}-seed{seed}")
        with notebook_progress(f"train {algorithm}", 1.0, show) as move:
            rate.train_rate(
                algorithm,
                folder,
                settings=texts,
                steps=steps,
                seed=seed,
                overwrite=overwrite,
                progress=lambda row, total: move(
                    row["steps"] if show else row["update"] / total, ""
                ),
            )
        return Run(folder)
    fields = not_none(
        scenario=scenario,
        steps=steps,
        seeds=seeds,
        seed=seed,
        eval_every=eval_every,
        eval_episodes=eval_episodes,
        allow_flagged=allow_flagged or None,
        randomise=None if randomise is None else {n: list(x) for n, x in randomise.items()},
    )
    bar = notebook_progress("search teacher", search_length(), None)
    with bar if is_taught(algorithm) else nullcontext() as move:
        job = _job(algorithm, settings, env or {}, fields, move)
    folder = Path(out or Path("runs") / f"{algorithm}-{job.scenario}-seed{job.seed}")
    with notebook_progress(f"train {algorithm}", job.total_steps, show) as move:
        wf.train(job, folder, overwrite, move, Session())
    draw_learning_curve(folder)
    return Run(folder)


def _job(
    algorithm: str,
    settings: Mapping[str, Any],
    env: Mapping[str, Any],
    job: dict[str, Any],
    progress: Progress | None = None,
) -> Job:
    """A job from typed settings, which must be the learner's."""
    trainer = trainer_of(algorithm)
    if trainer in ALGORITHMS:
        known = getattr(ALGORITHMS[trainer].config_class, "__dataclass_fields__", {})
        for name in settings:
            if name not in known:
                kind = f"setting of {algorithm} (options of the environment go into env={{…}})"
                raise unknown_name(kind, name, known)
    return new_job(algorithm, job, dict(env), [], {"settings": dict(settings)}, progress)


def _text(value: object) -> str:
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_text, value)) + "]"
    return str(value).lower() if isinstance(value, bool) else str(value)


class BenchResult:
    """A comparison of learners and rules.

    Attributes:
        summary: the content of `results.json`.
        records: all numbers of all episodes, by scenario and policy.
        folder: the folder of the bench, with its tables and figures.
    """

    def __init__(
        self, summary: dict[str, Any], records: dict[str, dict[str, Record]], folder: Path
    ) -> None:
        self.summary, self.records, self.folder = summary, records, folder

    def __repr__(self) -> str:
        """The tables, as Markdown."""
        return (self.folder / TABLE).read_text(encoding="utf-8").rstrip()

    def _repr_markdown_(self) -> str:
        """The tables, for notebooks."""
        return repr(self)

    @property
    def episodes(self) -> pd.DataFrame:
        """A row for each scenario, policy, seed and episode."""
        import numpy as np
        import pandas as pd

        frames = []
        for scenario, records in self.records.items():
            for policy, record in records.items():
                seeds, episodes = record.seeds, record.episodes
                columns = {name: x.reshape(-1) for name, x in record.columns.items()}
                index = {
                    "scenario": scenario,
                    "policy": policy,
                    "seed": np.repeat(np.arange(seeds), episodes),
                    "episode": np.tile(np.arange(episodes), seeds),
                }
                frames.append(pd.DataFrame(index | columns))
        return pd.concat(frames, ignore_index=True)


@seldom_collected()
def bench(
    scenarios: str | Sequence[str] | None = None,
    algorithms: str | Sequence[str] | None = None,
    *,
    seeds: int = 5,
    steps: int | None = None,
    episodes: int = 128,
    sealed: bool = False,
    split: str | None = None,
    eval_seed: int = 0,
    search_episodes: int = 64,
    eval_episodes: int = 16,
    options: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    out: str | PathLike[str] = "runs/bench",
    records: str | PathLike[str] | None = None,
    overwrite: bool = False,
    allow_flagged: bool = False,
    backend: str = FLUID,
    workers: int | str = 1,
    packet_episodes: int = 32,
    about: Mapping[str, object] | None = None,
    show: Callable[[str], wf.Show] | None = None,
) -> BenchResult:
    """Train learners, score them beside rules, and write tables; what is there already is used.

    Args:
        scenarios: names; None for `restore-serve-v0`, or for those of the split.
        algorithms: learners and rules, or the name of one; None for the usual ones.
            `static:best` and `oracle` are always there.
        seeds: seeds that every learner is trained with.
        steps: environment steps per seed; None for the scenario's.
        episodes: episodes that every policy and seed is scored on.
        sealed: whether these are the sealed ones, which need a clean git checkout.
        split: score in variants that were not trained in, see `envs.splits`.
        eval_seed: which tuning episodes otherwise.
        search_episodes: episodes that the last candidates of a search run in.
        eval_episodes: episodes that a checkpoint is evaluated on.
        options: options of `ecn_marl.make` for everything.
        settings: settings of the learners that have them.
        out: folder of the comparison.
        records: folder for tables of all flows, ports and episodes, a folder for each scenario;
            None for none.
        overwrite: whether to replace records of another plan there.
        allow_flagged: whether results that do not count are scored all the same.
        backend: `packets` to score rules and the best seed of every learner on packets, too, and
            to show both beside each other; see `registry.make`.
        workers: who trains learners, one at a time each, and runs episodes on packets: a number of
            processes, or a cluster that shares the folder, see `executors.executor`.
        packet_episodes: with packets, how many of the episodes run on them, the first ones.
        about: further facts for `results.json`, such as the machine.
        show: `show(task)(share done, note)` moves a bar; None for one in notebooks.

    Raises:
        ValueError: an unknown name, or a value that is not allowed.
        FolderInUse: another process works in the folder.
    """
    places: Any = () if scenarios is None else scenarios
    several = isinstance(places, Iterable) and not isinstance(places, str)
    names = tuple(places) if several else (places,)
    for name in names:
        check_name(name)
    asked = pl.DEFAULT if algorithms is None else algorithms
    asked = (asked,) if isinstance(asked, str) else asked
    plan = pl.Plan(
        scenarios=names or (() if split else (pl.DEFAULT_SCENARIO,)),
        policies=tuple(pl.policy_name(name) for name in asked),
        out=Path(out).absolute(),
        seeds=seeds,
        steps=steps,
        episodes=episodes,
        sealed=sealed,
        eval_seed=eval_seed,
        split=split,
        options=dict(options or {}),
        settings=dict(settings or {}),
        effort=Effort(episodes=search_episodes),
        eval_episodes=eval_episodes,
        records=None if records is None else Path(records),
        overwrite=overwrite,
        backend=backend,
        workers=workers,
        packet_episodes=packet_episodes,
    )
    with ExitStack() as stack:

        def opened(task: str) -> wf.Show:
            stack.close()
            return stack.enter_context(notebook_progress(task, 1.0))

        scored = bn.bench(plan, show or opened)
    facts = {"protocol": bn.protocol(plan), **(about or {})}
    result, _ = publish(scored, plan.out, facts, allow_flagged)
    return BenchResult(result, scored, plan.out)

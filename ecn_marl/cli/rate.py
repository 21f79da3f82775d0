"""`train` and `eval` where flows are the agents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from ecn_marl.cli.terminal import progress, show_tables

DEFAULT_SCENARIO = "many-to-one-8-v0"


def is_about_rates(algorithm: str | None, resume: Path | None) -> bool:
    """Whether a training is one of rates."""
    from ecn_marl.experiments import rate

    return algorithm in rate.ALGORITHMS or (
        algorithm is None and resume is not None and rate.is_rate_run(str(resume))
    )


def is_evaluation(policies: list[str], scenario: str | None) -> bool:
    """Whether an evaluation is one of rates."""
    from ecn_marl.experiments import rate

    return rate.is_rate_evaluation(policies, scenario)


def train(
    algorithm: str | None,
    resume: Path | None,
    out: Path | None,
    asked: dict[str, Any],
    settings: list[str],
    saving: tuple[int | None, float],
    overwrite: bool,
    as_json: bool,
) -> None:
    """Train or go on.

    Of the usual options `asked` has those that were given; `saving` is updates and seconds between
    checkpoints.

    Raises:
        ValueError: an option that has no meaning here, or see `experiments.rate`.
    """
    from ecn_marl._errors import bad_value
    from ecn_marl._files import json_text
    from ecn_marl.baselines.common.training import Saving
    from ecn_marl.experiments import rate

    if "envs" in asked:
        settings = [*settings, f"envs={asked.pop('envs')}"]
    steps, seed = asked.pop("steps", None), asked.pop("seed", 0)
    for name, value in asked.items():
        what = f"nothing with {algorithm or resume}: what it trains on are settings, e.g. --set"
        raise bad_value(f"--{name.replace('_', '-')}", value, f"{what} senders=4,8")
    if resume is not None and settings:
        raise bad_value("--set", settings[0], f"nothing: {resume} goes on as it was started")
    when = Saving(*saving)
    folder = resume or out or Path("runs") / f"{algorithm}-seed{seed}"
    with progress(f"train {algorithm or folder}", "%", 100.0, lines=False) as show:

        def tell(row: dict[str, Any], total: int) -> None:
            note = f"update {row['update']}, reward {row['reward']:.4f}"
            show(100.0 * row["update"] / total, note)

        if resume is not None:
            rows = rate.resume_rate(resume, steps=steps, saving=when, progress=tell)
        else:
            assert algorithm is not None
            rows = rate.train_rate(
                algorithm,
                folder,
                settings=settings,
                steps=steps,
                seed=seed,
                overwrite=overwrite,
                saving=when,
                progress=tell,
            )
    if as_json:
        typer.echo(json_text({"run": str(folder), "training": rows[-1]}))
    else:
        names = ", ".join(sorted(path.name for path in folder.iterdir()))
        typer.echo(f"{folder}: {names}")


def evaluate(
    policies: list[str],
    scenario: str | None,
    episodes: int,
    seed: int,
    unfit: dict[str, Any],
    fields: list[str],
    as_json: bool,
) -> None:
    """Measure policies; `fields` are fields of the scenario, `name=value`.

    Raises:
        ValueError: an option that has no meaning here, or see `experiments.rate`.
    """
    from ecn_marl._errors import bad_value
    from ecn_marl._files import json_text
    from ecn_marl.envs.rate.scenarios import RateScenario
    from ecn_marl.experiments import rate
    from ecn_marl.experiments.workflow import parse_fields
    from ecn_marl.report.rate_table import rate_table

    for name, value in unfit.items():
        raise bad_value(f"--{name.replace('_', '-')}", value, "nothing in scenarios of rates")
    options = parse_fields(fields, RateScenario)
    with progress("evaluate", "episodes", float(episodes * len(policies)), lines=False) as show:
        result = rate.evaluate_rate(
            policies,
            scenario or DEFAULT_SCENARIO,
            options=options,
            seed=seed,
            seeds=episodes,
            progress=show,
        )
    if as_json:
        typer.echo(json_text(result))
    else:
        show_tables([rate_table(result)])

"""Commands that run a policy in many episodes: eval, record."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ecn_marl.cli.app import app, examples_text
from ecn_marl.cli.terminal import (
    AllowFlagged,
    Backend,
    Checkpoint,
    Env,
    Episodes,
    Json,
    Overwrite,
    Ray,
    Records,
    RunLoad,
    RunMaxSteps,
    RunScenario,
    Seed,
    Workers,
    check_checkpoint,
    check_records,
    draw_slowdown,
    given_options,
    refuse,
    show_rates,
    show_results,
    workers_of,
)
from ecn_marl.render.bars import progress


@app.command(
    name="eval",
    epilog=examples_text(
        "ecn-marl eval runs/ippo static:best oracle rule --episodes 32",
        "ecn-marl eval pretrained:restore-serve-mappo static:secn1 --scenario moving-tenants-v0",
    ),
)
def evaluate(
    context: typer.Context,
    policies: Annotated[
        list[str],
        typer.Argument(
            metavar="POLICY...",
            help="Trained policies: folders of runs, FILE.npz, pretrained:NAME. Static thresholds: "
            "static:secn1, static:KMIN,KMAX,PMAX such as static:5,200,0.01, static:best, "
            "static:ports. Rules: oracle, oracle:ports, rule, random, dynamic:NAME with pi, "
            "ecn-sharp, buffer, relative, utilisation or queue, and their settings as in "
            "dynamic:pi:qref_kb=100. Where flows are the agents: runs and files of such learners, "
            "and senders such as swift:htsim.",
        ),
    ],
    scenario: RunScenario = None,
    episodes: Annotated[
        int | None,
        typer.Option(
            help="Number of episodes per policy.",
            min=1,
            show_default="64, or 1 where flows are the agents",
        ),
    ] = None,
    seed: Seed = 0,
    load: RunLoad = None,
    max_steps: RunMaxSteps = None,
    env: Env = None,
    checkpoint: Checkpoint = "best",
    allow_flagged: AllowFlagged = False,
    backend: Backend = "fluid",
    workers: Workers = 1,
    ray: Ray = None,
    beside: Annotated[
        bool,
        typer.Option(
            "--beside/--alone",
            help="With --backend packets: run the same episodes in the fluid, too, and compare.",
            show_default="beside",
        ),
    ] = True,
    records: Records = None,
    overwrite: Overwrite = False,
    check: Annotated[
        bool,
        typer.Option(
            "--check", help="Hold all completion times against what every link can have carried."
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Compare policies on the same tuning episodes, which no policy was trained on."""
    from ecn_marl.envs.rate.scenarios import RateScenario
    from ecn_marl.envs.registry import is_packets
    from ecn_marl.experiments import evaluation as ev
    from ecn_marl.experiments import jobs as jb
    from ecn_marl.experiments.evaluation import EPISODES, RATE_EPISODES
    from ecn_marl.experiments.policies import resolve
    from ecn_marl.experiments.rate import is_rate_evaluation

    check_records(records, overwrite)
    check_checkpoint(checkpoint)
    if of_flows := is_rate_evaluation(policies, scenario):
        others = jb.not_none(load=load, max_steps=max_steps)
        refuse(others, others, "no such option where flows are the agents")
        options = jb.parse_fields(env or [], RateScenario)
        count, total = episodes or RATE_EPISODES, (episodes or RATE_EPISODES) * len(policies)
    else:
        options = jb.not_none(load=load, max_steps=max_steps) | jb.parse_fields(env or [])
        count = episodes or EPISODES
        total = count * sum(len(resolve(name).members) for name in policies)
    given, on_packets = given_options(context), not of_flows and is_packets(backend)
    if given.get("beside") and not on_packets:
        refuse(given, ("beside",), "used with --backend packets, to compare packets with the fluid")
    beside = beside and on_packets
    total *= 2 if beside else 1
    with progress("evaluate", "episodes", total) as show:
        result = ev.evaluate(
            policies,
            scenario,
            episodes=count,
            seed=seed,
            records=records or False,
            overwrite=overwrite,
            checkpoint=checkpoint,
            allow_flagged=allow_flagged,
            backend=backend,
            workers=workers_of(workers, ray, None),
            beside=beside,
            check=check,
            show=show,
            **options,
        )
    if of_flows:
        show_rates(result, as_json)
        return
    show_results({"evaluation": result.summary}, as_json)
    if result.tables is not None:
        draw_slowdown(result, as_json)


@app.command(
    name="record",
    epilog=examples_text(
        "ecn-marl record random runs/ippo --episodes 64 --out data/mixed",
        "ecn-marl record rule --scenario mixed-rtt-v0 --epsilon 0.1 --out data/rule",
    ),
)
def record_dataset(
    policies: Annotated[
        list[str],
        typer.Argument(metavar="POLICY...", help="Policies of ports, as eval takes them."),
    ],
    out: Annotated[
        Path,
        typer.Option(
            metavar="DIR", help="A new folder. Parquet with pyarrow (extra `records`), else CSV."
        ),
    ],
    scenario: RunScenario = None,
    episodes: Episodes = 64,
    epsilon: Annotated[
        float,
        typer.Option(
            help="How likely an agent acts at random in an interval, not by its policy.",
            min=0.0,
            max=1.0,
        ),
    ] = 0.0,
    seed: Annotated[int, typer.Option(help="Which training episodes.", min=0)] = 0,
    load: RunLoad = None,
    max_steps: RunMaxSteps = None,
    env: Env = None,
    checkpoint: Checkpoint = "best",
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a dataset that is in the folder.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Write an offline dataset: observations, actions and rewards of training episodes.

    They are no episodes that eval and bench score policies on. `ecn_marl.read_dataset(DIR)` reads
    the dataset as arrays, for a flashbax vault (OG-MARL) or for Minari.
    """
    from ecn_marl._files import json_text
    from ecn_marl.experiments import datasets
    from ecn_marl.experiments import jobs as jb
    from ecn_marl.experiments.policies import resolve

    check_checkpoint(checkpoint)
    options = jb.not_none(load=load, max_steps=max_steps) | jb.parse_fields(env or [])
    total = episodes * sum(len(resolve(name).members) for name in policies)
    with progress("record", "episodes", total) as show:
        dataset = datasets.record(
            policies,
            scenario,
            out=out,
            episodes=episodes,
            seed=seed,
            epsilon=epsilon,
            checkpoint=checkpoint,
            overwrite=overwrite,
            show=show,
            **options,
        )
    if as_json:
        typer.echo(json_text(dataset.facts))
        return
    typer.echo(dataset.summary())

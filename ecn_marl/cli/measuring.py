"""Commands that measure a scenario: headroom, spread, audit, reward-reference."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ecn_marl.cli.app import app, examples_text
from ecn_marl.cli.terminal import (
    SEARCHED,
    AllowFlagged,
    Env,
    Episodes,
    Json,
    Load,
    MaxSteps,
    ScenarioName,
    Searches,
    Seed,
    show_json_or_tables,
)
from ecn_marl.render.bars import progress


@app.command(
    epilog=examples_text("ecn-marl headroom restore-serve-v0 --episodes 64"),
)
def headroom(
    scenario: ScenarioName,
    episodes: Episodes = 64,
    search_episodes: Searches = SEARCHED,
    seed: Seed = 0,
    load: Load = None,
    max_steps: MaxSteps = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder that keeps the searches, so that they are not made again.",
            show_default="none, they are not kept",
        ),
    ] = None,
    allow_flagged: AllowFlagged = False,
    hindsight: Annotated[
        int,
        typer.Option(
            min=0,
            help="In so many of the episodes search the best setting of every 1 ms, too.",
            show_default="none",
        ),
    ] = 0,
    interaction: Annotated[
        int,
        typer.Option(
            min=0,
            help="In so many of the episodes test whether ports have to be tuned together.",
            show_default="none",
        ),
    ] = 0,
    as_json: Json = False,
) -> None:
    """Measure how much adaptive thresholds can gain over the best static ones.

    The oracle knows the phase of the traffic and has the best thresholds for each phase. What it
    gains over the best static thresholds is a reference, not a bound: policies that also look at
    queues and flows have gained a little more. --hindsight shows whether settings that change
    within a phase would gain more, in episodes that are known in advance. --interaction shows
    whether the best thresholds of some ports depend on those of others.
    """
    from ecn_marl._files import check_output_folder
    from ecn_marl.baselines.search import Effort
    from ecn_marl.experiments import headroom as hr
    from ecn_marl.experiments.hindsight import TYPICAL_RUNS
    from ecn_marl.experiments.jobs import not_none
    from ecn_marl.render.headroom_table import headroom_table, interaction_table
    from ecn_marl.render.tables import flows_table

    if out is not None:
        check_output_folder("--out", out)
    expected = 200 * search_episodes + TYPICAL_RUNS * hindsight
    with progress("headroom", "episodes", expected) as show:
        result = hr.headroom(
            scenario,
            not_none(load=load, max_steps=max_steps),
            episodes=episodes,
            seed=seed,
            effort=Effort(episodes=search_episodes),
            folder=out,
            progress=show,
            allow_flagged=allow_flagged,
            hindsight=hindsight,
            interaction=interaction,
        )
    between = result["interaction"]
    show_json_or_tables(
        result,
        lambda: [
            headroom_table(result),
            *([interaction_table(between)] if between else []),
            flows_table(result["policies"]),
        ],
        as_json,
    )


@app.command(
    epilog=examples_text(
        "ecn-marl spread storage-train-v0 --plot spread.png",
        "ecn-marl spread storage-train-v0 runs/mappo dynamic:relative --plot spread.png",
    ),
)
def spread(
    scenario: ScenarioName,
    policies: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[POLICY...]",
            help="Policies of ports to run beside the settings, as eval takes them.",
            show_default="none",
        ),
    ] = None,
    episodes: Episodes = 8,
    seed: Seed = 0,
    load: Load = None,
    max_steps: MaxSteps = None,
    env: Env = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            help="Picture to write, a PNG: the first part of J over the second.",
            show_default="none",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Run 183 static settings, and show how far J and its parts differ between them.

    Where they hardly differ, thresholds do not matter. Where each setting is good for one part and
    bad for another, no static setting serves both.
    """
    from ecn_marl._files import check_output, write_all
    from ecn_marl.experiments import spread as sp
    from ecn_marl.experiments.jobs import not_none, parse_fields
    from ecn_marl.render.spread_plot import spread_plot, spread_table

    if plot is not None:
        check_output("--plot", plot)
    options = not_none(load=load, max_steps=max_steps) | parse_fields(env or [])
    with progress("spread", "episodes", 183 * episodes) as show:
        result = sp.spread(
            scenario,
            options,
            policies=policies or (),
            episodes=episodes,
            seed=seed,
            progress=show,
        )
    if plot is not None:
        write_all({plot: spread_plot(result)})
    show_json_or_tables(result, lambda: [spread_table(result)], as_json)


@app.command(
    epilog=examples_text(
        "ecn-marl audit pretrained:restore-serve-ippo",
        "ecn-marl audit runs/memory --reactive runs/reactive --plot audit.png",
    )
)
def audit(
    policy: Annotated[
        str,
        typer.Argument(
            metavar="POLICY", help="A policy that chooses among settings: RUN, pretrained:NAME."
        ),
    ],
    scenario: Annotated[
        str | None, typer.Option(help="Name of a scenario.", show_default="the run's")
    ] = None,
    reactive: Annotated[
        str | None,
        typer.Option(
            metavar="RUN",
            help="A run without memory, to compare J with, seed by seed.",
            show_default="none",
        ),
    ] = None,
    episodes: Annotated[
        int,
        typer.Option(
            help="Number of episodes that are recorded; the time grows with its square.", min=1
        ),
    ] = 4,
    ports: Annotated[
        int, typer.Option(help="Number of ports: those whose actions differ most.", min=2)
    ] = 4,
    history: Annotated[int, typer.Option(help="Earlier intervals that count.", min=1)] = 3,
    seed: Seed = 0,
    load: Load = None,
    max_steps: MaxSteps = None,
    env: Env = None,
    plot: Annotated[
        Path | None, typer.Option(help="Picture to write, a PNG.", show_default="none")
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure whether the actions of a policy depend on the past, and on other ports.

    The diagnostics of "Probing Dec-POMDP Reasoning in Cooperative MARL", AAMAS 2026 (extra
    `audit`), beside their values for shuffled actions.
    """
    from ecn_marl._files import check_output, write_all
    from ecn_marl.experiments import audit as au
    from ecn_marl.experiments.jobs import not_none, parse_fields
    from ecn_marl.render.audit_table import audit_plot, audit_table

    if plot is not None:
        check_output("--plot", plot)
    options = not_none(load=load, max_steps=max_steps) | parse_fields(env or [])
    with progress("audit", "episodes", episodes) as show:
        result = au.audit(
            policy,
            scenario,
            reactive=reactive,
            episodes=episodes,
            seed=seed,
            ports=ports,
            history=history,
            show=show,
            **options,
        )
    if plot is not None:
        write_all({plot: audit_plot(result)})
    show_json_or_tables(result, lambda: [audit_table(result)], as_json)


@app.command(
    name="reward-reference",
    epilog=examples_text("ecn-marl reward-reference my-scenario-v0 --out reference.json"),
)
def reward_reference(
    scenario: ScenarioName,
    out: Annotated[
        Path,
        typer.Option(
            metavar="FILE",
            help="JSON file to write. Use it as `make(..., reward_reference='POLICY@FILE')`.",
        ),
    ],
    reward: Annotated[
        list[str] | None,
        typer.Option(
            help="Name of a reward to measure. Repeatable.",
            show_default="the scenario's, slowdown-shaped, and that of the recipes",
        ),
    ] = None,
    episodes: Annotated[int, typer.Option(help="Number of episodes per policy.", min=2)] = 128,
    search_episodes: Searches = SEARCHED,
    seed: Seed = 0,
    env: Env = None,
    as_json: Json = False,
) -> None:
    """Measure the returns of SECN1, the best static thresholds and the oracle.

    Rewards can be given relative to them with the option `reward_reference` of a scenario.
    """
    from ecn_marl._files import check_output
    from ecn_marl.baselines.search import Effort
    from ecn_marl.experiments import reward_references as rr
    from ecn_marl.experiments.jobs import parse_fields
    from ecn_marl.experiments.json_files import save_json
    from ecn_marl.render.tables import reference_table

    check_output("--out", out)
    rewards = rr.usual_rewards(scenario) if reward is None else [{"reward": x} for x in reward]
    with progress("measure", "episodes", 3 * len(rewards) * episodes) as show:
        references = rr.measure(
            scenario,
            rewards,
            parse_fields(env or []),
            episodes=episodes,
            seed=seed,
            effort=Effort(episodes=search_episodes),
            progress=show,
        )
    save_json(out, references)
    show_json_or_tables(references, lambda: [reference_table(references)], as_json)

"""Commands that train and compare: bench, tune."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from ecn_marl.cli import papers, rate
from ecn_marl.cli.app import app, examples_text
from ecn_marl.cli.terminal import (
    SEARCHED,
    AllowFlagged,
    Json,
    MaxSteps,
    Overwrite,
    Ray,
    Records,
    ScenarioName,
    Searches,
    Slurm,
    Workers,
    given_options,
    refuse,
    stops_in_one_line,
    workers_of,
)
from ecn_marl.render.bars import Move, progress

EPISODES, EVALUATED = 128, 16
"""Episodes of a score, and of the evaluation of a checkpoint."""

RATES = "adpg"
"""Name for `bench` of the tables of the paper ADPG."""

AGAIN = "the same command goes on from there"

Envs = Annotated[
    int | None,
    typer.Option(help="Number of environments stepped at once.", show_default="the recipe's"),
]


@app.command(
    epilog=examples_text(
        "ecn-marl bench restore-serve-v0 --algorithms ippo,mappo,rule --seeds 5",
        "ecn-marl bench --split loads --algorithms ippo",
        "ecn-marl bench pet --small",
        "ecn-marl bench adpg --small",
    )
)
def bench(
    context: typer.Context,
    scenarios: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SCENARIO]...",
            help="Names of scenarios; or papers: pet, acc, haecn for the claims, figures and "
            "tables of that paper, readings for what their open choices give, all for these "
            "four; or adpg for the tables of the paper ADPG, "
            "where flows are the agents.",
            show_default="restore-serve-v0",
        ),
    ] = None,
    algorithms: Annotated[
        str | None,
        typer.Option(
            "--algorithms",
            "--algos",
            metavar="NAME,NAME,…",
            help="What to compare. Learners: ippo, mappo, gnn, dagger, generalist, sac, pqn, vdn, "
            "pet, ddqn, c-acc, haecn, ddqn-fct, haecn-fct. Rules: SECN1, SECN2, static:ports, "
            "oracle:ports, rule, dynamic:pi, random, …; static:best and oracle are always there. "
            "With papers: rows such as pet:published, or families of rows such as pet. With adpg: "
            "learners of rates, LEARNER:int8, senders.",
            show_default="ippo, mappo, the papers' learners, rule, SECN1, SECN2, random",
        ),
    ] = None,
    seeds: Annotated[
        int, typer.Option(help="Number of seeds that every learner is trained with.", min=1)
    ] = 5,
    steps: Annotated[
        int | None,
        typer.Option(
            help="Environment steps (tuning intervals) per seed of every learner.",
            min=1,
            show_default="the scenario's",
        ),
    ] = None,
    episodes: Annotated[
        int,
        typer.Option(help="Number of episodes that every policy and seed is scored on.", min=1),
    ] = EPISODES,
    sealed: Annotated[
        bool,
        typer.Option(
            "--sealed",
            help="Score on the sealed test episodes. Needs a git checkout without changes; a line "
            "is added to its results/USES.md.",
        ),
    ] = False,
    split: Annotated[
        str | None,
        typer.Option(
            help="Score in variants of the scenario that were not trained in: loads, sizes, rates, "
            "rtt, senders, topology, failures. The split sets the scenario.",
            show_default="none, the scenario as it is",
        ),
    ] = None,
    eval_seed: Annotated[
        int,
        typer.Option(help="Seed of the tuning episodes that policies are scored on.", min=0),
    ] = 0,
    search_episodes: Searches = SEARCHED,
    eval_episodes: Annotated[
        int,
        typer.Option(
            help="Number of tuning episodes that a checkpoint is evaluated on during training.",
            min=1,
        ),
    ] = EVALUATED,
    max_steps: MaxSteps = None,
    envs: Envs = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the comparison. Results that are already there are used, not made "
            "again.",
            show_default="runs/bench; runs/papers with papers; runs/bench-adpg with adpg",
        ),
    ] = None,
    results: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Also write results.json to this file.", show_default="no file"
        ),
    ] = None,
    small: Annotated[
        bool,
        typer.Option(
            "--small",
            help="Smaller and quicker. With papers: networks of 12 hosts, shorter times, fewer "
            "loads; tens of minutes per paper. With adpg: fewer and shorter scenarios; minutes.",
        ),
    ] = False,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="With papers: continue in a folder of another plan. Results that fit are used. "
            "(All other comparisons use what fits without it.)",
        ),
    ] = False,
    cells: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,NAME,…",
            help="With papers: which settings of the network, e.g. websearch-60,switching. What "
            "they do not need is not trained.",
            show_default="all",
        ),
    ] = None,
    smallest: Annotated[
        int | None,
        typer.Option(
            help="With adpg: smallest number of flows. Scenarios with fewer are left out.",
            min=1,
            show_default="no limit",
        ),
    ] = None,
    largest: Annotated[
        int | None,
        typer.Option(
            help="With adpg: largest number of flows. Scenarios with more are left out.",
            min=1,
            show_default="no limit",
        ),
    ] = None,
    backend: Annotated[
        str,
        typer.Option(
            metavar="fluid|packets",
            help="packets: score rules and the best seed of every learner packet by packet, too, "
            "and show both beside each other (extra `packets`).",
        ),
    ] = "fluid",
    workers: Workers = 1,
    ray: Ray = None,
    slurm: Slurm = None,
    packet_episodes: Annotated[
        int,
        typer.Option(
            help="With --backend packets: number of the episodes that run on packets.", min=1
        ),
    ] = 32,
    records: Records = None,
    overwrite: Overwrite = False,
    allow_flagged: AllowFlagged = False,
    as_json: Json = False,
) -> None:
    """Train learners, score them beside rules, and print the table as Markdown.

    `bench pet` measures what that paper claims, and writes a report with the paper's figures beside
    the measured ones. `bench adpg` measures learners of rates and senders with their own rules in
    the scenarios of the paper ADPG, with the paper's numbers beside them.

    --records takes a folder for each scenario or cell; the same command goes on with what is there.
    """
    from ecn_marl._errors import bad_value
    from ecn_marl._files import check_output, check_output_folder, json_text, write_all
    from ecn_marl.envs.registry import is_packets
    from ecn_marl.experiments import plan as pl
    from ecn_marl.experiments.front import bench as bench_scenarios
    from ecn_marl.experiments.jobs import not_none
    from ecn_marl.speed.machine import describe

    if results is not None:
        check_output("--results", results)
    if out is not None:
        check_output_folder("--out", out)
    if records is not None:
        check_output_folder("--records", records)
    if overwrite and records is None:
        raise bad_value("--overwrite", overwrite, "used with --records: it replaces these")
    crew = workers_of(workers, ray, slurm)
    kept: dict[str, Any] = {"records": records, "overwrite": overwrite}
    always = ("scenarios", "algorithms", "seeds", "out", "results", "as_json")
    changed = {name: x for name, x in given_options(context).items() if name not in always}
    if scenarios == [RATES]:
        known = ("small", "smallest", "largest", "records", "overwrite")
        others = [name for name in changed if name not in known]
        refuse(changed, others, f"no such option with {RATES}")
        folder, sizes = out or Path("runs/bench-adpg"), (small, smallest, largest)
        with _bars() as show, stops_in_one_line(AGAIN):
            rate.bench(
                folder, results, algorithms, seeds, sizes, as_json, show, (records, overwrite)
            )
        return
    if papers.are_papers(scenarios):
        refuse(
            changed,
            (
                *("sealed", "split", "smallest", "largest", "allow_flagged"),
                *("backend", "packet_episodes"),
            ),
            "no such option with papers",
        )
        numbers = ("steps", "search_episodes", "eval_episodes", "eval_seed")
        paper_options = papers.Options(
            names=list(scenarios or []),
            small=small,
            algorithms=algorithms,
            cells=cells,
            seeds=seeds,
            resume=resume,
            numbers={name: changed[name] for name in numbers if name in changed}
            | not_none(episodes_asked=changed.get("episodes"))
            | kept,
            options=not_none(max_steps=max_steps),
            settings=not_none(envs=envs),
        )
        with stops_in_one_line(AGAIN):
            papers.bench(paper_options, out or Path("runs/papers"), results, as_json, crew)
        return
    refuse(
        changed,
        ("small", "smallest", "largest", "resume", "cells"),
        f"no such option without {RATES} or papers",
    )
    if not is_packets(backend):
        refuse(changed, ("packet_episodes",), "used with --backend packets")
    with _bars() as show, stops_in_one_line(AGAIN):
        result = bench_scenarios(
            scenarios,
            None if algorithms is None else pl.policy_names(algorithms),
            seeds=seeds,
            steps=steps,
            episodes=episodes,
            sealed=sealed,
            split=split,
            eval_seed=eval_seed,
            search_episodes=search_episodes,
            eval_episodes=eval_episodes,
            options=not_none(max_steps=max_steps),
            settings=not_none(envs=envs),
            out=out or Path("runs/bench"),
            allow_flagged=allow_flagged,
            backend=backend,
            workers=crew,
            packet_episodes=packet_episodes,
            about={"machine": describe()},
            show=show,
            **kept,
        )
    text = json_text(result.summary) + "\n"
    if results is not None:
        write_all({results: text})
    typer.echo(text if as_json else f"{result!r}\n", nl=False)


@app.command(
    epilog=examples_text(
        "ecn-marl tune restore-serve-v0 ippo --trials 20 --out runs/tune",
    )
)
def tune(
    scenario: ScenarioName,
    learner: Annotated[
        str,
        typer.Argument(
            metavar="LEARNER",
            help="The learner: ippo, mappo, ddqn-fct, haecn-fct, …, or a registered trainer that "
            "declares a `space` of settings.",
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            help="Folder of the search. Trials that are already there are used, not made again."
        ),
    ],
    trials: Annotated[
        int, typer.Option(help="Number of trials. Each draws settings at random.", min=1)
    ] = 20,
    steps: Annotated[
        int,
        typer.Option(help="Environment steps (tuning intervals) per seed of each trial.", min=1),
    ] = 100_000,
    episodes: Annotated[
        int, typer.Option(help="Number of tuning episodes that each trial is scored on.", min=1)
    ] = 32,
    seeds: Annotated[
        int, typer.Option(help="Number of seeds that each trial is trained with.", min=1)
    ] = 2,
    max_steps: MaxSteps = None,
    envs: Envs = None,
    workers: Workers = 1,
    ray: Ray = None,
    slurm: Slurm = None,
    as_json: Json = False,
) -> None:
    """Search a learner's settings at random, and print the best ones as a recipe."""
    from ecn_marl._files import check_output_folder, json_text
    from ecn_marl.experiments import tune as tn
    from ecn_marl.experiments.jobs import not_none

    check_output_folder("--out", out)
    search = tn.Search(
        *(scenario, learner, trials, steps, episodes, seeds),
        options=not_none(max_steps=max_steps),
        settings=not_none(envs=envs),
    )
    with progress(f"tune {learner}", "trials", trials) as show, stops_in_one_line(AGAIN):
        result = tn.tune(search, out, show, workers_of(workers, ray, slurm))
    if as_json:
        typer.echo(json_text(result))
        return
    budget, winner = result["budget"], result["winner"]
    cost = f"{budget['trials']} trials of {budget['seeds']} x {budget['steps']:,} steps"
    typer.echo(
        f"# {scenario}: {cost}; trial {winner['trial']} has the lowest J, {winner['J']:.3f}, on "
        f"{budget['episodes']} episodes"
    )
    typer.echo(tn.recipe_text(learner, tn.winner_recipe(search, result)), nl=False)


@contextmanager
def _bars() -> Iterator[Callable[[str], Move]]:
    """A function that opens a progress bar for a task and closes the last one."""
    from contextlib import ExitStack

    with ExitStack() as stack:

        def show(task: str) -> Move:
            stack.close()
            move = stack.enter_context(progress(task, "%", 100.0))
            # At most 1: searches estimate their work, and training ends with a whole update.
            return lambda share, note="": move(100.0 * min(share, 1.0), note)

        yield show

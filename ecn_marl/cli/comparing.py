"""Commands that compare: bench, tune, headroom, spread, reward-reference."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from ecn_marl.cli import papers
from ecn_marl.cli.app import app, examples_text
from ecn_marl.cli.terminal import (
    AllowFlagged,
    Env,
    Episodes,
    Json,
    Load,
    MaxSteps,
    Overwrite,
    Records,
    Seed,
    show_tables,
    stops_in_one_line,
    write_bytes,
)
from ecn_marl.render.bars import Move, progress

EPISODES, SEARCHED, EVALUATED = 128, 64, 16
"""Episodes of a score, of the end of a search, and of the evaluation of a checkpoint."""

RATES = "adpg"
"""Name for `bench` of the tables of the paper ADPG."""

AGAIN = "the same command goes on from there"

Searches = Annotated[
    int,
    typer.Option(
        help="Number of tuning episodes that the last candidates of a search for a reference "
        "policy (static:best, oracle) run in.",
        min=1,
    ),
]
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
            help="What to compare. Learners: ippo, mappo, pqn, vdn, pet, ddqn, c-acc, haecn, "
            "ddqn-fct, haecn-fct. Rules: SECN1, SECN2, static:ports, oracle:ports, rule, "
            "dynamic:pi, random, …; static:best and oracle are always there. With papers: rows "
            "such as pet:published, or families of rows such as pet. With adpg: learners of "
            "rates, LEARNER:int8, senders.",
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
            help="packets: score all policies in the same episodes packet by packet, too, and show "
            "both beside each other (an extra: pip install 'ecn-marl[packets]').",
        ),
    ] = "fluid",
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
    from ecn_marl._files import Output, check_output, check_output_folder, json_text, write_all
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
    kept: dict[str, Any] = {"records": records, "overwrite": overwrite}
    changed = not_none(
        steps=steps,
        episodes=None if episodes == EPISODES else episodes,
        sealed=sealed or None,
        split=split,
        eval_seed=eval_seed or None,
        search_episodes=None if search_episodes == SEARCHED else search_episodes,
        eval_episodes=None if eval_episodes == EVALUATED else eval_episodes,
        max_steps=max_steps,
        envs=envs,
        small=small or None,
        smallest=smallest,
        largest=largest,
        resume=resume or None,
        cells=cells,
        records=records,
        overwrite=overwrite or None,
        allow_flagged=allow_flagged or None,
        backend=None if backend == "fluid" else backend,
    )
    if scenarios == [RATES]:
        known = ("small", "smallest", "largest", "records", "overwrite")
        others = [name for name in changed if name not in known]
        _refuse(changed, others, f"no such option with {RATES}")
        kept_rates = (records, overwrite)
        sizes = (small, smallest, largest)
        _bench_rates(algorithms, seeds, sizes, out, results, as_json, kept_rates)
        return
    if papers.are_papers(scenarios):
        _refuse(
            changed,
            ("sealed", "split", "smallest", "largest", "allow_flagged", "backend"),
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
            papers.bench(paper_options, out or Path("runs/papers"), results, as_json)
        return
    _refuse(
        changed,
        ("small", "smallest", "largest", "resume", "cells"),
        f"no such option without {RATES} or papers",
    )
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
            about={"machine": describe()},
            show=show,
            **kept,
        )
    text = json_text(result.summary) + "\n"
    if results is not None:
        write_all({results: Output("w", lambda file: file.write(text))})
    typer.echo(text if as_json else f"{result!r}\n", nl=False)


def _refuse(options: Mapping[str, object], names: Iterable[str], allowed: str) -> None:
    """Raise a ValueError for the first option of `names` that the user has set."""
    from ecn_marl._errors import bad_value

    for name in names:
        if name in options:
            raise bad_value(f"--{name.replace('_', '-')}", options[name], allowed)


def _bench_rates(
    algorithms: str | None,
    seeds: int,
    scenarios: tuple[bool, int | None, int | None],
    out: Path | None,
    results: Path | None,
    as_json: bool,
    records: tuple[Path | None, bool],
) -> None:
    """`bench adpg`, where flows are the agents."""
    from ecn_marl.cli import rate

    folder = out or Path("runs/bench-adpg")
    with _bars() as show, stops_in_one_line(AGAIN):
        rate.bench(folder, results, algorithms, seeds, scenarios, as_json, show, records)


@app.command(
    epilog=examples_text(
        "ecn-marl tune restore-serve-v0 ippo --trials 20 --out runs/tune",
    )
)
def tune(
    scenario: Annotated[str, typer.Argument(help="Name of a scenario.")],
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
        result = tn.tune(search, out, show)
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


@app.command(
    epilog=examples_text("ecn-marl headroom restore-serve-v0 --episodes 64"),
)
def headroom(
    scenario: Annotated[str, typer.Argument(help="Name of a scenario.")],
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
    as_json: Json = False,
) -> None:
    """Measure how much adaptive thresholds can gain over the best static ones.

    The oracle knows the phase of the traffic and has the best thresholds for each phase. What it
    gains over the best static thresholds is a reference, not a bound: policies that also look at
    queues and flows have gained a little more.
    """
    from ecn_marl._files import check_output_folder, json_text
    from ecn_marl.baselines.search import Effort
    from ecn_marl.experiments import headroom as hr
    from ecn_marl.experiments.jobs import not_none
    from ecn_marl.render.headroom_table import headroom_table
    from ecn_marl.render.tables import flows_table

    if out is not None:
        check_output_folder("--out", out)
    with progress("headroom", "episodes", 200 * search_episodes) as show:
        result = hr.headroom(
            scenario,
            not_none(load=load, max_steps=max_steps),
            episodes=episodes,
            seed=seed,
            effort=Effort(episodes=search_episodes),
            folder=out,
            progress=show,
            allow_flagged=allow_flagged,
        )
    if as_json:
        typer.echo(json_text(result))
    else:
        show_tables([headroom_table(result), flows_table(result["policies"])])


@app.command(
    epilog=examples_text("ecn-marl spread storage-train-v0 --plot spread.png"),
)
def spread(
    scenario: Annotated[str, typer.Argument(help="Name of a scenario.")],
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
    from ecn_marl._files import Output, check_output, json_text, write_all
    from ecn_marl.experiments import spread as sp
    from ecn_marl.experiments.jobs import not_none, parse_fields
    from ecn_marl.render.spread_plot import spread_plot, spread_table

    if plot is not None:
        check_output("--plot", plot)
    options = not_none(load=load, max_steps=max_steps) | parse_fields(env or [])
    with progress("spread", "episodes", 183 * episodes) as show:
        result = sp.spread(scenario, options, episodes=episodes, seed=seed, progress=show)
    if plot is not None:
        write_all({plot: Output("wb", partial(write_bytes, spread_plot(result)))})
    if as_json:
        typer.echo(json_text(result))
    else:
        show_tables([spread_table(result)])


@app.command(
    name="reward-reference",
    epilog=examples_text("ecn-marl reward-reference my-scenario-v0 --out reference.json"),
)
def reward_reference(
    scenario: Annotated[str, typer.Argument(help="Name of a scenario.")],
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
    from ecn_marl._files import check_output, json_text
    from ecn_marl.baselines.search import Effort
    from ecn_marl.experiments import reward_references as rr
    from ecn_marl.experiments.jobs import parse_fields
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
    rr.write_references(out, references)
    if as_json:
        typer.echo(json_text(references))
    else:
        show_tables([reference_table(references)])


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

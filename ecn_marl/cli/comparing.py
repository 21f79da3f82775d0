"""Commands that compare: bench, tune, headroom, reward-reference."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from ecn_marl.cli import papers
from ecn_marl.cli.app import app
from ecn_marl.cli.bars import progress
from ecn_marl.cli.terminal import Env, Episodes, Json, Load, MaxSteps, Seed, show_tables

EPISODES, SEARCHED, SCORED = 128, 64, 16
"""Episodes of a score, of the end of a search, and of the score of a checkpoint."""

RATES = "adpg"
"""Name for `bench` of the tables of the paper ADPG."""

Searches = Annotated[
    int,
    typer.Option(help="Tuning episodes that searches for reference policies end with.", min=1),
]
Envs = Annotated[
    int | None, typer.Option(help="Environments stepped at once.", show_default="the recipe's")
]


@app.command()
def bench(
    scenarios: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SCENARIO]...",
            help="Scenarios; pet for the claims, figures and tables of that paper, all for every "
            "paper; adpg for the tables of that one, where flows are the agents.",
            show_default="restore-serve-v0",
        ),
    ] = None,
    algorithms: Annotated[
        str | None,
        typer.Option(
            "--algorithms",
            "--algos",
            metavar="NAME,NAME,…",
            help="Learners (ippo, mappo, pet, ddqn, c-acc, haecn, ddqn-fct, haecn-fct) and "
            "rules (SECN1, static:ports, oracle:ports, rule, dynamic:pi, random, …); static:best "
            "and oracle come in any case. With papers: rows (pet:published) or families (pet). "
            "With adpg: learners of rates, LEARNER:int8, senders.",
            show_default="ippo, mappo, the papers' learners, rule, SECN1, SECN2, random",
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(help="Seeds of every learner.", min=1)] = 5,
    steps: Annotated[
        int | None,
        typer.Option(
            help="Environment steps per seed of every learner.",
            min=1,
            show_default="the scenario's",
        ),
    ] = None,
    episodes: Annotated[
        int, typer.Option(help="Episodes that every policy and seed is scored on.", min=1)
    ] = EPISODES,
    sealed: Annotated[
        bool,
        typer.Option(
            "--sealed",
            help="Score on the sealed test episodes; needs a clean git checkout, in which "
            "results/USES.md gets a line.",
        ),
    ] = False,
    split: Annotated[
        str | None,
        typer.Option(
            help="Score in the unseen variants of a split instead: loads, sizes, rates, rtt, "
            "senders, topology, failures; the scenario is the split's."
        ),
    ] = None,
    eval_seed: Annotated[
        int, typer.Option(help="Which tuning episodes policies are scored on.", min=0)
    ] = 0,
    search_episodes: Searches = SEARCHED,
    eval_episodes: Annotated[
        int, typer.Option(help="Tuning episodes that a checkpoint is scored on.", min=1)
    ] = SCORED,
    max_steps: MaxSteps = None,
    envs: Envs = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the bench; what it has of it is not done again.",
            show_default="runs/bench, with papers runs/papers, with adpg runs/bench-adpg",
        ),
    ] = None,
    results: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write results.json here, too.")
    ] = None,
    small: Annotated[
        bool,
        typer.Option(
            "--small",
            help="With papers: their networks with 12 hosts, shorter times, fewer loads; tens of "
            "minutes each. With adpg: fewer, shorter scenarios; minutes.",
        ),
    ] = False,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="With papers: go on in a folder of another plan; what fits is not done again.",
        ),
    ] = False,
    largest: Annotated[
        int | None, typer.Option(help="With adpg: leave out scenarios of more flows.", min=1)
    ] = None,
    as_json: Json = False,
) -> None:
    """Train and score everything on scenarios, side by side; prints the table as Markdown.

    `bench pet` measures what that paper claims, its figures beside, and writes a report.
    `bench adpg` measures learners of rates and senders with their own rules in the scenarios of the
    paper ADPG, its numbers beside.
    """
    from ecn_marl._errors import bad_value
    from ecn_marl._files import Output, check_output, check_output_folder, json_text, write_all
    from ecn_marl.baselines.search import Effort
    from ecn_marl.experiments import bench as bn
    from ecn_marl.experiments import plan as pl
    from ecn_marl.experiments.jobs import not_none
    from ecn_marl.experiments.publish import TABLE, publish
    from ecn_marl.speed.machine import describe

    if results is not None:
        check_output("--results", results)
    if out is not None:
        check_output_folder("--out", out)
    if scenarios == [RATES]:
        unfit = not_none(
            steps=steps,
            episodes=None if episodes == EPISODES else episodes,
            sealed=sealed or None,
            split=split,
            eval_seed=eval_seed or None,
            search_episodes=None if search_episodes == SEARCHED else search_episodes,
            eval_episodes=None if eval_episodes == SCORED else eval_episodes,
            max_steps=max_steps,
            envs=envs,
        )
        _bench_rates(unfit, algorithms, seeds, (small, largest), out, results, as_json)
        return
    if papers.are_papers(scenarios):
        for name, value in not_none(sealed=sealed or None, split=split, largest=largest).items():
            raise bad_value(f"--{name}", value, "nothing with papers")
        numbers = not_none(
            steps=steps,
            episodes_asked=None if episodes == EPISODES else episodes,
            search_episodes=None if search_episodes == SEARCHED else search_episodes,
            eval_episodes=None if eval_episodes == SCORED else eval_episodes,
            eval_seed=eval_seed or None,
        )
        paper_options = papers.Options(
            names=list(scenarios or []),
            small=small,
            algorithms=algorithms,
            seeds=seeds,
            resume=resume,
            numbers=numbers,
            options=not_none(max_steps=max_steps),
            settings=not_none(envs=envs),
        )
        with _stops_in_one_line():
            papers.bench(paper_options, out or Path("runs/papers"), results, as_json)
        return
    for name, value in not_none(
        small=small or None, largest=largest, resume=resume or None
    ).items():
        raise bad_value(f"--{name}", value, f"nothing but with {RATES} or papers")
    out = out or Path("runs/bench")
    names = pl.DEFAULT if algorithms is None else pl.policy_names(algorithms)
    plan = pl.Plan(
        scenarios=tuple(scenarios or ([] if split else [pl.DEFAULT_SCENARIO])),
        policies=tuple(pl.policy_name(name) for name in names),
        out=out,
        seeds=seeds,
        steps=steps,
        episodes=episodes,
        sealed=sealed,
        eval_seed=eval_seed,
        split=split,
        options=not_none(max_steps=max_steps),
        settings=not_none(envs=envs),
        effort=Effort(episodes=search_episodes),
        eval_episodes=eval_episodes,
    )
    with _bars() as show, _stops_in_one_line():
        records = bn.bench(plan, show)
    facts = {"protocol": bn.protocol(plan), "machine": describe()}
    result, _ = publish(records, out, facts)
    text = json_text(result) + "\n"
    if results is not None:
        write_all({results: Output("w", lambda file: file.write(text))})
    typer.echo(text if as_json else (out / TABLE).read_text(encoding="utf-8"), nl=False)


def _bench_rates(
    unfit: Mapping[str, object],
    algorithms: str | None,
    seeds: int,
    scenarios: tuple[bool, int | None],
    out: Path | None,
    results: Path | None,
    as_json: bool,
) -> None:
    """`bench adpg`, where flows are the agents; `unfit` are given options that do not apply."""
    from ecn_marl._errors import bad_value
    from ecn_marl.cli import rate

    for name, value in unfit.items():
        raise bad_value(f"--{name.replace('_', '-')}", value, f"nothing with {RATES}")
    folder = out or Path("runs/bench-adpg")
    with _bars() as show, _stops_in_one_line():
        rate.bench(folder, results, algorithms, seeds, scenarios, as_json, show)


@app.command()
def tune(
    scenario: Annotated[str, typer.Argument(help="Name of a scenario.")],
    learner: Annotated[
        str,
        typer.Argument(
            metavar="LEARNER",
            help="ippo, mappo, ddqn-fct, haecn-fct, …, or a registered trainer that has a `space`.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder of the search; what it has is not repeated.")],
    trials: Annotated[int, typer.Option(help="Settings that are tried.", min=1)] = 20,
    steps: Annotated[int, typer.Option(help="Environment steps of each trial.", min=1)] = 100_000,
    episodes: Annotated[
        int, typer.Option(help="Tuning episodes that each trial is scored on.", min=1)
    ] = 32,
    seeds: Annotated[int, typer.Option(help="Seeds of each trial.", min=1)] = 2,
    max_steps: MaxSteps = None,
    envs: Envs = None,
    as_json: Json = False,
) -> None:
    """Random search over a learner's settings on tuning episodes; prints the winner's recipe."""
    from ecn_marl._files import check_output_folder, json_text
    from ecn_marl.experiments import tune as tn
    from ecn_marl.experiments.jobs import not_none

    check_output_folder("--out", out)
    search = tn.Search(
        *(scenario, learner, trials, steps, episodes, seeds),
        options=not_none(max_steps=max_steps),
        settings=not_none(envs=envs),
    )
    with progress(f"tune {learner}", "trials", trials) as show, _stops_in_one_line():
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


@app.command()
def headroom(
    scenario: Annotated[str, typer.Argument(help="Name of a scenario.")],
    episodes: Episodes = 64,
    search_episodes: Searches = SEARCHED,
    seed: Seed = 0,
    load: Load = None,
    max_steps: MaxSteps = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder that keeps the searches.", show_default="none")
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure what adaptivity can gain: the oracle per traffic phase against the best static."""
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
        )
    if as_json:
        typer.echo(json_text(result))
    else:
        show_tables([headroom_table(result), flows_table(result["policies"])])


@app.command(name="reward-reference")
def reward_reference(
    scenario: Annotated[str, typer.Argument(help="Name of a scenario.")],
    out: Annotated[
        Path, typer.Option(metavar="FILE", help="Where to write, for reward_reference=POLICY@FILE.")
    ],
    reward: Annotated[
        list[str] | None,
        typer.Option(
            help="A reward to measure. Repeatable.",
            show_default="the scenario's, slowdown-shaped, the recipes'",
        ),
    ] = None,
    episodes: Annotated[int, typer.Option(help="Episodes per policy.", min=2)] = 128,
    search_episodes: Searches = SEARCHED,
    seed: Seed = 0,
    env: Env = None,
    as_json: Json = False,
) -> None:
    """Measure what SECN1, the best static setting and the oracle earn, for reward_reference."""
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
def _stops_in_one_line() -> Iterator[None]:
    """Report errors that stop training early in one line."""
    from ecn_marl.baselines.training.loop import TrainingDiverged, TrainingInterrupted

    try:
        yield
    except TrainingDiverged as error:
        typer.echo(f"ecn-marl: {error}", err=True)
        raise typer.Exit(1) from None
    except TrainingInterrupted as error:
        typer.echo(f"ecn-marl: {error}; the same command goes on from there", err=True)
        raise typer.Exit(128 + error.signal) from None


@contextmanager
def _bars() -> Iterator[Any]:
    """A function that opens a progress bar for a task and closes the last one."""
    from contextlib import ExitStack

    with ExitStack() as stack:

        def show(task: str) -> Any:
            stack.close()
            move = stack.enter_context(progress(task, "%", 100.0))
            return lambda share, note="": move(100.0 * min(share, 1.0), note)

        yield show

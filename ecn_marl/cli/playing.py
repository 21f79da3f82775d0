"""Commands that show an episode: play, demo."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ecn_marl.cli.app import app, examples_text
from ecn_marl.cli.terminal import (
    Backend,
    Env,
    Overwrite,
    Records,
    RunLoad,
    RunMaxSteps,
    Seed,
    check_records,
)
from ecn_marl.render.bars import Move, progress

if TYPE_CHECKING:
    from ecn_marl.experiments.policies import Arena
    from ecn_marl.render.episode import Side

FPS = 10
"""Tuning intervals per second of a film, unless said otherwise."""


@app.command(
    epilog=examples_text(
        "ecn-marl play runs/ippo --out episode.html",
        "ecn-marl play static:best --beside runs/ippo --out both.gif",
    )
)
def play(
    policy: Annotated[
        str,
        typer.Argument(
            help="A policy: folder of a run (FOLDER#I: its learner I, counted from 0), FILE.npz, "
            "pretrained:NAME, static:…, dynamic:…, oracle, rule, random."
        ),
    ],
    out: Annotated[Path, typer.Option(help="File to write: .html, .gif or .mp4.")],
    beside: Annotated[
        str | None,
        typer.Option(
            metavar="POLICY",
            help="Show a second policy beside the first, in the same episode.",
            show_default="none",
        ),
    ] = None,
    scenario: Annotated[
        str | None,
        typer.Option(help="Name of a scenario.", show_default="the run's, else restore-serve-v0"),
    ] = None,
    seed: Seed = 0,
    load: RunLoad = None,
    max_steps: RunMaxSteps = None,
    env: Env = None,
    fps: Annotated[
        int | None,
        typer.Option(
            help="Speed of a film: tuning intervals per second (gif, mp4).",
            min=1,
            max=50,
            show_default=str(FPS),
        ),
    ] = None,
    backend: Backend = "fluid",
    records: Records = None,
    overwrite: Overwrite = False,
) -> None:
    """Record one episode to watch: as a web page with a time slider, a GIF or a film.

    With --records, its tables are those of `ecn-marl eval --episodes 1`, which runs it once more.
    """
    from dataclasses import replace

    from ecn_marl._errors import bad_value
    from ecn_marl._files import check_output
    from ecn_marl.experiments import evaluation as ev
    from ecn_marl.experiments import jobs as jb
    from ecn_marl.experiments import policies as po
    from ecn_marl.render import player

    check_output("--out", out)
    suffix = player.check_format("--out", out)
    if fps is not None and suffix == ".html":
        raise bad_value("--fps", fps, "an option of films, .gif and .mp4")
    check_records(records, overwrite)
    options = jb.not_none(load=load, max_steps=max_steps) | jb.parse_fields(env or [])
    names = [policy] if beside is None else [policy, beside]
    arena = replace(po.arena(names, scenario, **options), backend=backend)
    with progress("play", "episodes", len(names)) as show:
        sides = _played(arena, names, seed, show)
        if records is not None:
            show(len(names), "records")
            kept: dict[str, Any] = {
                "records": records,
                "overwrite": overwrite,
                "allow_flagged": True,
                "backend": backend,
                "show": lambda done, note="": None,
            }
            ev.evaluate(names, scenario, episodes=1, seed=seed, **kept, **options)
    _write_film(sides, out, seed, suffix, fps or FPS)


@app.command(
    epilog=examples_text(
        "ecn-marl demo",
        "ecn-marl demo --scenario moving-tenants-v0 --no-open",
    )
)
def demo(
    scenario: Annotated[
        str, typer.Option(help="Name of a scenario that a policy ships for.")
    ] = "restore-serve-v0",
    out: Annotated[Path, typer.Option(help="File to write, a web page.")] = Path("demo.html"),
    seed: Seed = 0,
    show_it: Annotated[
        bool, typer.Option("--open/--no-open", help="Open the page in the browser.")
    ] = True,
) -> None:
    """Watch the policy that ships beside the best static setting, in the browser.

    Both play the same episode. It is `ecn-marl play static:best --beside pretrained:…`.
    """
    import webbrowser

    from ecn_marl._errors import bad_value
    from ecn_marl._files import check_output
    from ecn_marl.baselines.exporting.files import PRETRAINED, pretrained_policies
    from ecn_marl.experiments import policies as po
    from ecn_marl.render import player

    check_output("--out", out)
    suffix = player.check_format("--out", out)
    # Of several, the last one. The generalist is of no scenario, and has no dash in its name.
    shipped = {n.rpartition("-")[0] + "-v0": n for n in pretrained_policies() if "-" in n}
    if scenario not in shipped:
        known = ", ".join(sorted(shipped))
        raise bad_value("--scenario", scenario, f"one that a policy ships for: {known}")
    names = ["static:best", PRETRAINED + shipped[scenario]]
    with progress("demo", "episodes", len(names)) as show:
        sides = _played(po.arena(names, scenario), names, seed, show)
    _write_film(sides, out, seed, suffix, FPS)
    if show_it:
        webbrowser.open(out.resolve().as_uri())


def _played(arena: Arena, names: list[str], seed: int, show: Move) -> list[Side]:
    """The first evaluation episode of a seed under each policy."""
    from ecn_marl.experiments import policies as po
    from ecn_marl.render.episode import Side, record

    sides: list[Side] = []
    for name in names:
        label = po.resolve(name).label
        show(len(sides), f"{label}: compiling")
        env, controller = arena.env(name), arena.controller(name)
        sides.append(Side(label, env, record(env, env.default_params, controller, seed)))
    return sides


def _write_film(sides: list[Side], out: Path, seed: int, suffix: str, fps: int) -> None:
    """Write the film, and print what is in it."""
    from ecn_marl._files import write_all
    from ecn_marl.render import player

    data = player.content(sides, seed, suffix, fps)
    write_all({out: data})
    first, size = sides[0], len(data) / 1e6
    flows = len(first.episode.flows)
    typer.echo(f"{out}: {first.env.horizon} intervals, {flows} flows, {size:.1f} MB")
    for side in sides:
        counts = player.accounts(side.episode).items()
        typer.echo(f"{side.label}: " + ", ".join(f"{name} {count:,.0f}" for name, count in counts))

"""Commands that make tables and figures from records: report, plot."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ecn_marl.cli.app import app, examples_text
from ecn_marl.cli.terminal import AllowFlagged, Json


@app.command(epilog=examples_text("ecn-marl report runs/bench"))
def report(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="DIR",
            help="Folder of a bench. Its records are the files scores/*.json and scores/*.json.gz "
            "in all its subfolders.",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Folder to write to.", show_default="the folder of the bench"
        ),
    ] = None,
    allow_flagged: AllowFlagged = False,
    as_json: Json = False,
) -> None:
    """Make tables, figures, JSON and report of a bench from its records. Nothing is simulated."""
    from ecn_marl._files import json_text
    from ecn_marl.experiments.publish import (
        TABLE,
        holds_papers,
        publish,
        read_records,
        stored_facts,
    )

    if out is not None and out.exists() and not out.is_dir():
        from ecn_marl._errors import bad_value

        raise bad_value("--out", str(out), "a folder")
    target = out or folder
    if holds_papers(folder):
        from ecn_marl.experiments.papers.publish import rebuild

        if allow_flagged:
            from ecn_marl._errors import bad_value

            raise bad_value("--allow-flagged", True, "no such option with papers")

        text, written = rebuild(folder, target)
        typer.echo(text if as_json else ", ".join(str(path) for path in written), nl=not as_json)
        return
    result, files = publish(read_records(folder), target, stored_facts(folder), allow_flagged)
    if as_json:
        typer.echo(json_text(result))
        return
    typer.echo((target / TABLE).read_text(encoding="utf-8"), nl=False)
    names = ", ".join(str(path.relative_to(target)) for path in files)
    typer.echo(f"{target}: {names}", err=True)


@app.command(
    epilog=examples_text(
        "ecn-marl plot runs/records --kind slowdown --out slowdown.pdf",
    )
)
def plot(
    folder: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="Folder of records, as --records writes them."),
    ],
    out: Annotated[Path, typer.Option(metavar="FILE", help="File to write: .pdf, .svg or .png.")],
    kind: Annotated[
        str,
        typer.Option(
            help="slowdown (against flow size: median, p95, p99), classes (distribution by size "
            "class), queues, thresholds (against time and queue), paired (J by episode) or phases."
        ),
    ] = "slowdown",
) -> None:
    """Draw a figure from records, as wide as a column of a paper. Nothing is simulated."""
    from ecn_marl._files import check_output
    from ecn_marl.experiments.results import labels_of, read_records
    from ecn_marl.render import record_plots as rp

    check_output("--out", out)
    tables = read_records(folder)
    if tables.missing:
        lost = sum(map(len, tables.missing.values()))
        typer.echo(f"ecn-marl: {folder}: {lost} chunks are missing; it was cut off", err=True)
    rp.save(rp.draw(tables, kind, labels_of(tables)), out)
    typer.echo(f"{out}: {kind}, {out.stat().st_size / 1000:.0f} KB")

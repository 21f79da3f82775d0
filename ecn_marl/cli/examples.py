"""The command that lists and copies the examples."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Annotated

import typer

from ecn_marl.cli.app import app, examples_text
from ecn_marl.cli.terminal import Json

KINDS = (".py", ".csv", ".toml")


def folder() -> Path:
    """Folder of the examples: in the package, or in a checkout beside it."""
    package = Path(__file__).resolve().parents[1]
    inside = package / "examples"
    return inside if inside.is_dir() else package.parent / "examples"


def example_files() -> list[Path]:
    """All files of the examples, relative to `folder`."""
    paths = (path for path in folder().rglob("*") if path.suffix in KINDS and path.is_file())
    return sorted((p.relative_to(folder()) for p in paths), key=lambda p: (len(p.parts), str(p)))


def title(name: Path) -> str:
    """One line about an example: the first line of a script or job, the size of a flow list."""
    with open(folder() / name, encoding="utf-8", newline="") as file:
        if name.suffix == ".csv":
            rows = list(csv.DictReader(file))
            hosts = 1 + max(int(row[end]) for row in rows for end in ("src", "dst"))
            last_ms = max(int(row["start_ns"]) for row in rows) / 1e6
            return f"{len(rows)} flows between {hosts} hosts within {last_ms:.0f} ms"
        line = file.readline().strip()
    return line.lstrip('#" ').removeprefix(f"{name.name}: ").removesuffix(".")


@app.command(epilog=examples_text("ecn-marl examples", "ecn-marl examples my-folder"))
def examples(
    out: Annotated[
        Path | None,
        typer.Argument(
            metavar="[DIR]",
            help="Folder to copy them to. It is created if it does not exist.",
            show_default="none, they are only listed",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """List the example scripts and flow lists, or copy them to a folder."""
    from ecn_marl._errors import bad_value
    from ecn_marl._files import json_text, write_all

    names = example_files()
    if out is not None:
        if out.exists() and not out.is_dir():
            raise bad_value("DIR", str(out), "a folder")
        existing = [str(name) for name in names if (out / name).exists()]
        if existing:
            others = f" and {len(existing) - 1} more of them" if len(existing) > 1 else ""
            raise bad_value("DIR", str(out), f"a folder without {existing[0]}{others}")
        for parent in {out / name.parent for name in names}:
            parent.mkdir(parents=True, exist_ok=True)
        write_all({out / name: (folder() / name).read_bytes() for name in names})
    rows = [{"name": str(name), "title": title(name)} for name in names]
    if as_json:
        typer.echo(json_text(rows))
        return
    width = max(len(row["name"]) for row in rows)
    for row in rows:
        typer.echo(f"{row['name']:<{width}}  {row['title']}")
    typer.echo(f"{out}: {len(rows)} files" if out else "ecn-marl examples DIR copies them.")

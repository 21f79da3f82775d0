"""The application: errors in one line, options of all commands."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup


class OneLineErrors(TyperGroup):
    """Commands whose errors about what the user gave are one line and exit code 2."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command; show a ValueError or OSError as one line unless `--traceback` is given."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise
        except (ValueError, OSError) as error:
            if ctx.params.get("traceback"):
                raise
            reason = str(error)
            if isinstance(error, OSError) and error.filename is not None:
                reason = f"{error.filename}: {error.strerror}"
            typer.echo("ecn-marl: " + " ".join(reason.split()), err=True)
            raise typer.Exit(2) from None


app = typer.Typer(
    cls=OneLineErrors,
    name="ecn-marl",
    help="Multi-agent reinforcement learning for automatic ECN tuning in data-centre networks.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> bool:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"ecn-marl {version('ecn-marl')}")
        raise typer.Exit
    return wanted


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show it.")
    ] = False,
    traceback: Annotated[
        bool, typer.Option("--traceback", help="Show where an error was raised.")
    ] = False,
) -> None:
    """Options of all commands."""

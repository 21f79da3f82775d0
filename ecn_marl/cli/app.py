"""The application: errors and warnings in one line, options of all commands."""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer
from typer.core import TyperGroup

from ecn_marl.errors import EcnMarlError, TrainingDiverged, VersionWarning
from ecn_marl.lanes.errors import InvalidValue as InvalidForLanes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

UNEXPECTED = 70
"""Exit code of an unexpected error (EX_SOFTWARE of sysexits.h)."""


def examples_text(*commands: str) -> str:
    """Examples for the end of a command's help, one per line."""
    return "\n".join(["Examples:" if len(commands) > 1 else "Example:", *commands])


def import_all(context: object, _: object, names: list[str] | None) -> list[str] | None:
    """Import modules and files, before the other options are read."""
    if names:
        from ecn_marl._imports import import_extension

        for name in names:
            import_extension(name)
    return names


def _help(command: Any, epilog: str, show: Callable[[Any], str], context: object) -> str:
    """The help of a command, with names that the user registered."""
    from ecn_marl._imports import added_names

    parts = [f"{kind}: {', '.join(names)}" for kind, names in added_names().items()]
    if parts:
        command.epilog = "\n\n".join([f"Registered: {'; '.join(parts)}.", epilog])
    return show(context)


IMPORT_HELP = (
    "Import a module, or a file NAME.py, that registers something of your own; docs/extending.md "
    "explains how. Repeatable. Works after every command, and before it."
)


Imports = Annotated[
    list[str] | None,
    typer.Option(
        "--import",
        metavar="MODULE",
        callback=import_all,
        is_eager=True,
        expose_value=False,
        help=IMPORT_HELP,
    ),
]


def _import_option() -> Any:
    """The option as a parameter of a command."""
    # Made from a dummy command, because typer turns annotations into parameters only there.
    source = typer.Typer(add_completion=False)

    @source.command()
    def command(imports: Imports = None) -> None:
        """Has the option."""

    return next(p for p in typer.main.get_command(source).params if p.name == "imports")


class OneLineErrors(TyperGroup):
    """Commands whose errors are one line; exit code 2 for errors in the user's input."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        commands: list[Any] = list(self.commands.values())
        # Added here, because typer has no option that every command gets, nor a hook for its help.
        for command in commands:
            command.params.append(_import_option())
            command.get_help = partial(_help, command, command.epilog or "", command.get_help)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the command line; `--ray` without an address is `--ray=local`."""
        following = [*args[1:], "-"][: len(args)]  # none after none
        alone = [a == "--ray" and b.startswith("-") for a, b in zip(args, following, strict=True)]
        args = [f"{a}=local" if bare else a for a, bare in zip(args, alone, strict=True)]
        return list(super().parse_args(ctx, args))

    def invoke(self, ctx: Any) -> Any:
        """Run a command; show an error as one line unless `--debug` is given."""
        try:
            with _one_line_warnings():
                return super().invoke(ctx)
        except (BrokenPipeError, typer.Exit, typer.Abort):  # click handles these itself
            raise
        except (
            Exception
        ) as error:  # also unexpected errors: their traceback is kept, see `_message_and_code`
            if ctx.params.get("debug") or hasattr(error, "exit_code"):  # click shows its own
                raise
            reason, code = _message_and_code(error)
            typer.echo("ecn-marl: " + " ".join(reason.split()), err=True)
            raise typer.Exit(code) from None


def _message_and_code(error: Exception) -> tuple[str, int]:
    """The message for an error, and the exit code."""
    if isinstance(error, TrainingDiverged):
        return str(error), 1
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}", 2
    if isinstance(error, EcnMarlError | InvalidForLanes | OSError):
        return str(error), 2
    where = f"the traceback is in {_keep_traceback(error)}, --debug shows it"
    return f"unexpected {type(error).__name__}: {error} ({where})", UNEXPECTED


def _keep_traceback(error: Exception) -> str:
    """Keep the traceback in a new file, so that a long run need not be repeated; its name."""
    import tempfile
    import traceback

    with tempfile.NamedTemporaryFile(
        "w", encoding="utf-8", prefix="ecn-marl-", suffix=".txt", delete=False
    ) as file:
        traceback.print_exception(error, file=file)
    return file.name


@contextmanager
def _one_line_warnings() -> Iterator[None]:
    """Show the package's warnings as one line, without the code that raised them."""
    original = warnings.showwarning

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if issubclass(category, VersionWarning):
            typer.echo(f"ecn-marl: warning: {message}", err=True)
        else:
            original(message, category, filename, lineno, file, line)

    warnings.showwarning = show
    try:
        yield
    finally:
        warnings.showwarning = original


app = typer.Typer(
    cls=OneLineErrors,
    name="ecn-marl",
    help="Multi-agent reinforcement learning for automatic ECN tuning in data-centre networks.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(show: bool) -> bool:
    if show:
        from importlib.metadata import version

        typer.echo(f"ecn-marl {version('ecn-marl')}")
        raise typer.Exit
    return show


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
    debug: Annotated[
        bool,
        typer.Option(
            "--debug", "--traceback", help="Print the traceback of an error instead of one line."
        ),
    ] = False,
    imports: Annotated[
        list[str] | None, typer.Option("--import", metavar="MODULE", help=IMPORT_HELP)
    ] = None,
) -> None:
    """Options of all commands."""
    import_all(None, None, imports)

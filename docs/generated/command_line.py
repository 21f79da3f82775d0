"""The page of the command line."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

from generated.markdown import markdown


def commands() -> str:
    """The command line, every command with its options and examples."""
    import typer

    from ecn_marl.cli import app

    # Any: typer has its own copy of click, whose classes it does not export.
    group: Any = typer.main.get_command(app)
    return "\n".join(_command(name, command) for name, command in group.commands.items())


def _command(name: str, command: Any) -> str:
    """A command: how it is called, what it does, its options and examples."""
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    usage = " ".join(a.metavar or a.name.upper() for a in arguments)
    line = " ".join(part for part in ("ecn-marl", name, usage, "[OPTIONS]") if part)
    rows = []
    for p in command.params:
        if p.name == "help":
            continue
        label = p.metavar or (p.name.upper() if p in arguments else "")
        names = ", ".join((*p.opts, *p.secondary_opts))
        flags = label if p in arguments else f"{names} {label}".strip()
        rows.append((f"`{flags}`", _default(p), p.help or ""))
    parts = [f"## {name}\n", f"    {line}\n", inspect.cleandoc(command.help or "") + "\n"]
    parts += [markdown(("option", "default", "what it does"), rows) + "\n"]
    return "\n".join([*parts, *_examples(command.epilog or "")])


def _examples(epilog: str) -> Iterable[str]:
    """The end of a command's help, its commands as a block of code."""
    title, *examples = epilog.splitlines()
    block = "\n".join(f"    {example}" for example in examples)
    return (f"{title}\n", f"{block}\n")


def _default(parameter: Any) -> str:
    """The default of an option, as the help shows it."""
    shown = parameter.show_default
    if isinstance(shown, str):
        return shown
    value = parameter.default
    if parameter.required:
        return "required"
    if value is None or value is False or callable(value) or value == ():
        return ""
    return "on" if value is True else f"{value:g}" if isinstance(value, float) else str(value)

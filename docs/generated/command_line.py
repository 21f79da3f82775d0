"""The page of the command line."""

from __future__ import annotations

import inspect
from typing import Any

from generated.markdown import markdown


def commands() -> str:
    """The command line, every command with its options."""
    import typer

    from ecn_marl.cli import app

    group: Any = typer.main.get_command(app)
    parts = []
    for name, command in group.commands.items():
        arguments = [p for p in command.params if p.param_type_name == "argument"]
        usage = " ".join(a.metavar or a.name.upper() for a in arguments)
        line = " ".join(part for part in ("ecn-marl", name, usage, "[OPTIONS]") if part)
        parts.append(f"## {name}\n\n    {line}\n")
        parts.append(inspect.cleandoc(command.help or "") + "\n")
        rows = []
        for p in command.params:
            if p.name == "help":
                continue
            label = p.metavar or (p.name.upper() if p in arguments else "")
            flags = label if p in arguments else " ".join((", ".join(p.opts), label)).strip()
            rows.append((f"`{flags}`", _default(p), p.help or ""))
        parts.append(markdown(("option", "default", "what it does"), rows) + "\n")
    return "\n".join(parts)


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

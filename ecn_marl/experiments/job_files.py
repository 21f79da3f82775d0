"""Jobs as TOML files: read by `ecn-marl train --config run.toml`, and written for every run.

    algorithm = "ippo"
    scenario = "websearch-star-v0"
    steps = 200000
    imports = ["my_reward.py"]        # as --import; paths from the folder of the file

    [options]                         # of `ecn_marl.make`, as --features, --reward, --env, …
    reward = "my-reward"

    [settings]                        # of the trainer, as --set
    hidden = [64, 64]

Options of the command line override the file.
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import fields
from inspect import signature
from pathlib import Path
from typing import Any

from ecn_marl._checks import check_value, rules_of
from ecn_marl._errors import bad_value, unknown_name
from ecn_marl._imports import import_extension
from ecn_marl.envs.registry import make, out_of_view
from ecn_marl.envs.scenario import Scenario
from ecn_marl.experiments.jobs import Job

FILE = "run.toml"
"""Name of the file in a run's folder that holds its job."""

IMPORTS = "imports"


def read_job(path: Path) -> dict[str, Any]:
    """The fields of a job in a file. Its imports are imported.

    Args:
        path: a TOML file, see the module's docstring.

    Raises:
        ValueError: it is no TOML, or has an unknown field or one of another type.
    """
    try:
        job_fields = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise bad_value("--config", str(path), f"a TOML file ({error})") from None
    names = [f.name for f in fields(Job)]
    for name in job_fields:
        if name not in (*names, IMPORTS):
            raise unknown_name(f"field of {path.name}", name, (*names, IMPORTS))
    for name, rule in rules_of(Job).items():
        if name in job_fields:
            check_value(name, job_fields[name], rule)
    for name, kind in {"options": dict, "settings": dict, "randomise": dict, IMPORTS: list}.items():
        if not isinstance(job_fields.get(name, kind()), kind):
            expected = "a list of modules and files" if kind is list else f"a table, [{name}]"
            raise bad_value(f"{name} in {path.name}", job_fields[name], expected)
    for module in job_fields.pop(IMPORTS, []):
        file = path.parent / module
        import_extension(str(file) if module.endswith(".py") and file.is_file() else module)
    options = [*(f.name for f in fields(Scenario)), *signature(make).parameters]
    for name in job_fields.get("options", {}):
        if name not in options:
            raise unknown_name(f"option in {path.name}", name, options)
    return job_fields


def toml_of(job: Job, imports: Sequence[str]) -> str:
    """A job as the text of a TOML file.

    Args:
        job: the job.
        imports: modules and files that it needs.
    """
    values = {f.name: getattr(job, f.name) for f in fields(Job)}
    options = dict(job.options)
    # The file counts intervals of the scenario, as the command line does.
    values["options"] = options | {
        name: x for name, x in out_of_view(job.scenario, options).items() if name == "max_steps"
    }
    values[IMPORTS] = list(imports)
    plain = [f"{name} = {_toml(x)}" for name, x in values.items() if not _left_out(x)]
    # Tables come last: in TOML, a key belongs to the table above it.
    tables = []
    for name, value in values.items():
        if isinstance(value, dict) and value:
            rows = [f"{_key(n)} = {_toml(x)}" for n, x in value.items() if x is not None]
            tables += ["", f"[{name}]", *rows]
    return "\n".join((*plain, *tables)) + "\n"


def _left_out(value: object) -> bool:
    """Whether a value has no line of its own: tables follow, and TOML has no null."""
    return value is None or isinstance(value, dict) or value == []


def _key(name: str) -> str:
    return name if re.fullmatch(r"[\w-]+", name, re.ASCII) else json.dumps(name)


def _toml(value: object) -> str:
    """A JSON value in TOML syntax."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(n)} = {_toml(x)}" for n, x in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # TOML has inf and nan, JSON has not
    if not isinstance(value, bool | int | float | str):
        raise bad_value("job", value, "what a TOML file can hold")
    # JSON would escape characters beyond 16 bits as surrogate pairs, which TOML refuses.
    return json.dumps(value, ensure_ascii=False)

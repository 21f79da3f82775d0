"""WRED profiles of SONiC: read from `config_db.json`, written as JSON patches (RFC 6902).

A profile is an entry of the table `WRED_PROFILE`; numbers are texts there, thresholds in bytes and
probabilities in percent. `config apply-patch FILE` applies a patch. It may split and reorder what
is in one patch, so every change of a threshold is a patch of its own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ecn_marl._errors import bad_value, unknown_name
from ecn_marl.errors import InvalidInput
from ecn_marl.sim.formats.wred import MAX, MIN, PERCENT, WredProfile, changes

TABLE = "WRED_PROFILE"

FIELDS = {
    MIN: "green_min_threshold",
    MAX: "green_max_threshold",
    PERCENT: "green_drop_probability",
}

SWITCHED_ON = {"ecn": "ecn_all", "wred_green_enable": "true"}
"""Fields of a new profile beside its numbers: it marks, and does so for green packets."""

NONE = "ecn_none"

Patch = list[dict[str, Any]]


def read_profiles(path: Path) -> dict[str, WredProfile]:
    """The WRED profiles of a configuration, by name.

    Args:
        path: a JSON file with the table `WRED_PROFILE`, e.g. `/etc/sonic/config_db.json`.

    Raises:
        InvalidInput: no JSON, no such table or no profile in it, or a profile that lacks a number,
            has one out of range, or does not mark; the message names file, profile and field.
        OSError: the file cannot be opened.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path}: not JSON: {error}") from None
    table = content.get(TABLE) if isinstance(content, dict) else None
    if not isinstance(table, dict) or not table:
        raise InvalidInput(f"{path}: no profile; expected a table {TABLE} with at least one")
    return {name: _profile(f"{path}: {TABLE}|{name}", entry) for name, entry in table.items()}


def read_profile(path: Path, name: str) -> WredProfile:
    """One profile of a configuration.

    Args:
        path: see `read_profiles`.
        name: its name; empty for the only one.

    Raises:
        InvalidInput: see `read_profiles`; no such profile, or several and no name.
        OSError: the file cannot be opened.
    """
    profiles = read_profiles(path)
    if not name and len(profiles) > 1:
        allowed = f"#PROFILE behind the file, one of {', '.join(sorted(profiles))}"
        raise bad_value(f"{path}: profile", name, allowed)
    if name and name not in profiles:
        raise unknown_name(f"profile in {path}:", name, profiles)
    return profiles[name or next(iter(profiles))]


def _profile(place: str, entry: object) -> WredProfile:
    if not isinstance(entry, Mapping):
        raise bad_value(place, entry, "an object with the fields of a profile")
    if entry.get("ecn") == NONE:
        raise bad_value(f"{place}: ecn", NONE, "a profile that marks: this one drops")
    values = {}
    for name, field in FIELDS.items():
        text = str(entry.get(field, ""))
        if not (text.isascii() and text.isdecimal()):
            raise bad_value(f"{place}: {field}", entry.get(field), "a whole number >= 0")
        values[name] = int(text)
    profile = WredProfile(**values)
    if not 0 < profile.kmin <= profile.kmax:
        received = (profile.kmin, profile.kmax)
        fields = f"{FIELDS[MIN]}, {FIELDS[MAX]}"
        raise bad_value(f"{place}: {fields}", received, "0 < smallest <= largest, bytes")
    if not 1 <= profile.percent <= 100:
        raise bad_value(f"{place}: {FIELDS[PERCENT]}", profile.percent, "1 to 100 %")
    return profile


def added(name: str, profile: WredProfile) -> Patch:
    """The patch that adds a profile, or replaces it whole."""
    numbers = {field: str(getattr(profile, key)) for key, field in FIELDS.items()}
    return [{"op": "add", "path": pointer(TABLE, name), "value": {**SWITCHED_ON, **numbers}}]


def changed(name: str, before: WredProfile, after: WredProfile) -> list[Patch]:
    """The patches that change a profile, in the order in which to apply them.

    Kmin never exceeds Kmax on the way, see `wred.changes`.
    """
    return [
        [{"op": "replace", "path": pointer(TABLE, name, FIELDS[key]), "value": str(value)}]
        for key, value in changes(before, after)
    ]


def bound(port: str, queue: int, name: str) -> Patch:
    """The patch that gives a queue of a port a profile."""
    return [
        {"op": "add", "path": pointer("QUEUE", f"{port}|{queue}", "wred_profile"), "value": name}
    ]


def pointer(*parts: str) -> str:
    """A JSON pointer (RFC 6901)."""
    return "".join("/" + part.replace("~", "~0").replace("/", "~1") for part in parts)

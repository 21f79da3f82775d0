"""The running code: its git checkout, and a hash of the sources that results depend on."""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import ecn_marl
from ecn_marl._errors import bad_value
from ecn_marl._imports import needed_imports, source_digests

PARTS = ("lanes", "sim", "envs", "wrappers", "baselines", "experiments")
"""Folders of the package that scores depend on; tables, pictures and commands are left out."""

SEARCHED = (
    *("lanes", "sim", "envs", "wrappers", "baselines/evaluation"),
    *("baselines/oracle.py", "baselines/search.py"),
)
"""What the search for a reference policy runs: other learners or tables change none."""

REFERENCES = "reward_references"
"""Folder of measured references of rewards, which a search by completion times does not read."""

SUFFIXES = (".py", ".csv", ".json", ".npz")

RESULTS = "results"
"""Folder of a checkout that only holds measured results; it may have changes."""


def package_folder() -> Path:
    """The package's folder."""
    return Path(ecn_marl.__file__).resolve().parent


@cache
def sources_hash(parts: Sequence[str] = PARTS, without: str = "") -> str:
    """Hash of the installed package's sources.

    Args:
        parts: folders and files of the package.
        without: name of a folder that is left out wherever it is.
    """
    folder, digest = package_folder(), hashlib.sha256()
    for part in parts:
        place = folder / part
        # A folder's own order differs by machine.
        for path in [place] if place.is_file() else sorted(place.rglob("*")):
            name = path.relative_to(folder)
            if path.suffix in SUFFIXES and path.is_file() and without not in name.parts:
                digest.update(name.as_posix().encode() + b"\0")
                digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


def code() -> dict[str, str]:
    """The running code: versions of the package and of jax, and the hash of the sources."""
    return _versions() | {"sources": sources_hash()}


def searching_code() -> dict[str, str]:
    """The same of a search: the hash is that of `SEARCHED`."""
    return _versions() | {"sources": sources_hash(SEARCHED, REFERENCES)}


def _versions() -> dict[str, str]:
    return {name: version(name) for name in ("ecn-marl", "jax")}


def own_sources(*facts: object) -> dict[str, dict[str, str]]:
    """Hashes of the user's files that registered names in `facts`, as `own`; empty without any."""
    digests = source_digests(needed_imports(*facts))
    return {"own": digests} if digests else {}


def flow_list(options: Mapping[str, Any]) -> dict[str, str]:
    """Hash of the flow list that options of `make` name, as `flows_sha256`; empty without one.

    The file may change while its name stays.
    """
    path = options.get("flows")
    if path is None:
        return {}
    return {"flows_sha256": hashlib.sha256(Path(path).read_bytes()).hexdigest()}


def settings_hash(settings: object) -> str:
    """Short hash of JSON-able settings."""
    text = json.dumps(settings, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Checkout:
    """A git checkout.

    Attributes:
        root: its top folder.
        commit: the commit that is checked out.
    """

    root: Path
    commit: str

    def changes(self) -> list[str]:
        """Changes since the commit, in lines of `git status --porcelain`, without `results/`."""
        status = ("status", "--porcelain", "--untracked-files=all", "--", ".")
        listing = _git(self.root, *status, f":(exclude){RESULTS}")
        return [] if listing is None else listing.splitlines()

    def check_clean(self) -> None:
        """Raise a ValueError if there are changes since the commit."""
        changes = self.changes()
        if changes:
            others = f" and {len(changes) - 3} more" if len(changes) > 3 else ""
            shown = ", ".join(line.strip() for line in changes[:3]) + others
            raise bad_value("git tree", shown, "no changes outside of results/: commit them first")


def checkout(folder: Path | None = None) -> Checkout:
    """The git checkout that holds the package.

    Args:
        folder: where to look; the package's folder if None.

    Raises:
        ValueError: it is not in a checkout that tracks it.
    """
    start = package_folder() if folder is None else folder
    root = _git(start, "rev-parse", "--show-toplevel")
    commit = _git(start, "rev-parse", "HEAD")
    tracked = _git(start, "ls-files", "--", ".")
    if not root or not commit or not tracked:
        raise bad_value("package", str(start), "a folder of a git checkout that tracks it")
    return Checkout(Path(root), commit)


def _git(folder: Path, *args: str) -> str | None:
    """Output of a git command; None if it fails or git is not installed."""
    try:
        process = subprocess.run(["git", *args], cwd=folder, capture_output=True, text=True)
    except OSError:
        return None
    # Only line ends are cut off: a line of `git status` may begin with a space.
    return process.stdout.rstrip("\n") if process.returncode == 0 else None

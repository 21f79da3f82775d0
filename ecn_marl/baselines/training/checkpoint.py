"""Checkpoints of the whole training state (orbax), beside the configuration that made it.

A checkpoint is written to a folder of another name, which is renamed when it is complete, digests
included. So a process may be killed at any moment: every folder whose name is a number can be
restored. The latest checkpoints are kept, and the one with the best merit; of learners that are
trained together, the best one of each.

A checkpoint has the SHA-256 of its files (`sha256.json`). Orbax restores a file with a flipped bit
as other weights, silently. Here that is an error, which names the last good checkpoint. A folder
without digests is no checkpoint, and an error as well.

Saving is synchronous. Orbax's asynchronous manager makes the folder of a checkpoint in the
background. If that fails (the run's folder was moved, say), its writing threads wait for twenty
minutes, and the interpreter waits for them when it exits. When the calling thread makes the folder,
the error is raised there, and later saves and the exit work as usual.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import math
import os
import shutil
import warnings
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils
from jaxtyping import PyTree

from ecn_marl._checks import Whole, check_value
from ecn_marl._errors import bad_value, unknown_name
from ecn_marl._files import write_all
from ecn_marl._imports import restore_imports
from ecn_marl.errors import DamagedCheckpoint, DamagedFile, InvalidValue, VersionWarning

CONFIG = "config.json"
FOLDER = "checkpoints"
BEST = "best.json"
DIGESTS = "sha256.json"
DIVERGED = "diverged"
DELETED = ".dead"
PARTIAL = ".partial"
WHICH = ("latest", "best")

RUN: Mapping[str, type] = {"algorithm": str, "settings": dict, "steps": int, "seed": int}
"""Fields of the configuration of any run, and their types."""

RUN_OF_PORTS: Mapping[str, type] = {**RUN, "scenario": str, "options": dict, "seeds": int}
"""Fields for a run whose agents are ports."""

VERSIONS = ("ecn-marl", "jax")
"""Packages whose versions can change the results of a run."""


FILE_SYSTEM_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES)
"""Errors that are reported in the words of the file system."""


class Best(NamedTuple):
    """The checkpoint with a learner's best merit."""

    step: int
    merit: float


class Checkpoints:
    """Checkpoints of one run, in `<run>/checkpoints/<step>`: the latest and the best ones."""

    def __init__(self, run: str | Path, keep: int = 2) -> None:
        """Open the folder of a run.

        Args:
            run: folder of the run.
            keep: number of latest checkpoints kept.
        """
        self.folder = Path(run).absolute() / FOLDER
        self.keep = keep
        logging.getLogger("absl").addFilter(_is_shown)  # a second time it has no effect
        self._writer = ocp.Checkpointer(ocp.StandardCheckpointHandler())
        self._best = _read_best(self.folder / BEST)

    def save(self, step: int, state: PyTree, merits: Sequence[float] | None = None) -> None:
        """Save a pytree; typed PRNG keys included. Returns when it is on disk.

        Args:
            step: number of the checkpoint; one that exists is replaced.
            state: the pytree.
            merits: merit of each learner; of each, the checkpoint with its highest merit is kept.

        Raises:
            OSError: it cannot be written; former checkpoints remain.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        self._write(self.folder / str(step), state)
        if merits is not None:
            self.note_merits(step, merits)
        self._prune()
        if jax.process_count() > 1:
            # No process goes on before the first one has noted merits and deleted old checkpoints.
            multihost_utils.sync_global_devices(f"checkpoint {step}")

    def note_merits(self, step: int, merits: Sequence[float]) -> None:
        """Remember the merits of a saved checkpoint; of each learner the highest is kept."""
        best = self._best or [Best(step, -math.inf) for _ in merits]
        self._best = [
            Best(step, float(merit)) if merit > old.merit else old
            for old, merit in zip(best, merits, strict=True)
        ]
        if self._best != best and jax.process_index() == 0:
            write_json(self.folder / BEST, [record._asdict() for record in self._best])

    def save_diverged(self, step: int, state: PyTree) -> Path:
        """Save a state that has diverged, for inspection; it is no checkpoint."""
        path = self.folder.parent / DIVERGED / str(step)
        self._write(path, state)
        return path

    def _write(self, path: Path, state: PyTree) -> None:
        args = ocp.args.StandardSave(_stored(state))
        partial = path.with_name(path.name + PARTIAL)
        try:
            self._writer.save(partial, args=args, force=True)
            if jax.process_index() == 0:
                write_json(partial / DIGESTS, _digests(partial))
                _delete(path)
                partial.rename(path)
        except (ValueError, RuntimeError, OSError) as error:  # tensorstore raises no OSError
            self.clean()  # frees the space of a partial checkpoint on a full disk
            if isinstance(error, OSError) and error.filename is not None:
                raise
            raise OSError(f"checkpoint {path} cannot be written: {_reason(error)}") from error

    def _prune(self) -> None:
        """Delete old checkpoints."""
        if jax.process_index() != 0:
            return
        best = {record.step for record in self._best}
        for step in self.steps[: -self.keep]:
            if step not in best:
                _delete(self.folder / str(step))

    @property
    def steps(self) -> list[int]:
        """Steps of the complete checkpoints, in order."""
        if not self.folder.is_dir():
            return []
        return sorted(int(path.name) for path in self.folder.iterdir() if path.name.isdecimal())

    @property
    def latest(self) -> int | None:
        """Step of the latest checkpoint, None if there is none."""
        return max(self.steps, default=None)

    def best(self, learner: int = 0) -> Best | None:
        """A learner's best checkpoint; None if none was evaluated or it was deleted."""
        best = self._best[learner] if self._best else None
        return best if best is not None and best.step in self.steps else None

    def find(self, which: str = "latest", learner: int = 0) -> int:
        """Step of the latest or the best checkpoint.

        Args:
            which: `latest`, or `best` (the latest if none was evaluated).
            learner: number of the learner, of those that are trained together.

        Raises:
            ValueError: there is no checkpoint, or no such name.
        """
        if which not in WHICH:
            raise unknown_name("checkpoint", which, WHICH)
        latest = self.latest
        if latest is None:
            raise bad_value("checkpoint", str(self.folder), "a folder with a saved checkpoint")
        best = self.best(learner) if which == "best" else None
        return latest if best is None else best.step

    def clean(self) -> None:
        """Delete the remains of interrupted saves."""
        if jax.process_index() == 0 and self.folder.is_dir():
            for path in self.folder.iterdir():
                if path.is_dir() and not path.name.isdecimal():
                    shutil.rmtree(path, ignore_errors=True)

    def restore(self, like: PyTree, step: int | None = None) -> PyTree:
        """A saved state.

        Args:
            like: a pytree of the same structure, arrays or `jax.ShapeDtypeStruct`; restored arrays
                get its shardings, or lie on the first device where it has none.
            step: its number; the latest if None.

        Raises:
            ValueError: there is no checkpoint, or it is not of this structure.
            DamagedCheckpoint: its files have changed since they were saved, or have no digests.
        """
        step = self.find() if step is None else step
        path = self.folder / str(step)
        if (flaw := _flaw(path)) is not None:
            raise self._damaged(step, flaw)
        first_device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
        shardings = {name: getattr(x, "sharding", None) or first_device for name, x in _named(like)}
        abstract = {
            name: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=shardings[name])
            for name, x in _stored(like).items()
        }
        try:
            restored = self._writer.restore(path, args=ocp.args.StandardRestore(abstract))
        except Exception as error:  # orbax, tensorstore, zstd and json have no error in common
            raise self._unreadable(step, error) from error
        for name, x in _named(like):
            if name not in restored:
                restored[name] = jax.device_put(np.zeros(x.shape, x.dtype), shardings[name])
        leaves = [restored[name] for name, _ in _named(like)]
        return jax.tree.unflatten(jax.tree.structure(like), leaves)

    def _unreadable(self, step: int, error: Exception) -> InvalidValue:
        """The error for a checkpoint that orbax does not restore, though its files are intact."""
        reason = " ".join(str(error).split(" [source locations")[0].split())[:300]
        allowed = f"one of the same algorithm, network and settings ({reason})"
        return bad_value("checkpoint", str(self.folder / str(step)), allowed)

    def _damaged(self, step: int, flaw: str) -> DamagedCheckpoint:
        """The error for a damaged checkpoint; offers the last good one."""
        path = self.folder / str(step)
        good = [n for n in self.steps if n != step and _flaw(self.folder / str(n)) is None]
        hint = "there is no other one that is whole"
        if good:
            hint = f"the last good one is {good[-1]}: delete {path} to go on from there"
        return DamagedCheckpoint(f"checkpoint {path} is damaged: {flaw}; {hint}")

    def close(self) -> None:
        """Release the folder."""
        self._writer.close()


def _delete(path: Path) -> None:
    """Delete a checkpoint if it exists; renamed first, so that none is there in part."""
    dead = path.with_name(path.name + DELETED)
    if dead.exists():  # of a process that was killed
        shutil.rmtree(dead)
    if path.exists():
        path.replace(dead)
        shutil.rmtree(dead, ignore_errors=True)


def _reason(error: Exception) -> str:
    """Why a checkpoint cannot be written: the error of the file system, without its context."""
    text = str(error).split(" [source locations")[0]
    system_reasons = (os.strerror(code) for code in FILE_SYSTEM_ERRORS)
    return next((reason for reason in system_reasons if reason in text), text)


def _is_shown(record: logging.LogRecord) -> bool:
    """Whether a line of orbax's log is shown: all but failures of its writing threads.

    They log a traceback each (70 to 150 lines for a full disk), and the error is raised as well.
    """
    return "_SignalingThread.run() raised an exception" not in record.getMessage()


def _digests(path: Path) -> dict[str, str]:
    """SHA-256 of every file below a folder, by its path in it."""
    digests = {}
    for file in sorted(path.rglob("*")):
        if file.is_file() and file.name != DIGESTS:
            with file.open("rb") as content:
                digest = hashlib.file_digest(content, "sha256")
            digests[file.relative_to(path).as_posix()] = digest.hexdigest()
    return digests


def _flaw(path: Path) -> str | None:
    """What is wrong with the files of a checkpoint; None if nothing is."""
    if not (path / DIGESTS).is_file():
        without = f"it has no {DIGESTS}, so it is not known to be whole"
        return without if path.is_dir() else "there is no such folder"
    try:
        expected, current = json.loads((path / DIGESTS).read_bytes()), _digests(path)
        missing = [name for name in expected if name not in current]
        changed = [name for name in current if expected.get(name, current[name]) != current[name]]
    except (ValueError, TypeError, AttributeError):
        return f"{DIGESTS} cannot be read"
    if missing:
        return f"{missing[0]} is missing"
    return f"{changed[0]} is not what was saved (by its SHA-256)" if changed else None


def _read_best(path: Path) -> list[Best]:
    """The best checkpoint of each learner; empty if none was evaluated."""
    if not path.is_file():
        return []
    try:
        rows = _read_json(path, list)
        best = [Best(int(row["step"]), float(row[_merit_in(row)])) for row in rows]
    except (TypeError, KeyError, ValueError, OverflowError):
        best = []
    if not best:
        hint = "a list of steps and merits (delete it to go on without them)"
        raise DamagedFile(f"{path} is damaged: expected {hint}")
    return best


def _merit_in(row: Mapping[str, object]) -> str:
    """Name of the merit in a row; files of versions up to 0.2 call it `score`."""
    return "score" if "score" in row else "merit"


def _read_json(path: Path, kind: type) -> Any:
    """Content of a JSON file.

    Raises:
        ValueError: it is no JSON, or not of this kind.
    """
    content = json.loads(path.read_bytes())
    if not isinstance(content, kind):
        raise ValueError(f"not a {kind.__name__}")
    return content


def _named(state: PyTree) -> list[tuple[str, jax.Array | jax.ShapeDtypeStruct]]:
    """Leaves of a pytree with the paths that lead to them, e.g. `actor.params.Dense_0.bias`."""
    leaves = jax.tree_util.tree_flatten_with_path(state)[0]
    return [(jax.tree_util.keystr(path, simple=True, separator="."), x) for path, x in leaves]


def _stored(state: PyTree) -> dict[str, jax.Array | jax.ShapeDtypeStruct]:
    """The leaves to write; orbax does not accept arrays without elements."""
    return {name: x for name, x in _named(state) if x.size}


def write_json(path: Path, content: object) -> None:
    """Write a JSON file whole or not at all."""
    text = json.dumps(content, indent=2) + "\n"
    write_all({path: text})


def read_config(run: str | Path, needed: Mapping[str, type] = RUN_OF_PORTS) -> dict[str, Any]:
    """The configuration of a run; modules outside of the package that it needs are imported.

    Args:
        run: its folder.
        needed: fields that it must have, and their types.

    Raises:
        ValueError: not the folder of a run, or something that it needs cannot be imported.
        DamagedFile: its configuration is not one.
    """
    path = Path(run) / CONFIG
    if not path.is_file():
        raise bad_value("run", str(run), f"a folder with a {CONFIG}, as `ecn-marl train` makes it")
    try:
        config: dict[str, Any] = _read_json(path, dict)
    except ValueError:
        raise DamagedFile(f"{path} is damaged: expected a JSON object, as `train` writes") from None
    for name, kind in needed.items():
        if not isinstance(config.get(name), kind) or isinstance(config[name], bool):
            expected = f"{name} of type {kind.__name__}, as `train` writes"
            raise DamagedFile(f"{path} is damaged: expected {expected}, found {config.get(name)!r}")
    if "score_by" in config:  # of versions up to 0.2
        config["best_by"] = config.pop("score_by")
    imports = config.get("imports", {})
    if not isinstance(imports, dict):
        raise DamagedFile(f"{path} is damaged: expected imports of type dict, found {imports!r}")
    restore_imports(imports, f"run {run}")
    return config


def config_to_resume(
    run: str | Path, steps: int | None, needed: Mapping[str, type] = RUN_OF_PORTS
) -> dict[str, Any]:
    """The configuration of a run that goes on.

    Args:
        run: its folder.
        steps: environment steps in all; as many as it was started with if None.
        needed: see `read_config`.

    Raises:
        ValueError: no integer, or fewer steps than it was started with; or see `read_config`.
        DamagedFile: see `read_config`.
    """
    config = read_config(run, needed)
    warn_of_versions(run, config)
    check_value("steps", steps, Whole(high=2**53, none=True))
    if steps is not None and steps < config["steps"]:
        allowed = f"at least {config['steps']}, what the run was started with"
        raise bad_value("steps", steps, allowed)
    return config | {"steps": config["steps"] if steps is None else int(steps)}


def warn_of_versions(run: str | Path, config: Mapping[str, object]) -> None:
    """Warn (`VersionWarning`) where jax or ecn-marl are not those that a run was started with."""
    saved_versions, changes = config.get("versions"), []
    for name in VERSIONS:
        saved = saved_versions.get(name) if isinstance(saved_versions, dict) else None
        if saved is not None and saved != version(name):
            changes.append(f"{name} {saved} (here {version(name)})")
    if changes:
        consequence = "results may differ, and resumed it does not become what it would have been"
        warnings.warn(f"{run} was made with {', '.join(changes)}: {consequence}", VersionWarning, 3)

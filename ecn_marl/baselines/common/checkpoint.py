"""Checkpoints of the whole training state (orbax), beside the configuration that made it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp

from ecn_marl._errors import bad_value

CONFIG = "config.json"
FOLDER = "checkpoints"


class Checkpoints:
    """Checkpoints of one run, in `<run>/checkpoints/<step>`; the latest ones are kept."""

    def __init__(self, run: str | Path, keep: int = 2) -> None:
        """Open the folder of a run.

        Args:
            run: folder of the run.
            keep: number of checkpoints kept.
        """
        self.folder = Path(run).absolute() / FOLDER
        self._manager = ocp.CheckpointManager(
            self.folder, options=ocp.CheckpointManagerOptions(max_to_keep=keep, create=True)
        )

    def save(self, step: int, state: Any) -> None:
        """Save a pytree; typed PRNG keys included. Returns when it is on disk."""
        self._manager.save(step, args=ocp.args.StandardSave(_stored(state)), force=True)
        self._manager.wait_until_finished()

    @property
    def latest(self) -> int | None:
        """Step of the latest checkpoint, None if there is none."""
        return self._manager.latest_step()

    def restore(self, like: Any) -> Any:
        """The latest state.

        Args:
            like: a pytree of the same structure, arrays or `jax.ShapeDtypeStruct`.

        Raises:
            ValueError: there is no checkpoint.
        """
        if self.latest is None:
            raise bad_value("checkpoint", str(self.folder), "a folder with a saved checkpoint")
        device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
        abstract = {
            name: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=device)
            for name, x in _stored(like).items()
        }
        found = self._manager.restore(self.latest, args=ocp.args.StandardRestore(abstract))
        leaves = [
            found[name] if name in found else jnp.zeros(x.shape, x.dtype)
            for name, x in _named(like)
        ]
        return jax.tree.unflatten(jax.tree.structure(like), leaves)

    def close(self) -> None:
        """Release the folder."""
        self._manager.close()


def _named(state: Any) -> list[tuple[str, Any]]:
    """Leaves of a pytree with the paths that lead to them, e.g. `actor.params.Dense_0.bias`."""
    leaves = jax.tree_util.tree_flatten_with_path(state)[0]
    return [(jax.tree_util.keystr(path, simple=True, separator="."), x) for path, x in leaves]


def _stored(state: Any) -> dict[str, Any]:
    """The leaves that are written; orbax does not take arrays without elements."""
    return {name: x for name, x in _named(state) if x.size}


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file whole or not at all."""
    part = path.with_suffix(path.suffix + ".part")
    part.write_text(json.dumps(content, indent=2) + "\n")
    os.replace(part, path)


def read_config(run: str | Path) -> dict[str, Any]:
    """The configuration of a run.

    Raises:
        ValueError: not the folder of a run.
    """
    path = Path(run) / CONFIG
    if not path.is_file():
        raise bad_value("run", str(run), f"a folder with a {CONFIG}, as `ecn-marl train` makes it")
    config: dict[str, Any] = json.loads(path.read_text())
    return config

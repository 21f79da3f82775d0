"""The training loop around a compiled update: progress, logs, checkpoints, interrupts."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh
from jaxtyping import PyTree

from ecn_marl import lanes
from ecn_marl._checks import check_numbers, check_seed
from ecn_marl._errors import bad_value
from ecn_marl.baselines.evaluation.merit import Merit, Merits
from ecn_marl.baselines.evaluation.streams import training_key
from ecn_marl.baselines.training.checkpoint import Checkpoints
from ecn_marl.baselines.training.interrupts import Interrupts
from ecn_marl.baselines.training.logs import (
    METRICS,
    JsonLines,
    Log,
    Row,
    TensorBoard,
    cut_rows,
    numbers,
)
from ecn_marl.errors import TrainingDiverged
from ecn_marl.parallelism import state_shardings

PER_ENV = ("env", "obs")
"""Fields of a training state with a leading axis of environments, unless an algorithm names its own
in `per_env`."""


@runtime_checkable
class LoopSettings(Protocol):
    """The setting of an algorithm that the loop reads."""

    @property
    def steps_per_update(self) -> int:
        """Environment steps per update."""


@runtime_checkable
class Algorithm(Protocol):
    """The part of an algorithm that the loop needs; for the commands see `trainer.Trainer`."""

    @property
    def config(self) -> LoopSettings:
        """Its settings."""

    def init(self, key: jax.Array, params: PyTree) -> PyTree:
        """A fresh training state."""

    def update(self, state: PyTree, params: PyTree) -> tuple[PyTree, dict[str, jax.Array]]:
        """One update and its metrics."""


class TrainingInterrupted(KeyboardInterrupt):
    """Training was asked to stop (Ctrl-C, SIGTERM), and has saved its state.

    Attributes:
        update: the update after which it stopped.
        signal: the signal that asked for it.
    """

    def __init__(self, update: int, number: signal.Signals) -> None:
        super().__init__(f"training stopped by {number.name} after update {update}")
        self.update, self.signal = update, number


@dataclass(frozen=True)
class Saving:
    """When a run is saved and evaluated.

    Attributes:
        updates: updates between checkpoints, None to go by `seconds`.
        seconds: a checkpoint is made when the last one is older than this.
        eval_every: updates between evaluations, each after the update that completes them; a state
            that is evaluated is saved. 0 for never.
        keep: latest checkpoints kept, beside the best of each seed.
        ends: whether the first state, which is untrained, and the last one are evaluated, too.
    """

    updates: int | None = None
    seconds: float = 300.0
    eval_every: float = 0
    keep: int = 2
    ends: bool = False

    def __post_init__(self) -> None:
        """Check all values."""
        if self.updates is not None and self.updates < 1:
            raise bad_value("save_updates", self.updates, "an integer >= 1")
        if not self.seconds > 0.0:
            raise bad_value("save_seconds", self.seconds, "a number of seconds > 0")
        if self.eval_every < 0:
            raise bad_value("eval_every", self.eval_every, "a number >= 0")
        if self.keep < 1:
            raise bad_value("keep", self.keep, "an integer >= 1")


@dataclass(frozen=True)
class TrainResult:
    """Result of `train`.

    Attributes:
        state: final training state; with several seeds, leaves have a leading axis of seeds.
        metrics: one row per update, as written to `metrics.jsonl`.
    """

    state: PyTree
    metrics: list[Row]


def compiled_update(
    algorithm: Algorithm, updates: int = 1, seeds: int = 1, shardings: PyTree = None
) -> jax.stages.Wrapped:
    """Several updates in one compiled call, which reuses the memory of its input state.

    Args:
        algorithm: the algorithm.
        updates: updates per call; metrics get a leading axis of this length.
        seeds: independent learners trained at once; above 1, leaves of the state have a leading
            axis of seeds, and metrics a second one.
        shardings: placement of the state on several devices, from `state_shardings`; metrics are
            then replicated on all of them.

    Returns:
        A jitted function `(state, params) -> (state, metrics)`.
    """

    def run(state: PyTree, params: PyTree) -> tuple[PyTree, dict[str, jax.Array]]:
        # XLA cannot split over devices what `lanes` has compiled.
        with nullcontext() if shardings is None else lanes.off():
            return updates_in_turn(state, params)

    def updates_in_turn(state: PyTree, params: PyTree) -> tuple[PyTree, dict[str, jax.Array]]:
        def one_update(state: PyTree, _: None) -> tuple[PyTree, dict[str, jax.Array]]:
            if seeds == 1:
                return algorithm.update(state, params)
            return jax.vmap(algorithm.update, (0, None))(state, params)

        return jax.lax.scan(one_update, state, None, length=updates)

    if shardings is None:
        return jax.jit(run, donate_argnums=0)
    replicated = jax.sharding.NamedSharding(_mesh(shardings), jax.sharding.PartitionSpec())
    return jax.jit(run, donate_argnums=0, out_shardings=(shardings, replicated))


def _mesh(shardings: PyTree) -> Mesh:
    mesh: Mesh = jax.tree.leaves(shardings)[0].mesh
    return mesh


def state_shapes(
    algorithm: Algorithm, params: PyTree, seeds: int = 1, mesh: Mesh | None = None
) -> PyTree:
    """Shapes of a training state, with its shardings if there is a mesh."""
    shapes = jax.eval_shape(partial(_start, algorithm, seeds), np.uint32(0), params)
    if mesh is None:
        return shapes
    per_env = getattr(algorithm, "per_env", PER_ENV)
    places = state_shardings(shapes, mesh, per_env, axis=0 if seeds == 1 else 1)
    return jax.tree.map(
        lambda x, place: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), shapes, places
    )


def initial_state(
    algorithm: Algorithm, params: PyTree, seed: int, seeds: int = 1, mesh: Mesh | None = None
) -> PyTree:
    """A fresh training state; with several seeds those of `seed`, `seed + 1`, … stacked."""
    places = None
    if mesh is not None:
        places = jax.tree.map(lambda x: x.sharding, state_shapes(algorithm, params, seeds, mesh))
    start = jax.jit(partial(_start, algorithm, seeds), out_shardings=places)
    # Seeds go up to 2^32 - 1: the default int32 would overflow.
    return start(np.uint32(seed), params)


def _start(algorithm: Algorithm, seeds: int, seed: jax.Array, params: PyTree) -> PyTree:
    if seeds == 1:
        return algorithm.init(training_key(seed), params)
    keys = jax.vmap(training_key)(seed + jnp.arange(seeds, dtype=jnp.uint32))
    # One after the other, see `networks.init_network`.
    return jax.lax.map(lambda key: algorithm.init(key, params), keys)


def train(
    algorithm: Algorithm,
    params: PyTree,
    *,
    steps: int,
    seed: int = 0,
    seeds: int = 1,
    out: str | Path | None = None,
    progress: Callable[[Row], None] | None = None,
    updates_per_call: int = 1,
    resume: bool = False,
    saving: Saving | None = None,
    merit: Merit | None = None,
    logs: Sequence[Log] = (),
    mesh: Mesh | None = None,
) -> TrainResult:
    """Train until at least `steps` environment steps have been made.

    Args:
        algorithm: the algorithm.
        params: parameters of its environment.
        steps: environment steps (tuning intervals, summed over environments) per seed, those made
            before a resumed run stopped among them.
        seed: first seed.
        seeds: number of seeds trained at once.
        out: folder for `metrics.jsonl`, TensorBoard and checkpoints; nothing is written if None.
        progress: called with every row of metrics.
        updates_per_call: updates per compiled call; a checkpoint can be made between calls.
        resume: go on from the latest checkpoint in `out`. On the same machine, the parameters are
            bit for bit those of a run without the stop.
        saving: when checkpoints are made.
        merit: merit of states, measured every `saving.eval_every` updates, see `merit_function`.
        logs: further logs; closed at the end.
        mesh: devices that share the environments, from `env_mesh`; one device if None.

    Returns:
        Final state and metrics, those before a resumed run stopped among them.

    Raises:
        ValueError: `steps` or `seeds` below 1, a seed or a parameter out of its range, or nothing
            to resume.
        TrainingDiverged: a metric or the state is NaN or infinite; the state is saved in
            `diverged/` if `out` is given.
        TrainingInterrupted: Ctrl-C or SIGTERM came, and the state is saved if `out` is given.
    """
    for name, value in (("steps", steps), ("seeds", seeds)):
        if value < 1:
            raise bad_value(name, value, "an integer >= 1")
    seed = check_seed(seed, count=seeds)
    check_numbers(params)
    steps_per_call = int(algorithm.config.steps_per_update) * updates_per_call
    folder = None if out is None else Path(out)
    with ExitStack() as stack:
        loop = _Loop(algorithm, params, seed, seeds, updates_per_call, mesh, saving, merit)
        loop.open(folder, resume, stack)
        loop.logs += logs
        for log in loop.logs:
            stack.callback(log.close)
        interrupts = stack.enter_context(Interrupts())
        loop.run(-(-steps // steps_per_call) * updates_per_call, interrupts, progress)
    return TrainResult(loop.state, loop.rows)


class _Loop:
    """A run of `train`."""

    def __init__(
        self,
        algorithm: Algorithm,
        params: PyTree,
        seed: int,
        seeds: int,
        updates_per_call: int,
        mesh: Mesh | None,
        saving: Saving | None,
        merit: Merit | None,
    ) -> None:
        self.algorithm, self.params, self.mesh = algorithm, params, mesh
        self.seed, self.seeds, self.updates_per_call = seed, seeds, updates_per_call
        self.saving, self.merit = saving or Saving(), merit
        self.steps = int(algorithm.config.steps_per_update)
        self.rows: list[Row] = []
        self.logs: list[Log] = []
        self.checkpoints: Checkpoints | None = None
        self.busy_seconds = 0.0

    def open(self, out: Path | None, resume: bool, stack: ExitStack) -> None:
        """Open checkpoints and logs; a fresh state, or the latest one that was saved."""
        if out is not None:
            self.checkpoints = Checkpoints(out, self.saving.keep)
            stack.callback(self.checkpoints.close)
        if resume:
            if self.checkpoints is None or out is None:
                raise bad_value("out", out, "the folder of the run to resume")
            self._restore(self.checkpoints, out)
        else:
            self.state = initial_state(
                self.algorithm, self.params, self.seed, self.seeds, self.mesh
            )
        if out is not None and jax.process_index() == 0:
            self.logs = [JsonLines(out, self.rows), TensorBoard(out, after=len(self.rows))]
        self.first_update = len(self.rows)
        self.saved_at = time.perf_counter()
        self.began_at = self.saved_at - (self.rows[-1]["seconds"] if self.rows else 0.0)

    def _restore(self, checkpoints: Checkpoints, out: Path) -> None:
        update = checkpoints.find("latest")
        checkpoints.clean()
        like = state_shapes(self.algorithm, self.params, self.seeds, self.mesh)
        self.state = checkpoints.restore(like, update)
        self.rows = cut_rows(out, update)
        if "merit" in self.rows[-1]:  # the process may have ended before this was noted
            checkpoints.note_merits(update, np.atleast_1d(self.rows[-1]["merit"]).tolist())

    def run(
        self, total: int, interrupts: Interrupts, progress: Callable[[Row], None] | None
    ) -> None:
        """Train up to update `total`."""
        if len(self.rows) >= total:
            return
        places = None
        if self.mesh is not None:
            places = jax.tree.map(lambda x: x.sharding, self.state)
        program = compiled_update(self.algorithm, self.updates_per_call, self.seeds, places)
        # Compiled before the clock starts, so that steps per second leave it out.
        update = program.lower(self.state, self.params).compile()
        untrained = self._of_start()
        while len(self.rows) < total:
            start = time.perf_counter()
            self.state, metrics = update(self.state, self.params)
            # JAX returns before the update is done; reading the metrics waits for it.
            values = jax.device_get(metrics)
            self.busy_seconds += time.perf_counter() - start
            new = self._new_rows(values)
            new[0] |= untrained
            untrained = {}
            stop, late = _anywhere(
                interrupts.requested is not None,
                time.perf_counter() - self.saved_at >= self.saving.seconds,
            )
            last = len(self.rows) + len(new) >= total
            self._record(new, late or stop or last, last)
            if progress is not None:
                for row in new:
                    progress(row)
            if stop and len(self.rows) < total:
                # Where another process got the signal, this one does not know which it was.
                raise TrainingInterrupted(len(self.rows), interrupts.requested or signal.SIGINT)

    def _new_rows(self, values: dict[str, Any]) -> list[Row]:
        done, new = len(self.rows), []
        seconds = round(time.perf_counter() - self.began_at, 3)
        updates = done + self.updates_per_call - self.first_update
        rate = updates * self.steps * self.seeds / self.busy_seconds
        for i in range(self.updates_per_call):
            row: Row = {"update": done + i + 1, "steps": (done + i + 1) * self.steps}
            row |= {k: np.asarray(v[i]).tolist() for k, v in sorted(values.items())}
            new.append(row | {"seconds": seconds, "steps_per_second": round(rate, 1)})
        return new

    def _of_start(self) -> Row:
        """Merits of the untrained state, as entries `start_merit` of the first row."""
        if self.rows or self.merit is None or not self.saving.eval_every or not self.saving.ends:
            return {}
        row: Row = {}
        self._add(self.merit(self.state), row, "start_merit")
        return row

    def _record(self, new: list[Row], must_save: bool, last: bool) -> None:
        """Check and log new rows; evaluate and save the state if it is time to."""
        update = new[-1]["update"]
        finite = all(_is_finite(row) for row in new) and not _bad_leaf(_actor(self.state))
        merits = self._evaluated(new[-1], last) if finite else None
        # Logged before the state is saved: a checkpoint needs all rows up to its update, and rows
        # after the last checkpoint are cut when the run resumes (`cut_rows`).
        for row in new:
            for log in self.logs:
                log.write(row)
        done = len(self.rows)
        self.rows += new
        if not finite:
            self._diverged()
        save = self.saving.updates
        if save is not None:
            must_save |= update // save > done // save
        if (must_save or merits is not None) and self.checkpoints is not None:
            # A state that is not finite must not become a checkpoint: it could not be resumed.
            if _bad_leaf(self.state, allow_infinite=True):
                self._diverged()
            self.checkpoints.save(update, self.state, merits)
            self.saved_at = time.perf_counter()

    def _evaluated(self, row: Row, last: bool) -> list[float] | None:
        """Evaluate the state if it is time to; its merits become part of the row."""
        every, merit = self.saving.eval_every, self.merit
        due = every and row["update"] // every != len(self.rows) // every
        if merit is None or not every or not (due or (last and self.saving.ends)):
            return None
        return self._add(merit(self.state), row, "merit")

    def _add(self, merits: Merits, row: Row, name: str) -> list[float] | None:
        """Note merits in a row; None if they do not count."""
        if merits.refused:
            # Without merits no checkpoint becomes the best one.
            row[f"{name}_refused"] = merits.refused
            return None
        for end, values in (("value", merits.value), ("low", merits.low), ("high", merits.high)):
            if values is not None:
                entry = name if end == "value" else f"{name}_{end}"
                row[entry] = values.tolist() if self.seeds > 1 else float(values[0])
        best: list[float] = merits.value.tolist()
        return best

    def _diverged(self) -> None:
        """Save the state for inspection, and raise."""
        row = self.rows[-1]
        where = ""
        if self.checkpoints is not None:
            where = f"; the state is in {self.checkpoints.save_diverged(row['update'], self.state)}"
        for row in self.rows[-self.updates_per_call :]:
            for name, value in numbers(row).items():
                finite = np.isfinite(np.atleast_1d(np.asarray(value, np.float64)))
                if not finite.all():
                    raise TrainingDiverged(
                        f"{name} = {value} at update {row['update']} of seed "
                        f"{self.seed + int(np.argmin(finite))}: training stopped{where}"
                    )
        leaf = _bad_leaf(_actor(self.state)) or _bad_leaf(self.state, allow_infinite=True)
        raise TrainingDiverged(
            f"{leaf} of the state is not finite at update {row['update']} of seed {self.seed}: "
            f"training stopped{where}"
        )


def _actor(state: PyTree) -> PyTree:
    """The parameters of the policy; few, so they are checked after every update."""
    return {"actor": getattr(state, "actor", None)}


def _is_finite(row: Row) -> bool:
    values = numbers(row).values()
    return all(np.isfinite(np.asarray(value, np.float64)).all() for value in values)


def _bad_leaf(tree: PyTree, allow_infinite: bool = False) -> str | None:
    """Path of the first leaf that holds NaN (or infinity), None if there is none.

    The state of an environment may hold infinity: the time of an event that never comes.
    """
    named = [
        (jax.tree_util.keystr(path, simple=True, separator="."), x)
        for path, x in jax.tree_util.tree_flatten_with_path(tree)[0]
        if jnp.issubdtype(x.dtype, jnp.floating)
    ]
    good = jax.device_get(_all_good([x for _, x in named], allow_infinite))
    return next((name for (name, _), fine in zip(named, good, strict=True) if not fine), None)


@partial(jax.jit, static_argnums=1)
def _all_good(leaves: list[jax.Array], allow_infinite: bool) -> list[jax.Array]:
    if allow_infinite:
        return [~jnp.isnan(x).any() for x in leaves]
    return [jnp.isfinite(x).all() for x in leaves]


def _anywhere(*flags: bool) -> list[bool]:
    """Each flag, true if it is on any process: all of them must stop and save together."""
    if jax.process_count() == 1:
        return list(flags)
    gathered = np.asarray(multihost_utils.process_allgather(np.array(flags)))
    return [bool(column.any()) for column in gathered.reshape(-1, len(flags)).T]


__all__ = [
    "METRICS",
    "Algorithm",
    "Saving",
    "TrainResult",
    "TrainingDiverged",
    "TrainingInterrupted",
    "compiled_update",
    "initial_state",
    "state_shapes",
    "train",
]

"""Whether batches on a GPU run through the kernel of `cuda` or through XLA: it is tried.

The first time that a process asks on a kind of GPU, some steps of a program are made by both. The
kernel is used from then on if its results are XLA's and it is at least as fast. The trial has a
process of its own, so that a fault of the kernel harms nothing else, and its verdict is kept in the
user's cache folder.

The program is the caller's (`settings.set_trial_program`). Without one, GPUs run XLA.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import import_module, metadata
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from ecn_marl.lanes.settings import GPU, cache_folder, trial_program

SECONDS = 900.0
"""A trial that takes longer has failed. Most of it is XLA's compilation."""

COMMAND = (sys.executable, "-m", f"{__package__}.trial")

SHARE = 0.995
"""Of all numbers after a step, so many have to agree: rounding may turn a random decision."""

STEPS, RUNS = 8, 5
"""Steps before anything is timed and in each timed run; timed runs of each."""

log = logging.getLogger(__name__)


class TrialProgram(NamedTuple):
    """Steps that a trial makes by both ways.

    Attributes:
        step: `(turn, state, *rest) -> (state, results, decisions)` of one environment; `turn` is
            the number of the step, int32. `decisions` have to be equal to the bit.
        state: where it starts, leading axis of environments.
        rest: its other arguments, and for each whether it has the leading axis, too.
    """

    step: Callable[..., tuple[PyTree, Any, Any]]
    state: PyTree
    rest: tuple[tuple[Any, bool], ...] = ()


@dataclass(frozen=True)
class Verdict:
    """What a trial found.

    Attributes:
        kernel: whether the kernel is used.
        reason: why, or why not.
    """

    kernel: bool
    reason: str


def kernel_is_better() -> bool:
    """Whether to use the kernel on this process's GPU, by the verdict kept or a new trial."""
    return verdict_here().kernel


@functools.cache
def verdict_here() -> Verdict:
    """The verdict on this process's GPU: the one kept, or that of a new trial."""
    device, program = jax.devices()[0], trial_program()
    if not program:
        log.warning("no program was given to try the kernel with: XLA runs (%s=1: the kernel)", GPU)
        return Verdict(False, "no program was given to try the kernel with")
    facts = {
        "device": device.device_kind,
        "platform": device.client.platform_version,
        "program": program,
        "sources": sources_hash(),
        **{name: metadata.version(name) for name in ("jax", "jaxlib", "llvmlite")},
    }
    path = kept_at(facts)
    verdict = recall(path)
    if verdict is None:
        log.warning(
            "Trying the kernel of lanes on %s beside XLA, once; this takes about a minute"
            " (%s=0 or 1 decides without a trial)",
            device.device_kind,
            GPU,
        )
        verdict = ask((*COMMAND, program))
        keep(path, verdict, facts)
    tell = log.info if verdict.kernel else log.warning
    using = "their own kernel" if verdict.kernel else "XLA"
    tell("lanes use %s on this GPU: %s (%s)", using, verdict.reason, path)
    return verdict


def sources_hash() -> str:
    """Hash of this package's files: another compiler is tried again."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def kept_at(facts: dict[str, str]) -> Path:
    """File of the verdict for a GPU and versions of software."""
    name = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]
    return cache_folder() / f"gpu-{name}.json"


def recall(path: Path) -> Verdict | None:
    """The verdict kept in a file; None if there is none that can be read."""
    try:
        kept = json.loads(path.read_text())
        return Verdict(bool(kept["kernel"]), str(kept["reason"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def keep(path: Path, verdict: Verdict, facts: dict[str, str]) -> None:
    """Write a verdict, whole or not at all; without it the next process tries again."""
    partial = path.with_suffix(f".{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps(asdict(verdict) | {"tried_on": facts}, indent=2))
        partial.replace(path)
    except OSError as problem:
        log.warning("the verdict on this GPU is not kept: %s", problem)


def ask(command: tuple[str, ...], seconds: float = SECONDS) -> Verdict:
    """A trial in a process of its own."""
    here = {GPU: "1", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}  # beside this process's memory
    try:
        done = subprocess.run(
            command, env=os.environ | here, capture_output=True, text=True, timeout=seconds
        )
    except subprocess.TimeoutExpired:
        return Verdict(False, f"the trial took more than {seconds:g} s")
    last = (done.stdout.strip().splitlines() or [""])[-1]
    try:
        figures = json.loads(last) if done.returncode == 0 else {}
        return verdict_on(figures["agree"], figures["xla_s"], figures["kernel_s"])
    except (ValueError, KeyError, TypeError):
        words = (done.stderr.strip().splitlines() or ["nothing on stderr"])[-1]
        return Verdict(False, f"the trial ended with status {done.returncode}: {words[:300]}")


def verdict_on(agree: float, xla_s: float, kernel_s: float) -> Verdict:
    """The verdict on a trial: share of numbers that agree, seconds of a step by each."""
    times = f"{1e6 * kernel_s:.0f} us per step, XLA {1e6 * xla_s:.0f} us"
    if not agree >= SHARE:
        return Verdict(False, f"only {100.0 * agree:.2f} % of its numbers are XLA's")
    return Verdict(kernel_s <= xla_s, times)


def load_program(name: str) -> TrialProgram:
    """The program of a name `module:function`."""
    module, _, function = name.partition(":")
    program: TrialProgram = getattr(import_module(module), function)()
    return program


def measure(program: TrialProgram) -> dict[str, float]:
    """Steps of a program by both, from the same states.

    Returns:
        `agree`, the least share of equal numbers of all steps (0 if a decision differs), and the
        median seconds of a step, `xla_s` and `kernel_s`.
    """
    from ecn_marl.lanes.mapping import vmap

    axes = (None, 0, *(0 if own else None for _, own in program.rest))
    slow: Any = jax.jit(jax.vmap(program.step, axes))
    fast: Any = jax.jit(vmap(program.step, axes))
    rest = [value for value, _ in program.rest]
    state, agree = program.state, 1.0
    for turn in range(STEPS):
        expected, result = (step(jnp.int32(turn), state, *rest) for step in (slow, fast))
        agree = min(agree, _agreement(expected, result))
        state = expected[0]

    def times(step: Any) -> float:
        return _seconds(lambda s: step(jnp.int32(0), s, *rest)[0], state)

    return {"agree": agree, "xla_s": times(slow), "kernel_s": times(fast)}


def _agreement(expected: Any, result: PyTree) -> float:
    """Share of equal numbers in two results `(state, results, decisions)` of a step."""
    decisions = zip(jax.tree.leaves(expected[2]), jax.tree.leaves(result[2]), strict=True)
    if not all(bool(jnp.array_equal(a, b)) for a, b in decisions):
        return 0.0
    equal = total = 0
    for a, b in zip(jax.tree.leaves(expected), jax.tree.leaves(result), strict=True):
        if jax.dtypes.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        x, y = np.asarray(a), np.asarray(b)
        equal += int(np.isclose(y, x, rtol=1e-3, atol=1e-3, equal_nan=True).sum())
        total += x.size
    return equal / total


def _seconds(step: Callable[[Any], Any], state: PyTree) -> float:
    """Median time of a step."""
    times = []
    for _ in range(RUNS):
        start, after = time.perf_counter(), state
        for _ in range(STEPS):
            after = step(after)
        jax.block_until_ready(after)
        times.append((time.perf_counter() - start) / STEPS)
    return float(np.median(times))


if __name__ == "__main__":
    print(json.dumps(measure(load_program(sys.argv[1]))))

"""Decides whether batches on a GPU run through the kernel of `cuda` or through XLA.

The first process on a kind of GPU runs some steps of a program through both. The kernel is used
from then on if its results are XLA's and it is at least as fast. This trial runs in a subprocess,
so that a fault of the kernel harms nothing else. Its verdict is stored in the user's cache folder.

The caller names the program (`settings.set_trial_program`). Without one, GPUs run XLA.
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
"""Longest time of a trial; most of it is XLA's compilation. A longer one counts as failed."""

COMMAND = (sys.executable, "-m", f"{__package__}.trial")

SHARE = 0.995
"""Share of numbers that have to agree after a step: rounding may change a random decision."""

STEPS, RUNS = 8, 5
"""Steps that are compared, and steps in each timed run; timed runs."""

log = logging.getLogger(__name__)


class TrialProgram(NamedTuple):
    """Program that a trial runs through the kernel and through XLA.

    Attributes:
        step: `(turn, state, *extra) -> (state, results, decisions)` of one environment; `turn` is
            the number of the step, int32. `decisions` have to be equal to the bit.
        state: states at the start, with a leading axis of environments.
        extra: the other arguments of `step`, each with whether it has the leading axis, too.
    """

    step: Callable[..., tuple[PyTree, PyTree, PyTree]]
    state: PyTree
    extra: tuple[tuple[PyTree, bool], ...] = ()


@dataclass(frozen=True)
class Verdict:
    """Outcome of a trial.

    Attributes:
        kernel: whether the kernel is used.
        reason: why, or why not.
    """

    kernel: bool
    reason: str


def kernel_is_better() -> bool:
    """Whether to use the kernel on this process's GPU, see `device_verdict`."""
    return device_verdict().kernel


@functools.cache
def device_verdict() -> Verdict:
    """The verdict on this process's GPU: the stored one, or that of a new trial.

    The first call of a process may run a trial, which takes about a minute.
    """
    device, program = jax.devices()[0], trial_program()
    if not program:
        log.warning("no program was given to try the kernel with: XLA runs (%s=1: the kernel)", GPU)
        return Verdict(False, "no program was given to try the kernel with")
    # A new driver, JAX or compiler may change the outcome, so each combination has its own verdict.
    facts = {
        "device": device.device_kind,
        "platform": device.client.platform_version,
        "program": program,
        "sources": sources_hash(),
        **{name: metadata.version(name) for name in ("jax", "jaxlib", "llvmlite")},
    }
    path = verdict_file(facts)
    verdict = read_verdict(path)
    if verdict is None:
        log.warning(
            "Trying the kernel of lanes on %s beside XLA, once; this takes about a minute"
            " (%s=0 or 1 decides without a trial)",
            device.device_kind,
            GPU,
        )
        verdict = run_trial((*COMMAND, program))
        write_verdict(path, verdict, facts)
    tell = log.info if verdict.kernel else log.warning
    using = "their own kernel" if verdict.kernel else "XLA"
    tell("lanes use %s on this GPU: %s (%s)", using, verdict.reason, path)
    return verdict


def sources_hash() -> str:
    """Hash of this package's files: a changed compiler needs a new trial."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def verdict_file(facts: dict[str, str]) -> Path:
    """File of the verdict on a GPU with these versions of software."""
    name = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]
    return cache_folder() / f"gpu-{name}.json"


def read_verdict(path: Path) -> Verdict | None:
    """The verdict stored in a file; None if there is none, or it cannot be read."""
    try:
        kept = json.loads(path.read_text())
        return Verdict(bool(kept["kernel"]), str(kept["reason"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_verdict(path: Path, verdict: Verdict, facts: dict[str, str]) -> None:
    """Store a verdict, whole or not at all. If it fails, the next process runs a trial again."""
    # A file of this process's own, then renamed: processes that start together never read half a
    # file.
    partial = path.with_suffix(f".{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps(asdict(verdict) | {"tried_on": facts}, indent=2))
        partial.replace(path)
    except OSError as problem:
        log.warning("the verdict on this GPU is not kept: %s", problem)


def run_trial(command: tuple[str, ...], seconds: float = SECONDS) -> Verdict:
    """Run a trial in a subprocess.

    Args:
        command: its command line; it prints the figures of `measure` as its last line.
        seconds: time limit.
    """
    # This process holds memory of the same GPU already: JAX must not take three quarters of it
    # again.
    variables = {GPU: "1", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    try:
        process = subprocess.run(
            command, env=os.environ | variables, capture_output=True, text=True, timeout=seconds
        )
    except subprocess.TimeoutExpired:
        return Verdict(False, f"the trial took more than {seconds:g} s")
    # Libraries may print other lines before.
    last = (process.stdout.strip().splitlines() or [""])[-1]
    try:
        figures = json.loads(last) if process.returncode == 0 else {}
        return compare(figures["agree"], figures["xla_s"], figures["kernel_s"])
    except (ValueError, KeyError, TypeError):
        message = (process.stderr.strip().splitlines() or ["nothing on stderr"])[-1]
        return Verdict(False, f"the trial ended with status {process.returncode}: {message[:300]}")


def compare(agree: float, xla_s: float, kernel_s: float) -> Verdict:
    """The verdict on a trial, from the share of numbers that agree and the seconds of a step."""
    times = f"{1e6 * kernel_s:.0f} us per step, XLA {1e6 * xla_s:.0f} us"
    # Not `agree < SHARE`, which is False for NaN.
    if not agree >= SHARE:
        return Verdict(False, f"only {100.0 * agree:.2f} % of its numbers are XLA's")
    return Verdict(kernel_s <= xla_s, times)


def load_program(name: str) -> TrialProgram:
    """The program of a name `module:function`."""
    module, _, function = name.partition(":")
    program: TrialProgram = getattr(import_module(module), function)()
    return program


def measure(program: TrialProgram) -> dict[str, float]:
    """Run a program through XLA and the kernel, from the same states.

    Returns:
        `agree`, the smallest share of equal numbers of any step (0 if a decision differs), and the
        median seconds of a step, `xla_s` and `kernel_s`.
    """
    by_xla, by_kernel = forms(program)
    agree, state = agreement(program, by_xla, by_kernel)
    extra = [value for value, _ in program.extra]

    def times(step: Callable[..., Any]) -> float:
        return _seconds(lambda s: step(jnp.int32(0), s, *extra)[0], state)

    return {"agree": agree, "xla_s": times(by_xla), "kernel_s": times(by_kernel)}


def forms(program: TrialProgram) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The program's steps of all environments, compiled by XLA and as a kernel."""
    # Here, not above: `mapping` imports this module.
    from ecn_marl.lanes.mapping import vmap

    axes = (None, 0, *(0 if own else None for _, own in program.extra))
    args = (jnp.int32(0), program.state, *(value for value, _ in program.extra))
    by_xla, by_kernel = (
        jax.jit(batch).lower(*args).compile()
        for batch in (jax.vmap(program.step, axes), vmap(program.step, axes))
    )
    return by_xla, by_kernel


def agreement(
    program: TrialProgram, by_xla: Callable[..., Any], by_kernel: Callable[..., Any]
) -> tuple[float, PyTree]:
    """Smallest share of equal numbers of any of `STEPS` steps, 0 if a decision differs.

    Returns:
        The share, and XLA's states after the last step.
    """
    extra = [value for value, _ in program.extra]
    state, agree = program.state, 1.0
    for turn in range(STEPS):
        expected, result = (step(jnp.int32(turn), state, *extra) for step in (by_xla, by_kernel))
        agree = min(agree, _agreement(expected, result))
        # Both continue from XLA's state: a difference in one step does not grow in the next ones.
        state = expected[0]
    return agree, state


def _agreement(expected: PyTree, result: PyTree) -> float:
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


def _seconds(step: Callable[[PyTree], PyTree], state: PyTree) -> float:
    """Median time of a step."""
    times = []
    for _ in range(RUNS):
        start, after = time.perf_counter(), state
        for _ in range(STEPS):
            after = step(after)
        # JAX returns before results are computed.
        jax.block_until_ready(after)
        times.append((time.perf_counter() - start) / STEPS)
    return float(np.median(times))


if __name__ == "__main__":
    print(json.dumps(measure(load_program(sys.argv[1]))))

"""Whether batches on a GPU run through the kernel of `cuda` or through XLA: it is tried.

The first time that a process asks on a kind of GPU, steps of `websearch-v0` are made by both. The
kernel is used from then on if its results are XLA's and it is at least as fast. The trial has a
process of its own, so that a fault of the kernel harms nothing else, and its verdict is kept in the
user's cache folder.
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
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

SWITCH = "ECN_MARL_GPU_LANES"
"""Environment variable: `1` uses the kernel on NVIDIA GPUs, `0` does not, `auto` (as if it were not
set) goes by the trial."""

SECONDS = 900.0
"""A trial that takes longer has failed. Most of it is XLA's compilation."""

COMMAND = (sys.executable, "-m", "ecn_marl.lanes.trial")

SHARE = 0.995
"""Of all numbers after a step, so many have to agree: rounding may turn a marking coin."""

STEPS, RUNS = 8, 5
"""Steps to load the network and in each timed run; timed runs of each."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Verdict:
    """What a trial found.

    Attributes:
        kernel: whether the kernel is used.
        reason: why, or why not.
    """

    kernel: bool
    reason: str


@functools.cache
def kernel_is_better() -> bool:
    """Whether to use the kernel on this process's GPU, by the verdict kept or a new trial."""
    device = jax.devices()[0]
    facts = {
        "device": device.device_kind,
        "platform": device.client.platform_version,
        **{name: metadata.version(name) for name in ("ecn-marl", "jax", "jaxlib", "llvmlite")},
    }
    path = kept_at(facts)
    verdict = recall(path)
    if verdict is None:
        log.warning(
            "Trying the kernel of ecn_marl.lanes on %s beside XLA, once; this takes about a minute"
            " (%s=0 or 1 decides without a trial)",
            device.device_kind,
            SWITCH,
        )
        verdict = ask()
        keep(path, verdict, facts)
    say = log.info if verdict.kernel else log.warning
    using = "its own kernel" if verdict.kernel else "XLA"
    say("ecn_marl.lanes uses %s on this GPU: %s (%s)", using, verdict.reason, path)
    return verdict.kernel


def kept_at(facts: dict[str, str]) -> Path:
    """File of the verdict for a GPU and versions of software."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "ecn_marl"
    name = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]
    return folder / f"gpu-{name}.json"


def recall(path: Path) -> Verdict | None:
    """The verdict kept in a file; None if there is none that can be read."""
    try:
        found = json.loads(path.read_text())
        return Verdict(bool(found["kernel"]), str(found["reason"]))
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


def ask(command: tuple[str, ...] = COMMAND, seconds: float = SECONDS) -> Verdict:
    """A trial in a process of its own."""
    here = {SWITCH: "1", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}  # beside this process's memory
    try:
        done = subprocess.run(
            command, env=os.environ | here, capture_output=True, text=True, timeout=seconds
        )
    except subprocess.TimeoutExpired:
        return Verdict(False, f"the trial took more than {seconds:g} s")
    last = (done.stdout.strip().splitlines() or [""])[-1]
    try:
        found = json.loads(last) if done.returncode == 0 else {}
        return judge(found["agree"], found["xla_s"], found["kernel_s"])
    except (ValueError, KeyError, TypeError):
        said = (done.stderr.strip().splitlines() or ["nothing on stderr"])[-1]
        return Verdict(False, f"the trial ended with status {done.returncode}: {said[:300]}")


def judge(agree: float, xla_s: float, kernel_s: float) -> Verdict:
    """The verdict on a trial: share of numbers that agree, seconds of a step by each."""
    times = f"{1e6 * kernel_s:.0f} us per step, XLA {1e6 * xla_s:.0f} us"
    if not agree >= SHARE:
        return Verdict(False, f"only {100.0 * agree:.2f} % of its numbers are XLA's")
    return Verdict(kernel_s <= xla_s, times)


def measure(scenario: str = "websearch-v0", envs: int = 4096) -> dict[str, float]:
    """Steps of a scenario by both, from the same states.

    Args:
        scenario: registered scenario.
        envs: environments.

    Returns:
        `agree`, the least share of equal numbers of all steps (0 if an episode ends for one only),
        and the median seconds of a step, `xla_s` and `kernel_s`.
    """
    from ecn_marl import lanes
    from ecn_marl.envs.registry import make
    from ecn_marl.wrappers import AutoReset

    env = AutoReset(make(scenario))
    params = env.default_params
    axes = (0, 0, 0, None)
    slow: Any = jax.jit(jax.vmap(env.step, axes))
    fast: Any = jax.jit(lanes.vmap(env.step, axes))
    keys = jax.random.split(jax.random.key(0), envs)
    state = jax.jit(jax.vmap(env.reset, (0, None)))(keys, params)[1]
    action = jax.vmap(lambda k: env.action.sample(k, env.num_agents))(keys)
    agree = 1.0
    for _ in range(STEPS):
        expected, found = (step(keys, state, action, params) for step in (slow, fast))
        agree = min(agree, _agreement(expected, found))
        state = expected[1]
        keys = jax.vmap(lambda k: jax.random.fold_in(k, 1))(keys)

    def times(step: Any) -> float:
        return _seconds(lambda s: step(keys, s, action, params)[1], state)

    return {"agree": agree, "xla_s": times(slow), "kernel_s": times(fast)}


def _agreement(expected: Any, found: Any) -> float:
    """Share of equal numbers in two results of a step."""
    if not bool(jnp.array_equal(expected[4], found[4])):  # ends of episodes
        return 0.0
    equal = total = 0
    for a, b in zip(jax.tree.leaves(expected), jax.tree.leaves(found), strict=True):
        if jax.dtypes.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        x, y = np.asarray(a), np.asarray(b)
        equal += int(np.isclose(y, x, rtol=1e-3, atol=1e-3, equal_nan=True).sum())
        total += x.size
    return equal / total


def _seconds(step: Callable[[Any], Any], state: Any) -> float:
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
    print(json.dumps(measure()))

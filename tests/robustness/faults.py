"""Faults of machines and long runs: SIGKILL, full disks, sizes, many steps, other hash seeds."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from families import check_bytes, check_step
from memory import memory_mb
from outcomes import SOUND, Tally, Unsound, judge
from test_resume import (
    SAVE,
    START,
    assert_same_folders,
    begin,
    compiling_once,
    finish,
    lines,
    rows,
)

import ecn_marl
from ecn_marl.experiments.records import Record
from ecn_marl.sim import Incast, Poisson, star

FLAT_MB = 20.0
"""Growth of memory that is left to a run of any length."""


def kills(times: int, number: int = 0) -> Tally:
    """Training killed at random moments, once or twice, and resumed: bit for bit as if never."""
    tally, rng = Tally("SIGKILL of training"), random.Random(number)
    with tempfile.TemporaryDirectory() as folder:
        cache, whole = Path(folder) / "cache", Path(folder) / "whole"
        finish(begin(cache, *START, *SAVE, "--out", whole))
        started = time.monotonic()
        finish(begin(cache, *START, *SAVE, "--out", Path(folder) / "again"))
        usual = time.monotonic() - started

        def run(moments: list[float]) -> str:
            out = Path(folder) / f"killed-{time.monotonic_ns()}"
            for moment in moments:
                more = ["--resume", out] if (out / "config.json").is_file() else None
                process = begin(cache, *(more or [*START, "--out", out]), *SAVE)
                time.sleep(moment)
                process.kill()
                process.communicate()
            more = ["--resume", out] if (out / "config.json").is_file() else [*START, "--out", out]
            finish(begin(cache, *more, *SAVE))
            if rows(out) != rows(whole):
                raise Unsound(f"{lines(out)} rows are not those of a run that was never killed")
            assert_same_folders(out, whole)
            shutil.rmtree(out)
            return SOUND

        for _ in range(times):
            moments = [rng.uniform(0.2, 1.0) * usual for _ in range(rng.choice((1, 1, 2)))]
            judge(tally, moments, run, seconds=600)
    return tally


BENCH = """
import sys
from pathlib import Path
from small import EFFORT, SETTINGS, SMALL, quiet, register
from ecn_marl.experiments.bench import bench
from ecn_marl.experiments.plan import Plan

register()
policies = ("pet", "static:secn1")
numbers = {"seeds": 2, "steps": 80, "episodes": 3, "eval_episodes": 2}
numbers |= {"settings": SETTINGS, "effort": EFFORT}
bench(Plan((SMALL,), policies, Path(sys.argv[1]), **numbers), quiet)
"""
"""A comparison of four policies, two of them searched for, one trained, in seconds."""


def bench_kills(times: int, number: int = 0) -> Tally:
    """A comparison killed at random moments, once to three times, and begun again: same scores."""
    tally, rng = Tally("SIGKILL of bench"), random.Random(number)
    with tempfile.TemporaryDirectory() as folder:
        environment = compiling_once(Path(folder) / "cache") | {"PYTHONPATH": path_of_tests()}

        def start(out: Path) -> subprocess.Popen[bytes]:
            command = [sys.executable, "-c", BENCH, str(out)]
            return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE)

        def scores(out: Path) -> dict[str, dict[str, np.ndarray]]:
            files = sorted(out.glob("*/scores/*.json"))
            return {file.name: dict(Record.load(file).columns) for file in files}

        whole = Path(folder) / "whole"
        finish(start(whole))
        started = time.monotonic()
        finish(start(Path(folder) / "again"))
        usual = time.monotonic() - started

        def run(moments: list[float]) -> str:
            out = Path(folder) / f"killed-{time.monotonic_ns()}"
            for moment in moments:
                process = start(out)
                time.sleep(moment)
                process.kill()
                process.communicate()
            finish(start(out))
            found, expected = scores(out), scores(whole)
            if found.keys() != expected.keys():
                raise Unsound(f"scores of {sorted(found)}, not of {sorted(expected)}")
            for name, columns in expected.items():
                for column, values in columns.items():
                    if not np.array_equal(found[name][column], values, equal_nan=True):
                        raise Unsound(f"{column} of {name} is not that of a bench left alone")
            shutil.rmtree(out)
            return SOUND

        for _ in range(times):
            moments = [rng.uniform(0.2, 1.0) * usual for _ in range(rng.choice((1, 2, 3)))]
            judge(tally, moments, run, seconds=600)
    return tally


def path_of_tests() -> str:
    """PYTHONPATH with the small scenario of the tests of comparisons."""
    experiments = str(Path(__file__).parent.parent / "experiments")
    return os.pathsep.join([experiments, *filter(None, [os.environ.get("PYTHONPATH")])])


def sizes(most: int | None = None) -> Tally:
    """Hosts, rates, loads and flows from the smallest to the largest."""
    cases: list[dict[str, Any]] = [
        *({"hosts": hosts, "gbps": 25.0, "load": 0.8} for hosts in (2, 3, 64, 256, 1024)),
        *({"hosts": 4, "gbps": gbps, "load": 0.8} for gbps in (1.0, 10.0, 100.0, 400.0, 800.0)),
        *({"hosts": 4, "gbps": 25.0, "load": load} for load in (0.001, 0.01, 0.5, 0.98, 3.0)),
        *({"hosts": 4, "gbps": 25.0, "kb": kb} for kb in (0.001, 1.0, 1e6, 1e9)),
    ]

    def run(case: dict[str, Any]) -> str:
        source: Any = Poisson(load=case.get("load", 0.5), width=64)
        if "kb" in case:
            source = Incast(n_max=3, flow_kb=case["kb"], width=3)
        env = ecn_marl.make(
            "incast-v0",
            topology=star(case["hosts"], gbps=case["gbps"]),
            traffic=(source,),
            slots=256,
            max_steps=20,
        )
        params, key = env.default_params, jax.random.key(0)
        _, state = jax.jit(env.program.reset)(key, params)
        step = jax.jit(env.program.step)
        for _ in range(5):
            found = step(key, state, env.action.sample(key, env.num_agents), params)
            state = found[1]
            check_step(found)
        check_bytes(state)
        return SOUND

    tally = Tally("sizes, rates and loads")
    for case in cases[:most]:
        judge(tally, case, run, seconds=300)
    return tally


def long_run(steps: int) -> Tally:
    """Steps through the PettingZoo face; memory stays flat."""

    def run(total: int) -> str:
        env = ecn_marl.parallel_env("websearch-star-v0")
        env.reset(seed=0)
        still = {agent: np.array([3, 2, 5]) for agent in env.possible_agents}
        settled = 0.0
        for number in range(total):
            if not env.agents:
                env.reset()
            obs, *_ = env.step(still)
            if number == total // 5:
                settled = memory_mb()
        if not all(np.isfinite(x).all() for x in obs.values()):
            raise Unsound("an observation is not finite")
        if memory_mb() - settled > FLAT_MB:
            raise Unsound(f"{memory_mb() - settled:.0f} MB more after {total} steps")
        return SOUND

    tally = Tally("long runs")
    judge(tally, steps, run, seconds=1200)
    return tally


EPISODE = """
import hashlib, numpy as np, ecn_marl
env = ecn_marl.parallel_env("websearch-star-v0", max_cycles=20)
obs, _ = env.reset(seed=7)
digest = hashlib.sha256()
while env.agents:
    obs, reward, *_ = env.step({a: np.array([3, 2, 5]) for a in env.agents})
    digest.update(b"".join(x.tobytes() for x in obs.values()) + repr(reward).encode())
print(digest.hexdigest())
"""


def processes(times: int) -> Tally:
    """The same seed in other processes, under other hash seeds: the same numbers."""
    first: list[str] = []

    def run(hash_seed: int) -> str:
        env = os.environ | {"PYTHONHASHSEED": str(hash_seed)}
        command = [sys.executable, "-c", EPISODE]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
        first.append(done.stdout)
        if done.stdout != first[0]:
            raise Unsound("another process has other numbers")
        return SOUND

    tally = Tally("the same seed in several processes")
    for hash_seed in range(times):
        judge(tally, hash_seed, run, seconds=300)
    return tally


def timed(work: Callable[[], Tally]) -> tuple[Tally, float]:
    """A tally, and the seconds it took."""
    began = time.monotonic()
    return work(), time.monotonic() - began

"""Training on several devices and in several processes: the same numbers but for rounding."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from ecn_marl.baselines.common.checkpoint import Checkpoints
from ecn_marl.parallelism import parse_processes

PROGRAM = """
import ecn_marl
from ecn_marl.cli import app
from ecn_marl.envs.registry import Scenario
from ecn_marl.sim import Incast, star

ecn_marl.register("shared-v0", lambda: Scenario(
    topology=star(4), traffic=(Incast(n_max=3, flow_kb=50.0, width=3),), slots=8, max_steps=6,
    interval_us=40.0, bins=40, pfc=False,
))
app()
"""
START = ["ippo", "--scenario", "shared-v0", "--steps", "64", "--eval-every", "2", "--envs", "4"]
START += ["--eval-episodes", "2"]
START += ["--set", "rollout=4", "--set", "epochs=1", "--set", "minibatches=2", "--set", "hidden=8"]
SAVE = ["--save-updates", "2"]


def begin(*args: object, home: Path) -> subprocess.Popen:
    env = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": str(home / "cache"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        "XLA_FLAGS": "--xla_backend_optimization_level=0",  # compiles in two thirds of the time
    }
    command = [sys.executable, "-c", PROGRAM, "train", *map(str, args)]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def finish(*processes: subprocess.Popen) -> list[str]:
    """Wait for all; JAX's runtime swallows SIGTERM, so what hangs is killed."""
    said = []
    try:
        for process in processes:
            out, err = process.communicate(timeout=400)
            assert process.returncode == 0, err.decode()
            said.append(out.decode())
    finally:
        for process in processes:
            process.kill()
    return said


def state(run: Path, step: int) -> dict[str, np.ndarray]:
    checkpoints = Checkpoints(run)
    path = checkpoints.folder / str(step)
    shapes = checkpoints._writer.metadata(path).item_metadata.tree
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    like = {k: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=here) for k, x in shapes.items()}
    return checkpoints.restore(like, step)


def rows(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def assert_close(a: Path, b: Path) -> None:
    """The first update's rollout is the same to rounding, and so are parameters after it."""
    first, other = rows(a), rows(b)
    assert len(first) == len(other) == 4
    for name in ("reward", "queue_mean", "utilisation"):
        found, expected = (np.array([row[name] for row in x]) for x in (first, other))
        np.testing.assert_allclose(found[0], expected[0], rtol=1e-5)
        np.testing.assert_allclose(found, expected, rtol=1e-3)
    assert [("score" in row) for row in other] == [False, True, False, True]
    one, two = state(a, 2), state(b, 2)
    names = [name for name in one if name.split(".")[0] in ("actor", "critic")]
    assert len(names) == 8
    for name in names:
        np.testing.assert_allclose(one[name], two[name], atol=2e-5)


@pytest.fixture(scope="module")
def single(tmp_path_factory):
    """The run on one device."""
    home = tmp_path_factory.mktemp("runs")
    finish(begin(*START, *SAVE, "--out", home / "one", home=home))
    return home


@pytest.mark.slow
def test_two_devices_give_what_one_gives(single):
    run = single / "two"
    finish(begin(*START, *SAVE, "--devices", 2, "--out", run, home=single))
    assert_close(run, single / "one")
    resumed = begin("--resume", run, "--steps", 80, "--devices", 2, home=single)
    finish(resumed)
    assert [row["update"] for row in rows(run)] == [1, 2, 3, 4, 5]


@pytest.mark.slow
def test_two_processes_give_what_one_gives(single):
    run = single / "processes"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    command = [*START, *SAVE, "--out", run, "--distributed"]
    said = finish(*(begin(*command, f"{address},2,{i}", home=single) for i in (0, 1)))
    assert "metrics.jsonl" in said[0]
    assert "metrics.jsonl" not in said[1], "only the first process prints"
    assert_close(run, single / "one")


@pytest.mark.parametrize("spec", ["127.0.0.1", "host:1,2", "host:1,2,2", "host:1,2,x", "host,2,0"])
def test_bad_addresses_are_named(spec):
    with pytest.raises(ValueError, match=r"distributed = .*HOST:PORT,N,I"):
        parse_processes(spec)


def test_processes_are_read():
    assert parse_processes("10.0.0.1:1234,4,3") == ("10.0.0.1:1234", 4, 3)

"""Training on several devices and in several processes: the same numbers but for rounding."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest
from commands import TINY, run

from ecn_marl.baselines.training.checkpoint import Checkpoints
from ecn_marl.parallelism import LOST, parse_processes

PROGRAM = """
import ecn_marl
from commands import TINY, tiny
from ecn_marl.cli import app

ecn_marl.register(TINY, tiny)
app()
"""
START = ["ippo", "--scenario", TINY, "--steps", "64", "--envs", "4"]
START += ["--set", "rollout=4", "--set", "epochs=1", "--set", "minibatches=2", "--set", "hidden=8"]
SAVE = ["--save-updates", "2"]
PLAIN = ["--eval-every", "0"]
EVALUATED = ["--eval-every", "2", "--eval-episodes", "2", "--allow-flagged"]  # few slots


def begin(*args: object, home: Path) -> subprocess.Popen:
    env = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": os.pathsep.join(sys.path),
        "JAX_COMPILATION_CACHE_DIR": str(home / "cache"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",  # little is run, much is compiled
    }
    command = [sys.executable, "-c", PROGRAM, "train", *map(str, args)]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def finish(*processes: subprocess.Popen) -> list[str]:
    """Wait for all; JAX's runtime swallows SIGTERM, so what hangs is killed."""
    outputs = []
    try:
        for process in processes:
            out, err = process.communicate(timeout=400)
            assert process.returncode == 0, err.decode()
            outputs.append(out.decode())
    finally:
        for process in processes:
            process.kill()
    return outputs


def state(run: Path, step: int) -> dict[str, np.ndarray]:
    checkpoints = Checkpoints(run)
    path = checkpoints.folder / str(step)
    shapes = checkpoints._writer.metadata(path).item_metadata.tree
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    like = {k: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=device) for k, x in shapes.items()}
    return checkpoints.restore(like, step)


def rows(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def assert_close(a: Path, b: Path) -> None:
    """The first update's rollout is the same to rounding, and so are parameters after it."""
    rows_a, rows_b = rows(a), rows(b)
    assert len(rows_a) == len(rows_b) == 4
    for name in ("reward", "queue_mean", "utilisation"):
        values, expected = (np.array([row[name] for row in x]) for x in (rows_a, rows_b))
        np.testing.assert_allclose(values[0], expected[0], rtol=1e-5)
        np.testing.assert_allclose(values, expected, rtol=1e-3)
    state_a, state_b = state(a, 2), state(b, 2)
    names = [name for name in state_a if name.split(".")[0] in ("actor", "critic")]
    assert len(names) == 8
    for name in names:
        np.testing.assert_allclose(state_a[name], state_b[name], atol=2e-5)


@pytest.fixture(scope="module")
def single(tmp_path_factory, tiny_scenario):
    """The run on one device, in this process."""
    home = tmp_path_factory.mktemp("runs")
    result = run("train", *START, *SAVE, *PLAIN, "--out", home / "one")
    assert result.exit_code == 0, result.output
    return home


@pytest.mark.slow
def test_two_devices_give_what_one_gives(single):
    folder = single / "two"
    finish(begin(*START, *SAVE, *PLAIN, "--devices", 2, "--out", folder, home=single))
    assert_close(folder, single / "one")


@pytest.mark.slow
@pytest.mark.thorough
def test_two_devices_evaluate_and_go_on(single):
    folder = single / "evaluated"
    finish(begin(*START, *SAVE, *EVALUATED, "--devices", 2, "--out", folder, home=single))
    assert_close(folder, single / "one")
    assert [("merit" in row) for row in rows(folder)] == [False, True, False, True]
    resumed = begin("--resume", folder, "--steps", 80, "--devices", 2, home=single)
    finish(resumed)
    assert [row["update"] for row in rows(folder)] == [1, 2, 3, 4, 5]


@pytest.mark.slow
@pytest.mark.thorough
def test_two_processes_give_what_one_gives(single):
    folder = single / "processes"
    outputs = two_processes(*START, *SAVE, *PLAIN, "--out", folder, home=single)
    assert "metrics.jsonl" in outputs[0]
    assert "metrics.jsonl" not in outputs[1], "only the first process prints"
    assert_close(folder, single / "one")


def two_processes(*command: object, home: Path) -> list[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    processes = (begin(*command, "--distributed", f"{address},2,{i}", home=home) for i in (0, 1))
    return finish(*processes)


@pytest.mark.slow
@pytest.mark.thorough
def test_two_processes_go_on_bit_for_bit(single):
    """Put back to what there was after update 2, both processes make updates 3 and 4 again."""
    uninterrupted, cut = single / "whole", single / "cut"
    two_processes(*START, *SAVE, *EVALUATED, "--out", uninterrupted, home=single)
    shutil.copytree(uninterrupted, cut)
    shutil.rmtree(cut / "checkpoints" / "4")
    (cut / "checkpoints" / "best.json").unlink(missing_ok=True)
    two_processes("--resume", cut, home=single)
    timing = ("seconds", "steps_per_second")
    untimed = [
        [{k: v for k, v in row.items() if k not in timing} for row in rows(x)]
        for x in (uninterrupted, cut)
    ]
    assert len(untimed[0]) == 4 and untimed[0] == untimed[1]
    state_a, state_b = state(uninterrupted, 4), state(cut, 4)
    for name in state_a:
        a, b = state_a[name], state_b[name]
        if jax.dtypes.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        np.testing.assert_array_equal(a, b, err_msg=name)


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("lost", [0, 1])
def test_a_lost_process_ends_the_others_with_one_line(single, lost):
    """The survivor says what to do, and a training of both then goes on from the checkpoint."""
    folder, steps = single / f"lost{lost}", ("--steps", "1000000", "--save-updates", "10")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    command = (*START, *PLAIN, *steps, "--out", folder)
    both = [begin(*command, "--distributed", f"{address},2,{i}", home=single) for i in (0, 1)]
    try:
        while not (checkpoint := Checkpoints(folder).latest):
            assert not [p.stderr.read() for p in both if p.poll() is not None]
            time.sleep(0.1)
        both[lost].kill()
        _, err = both[1 - lost].communicate(timeout=30)
    finally:
        for process in both:
            process.kill()
            process.wait()
    assert both[1 - lost].returncode == LOST, err.decode()
    (line,) = [x for x in err.decode().splitlines() if x.startswith("ecn-marl: ")]
    assert "another of the 2 processes" in line and f"--resume {folder}" in line
    config = json.loads((folder / "config.json").read_text())
    more = (checkpoint + 20) * config["settings"]["envs"] * config["settings"]["rollout"]
    (folder / "config.json").write_text(json.dumps(config | {"steps": more}))
    two_processes("--resume", folder, home=single)
    assert Checkpoints(folder).latest == checkpoint + 20


@pytest.mark.parametrize("spec", ["127.0.0.1", "host:1,2", "host:1,2,2", "host:1,2,x", "host,2,0"])
def test_bad_addresses_are_named(spec):
    with pytest.raises(ValueError, match=r"distributed = .*HOST:PORT,N,I"):
        parse_processes(spec)


def test_processes_are_read():
    assert parse_processes("10.0.0.1:1234,4,3") == ("10.0.0.1:1234", 4, 3)

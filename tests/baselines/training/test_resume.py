"""A run that is killed and resumed ends where one ends that was left alone, bit for bit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from toy import ToyEnv, ToyParams

from ecn_marl.baselines.evaluation.merit import Merits
from ecn_marl.baselines.ippo import IPPO, IPPOConfig
from ecn_marl.baselines.training import loop as training
from ecn_marl.baselines.training.checkpoint import Checkpoints
from ecn_marl.baselines.training.interrupts import Interrupts
from ecn_marl.baselines.training.logs import cut_rows, read_rows
from ecn_marl.baselines.training.loop import (
    Saving,
    TrainingInterrupted,
    train,
)

PROGRAM = """
import ecn_marl
from ecn_marl.cli import app
from ecn_marl.envs.scenario import Scenario
from ecn_marl.sim import Incast, star

ecn_marl.register("killed-v0", lambda: Scenario(
    topology=star(4), traffic=(Incast(n_max=3, flow_kb=50.0, width=3),), slots=8, max_steps=6,
    interval_us=40.0, bins=40, pfc=False,
))
app()
"""
UPDATES = 40
START = ["ippo", "--scenario", "killed-v0", "--steps", str(8 * UPDATES), "--eval-every", "0"]
START += ["--set", "rollout=4", "--set", "minibatches=2", "--envs", "2"]
SAVE = ["--save-updates", "1"]


def compiling_once(cache: Path) -> dict[str, str]:
    """Environment of processes: what one compiles the others find in a cache."""
    return os.environ | {
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",  # little is run, much is compiled
    }


def begin(cache: Path, *args: object) -> subprocess.Popen:
    """`ecn-marl train` in a process of its own."""
    command = [sys.executable, "-c", PROGRAM, "train", *map(str, args)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=compiling_once(cache), stderr=pipe, stdout=pipe)


def finish(process: subprocess.Popen) -> str:
    _, err = process.communicate(timeout=300)
    assert process.returncode == 0, err.decode()
    return err.decode()


def wait_for(process: subprocess.Popen, condition) -> None:
    while not condition():
        assert process.poll() is None, process.communicate()[1].decode()
        time.sleep(0.002)


def lines(run: Path) -> int:
    path = run / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.is_file() else 0


def writing(run: Path) -> bool:
    return any((run / "checkpoints").glob("*.orbax-checkpoint-tmp"))


def kill_in_write(process: subprocess.Popen, run: Path, n_rows: int) -> None:
    """SIGKILL while a checkpoint is half written; stopped first, to be sure of that."""
    while True:
        wait_for(process, lambda: lines(run) > n_rows and writing(run))
        process.send_signal(signal.SIGSTOP)
        if writing(run):
            break
        process.send_signal(signal.SIGCONT)
    process.kill()
    process.communicate()
    assert writing(run)


def rows(run: Path) -> list[dict]:
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if "second" not in k} for row in metrics]


def assert_same_folders(a: Path, b: Path) -> None:
    """Every file of two checkpoints' arrays, through orbax without a template."""
    checkpoints = [Checkpoints(run) for run in (a, b)]
    assert checkpoints[0].latest == checkpoints[1].latest == UPDATES
    trees = [c._writer.restore(c.folder / str(UPDATES)) for c in checkpoints]
    assert trees[0].keys() == trees[1].keys()
    for name in trees[0]:
        x, y = trees[0][name], trees[1][name]
        if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
            x, y = jax.random.key_data(x), jax.random.key_data(y)
        assert np.asarray(x).tobytes() == np.asarray(y).tobytes(), name


@pytest.mark.slow
@pytest.mark.thorough
def test_a_run_killed_at_any_moment_resumes_bit_for_bit(tmp_path):
    cache, uninterrupted, broken = tmp_path / "cache", tmp_path / "whole", tmp_path / "broken"
    finish(begin(cache, *START, "--out", uninterrupted))

    process = begin(cache, *START, *SAVE, "--out", broken)  # Ctrl-C
    wait_for(process, lambda: lines(broken) >= 5)
    process.send_signal(signal.SIGINT)
    err = process.communicate(timeout=60)[1].decode()
    assert process.returncode == 130, err
    assert f"go on with: ecn-marl train --resume {broken}" in err
    stopped = lines(broken)
    assert Checkpoints(broken).latest == stopped < UPDATES

    process = begin(cache, "--resume", broken, *SAVE)  # killed in a write
    kill_in_write(process, broken, stopped + 5)

    with (broken / "metrics.jsonl").open("a") as file:
        file.write('{"update": 99, "rew')  # as if killed in the middle of a line, too

    finish(begin(cache, "--resume", broken, "--save-updates", 3))
    assert [row["update"] for row in rows(broken)] == list(range(1, UPDATES + 1))
    assert rows(broken) == rows(uninterrupted)
    assert_same_folders(uninterrupted, broken)
    assert not writing(broken)


def test_a_stopped_learner_goes_on_bit_for_bit(tmp_path):
    """As the long test above, of a small learner in this process: its keys, its optimisers."""

    def progress(row):
        if row["update"] == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    settings = IPPOConfig(envs=2, rollout=4, epochs=1, minibatches=2, hidden=(4,))
    learner, params = IPPO(ToyEnv(), settings), ToyParams(max_steps=10)
    whole = train(learner, params, steps=40, seed=1)
    with pytest.raises(TrainingInterrupted):
        train(learner, params, steps=40, seed=1, out=tmp_path, progress=progress)
    assert Checkpoints(tmp_path).latest == 3
    resumed = train(learner, params, steps=40, seed=1, out=tmp_path, resume=True)
    for a, b in zip(*(jax.tree.leaves(x.state) for x in (whole, resumed)), strict=True):
        if jax.dtypes.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()
    assert [row["reward"] for row in rows(tmp_path)] == [row["reward"] for row in whole.metrics]


def test_rows_after_the_checkpoint_are_cut(tmp_path):
    path = tmp_path / "metrics.jsonl"
    text = "".join(json.dumps({"update": i}) + "\n" for i in (1, 2, 3))
    path.write_text(text + '{"upda')
    assert cut_rows(tmp_path, 2) == [{"update": 1}, {"update": 2}]
    assert path.read_text() == '{"update": 1}\n{"update": 2}\n'
    with pytest.raises(ValueError, match="row for each of 3 updates"):
        cut_rows(tmp_path, 3)
    path.write_text('{"update": 1}\n{"update": 3}\n')
    with pytest.raises(ValueError, match="row for each of 2 updates"):
        cut_rows(tmp_path, 2)
    path.write_text('{"update": 1}\n{"update": 2}')
    with pytest.raises(ValueError, match="row for each of 2 updates"):
        cut_rows(tmp_path, 2)


class Counting:
    """A state that counts; its merit is the largest at the second update."""

    class config:
        steps_per_update = 10

    def init(self, key, params):
        return {"n": jax.numpy.zeros((), jax.numpy.int32)}

    def update(self, state, params):
        return {"n": state["n"] + 1}, {"reward": state["n"] * 0.5}


def merit(state):
    return Merits(np.asarray([-abs(int(state["n"]) - 2.0)]))


def test_the_best_is_the_state_that_was_evaluated(tmp_path):
    saving = Saving(updates=1, eval_every=1)
    train(Counting(), None, steps=60, out=tmp_path, saving=saving, merit=merit)
    checkpoints = Checkpoints(tmp_path)
    assert checkpoints.steps == [2, 5, 6]
    assert checkpoints.best() == (2, 0.0)
    like = {"n": jax.numpy.zeros((), jax.numpy.int32)}
    for step in checkpoints.steps:
        restored = checkpoints.restore(like, step)
        assert int(restored["n"]) == step
    (best,) = merit(checkpoints.restore(like, checkpoints.find("best"))).value
    assert best == checkpoints.best().merit
    assert [row["merit"] for row in rows(tmp_path)] == [-1.0, 0.0, -1.0, -2.0, -3.0, -4.0]


class CountingTwice(Counting):
    """Two learners; the second counts from 10."""

    def init(self, key, params):
        learner = jax.random.key_data(key)[..., -1].astype(jax.numpy.int32)
        return {"n": 10 * learner}


def test_a_run_of_an_old_version_goes_on(tmp_path):
    """Its merits are called scores in rows and in best.json."""
    saving = Saving(updates=1, eval_every=1)
    train(Counting(), None, steps=20, out=tmp_path, saving=saving, merit=merit)
    for file in (tmp_path / "metrics.jsonl", tmp_path / "checkpoints" / "best.json"):
        file.write_text(file.read_text().replace("merit", "score"))
    assert "score" in rows(tmp_path)[0]
    train(Counting(), None, steps=60, out=tmp_path, saving=saving, merit=merit, resume=True)
    assert Checkpoints(tmp_path).best() == (2, 0.0)
    assert [row["merit"] for row in read_rows(tmp_path)] == [-1.0, 0.0, -1.0, -2.0, -3.0, -4.0]


def test_each_learner_has_a_best_of_its_own(tmp_path):
    def merits(state):
        return Merits(-np.abs(np.asarray(state["n"]) - np.array([2.0, 14.0])))

    saving = Saving(updates=1, eval_every=1)
    run = {"seeds": 2, "out": tmp_path, "saving": saving, "merit": merits}
    train(CountingTwice(), None, steps=30, **run)
    assert [Checkpoints(tmp_path).best(k) for k in (0, 1)] == [(2, 0.0), (3, -1.0)]
    train(CountingTwice(), None, steps=80, resume=True, **run)
    checkpoints = Checkpoints(tmp_path)
    assert [checkpoints.best(k) for k in (0, 1)] == [(2, 0.0), (4, 0.0)]
    assert [checkpoints.find("best", k) for k in (0, 1)] == [2, 4]
    assert checkpoints.steps == [2, 4, 7, 8]
    like = {"n": jax.numpy.zeros((2,), jax.numpy.int32)}
    assert checkpoints.restore(like, 4)["n"].tolist() == [4, 14]


def test_a_kill_between_checkpoint_and_its_merit_loses_nothing(tmp_path):
    saving = Saving(updates=1, eval_every=1)
    train(Counting(), None, steps=20, out=tmp_path, saving=saving, merit=merit)
    (tmp_path / "checkpoints" / "best.json").unlink()
    train(Counting(), None, steps=60, out=tmp_path, saving=saving, merit=merit, resume=True)
    assert Checkpoints(tmp_path).best() == (2, 0.0)
    assert Checkpoints(tmp_path).steps == [2, 5, 6]


@pytest.mark.parametrize(("updates", "expected"), [(3, [6, 7]), (None, [7])])
def test_checkpoints_come_every_so_many_updates(tmp_path, updates, expected):
    train(Counting(), None, steps=70, out=tmp_path, saving=Saving(updates=updates))
    assert Checkpoints(tmp_path).steps == expected


def test_checkpoints_come_every_so_many_seconds(tmp_path, monkeypatch):
    saved_steps: list[list[int]] = []
    ticks = count()
    clock = SimpleNamespace(passed=0.0, perf_counter=lambda: clock.passed + 1e-3 * next(ticks))
    monkeypatch.setattr(training, "time", clock)

    def progress(row):
        saved_steps.append(Checkpoints(tmp_path).steps)
        clock.passed += 0.3

    saving = Saving(seconds=0.5)
    train(Counting(), None, steps=60, out=tmp_path, saving=saving, progress=progress)
    assert saved_steps[0] == []
    assert saved_steps[4] not in ([], [5])


def test_a_signal_stops_after_the_update_and_saves(tmp_path):
    def progress(row):
        if row["update"] == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    handler = signal.getsignal(signal.SIGTERM)
    with pytest.raises(TrainingInterrupted, match="SIGTERM after update 4"):
        train(Counting(), None, steps=1000, out=tmp_path, progress=progress)
    assert signal.getsignal(signal.SIGTERM) is handler
    assert Checkpoints(tmp_path).latest == 4
    result = train(Counting(), None, steps=60, out=tmp_path, resume=True)
    assert int(result.state["n"]) == 6
    assert [row["update"] for row in rows(tmp_path)] == [1, 2, 3, 4, 5, 6]


def test_a_second_signal_acts_at_once():
    # A shell's background jobs ignore SIGINT, and so would this test without Python's own handler.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), Interrupts() as interrupts:
            signal.raise_signal(signal.SIGINT)
            assert interrupts.requested is signal.SIGINT
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


FAILED_SAVE = """
import os, shutil, sys
from ecn_marl.baselines.ippo import IPPO, IPPOConfig
from ecn_marl.baselines.training import loop as training
from ecn_marl.baselines.training.checkpoint import Checkpoints
import numpy as np
run = sys.argv[1]
checkpoints = Checkpoints(run)
checkpoints.save(1, {"a": np.arange(3.0)})
shutil.rmtree(run)
open(run, "w").close()
try:
    checkpoints.save(2, {"a": np.arange(3.0)})
except OSError as error:
    print("told:", error)
os.remove(run)
checkpoints.save(3, {"a": np.arange(3.0)})
print(checkpoints.steps)
"""


def test_a_failed_save_raises_and_nothing_hangs(tmp_path):
    """With a checkpoint manager that makes folders in the background the process does not end."""
    command = [sys.executable, "-c", FAILED_SAVE, str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, timeout=60, text=True)
    assert done.returncode == 0, done.stderr
    message, steps = done.stdout.splitlines()
    assert message.startswith("told: [Errno 20] Not a directory")
    assert steps == "[3]"


def test_a_full_disk_is_an_oserror(tmp_path):
    """Tensorstore's errors are of another kind; former checkpoints stay."""
    code = (
        "import resource, signal, sys, numpy as np\n"
        "from ecn_marl.baselines.training.checkpoint import Checkpoints\n"
        "c = Checkpoints(sys.argv[1])\n"
        "c.save(1, {'a': np.zeros(3)})\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20000, -1))\n"
        "try: c.save(2, {'a': np.random.default_rng(0).normal(size=300000)})\n"
        "except OSError as error: print('told:', error)\n"
        "print(c.steps)\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, timeout=60, text=True)
    message, steps = done.stdout.splitlines()
    assert "cannot be written" in message
    assert "File too large" in message
    assert steps == "[1]"


class SlowToCompile(Counting):
    """Half a second passes while it is traced, none when it runs."""

    def update(self, state, params):
        time.sleep(0.5)
        return super().update(state, params)


def test_compile_time_is_not_in_the_rate():
    row = train(SlowToCompile(), None, steps=10).metrics[0]
    assert row["steps_per_second"] > 10 / 0.1
    assert row["seconds"] >= 0.5

"""A process that is forked after JAX was used raises an error at once instead of hanging."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ecn_marl import _fork
from ecn_marl.errors import ForkedProcess

PROGRAM = """
import multiprocessing, sys, warnings
warnings.simplefilter("ignore")
import ecn_marl

def child(how, make, queue):
    env = make()
    try:
        env.reset(seed=0)
        queue.put(f"{how}: fine")
    except ecn_marl.errors.ForkedProcess as error:
        queue.put(f"{how}: {error}")

def parallel():
    return ecn_marl.parallel_env("incast-v0", pfc=False)

def vector():
    return ecn_marl.vector_env("incast-v0", 2)

def rate():
    return ecn_marl.rate_parallel_env("many-to-one-2-v0")

if __name__ == "__main__":
    fork = multiprocessing.get_context("fork")
    for when in ("before", "after"):
        for make in (parallel, vector, rate) if when == "after" else (parallel,):
            queue = fork.Queue()
            process = fork.Process(target=child, args=(when, make, queue), daemon=True)
            process.start()
            print(queue.get(timeout=60), flush=True)
            process.join()
        parallel().reset(seed=0)
"""


def test_before_the_first_reset_a_fork_works_and_afterwards_it_is_refused(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    result = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=200)
    assert result.returncode == 0, result.stderr
    before, *after = result.stdout.splitlines()
    assert before == "before: fine"
    assert len(after) == 3
    for line in after:
        assert "was forked from process" in line
        assert "spawn" in line


def test_the_first_process_may_go_on(monkeypatch):
    monkeypatch.setattr(_fork, "_computing_pid", None)
    _fork.check_process()
    _fork.check_process()
    monkeypatch.setattr("os.getpid", lambda: -1)
    with pytest.raises(ForkedProcess, match="spawn"):
        _fork.check_process()

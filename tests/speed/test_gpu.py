"""`speed --gpu`: its programs, its processes, its table. A CPU takes the GPU's place."""

from __future__ import annotations

import sys
from dataclasses import asdict

import pytest
from commands import failure
from rich.console import Console
from tiers import tiers

from ecn_marl.speed import gpu
from ecn_marl.speed.gpu import Job

STAND_IN = """
import json, os, sys
job, runs = json.loads(sys.argv[1]), int(sys.argv[2])
print("a library says something")
if job["envs"] == 13:
    print("Traceback", file=sys.stderr)
    sys.exit("ValueError: 13 is not allowed")
form = os.environ["LANES_GPU"]
rate = {"median": 3e6 if form == "1" else 1e6}
print(json.dumps({"agent_steps_per_s": rate, "flagged": {"any": 0.25}, "runs": runs}))
"""


def test_every_scenario_is_compared_and_timed_in_both_forms() -> None:
    found = gpu.jobs(("a", "b"), (8, 16), "ippo")
    assert [j.scenario for j in found if j.program == "agreement"] == ["a", "b"]
    timed = [j for j in found if j.program != "agreement"]
    programs, scenarios, counts = ("environments", "train ippo"), "ab", (8, 16)
    expected = {
        Job(p, s, n, f) for p in programs for s in scenarios for n in counts for f in gpu.FORMS
    }
    assert len(timed) == len(expected)
    assert set(timed) == expected


def test_a_process_for_each_program_and_a_fault_of_one_harms_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gpu, "COMMAND", (sys.executable, "-c", STAND_IN))
    told: list[str] = []
    todo = [Job("environments", "a", n, form) for n in (13, 8) for form in gpu.FORMS]
    rows = gpu.measure(todo, told.append, runs=7)
    assert [row.get("failed") for row in rows] == ["ValueError: 13 is not allowed"] * 2 + [None] * 2
    assert rows[2]["runs"] == 7
    assert told[2] == "environments, a, 8 environments, kernel: 3M agent-steps/s"
    assert gpu.lines(rows) == [
        ("environments", "a", "13", "–", "–", "–", "–"),
        ("environments", "a", "8", "3M", "1M", "3.0", "25.00%"),
    ]
    console = Console(width=150)
    with console.capture() as printed:
        console.print(gpu.table([{**asdict(Job("agreement", "a", 8)), "agree": 0.996}, *rows]))
    assert "99.60%" in printed.get()


def test_what_takes_too_long_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "COMMAND", (sys.executable, "-c", "import time; time.sleep(60)"))
    (row,) = gpu.measure([Job("environments", "a", 8)], lambda text: None, seconds=0.2)
    assert row["failed"] == "out of time"


@pytest.mark.slow
@pytest.mark.parametrize("program", tiers(["agreement", "environments"], "environments"))
def test_programs_run_in_processes_of_their_own(
    program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here, both forms run on the CPU. That their results agree, tests of lanes show."""
    monkeypatch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")  # little is run, much is compiled
    (row,) = gpu.measure([Job(program, "websearch-star-v0", 4)], lambda text: None)
    assert (row["program"], row["envs"]) == (program, 4)
    if program == "agreement":
        assert row["agree"] > 0.999
    else:
        assert row["agent_steps_per_s"]["median"] > 0


def test_without_a_gpu_it_says_so() -> None:
    message = failure("speed", "--gpu", "--scenario", "websearch-star-v0")
    assert message == (
        "ecn-marl: --gpu = 'cpu' is not allowed: expected an NVIDIA GPU, and jax[cuda12] or "
        "jax[cuda13]\n"
    )

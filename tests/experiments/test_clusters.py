"""Tasks beside this process: the same records as without, also with a node killed meanwhile."""

from __future__ import annotations

import pickle
import sys
import threading
import time
from concurrent.futures import Future
from dataclasses import replace

import numpy as np
import pytest
import small
from commands import failure

from ecn_marl.errors import FolderInUse
from ecn_marl.experiments import bench as bn
from ecn_marl.experiments import clusters, engine, executors
from ecn_marl.experiments import tune as tn
from ecn_marl.experiments.plan import Plan

LEARNERS = ("pet", "ddqn")


def plan(out, workers: int | str = 1, scenarios=(small.SMALL,)):
    return Plan(
        scenarios=scenarios,
        policies=LEARNERS,
        out=out,
        seeds=2,
        steps=160,
        episodes=2,
        settings=small.SETTINGS,
        effort=small.EFFORT,
        eval_episodes=2,
        workers=workers,
    )


def records(out, workers: int | str = 1):
    return bn.bench(plan(out, workers), small.quiet)[small.SMALL]


def tuned(out, workers: int | str = 1):
    settings = {name: x for name, x in small.SETTINGS.items() if name != "batch"}
    search = tn.Search(small.SMALL, "pet", 2, 80, 2, settings=settings)
    found = tn.tune(search, out, workers=workers)
    return [(row["settings"], row["J"]) for row in found["trials"]]


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """The records of this process alone."""
    small.import_in_workers(tmp_path_factory.mktemp("own"))
    return records(tmp_path_factory.mktemp("alone"))


def assert_same(found, own):
    assert found.keys() == own.keys()
    for name in LEARNERS:
        for column, values in own[name].columns.items():
            np.testing.assert_array_equal(found[name].columns[column], values, f"{name} {column}")


@pytest.mark.thorough
@pytest.mark.parametrize("workers", [2, "ray:local", "slurm:cluster=local"])
def test_workers_make_the_same_records_and_the_same_search(own, tmp_path, workers, monkeypatch):
    if workers != 2:
        pytest.importorskip({"ray": "ray", "slu": "submitit"}[workers[:3]], reason="no such extra")
    monkeypatch.chdir(tmp_path)  # jobs keep their files in the working directory
    assert_same(records(tmp_path / "bench", workers), own)
    assert tuned(tmp_path / "tune", workers) == tuned(tmp_path / "alone")


@pytest.mark.thorough
def test_a_killed_node_costs_only_what_it_was_training(own, tmp_path, monkeypatch):
    """A head without cores and two nodes of one; one of them dies when both are training."""
    pytest.importorskip("ray", reason="extra ray is not installed")
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_worker_niceness", "0")
    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    first, _ = (nodes.add_node(num_cpus=1) for _ in range(2))
    runs = [tmp_path / small.SMALL / name for name in LEARNERS]
    killed = threading.Event()

    def kill():
        while not all((run / "config.json").is_file() for run in runs):
            time.sleep(0.05)
        nodes.remove_node(first, allow_graceful=False)
        killed.set()

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    try:
        found = records(tmp_path, f"ray:{nodes.address}")
    finally:
        nodes.shutdown()
    assert killed.is_set()
    assert_same(found, own)


def test_the_lock_of_a_lost_node_is_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(executors, "BEAT", 0.04)
    monkeypatch.setattr(executors, "DEAD", 0.2)
    calls = []

    def works(after):
        calls.append(0)
        if len(calls) <= after:
            raise FolderInUse("in use")
        return "done"

    assert executors.once_free(works, 3) == "done"
    assert len(calls) == 4
    with pytest.raises(FolderInUse):
        executors.once_free(works, 1_000)


class Lost(Exception):
    pass


class Submitit:
    """Jobs of which the first ones are lost."""

    class core:
        class utils:
            UncompletedJobError = Lost

    def __init__(self, lost):
        self.lost, self.jobs, self.given = lost, [], {}

    def AutoExecutor(self, folder, cluster):
        return self

    def update_parameters(self, **given):
        self.given = given

    def submit(self, fn, *args):
        job = Job(fn, args, len(self.jobs) < self.lost)
        self.jobs.append(job)
        return job


class Job:
    def __init__(self, fn, args, lost):
        self.fn, self.args, self.lost = fn, args, lost

    def result(self):
        if self.lost:
            raise Lost
        return self.fn(*self.args)


def test_a_lost_job_is_submitted_again(monkeypatch):
    slurm = Submitit(lost=clusters.RETRIES)
    with clusters.SlurmExecutor(slurm, {"timeout_min": 5}) as pool:
        assert pool.submit(divmod, 7, 2).result() == (3, 1)
    assert len(slurm.jobs) == clusters.RETRIES + 1
    assert slurm.given == {"name": "ecn-marl", "timeout_min": 5}
    slurm = Submitit(lost=clusters.RETRIES + 1)
    with clusters.SlurmExecutor(slurm, {}) as pool, pytest.raises(Lost):
        pool.submit(divmod, 7, 2).result()


def test_an_error_of_the_input_is_not_tried_again():
    slurm = Submitit(lost=0)
    with clusters.SlurmExecutor(slurm, {}) as pool, pytest.raises(ValueError, match="invalid"):
        pool.submit(int, "seven").result()
    assert len(slurm.jobs) == 1


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("ray:local", ("ray", "local", {})),
        ("ray:10.0.0.1:6379,cpus=2,gpus=0.5", ("ray", "10.0.0.1:6379", {"cpus": 2, "gpus": 0.5})),
        ("ray:cpus=2", ("ray", "", {"cpus": 2})),
        (
            "slurm:partition=cpu,timeout_min=5",
            ("slurm", "", {"partition": "cpu", "timeout_min": 5}),
        ),
    ],
)
def test_workers_are_read(text, read):
    assert executors.parse_workers(text) == read


@pytest.mark.parametrize("text", ["", "4", "ray:local,2", "slurm:host", "dask:local", "slurm:a="])
def test_other_workers_are_refused(text):
    with pytest.raises(ValueError, match="workers"):
        executors.parse_workers(text)


def test_what_is_wrong_is_said_in_one_line(tmp_path, monkeypatch):
    words = ("bench", "--algorithms", "rule", "--episodes", "1", "--out", str(tmp_path))
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setitem(sys.modules, "submitit", None)
    assert "ecn-marl[ray]" in failure(*words, "--ray")
    assert "ecn-marl[slurm]" in failure(*words, "--slurm", "timeout_min=5")
    assert "not used with --workers" in failure(*words, "--workers", "2", "--ray", "local")
    assert "ray:" in failure(*words, "--ray", "local,2")
    assert "1 without packets" in failure("eval", "rule", "--ray")


class Collecting:
    """A pool that runs nothing, and keeps what was submitted."""

    def __init__(self):
        self.calls = []

    def submit(self, fn, *args):
        self.calls.append((fn, args))
        done = Future()
        done.set_result(None)
        return done


def test_scores_of_a_place_are_a_task_where_this_process_is_not_needed(tmp_path):
    def submitted(plan):
        pool, ended = Collecting(), []
        jobs = [(place, LEARNERS) for place in plan.places()]
        engine.score_all(plan, jobs, small.quiet, pool, ended.append)
        assert ended == list(range(1, len(pool.calls) + 1))
        return pool.calls

    base = plan(tmp_path, scenarios=("websearch-star-v0", "websearch-v0"))
    first, second = submitted(base)
    assert first[0] is second[0] and first[1][1:] == (base.places()[0], LEARNERS)
    assert pickle.loads(pickle.dumps(second[1])) == (base, base.places()[1], LEARNERS)
    assert not submitted(replace(base, sealed=True)), "this process notes their use"
    assert not submitted(replace(base, records=tmp_path / "tables")), "it writes the tables"
    assert not submitted(replace(base, backend="packets")), "episodes are the tasks"

"""Recorded flow lists as traffic to train on."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from commands import TINY, failure, run

from ecn_marl.baselines import runs
from ecn_marl.baselines.trained import shared_networks
from ecn_marl.baselines.training.checkpoint import read_config, write_json
from ecn_marl.baselines.training.loop import TrainResult
from ecn_marl.envs.recorded import recorded
from ecn_marl.envs.registry import make
from ecn_marl.sim import leaf_spine, star
from ecn_marl.sim.network.topology import GBPS

LIST = Path(__file__).parents[1] / "data" / "websearch_60.csv.gz"
FLOWS = """\
flow_id,src,dst,size_B,start_ns
7,1,0,30000,5000
8,2,1,200000,47000
9,0,2,1000,47000
3,1,2,90000,21000
"""
SMALL = {"envs": 2, "rollout": 2, "epochs": 1, "minibatches": 1, "hidden": (4,)}

pytestmark = pytest.mark.usefixtures("tiny_scenario")


@pytest.fixture
def flows(tmp_path):
    path = tmp_path / "flows.csv"
    path.write_text(FLOWS)
    return str(path)


def offered(source, state, params, ticks, tick_us):
    """Everything that a source offers in some ticks: start (µs after the first tick) and flow."""
    flows = []
    rate = jnp.full(3, 25.0 * GBPS, jnp.float32)

    @jax.jit
    def step(state, taken):
        offer = source.offer(state, params, rate)
        return offer, source.advance(state, params, rate, taken, tick_us)

    for tick in range(ticks):
        offer, _ = step(state, np.int32(0))
        due = np.asarray(offer.start) < tick_us
        for i in np.flatnonzero(due):
            at = tick * tick_us + float(offer.start[i])
            flows.append((at, int(offer.src[i]), int(offer.dst[i]), int(offer.payload[i])))
        _, state = step(state, np.int32(due.sum()))
    return flows


def test_a_window_replays_the_record_and_repeats(flows):
    """By hand: starts 0, 16, 42, 42 µs after the first; the next time round 42 + 14 µs later."""
    source = recorded(flows, star(3), 1.0, 4.0)
    params = source.default_params()
    assert int(params.period) == 56
    rows = [(0, 1, 0, 30000), (16, 1, 2, 90000), (42, 2, 1, 200000), (42, 0, 2, 1000)]
    for seed in range(6):
        state = source.init(jax.random.key(seed), params, jnp.ones(3))
        begin = int(state.step)
        assert 0 <= begin < 56
        expected = [
            (lap * 56 + at - begin, *flow)
            for lap in range(5)
            for at, *flow in rows
            if 0 <= lap * 56 + at - begin < 160
        ]
        assert offered(source, state, params, 40, 4.0) == expected
    begins = jax.vmap(lambda key: source.init(key, params, jnp.ones(3)).step)
    steps = np.asarray(begins(jax.random.split(jax.random.key(0), 2000)))
    assert np.bincount(steps, minlength=56).min() > 0 and abs(steps.mean() - 27.5) < 1.5


def test_a_recorded_list_keeps_its_load():
    """Bytes of the list over its length, of the NICs' rate: what the record was made with."""
    source = recorded(str(LIST), leaf_spine(4, 8, 2), 5.0, 20.0)
    params = source.default_params()
    with gzip.open(LIST, "rt") as file:
        rows = list(csv.DictReader(file))
    size, start = (np.array([float(row[name]) for row in rows]) for name in ("size_B", "start_ns"))
    rate = size.sum() / (start.max() - start.min())
    period_us = float(params.period) * 5.0
    assert params.flows.payload.sum(dtype=np.float64) / period_us / 1e3 == pytest.approx(
        rate, rel=2e-3
    )
    assert source.width <= 128


def test_a_changed_list_is_read_again(flows):
    """An environment of the old list keeps its flows."""
    old = make(TINY, flows=flows)
    payloads = [100.0, 200.0, 300.0, 400.0]
    lines = [f"{i},1,0,{size:.0f},{50000 * i}" for i, size in enumerate(payloads)]
    Path(flows).write_text("\n".join([FLOWS.splitlines()[0], *lines]) + "\n")
    new = make(TINY, flows=flows)
    assert new != old
    assert new == make(TINY, flows=flows)
    payload_lists = [env.default_params.sim.traffic[0].flows.payload for env in (new, old)]
    assert sorted(payload_lists[0].tolist()) == payloads
    assert sorted(payload_lists[1].tolist()) == [1000.0, 30000.0, 90000.0, 200000.0]


def test_records_that_do_not_fit_are_named(flows, tmp_path):
    with pytest.raises(ValueError, match="line 3: src = 5"):
        make(TINY, topology=star(1 + 1), flows=str(_with(tmp_path, "0,1,0,1,1\n1,5,0,1,1\n")))
    with pytest.raises(ValueError, match=r"flows = .*beside a load"):
        make("websearch-v0", flows=flows, load=0.5)
    with pytest.raises(ValueError, match="at least two flows"):
        make(TINY, flows=str(_with(tmp_path, "0,1,0,1,1\n")))
    missing = failure("train", "ippo", "--scenario", TINY, "--flows", tmp_path / "no.csv")
    assert "no.csv" in missing


def _with(folder, lines):
    path = folder / "other.csv"
    path.write_text("flow_id,src,dst,size_B,start_ns\n" + lines)
    return path


def test_priorities_are_pets_weights():
    weight = {}
    for priority in ("latency", "throughput", 0.55, "0.55", None):
        params = make(TINY, reward="pet", priority=priority).default_params
        weight[priority] = float(params.reward.utilisation_weight)
        assert float(params.reward.queue_floor) == 1e3
    assert weight["latency"] == pytest.approx(0.3) and weight["throughput"] == pytest.approx(0.7)
    assert weight[0.55] == weight["0.55"] == pytest.approx(0.55)
    assert weight[None] == weight["latency"]
    for wrong, message in (
        ("speed", "unknown priority 'speed'"),
        (1.5, "priority = 1.5"),
    ):
        with pytest.raises(ValueError, match=message):
            make(TINY, priority=wrong)


@pytest.mark.slow
def test_a_model_trained_on_a_record_fits_ports_of_another_network(flows, tmp_path):
    """PET's offline half on recorded flows; what follows online is in `test_hybrid`."""
    offline = tmp_path / "offline"
    args = ["train", "ippo", "--scenario", TINY, "--flows", flows, "--features", "pet"]
    args += ["--reward", "pet", "--priority", "throughput", "--steps", 4, "--eval-every", 0]
    for name, value in SMALL.items():
        args += ["--set", f"{name}={value[0] if name == 'hidden' else value}"]
    shown = run(*args, "--out", offline)
    assert shown.exit_code == 0, shown.output
    options = read_config(offline)["options"]
    assert (options["flows"], options["priority"]) == (flows, "throughput")
    actor, _ = shared_networks(offline, make("websearch-star-v0", features="pet"))
    first = actor["params"]["Dense_0"]["kernel"]
    assert first.shape == (3 * 8, 4) and np.isfinite(first).all()


def test_a_run_does_not_go_on_with_another_flow_list(flows, tmp_path, monkeypatch):
    """The digest of the file is in the run's configuration."""
    trained = []

    def train(*args, **options):
        trained.append(args)
        return TrainResult(None, [])

    monkeypatch.setattr(runs, "_train", train)
    out = tmp_path / "run"
    runs.train_run("ippo", TINY, steps=1, options={"flows": flows}, out=out)
    runs.resume_run(out)
    assert len(trained) == 2
    Path(flows).write_text(FLOWS.replace("200000", "300000"))
    with pytest.raises(ValueError, match=r"flows = .*\.csv.* the file that the run began"):
        runs.resume_run(out)
    assert len(trained) == 2
    config = read_config(out)
    del config["sha256"]  # a run from before there were digests
    write_json(out / "config.json", config)
    runs.resume_run(out)
    assert len(trained) == 3

"""The simulator against packet-level runs (numbers recorded in `tests/data`)."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ecn_marl import lanes
from ecn_marl.sim import (
    Dcqcn,
    Schedule,
    SimParams,
    Simulator,
    scaled_ecn,
    schedule,
)
from ecn_marl.sim.traffic import widest_tick
from ecn_marl.validation import recorded

DATA = Path(__file__).parent.parent / "data"
ECN = {
    "SECN1": (5, 200, 0.01),
    "SECN2": (100, 400, 0.2),
    "E3": (20, 80, 0.5),
    "E4": (320, 1280, 0.05),
}
SEEDS = 4
PRESETS = {"run": "hpcc-run", "paper": "hpcc-paper"}


def _rows(name: str) -> list[dict[str, str]]:
    with open(DATA / name) as f:
        return list(csv.DictReader(line for line in f if not line.startswith("#")))


def _settings(sim: Simulator, params, names: tuple[str, ...]):
    """Thresholds of several settings, stacked."""
    return jax.tree.map(
        lambda *x: jnp.stack(x), *(scaled_ecn(params.net, *ECN[name]) for name in names)
    )


def _under(params: SimParams, profile: str) -> SimParams:
    """The same for senders of another profile: these differ in traced constants only."""
    constants = Dcqcn.of(PRESETS[profile]).default_params()
    return replace(params, transport=jax.tree.map(np.float32, constants))


def test_profiles_may_share_a_program():
    assert len({replace(Dcqcn.of(name), name="") for name in PRESETS.values()}) == 1


def _seeds_and_settings(run: Callable[..., Any]) -> Callable[..., Any]:
    """`run(key, ecn, params)` for `SEEDS` keys and stacked settings at once, compiled."""
    both = jax.vmap(jax.vmap(lanes.mapped(run), (0, None, None)), (None, 0, None))
    program = jax.jit(both)
    keys = jax.vmap(jax.random.key)(jnp.arange(SEEDS))
    return partial(program, keys)


INCAST = _rows("incast_steady.csv")


@cache
def incast_program(n: int) -> tuple[Simulator, SimParams, Callable[..., Any]]:
    """`n` senders to one port: simulator, parameters, runs of 200 ms."""
    flows = {
        "src": np.arange(1, n + 1),
        "dst": np.zeros(n, int),
        "size_B": np.full(n, 4_000_000_000),
        "start_ns": np.zeros(n),
    }
    sim = Simulator(
        recorded.star(n + 1),
        (Schedule(1.0, n),),
        Dcqcn.of("hpcc-paper"),
        slots=n,
        bins=0,
        interval_steps=1000,
    )
    params = sim.default_params(traffic=(schedule(flows, 1.0),))

    def run(key, ecn, params):
        def one(state, _):
            state, stats = sim.interval(state, params, ecn)
            return state, (stats.queue_mean[0], stats.queue_sq[0], stats.tx_bytes[0])

        return jax.lax.scan(one, sim.init(key, params), None, length=200)[1]

    return sim, params, _seeds_and_settings(run)


@cache
def incast(profile: str, n: int) -> dict[str, tuple[float, float, float]]:
    """Queue mean and std (bytes) and utilisation over 100..200 ms, mean of the seeds."""
    sim, params, runs = incast_program(n)
    names = ("SECN1", "SECN2", "E3")
    found = runs(_settings(sim, params, names), _under(params, profile))
    mean, square, sent = (x[:, :, 100:] for x in found)
    m = mean.mean(-1)
    std = jnp.sqrt(square.mean(-1) - m**2)
    utilisation = sent.mean(-1) / (25 * 125 * 1e3)
    columns = zip(m.mean(1), std.mean(1), utilisation.mean(1), strict=True)
    return {name: tuple(map(float, row)) for name, row in zip(names, columns, strict=True)}


@pytest.mark.parametrize("row", INCAST, ids=lambda r: f"{r['profile']}-{r['N']}-{r['ecn']}")
def test_incast_steady_state(row):
    mean, std, utilisation = incast(row["profile"], int(row["N"]))[row["ecn"]]
    packets = float(row["q_mean_B"]), float(row["q_std_B"])
    assert abs(mean - packets[0]) <= max(0.15 * packets[0], 5e3)
    assert abs(std - packets[1]) <= max(0.25 * packets[1], 5e3)
    assert abs(utilisation - min(float(row["util"]), 1.0)) <= 0.015


NAMES = ("SECN1", "SECN2", "E3", "E4")


@cache
def websearch_program() -> tuple[Simulator, SimParams, Callable[..., Any], np.ndarray]:
    """The WebSearch 60 % list: simulator, parameters, completion times of runs, sizes."""
    with gzip.open(DATA / "websearch_60.csv.gz", "rt") as f:
        rows = list(csv.DictReader(f))
    names = ("src", "dst", "size_B", "start_ns", "spine_data", "spine_ack")
    flows = {k: np.array([int(r[k]) for r in rows]) for k in names}
    sim = Simulator(
        recorded.fabric(),
        (Schedule(1.0, widest_tick(flows["start_ns"], 5.0, 64)),),
        Dcqcn.of("hpcc-paper"),
        slots=256,
        scheduled=len(rows),
        bins=0,
    )
    params = sim.default_params(traffic=(schedule(flows, 1.0),))

    def run(key, ecn, params):
        def one(state, _):
            return sim.interval(state, params, ecn)[0], None

        state, _ = jax.lax.scan(one, sim.init(key, params), None, length=1200)
        return state.fct_log

    return sim, params, _seeds_and_settings(run), flows["size_B"]


@cache
def websearch(profile: str) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], np.ndarray]:
    """Slowdowns of the WebSearch 60 % list: ours `[seeds, flows]`, the packets', and sizes."""
    sim, params, runs, size = websearch_program()
    found = runs(_settings(sim, params, NAMES), _under(params, profile))
    ours = np.asarray(found, np.float64) * 1e3
    times = np.load(DATA / "websearch_60_fct.npz")
    alone = times["standalone_ns"]
    packets = {name: times[f"{profile}_{name}"] / alone for name in NAMES}
    return dict(zip(NAMES, ours / alone, strict=True)), packets, size


def _classes(size: np.ndarray) -> dict[str, np.ndarray]:
    return {"mice": size <= 1e5, "medium": (size > 1e5) & (size <= 1e6), "elephants": size > 1e6}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("profile", PRESETS)
def test_leaf_spine_mean_slowdown(profile, name):
    ours, packets, size = websearch(profile)
    assert np.isfinite(ours[name]).all(), "every flow finishes"
    for members in _classes(size).values():
        mine, theirs = ours[name][:, members], packets[name][members]
        assert mine.mean() == pytest.approx(theirs.mean(), rel=0.10)


# Not strict: half a per cent decides, and that may differ between machines.
KNOWN = pytest.mark.xfail(
    reason="p99 of 279 medium flows under E4 rests on three of them: 13.2 for 11.0 (+20.6 %), see "
    "docs/validation.md"
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("profile", "name"),
    [
        pytest.param(profile, name, marks=KNOWN if (profile, name) == ("run", "E4") else ())
        for profile in PRESETS
        for name in NAMES
    ],
)
def test_leaf_spine_p99_slowdown(profile, name):
    ours, packets, size = websearch(profile)
    for members in _classes(size).values():
        p99 = np.mean([np.percentile(seed, 99) for seed in ours[name][:, members]])
        assert p99 == pytest.approx(np.percentile(packets[name][members], 99), rel=0.20)


@pytest.mark.slow
@pytest.mark.parametrize("profile", PRESETS)
def test_leaf_spine_ranks_settings(profile):
    """Settings whose packet means differ by more than the packets spread over seeds (2.8 %)."""
    ours, packets, size = websearch(profile)
    compared = 0
    for members in _classes(size).values():
        for a in NAMES:
            for b in NAMES:
                theirs = packets[a][members].mean() / packets[b][members].mean()
                if theirs > 1.028:
                    assert ours[a][:, members].mean() > ours[b][:, members].mean()
                    compared += 1
    assert compared >= 12

"""Evaluations and records made of drawn numbers, without any simulation."""

from __future__ import annotations

from typing import Any

import numpy as np

from ecn_marl.baselines.evaluation.episodes import Evaluation
from ecn_marl.experiments.records import Record

BINS = 80
FLOWS = (400, 60, 12)


def evaluation(
    name: str = "x",
    episodes: int = 6,
    scale: tuple[float, float, float] = (1.0, 1.0, 1.0),
    seed: int = 0,
    noise: float = 0.05,
    traffic: int = 7,
    **changes: Any,
) -> Evaluation:
    """Metrics as `EcnEnv.episode_metrics` makes them, from drawn slowdowns.

    Args:
        name: what is evaluated.
        episodes: number of episodes.
        scale: factors on the slowdowns (above 1) of short, medium and long flows.
        seed: seed of the noise of this policy.
        noise: its size, on the logarithm of an episode's slowdowns.
        traffic: seed of what all policies share.
        changes: metrics in place of those made here.
    """
    shared, own = np.random.default_rng(traffic), np.random.default_rng([seed, 1])
    total, logs = np.zeros((episodes, 3)), np.zeros((episodes, 3))
    histogram = np.zeros((episodes, 3, BINS))
    for e in range(episodes):
        hard = np.exp(0.3 * shared.normal())
        for i, n in enumerate(FLOWS):
            base = np.exp(shared.gamma(2.0, 0.5, n))
            each = 1.0 + (base - 1.0) * hard * scale[i] * np.exp(noise * own.normal())
            total[e, i], logs[e, i] = each.sum(), np.log(each).sum()
            cell = np.clip(np.log(each) / np.log(1e4) * BINS, 0, BINS - 1).astype(int)
            histogram[e, i] = np.bincount(cell, minlength=BINS)
    measured = np.tile(np.array(FLOWS), (episodes, 1))
    unfinished = np.tile(np.array([0, 0, 1]), (episodes, 1))
    ones = np.ones(episodes)
    metrics = {
        "reward": -total.sum(1) / 1e3,
        "queue_mean": 3e4 * scale[0] * np.exp(0.1 * own.normal(size=episodes)),
        "queue_std": 2e4 * ones,
        "utilisation": 0.5 + 0.01 * own.normal(size=episodes),
        "paused": 0.001 * ones,
        "pauses": 3 * ones,
        "flows_measured": measured,
        "flows_unfinished": unfinished,
        "slowdown_sum": total,
        "slowdown_log_sum": logs,
        "slowdown_histogram": histogram,
        "flows_started": 520 * ones,
        "flows_finished": measured + np.array([30, 10, 2]),
        "flows_waiting": 0 * ones,
        "deferred": 0 * ones,
        "deferred_us": 0 * ones,
        "bytes_offered": 4e8 * ones,
        "bytes_dropped": 0 * ones,
        "feedback_cut": 0 * ones,
        "flow_ticks": 1e5 * ones,
    }
    return Evaluation(name, {**metrics, **changes})


def record(
    name: str,
    scale: tuple[float, float, float] = (1.0, 1.0, 1.0),
    seeds: int = 1,
    episodes: int = 6,
    scenario: str = "synthetic-v0",
    curves: bool = False,
    meta: dict[str, Any] | None = None,
    **changes: Any,
) -> Record:
    """A record of drawn evaluations; learners' seeds differ by some per cent."""
    rng = np.random.default_rng(len(name))
    parts = [
        evaluation(
            name,
            episodes,
            tuple(x * np.exp(0.08 * rng.normal()) if seeds > 1 else x for x in scale),
            seed=100 * len(name) + i,
            **changes,
        )
        for i in range(seeds)
    ]
    facts = {"scenario": scenario, "algorithm": name, "eval_seed": 2000, **(meta or {})}
    steps = np.arange(0, 200_001, 10_000)
    lines = [
        (steps, -2.0 - 2.0 * np.exp(-steps / 5e4) + 0.05 * rng.normal(size=steps.size))
        for _ in range(seeds)
    ]
    return Record.of(name, parts, facts, lines if curves else None)

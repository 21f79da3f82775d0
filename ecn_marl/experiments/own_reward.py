"""A learner judged on its own reward: does it earn what the best static setting earns?

A policy that is paid less than fixed thresholds has not optimised what it is paid for. Whatever
else it does then says nothing about its reward or its paper. So every learner is scored beside the
static setting that earns most of the learner's reward, on the same episodes: one that the learner
could have set, as a coarse scale of actions is no fault of learning. `best_static` finds it; here
is what follows from a record, without JAX.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ecn_marl.baselines.evaluation.statistics import Draws, mean_estimate
from ecn_marl.experiments.records import Record

COLUMN = "own_static"
"""Column of a learner's record: what the best static setting earns of the learner's reward."""

FLAT = 0.005
"""A reward that grew by less than this share of itself, from the middle to the last third of the
training, is flat; see `growth`."""


def growth(rewards: Mapping[str, Sequence[float]] | None) -> float | None:
    """How much a learner's reward still grew: the one rule by which a budget is long enough.

    Args:
        rewards: `reward` while training, means over seeds in equal parts of the run.

    Returns:
        Mean of the last third less that of the third before, as a share of the last. None with
        fewer than six parts, or without curve.
    """
    parts = [] if rewards is None else rewards["reward"]
    if len(parts) < 6:
        return None
    third = len(parts) // 3
    last, before = (float(np.mean(x)) for x in (parts[-third:], parts[-2 * third : -third]))
    return (last - before) / max(abs(last), 1e-12)


def own_reward(record: Record) -> dict[str, Any] | None:
    """How a learner does under its own reward.

    Returns:
        `reward` and `best_static` (the mean reward of a port and interval), `setting`, `margin`:
        reward less the best static setting's in the same episodes, an estimate, `learnt`:
        whether the margin's interval reaches 0, and `growth`, with `rising`: whether that is above
        `FLAT`, so that the budget was too short. None for a record that has no such column.
    """
    if COLUMN not in record.columns:
        return None
    draws = Draws(record.episodes)
    counts = (draws.seeds(record.name, record.seeds), draws.episodes)
    reward, best = record.columns["reward"], record.columns[COLUMN]
    margin = mean_estimate(reward - best, counts)
    end = margin["high"] if np.isfinite(margin["high"]) else margin["value"]
    grown = growth(record.meta.get("rewards"))
    return {
        "reward": mean_estimate(reward, counts),
        "best_static": float(best.mean()),
        "setting": record.meta["own"]["setting"],
        "margin": margin,
        "learnt": bool(end >= 0.0),
        "growth": grown,
        "rising": grown is not None and grown > FLAT,
    }


def learnt(record: Record) -> bool:
    """Whether a learner earns at least as much as the best static setting, or is no learner."""
    own = own_reward(record)
    return own is None or own["learnt"]

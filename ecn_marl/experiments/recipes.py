"""Recipes: what each trainer sees, sets and is set to in a scenario, and for how long it trains.

`ecn-marl bench` trains by these. A recipe changes what belongs to the learner (features, history,
the template of settings it chooses from, its hyperparameters), never what is asked of it (traffic,
reward, length of an episode).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ecn_marl._errors import unknown_name

STEPS = 1_000_000
"""Environment steps per seed where no recipe says otherwise."""

VIEWS: dict[str, dict[str, Any]] = {
    "ippo": {"features": "pet", "actions": "discrete"},
    "mappo": {"features": "pet", "actions": "discrete"},
    "ddqn": {"features": "acc", "actions": "discrete"},
    "c-acc": {"features": "acc", "actions": "discrete"},
    "haecn": {"features": "haecn", "actions": "discrete"},
}
"""What the agents of each paper see, and their lists of settings."""


@dataclass(frozen=True)
class Recipe:
    """How an algorithm is trained in a scenario.

    Attributes:
        steps: environment steps per seed.
        options: options of `ecn_marl.make`.
        settings: settings of the trainer.
    """

    steps: int = STEPS
    options: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)


OCTAVES = tuple((5.0 * 2.0**n, 10.0 * 2.0**n, 1.0) for n in range(7))
"""Kmin 5 to 320 KB by octaves, all packets marked above twice that: a scale from short to deep."""

_SCALE = {"action_options": {"template": (*OCTAVES, (80.0, 640.0, 0.25))}}
"""A short list of settings. What a choice gains in `demand-phases-v0` is small against the noise of
an interval, so every entry costs samples; the 24 of the default list take twice as many."""

_Q = {
    "idle_gating": False,
    "gamma": 0.9,
    "n_step": 3,
    "priority": 0.0,
    "batch": 512,
    "lr": 3e-4,
    "target_every": 200,
    "local_capacity": 16384,
    "global_capacity": 16384,
    "epsilon_min": 0.05,
}
"""DDQN for rewards that are mostly noise: large batches, a slow target, uniform replay. ACC's idle
rule is off: a port that has set Kmin to 320 KB is shorter than that when queries begin, so it would
count as idle and keep a setting for bulk transfers."""

_FOUR = (*OCTAVES[0:3:2], (80.0, 640.0, 0.25), OCTAVES[6])

_HAECN = {
    "batch": 256,
    "lr": 1e-3,
    "gamma": 0.9,
    "trigger_penalty": 0.01,
    "target_every": 100,
    "epsilon_min": 0.05,
    "capacity": 16384,
}
"""HAECN likewise. Its penalty of 0.05 is three times what there is to gain in an interval: with it
the decision module hardly ever triggers, and a setting outlasts the phase it was chosen in."""

_DEPTHS = (
    (5.0, 10.0, 1.0),
    (10.0, 40.0, 1.0),
    (20.0, 160.0, 0.5),
    (80.0, 640.0, 0.25),
    (160.0, 1280.0, 0.1),
    (320.0, 2560.0, 0.05),
    (640.0, 5120.0, 0.01),
)
"""From short queues to none marked, by even steps of log Kmin, log Kmax and log Pmax."""

_DEEP = {"features": "pet", "action_options": {"template": _DEPTHS}}

_BUSY = {"lr": 1e-3, "target_every": 100, "local_capacity": 32768}
"""Where the gain is several times that of `demand-phases-v0`, Q-networks can learn faster."""

_QUIET = _HAECN | {
    "batch": 512,
    "lr": 1e-3,
    "gamma": 0.7,
    "n_step": 3,
    "trigger_penalty": 0.0005,
    "decision_hidden": (64, 64),
    "epsilon_min": 0.15,
    "capacity": 32768,
    "reward_offset": 0.75,
}
"""HAECN sees what PET's agents see: of its own state, queue level and utilisation, both phases have
much. Whether to trigger is a matter of a few hundredths in Q: a small penalty, a short horizon and
a wider decision module find them. Settings that last are tried less often than DDQN's, so more of
them are random."""

RECIPES: dict[str, dict[str, Recipe]] = {
    "demand-phases-v0": {
        "ippo": Recipe(700_000, _SCALE),
        "mappo": Recipe(300_000, _SCALE, {"entropy": 3e-3}),
        "ddqn": Recipe(300_000, {"features": "pet", **_SCALE}, _Q),
        "haecn": Recipe(200_000, {"action_options": {"template": _FOUR}}, _HAECN),
        "c-acc": Recipe(100_000, {"features": "pet", **_SCALE}, _Q),
    },
    "rpc-shuffle-v0": {
        "ippo": Recipe(700_000, _DEEP),
        "mappo": Recipe(300_000, _DEEP),
        "ddqn": Recipe(300_000, _DEEP, _Q | _BUSY),
        "haecn": Recipe(250_000, _DEEP, _QUIET),
        "c-acc": Recipe(100_000, _DEEP, _Q | _BUSY),
    },
}
"""Recipes by scenario and algorithm; options are added to those of `VIEWS`."""


def recipe(scenario: str, algorithm: str) -> Recipe:
    """The recipe of an algorithm for a scenario, its defaults where there is none.

    Raises:
        ValueError: unknown algorithm.
    """
    if algorithm not in VIEWS:
        raise unknown_name("algorithm", algorithm, VIEWS)
    found = RECIPES.get(scenario, {}).get(algorithm, Recipe())
    return Recipe(found.steps, VIEWS[algorithm] | dict(found.options), dict(found.settings))

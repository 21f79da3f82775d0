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


RECIPES: dict[str, dict[str, Recipe]] = {}
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

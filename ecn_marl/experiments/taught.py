"""Learners that a search teaches: the oracle's settings, or what each setting costs in a phase."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from ecn_marl._errors import bad_value
from ecn_marl.baselines.oracle import CHOICES, ORACLE
from ecn_marl.baselines.search import Effort, Progress, costs_in
from ecn_marl.envs.actions import EcnSetting
from ecn_marl.envs.registry import make
from ecn_marl.experiments import searches
from ecn_marl.experiments.recipes import BY_COSTS, LEARNERS, Recipe

COST_EPISODES = 16
"""Tuning episodes that every setting runs in for its costs. They teach, and are no result."""

DIGITS = 4
"""Decimals of a cost: far finer than its error."""


def search_length(effort: Effort | None = None) -> int:
    """Episodes of a search, about: for bars only, as its length is not known."""
    return 200 * (effort or Effort()).episodes


def is_taught(learner: str | None) -> bool:
    """Whether a search teaches a learner."""
    return learner in LEARNERS and bool(LEARNERS[learner].taught)


def with_teacher(
    recipe: Recipe,
    scenario: str,
    options: Mapping[str, Any],
    effort: Effort | None = None,
    folder: Path | None = None,
    progress: Progress | None = None,
    *,
    settings: Mapping[str, Any] = MappingProxyType({}),
) -> Recipe:
    """A recipe with what a search tells the learner, if it is to be taught.

    Args:
        recipe: the recipe; one that is not taught is returned as it is.
        scenario: name of the scenario.
        options: options of `ecn_marl.make`.
        effort: how much is searched for the oracle, if no search is at hand, see `searches.find`.
        folder: where searches are kept; None for those that ship with the package.
        progress: called with the episodes run so far and the current task.
        settings: settings of the trainer over those of the recipe, as `also`.

    Raises:
        ValueError: the scenario has no phases, or see `searches.find`.
    """
    if recipe.taught == BY_COSTS:
        return _with_costs(recipe, scenario, options, folder, progress, settings)
    if not recipe.taught or "action_options" in options:
        return recipe
    if len(make(scenario, **options).phase_names) < 2:
        allowed = f"a scenario with phases: {recipe.algorithm} imitates what knows them"
        raise bad_value("scenario", scenario, allowed)
    found = searches.find(ORACLE, scenario, options, effort, folder, progress).settings
    template = tuple(tuple(float(x) for x in phase[0]) for phase in found)
    view = {**recipe.options, "action_options": {"template": template}}
    return replace(recipe, options=view)


def _with_costs(
    recipe: Recipe,
    scenario: str,
    options: Mapping[str, Any],
    folder: Path | None,
    progress: Progress | None,
    settings: Mapping[str, Any],
) -> Recipe:
    """A recipe whose trainer knows the costs of its settings in all of its scenarios.

    Searches that ship are taken here even where a folder keeps those of a comparison: costs teach,
    nothing is compared with them.
    """
    if "costs" in settings:
        return recipe
    view = {**recipe.options, **options}
    choices = tuple(EcnSetting(*map(float, x)) for x in view["action_options"]["template"])
    effort = Effort(episodes=COST_EPISODES, grid=choices)
    names = (scenario, *settings.get("also", recipe.settings.get("also", ())))
    costs = []
    for name in names:
        own = None if folder is None else folder / searches.file_name(name)
        found = searches.shipped_search(CHOICES, name, options, effort)
        found = found or searches.find(CHOICES, name, options, effort, own, progress)
        table = np.round(costs_in(found, choices), DIGITS).tolist()
        costs.append(tuple(tuple(tuple(row) for row in phase) for phase in table))
    return replace(recipe, settings={**recipe.settings, "costs": tuple(costs)})

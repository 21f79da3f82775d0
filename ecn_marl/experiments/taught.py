"""Learners that a reference policy teaches: their list of settings is the oracle's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ecn_marl._errors import bad_value
from ecn_marl.baselines.oracle import ORACLE
from ecn_marl.baselines.search import Effort, Progress
from ecn_marl.envs.registry import make
from ecn_marl.experiments import searches
from ecn_marl.experiments.recipes import LEARNERS, Recipe


def search_length(effort: Effort | None = None) -> int:
    """Episodes of a search, about: for bars only, as its length is not known."""
    return 200 * (effort or Effort()).episodes


def is_taught(learner: str | None) -> bool:
    """Whether a reference policy teaches a learner."""
    return learner in LEARNERS and LEARNERS[learner].taught


def with_oracle(
    recipe: Recipe,
    scenario: str,
    options: Mapping[str, Any],
    effort: Effort | None = None,
    folder: Path | None = None,
    progress: Progress | None = None,
) -> Recipe:
    """A recipe whose list of settings is the oracle's, if it is to be taught by it.

    Args:
        recipe: the recipe; one that is not taught is returned as it is.
        scenario: name of the scenario.
        options: options of `ecn_marl.make`.
        effort: how much is searched, if no search is at hand, see `searches.find`.
        folder: where searches are kept; None for those that ship with the package.
        progress: called with the episodes run so far and the current task.

    Raises:
        ValueError: the scenario has no phases, or see `searches.find`.
    """
    if not recipe.taught:
        return recipe
    if len(make(scenario, **options).phase_names) < 2:
        allowed = f"a scenario with phases: {recipe.algorithm} imitates what knows them"
        raise bad_value("scenario", scenario, allowed)
    found = searches.find(ORACLE, scenario, options, effort, folder, progress).settings
    template = tuple(tuple(float(x) for x in phase[0]) for phase in found)
    view = {**recipe.options, "action_options": {"template": template}}
    return replace(recipe, options=view)

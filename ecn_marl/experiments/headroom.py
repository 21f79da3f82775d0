"""Headroom: what adaptivity can gain in a scenario, between the best static setting and the oracle.

    headroom = reward(oracle) - reward(static:best)

Settings are found on one stream of episodes and scored on another, the one that policies are
evaluated on. A learner is then read on the scale on which the best static setting is 0 and the
oracle 1. Where the headroom is small against the span from SECN1 to the oracle, a fixed setting is
most of what there is to learn.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ecn_marl.baselines.common.evaluation import Evaluation, evaluate
from ecn_marl.baselines.oracle import BEST, ORACLE, SEARCH_EPISODES, Oracle, search
from ecn_marl.baselines.static import PREFIX, Static
from ecn_marl.envs.actions import EcnSetting

POLICIES = 4
"""Number of policies that are scored."""

ENOUGH = 0.1
"""Share of the span from SECN1 to the oracle from which on a scenario has something to learn."""


def headroom(
    env: Any,
    *,
    seed: int = 0,
    episodes: int = 64,
    tries: int = SEARCH_EPISODES,
    settings: tuple[EcnSetting, ...] | None = None,
    progress: Callable[[int, str], None] | None = None,
) -> dict[str, Any]:
    """Measure the headroom of an environment.

    Args:
        env: functional environment.
        seed: which episodes, of the search and of the evaluation.
        episodes: episodes that the policies are scored on.
        tries: episodes that every setting of the grid is tried on.
        settings: the grid; `oracle.default_grid()` if None.
        progress: called with the number of policies scored and what is done.

    Returns:
        `scenario`, `episodes`, `seed`; `policies`, each with `name`, `settings` (one, or one for
        each of `phases`) and `reward`; `headroom` with the half-width of its 95 % interval over
        paired episodes, and `share` of the span from SECN1 to the oracle.
    """
    show = progress or (lambda done, note: None)
    params = env.default_params
    show(0, "search")
    found = search(env, params, seed, tries, settings)
    controllers: dict[str, tuple[Any, tuple[EcnSetting, ...]]] = {
        BEST: (_static(env, params, found.static), (found.static,)),
        ORACLE: (Oracle(env, params, found.by_phase), found.by_phase),
    }
    for name in ("secn1", "secn2"):
        fixed = Static(env, params, name)
        controllers[PREFIX + name] = (fixed, (fixed.setting,))
    scored: dict[str, Evaluation] = {}
    rows = []
    for name, (controller, used) in controllers.items():
        show(len(scored), name)
        one = evaluate(env, params, controller, name=name, episodes=episodes, seed=seed)
        scored[name] = one
        mean, half = one.interval("reward")
        rows.append(
            {
                "name": name,
                "settings": [list(setting) for setting in used],
                "reward": {"mean": mean, "ci95": half},
            }
        )
    show(len(scored), "done")
    gain = scored[ORACLE].episodes["reward"] - scored[BEST].episodes["reward"]
    mean, half = Evaluation("headroom", {"reward": gain}).interval("reward")
    span = float(
        np.mean(scored[ORACLE].episodes["reward"] - scored["static:secn1"].episodes["reward"])
    )
    return {
        "scenario": env.name,
        "episodes": episodes,
        "seed": seed,
        "phases": list(found.phases),
        "policies": rows,
        "headroom": {"mean": mean, "ci95": half},
        "share": mean / span if span > 0 else None,
    }


def _static(env: Any, params: Any, setting: EcnSetting) -> Static:
    return Static(env, params, ",".join(repr(float(x)) for x in setting))

"""Decisions that take as long as they take on this machine (the mechanism of HAECN, §2).

HAECN holds against large networks that a switch's CPU needs time for them. Where a cell asks for
it, a learner is first run as if its decisions took none, which tells how often each of its networks
runs; the time of their inferences is measured, one after the other, and that of all ports of the
largest switch is how late its thresholds are when it is scored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax

from ecn_marl.baselines.evaluation.cost import decision_delay_us, decision_us
from ecn_marl.baselines.evaluation.episodes import evaluate
from ecn_marl.baselines.evaluation.scoring import greedy_controller
from ecn_marl.envs.registry import make

EPISODES = 2
"""Episodes that tell how often networks run."""

ALWAYS: dict[str, float] = {"inferences_per_decision": 1.0}
"""Costs of a policy that runs its network for every decision."""


def measured_delay_us(
    scenario: str, options: Mapping[str, Any], algorithm: Any, actor: Any, keys: jax.Array
) -> float:
    """How late the thresholds of a policy are, µs.

    Args:
        scenario: where it is scored.
        options: options of `make`, those of the learner's view among them.
        algorithm: the learner.
        actor: parameters of its networks.
        keys: keys of the episodes that it is scored on; the first ones are run.
    """
    env = make(scenario, **options)
    found = evaluate(
        env,
        env.default_params,
        greedy_controller(algorithm, actor, env),
        name="costs",
        episodes=min(EPISODES, len(keys)),
        keys=keys[:EPISODES],
    )
    costs = found.summary().get("costs") or ALWAYS
    return decision_delay_us(env, decision_us(algorithm, actor, costs))

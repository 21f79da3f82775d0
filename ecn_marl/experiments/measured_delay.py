"""Decision delays as they are measured on this machine (the mechanism of HAECN, §2).

HAECN's argument against large neural networks is the time that a switch's CPU needs for them. In
cells with `measured_delay`, a learner is first run without delay, which shows how often each of its
networks runs. Then the time of one inference is measured. The time of all inferences for the ports
of the largest switch, one after the other, is the delay of its thresholds when it is scored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
from jaxtyping import PyTree

from ecn_marl.baselines.evaluation.cost import decision_delay_us, decision_us
from ecn_marl.baselines.evaluation.episodes import evaluate
from ecn_marl.baselines.evaluation.merit import greedy_controller
from ecn_marl.baselines.training.trainer import Trainer
from ecn_marl.envs.registry import make

EPISODES = 2
"""Episodes in which it is counted how often networks run."""

ALWAYS: dict[str, float] = {"inferences_per_decision": 1.0}
"""Costs of a policy that runs its network for every decision."""


def measured_delay_us(
    scenario: str, options: Mapping[str, Any], algorithm: Trainer, actor: PyTree, keys: jax.Array
) -> float:
    """Delay of a policy's thresholds, µs.

    Args:
        scenario: where it is scored.
        options: options of `make`, those of the learner's view among them.
        algorithm: the learner.
        actor: parameters of its networks.
        keys: keys of the episodes that it is scored on; the first ones are run.
    """
    env = make(scenario, **options)
    evaluation = evaluate(
        env,
        env.default_params,
        greedy_controller(algorithm, actor, env),
        name="costs",
        episodes=min(EPISODES, len(keys)),
        keys=keys[:EPISODES],
    )
    costs = evaluation.summary().get("costs") or ALWAYS
    return decision_delay_us(env, decision_us(algorithm, actor, costs))

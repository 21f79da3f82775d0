"""What each reading of PET and ACC gives: one choice changed at a time, in one cell.

The papers print their rewards and rates, and leave the level of rewards, the size of updates and
the meaning of one coefficient open. `rows.PET_READING` and `rows.ACC_READING` list the choices.
Here every alternative is trained and scored as they are, at 60 % load, beside the static settings.
There are no claims: the table shows whether a learner earns its own reward, and the queue it holds.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ecn_marl.experiments.papers import pet
from ecn_marl.experiments.papers import rows as rw
from ecn_marl.experiments.papers.suite import Row, Suite


def _pet(name: str, title: str, **changes: Any) -> Row:
    """The best reading of PET with some settings changed."""
    recipe = rw.as_published("pet", {**rw.PET_OPEN, **changes})
    return Row(f"pet:{name}", f"PET: {title}", "alternative", recipe)


def _acc(name: str, title: str, **changes: Any) -> Row:
    """The best reading of ACC with some settings changed."""
    reward = {"queue_scale_kb": rw.ALPHA_KB}
    recipe = rw.as_published("ddqn", {**rw.ACC_OPEN, **changes}, reward_options=reward)
    return Row(f"acc:{name}", f"ACC: {title}", "alternative", recipe)


_LARGE_PPO = {"envs": 64, "rollout": 32}
_LARGE_Q = {"envs": 64, "rollout": 8, "gradient_steps": 8}

ALTERNATIVES = (
    _pet("lambda-0.01", "lambda 0.01", gae_lambda=0.01),
    _pet("eq-12", "lambda 0.01, critic on the sum of rewards", gae_lambda=0.01, critic_lambda=1.0),
    _pet("entropy-0.01", "lambda 0.9, entropy 0.01", gae_lambda=0.9, entropy=0.01),
    _pet("level-1", "rewards as they are", reward_scale=1.0),
    _pet("large-updates", "64 environments of 32 intervals", **_LARGE_PPO),
    rw.PET_PER_SWITCH,
    _acc("no-offset", "rewards as they are", centre=0),
    _acc("large-updates", "64 environments of 8 intervals", **_LARGE_Q),
    _acc("no-gate", "no idle rule", idle_gating=False),
    _acc("no-gate-no-offset", "no idle rule, rewards as they are", idle_gating=False, centre=0),
)
"""Rows that differ from a best reading in one choice (two of them in two)."""


def suite(small: bool) -> Suite:
    """The suite, on the network of PET's.

    Args:
        small: whether it is the small network.
    """
    whole = pet.suite(small)
    rows = (rw.PET, rw.PET_READING, rw.ACC, rw.ACC_READING, *ALTERNATIVES)
    static = (*rw.STATIC, rw.REFERENCES[0])
    return Suite(
        name="readings",
        title="Readings of PET and ACC: what each choice gives",
        trainings=(whole.training("websearch"),),
        cells=(replace(whole.cell("websearch-60"), rows=rw.names(rows, static)),),
        rows=(*rows, *static),
        claims=(),
        notes=whole.notes,
        episodes=whole.episodes,
    )

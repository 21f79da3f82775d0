"""The rows: each learner as published and tuned, and the rules beside them.

*As published* has the values that the paper prints: state, reward, action space, their scale alpha,
learning rates, discount, priorities, exchange, idle rule, penalty. `unstated` names those that the
paper does not print, with our values. The *best reading* has the same printed values; what the
paper leaves open is chosen so that the learner earns its own reward (`choices`; what each
alternative gives is measured by `papers.readings`). Rows that learn online and the ablation start
from it. *Tuned* is the learner of the benchmark's own reward, with
the recipe that `ecn-marl tune` found (`recipes.LEARNERS`) and its budget.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ecn_marl.baselines.static import PREFIX
from ecn_marl.envs.actions import STATIC_ECN
from ecn_marl.experiments.papers.suite import Choice, Row
from ecn_marl.experiments.recipes import LEARNERS, Recipe

ALPHA_KB = 20.0
"""alpha of E(n) = alpha 2^n KB, n = 0..9: PET §5.2, ACC §4.1 of the notes; HAECN takes ACC's."""

_SCALE: dict[str, Any] = {"actions": "multidiscrete", "action_options": {"alpha_kb": ALPHA_KB}}
"""Kmin and Kmax from E(n), Pmax of 1 %, 5 %, 10 % … 100 %: PET, eq. (4)-(5); ACC."""


def as_published(learner: str, settings: Mapping[str, object], **options: object) -> Recipe:
    """A paper's learner with the paper's action space in place of the benchmark's list.

    Args:
        learner: name in `recipes.LEARNERS`.
        settings: settings of the trainer that the paper prints and that are not its defaults.
        **options: options of the learner's view and reward that the paper prints.
    """
    recipe = LEARNERS[learner]
    view = {key: recipe.options[key] for key in ("features", "reward")}
    return replace(recipe, options={**view, **_SCALE, **options}, settings=dict(settings))


_NETWORKS = "two hidden layers of 64"
_INTERVAL = "the scenario's; the paper: an order of magnitude above the round trip"

PET = Row(
    "pet:published",
    "PET as published",
    "published",
    as_published("pet", {"gae_lambda": 0.01}),
    unstated={
        "discount": "0.95",
        "networks": _NETWORKS,
        "history k": "3 intervals",
        "rollouts and epochs": "64 environments of 32 intervals, 2 epochs of 8 minibatches",
        "entropy bonus": "0.003",
        "unit of the queue in La (eq. 8)": "1 KB, at most 1",
        "tuning interval": _INTERVAL,
    },
)
"""PET §5.2: alpha 20, learning rates 4e-4 and 1e-3, GAE coefficient 0.01 (taken as lambda), decay
0.99 every 50, clip 0.2; beta_1 is 0.3 for WebSearch and 0.7 for DataMining, see `Training`."""

PET_OPEN: dict[str, Any] = {"gae_lambda": 0.99, "reward_scale": 0.05, "envs": 8, "rollout": 64}
"""What PET leaves open, as its best reading has it."""

PET_READING = Row(
    "pet:reading",
    "PET as published, best reading",
    "reading",
    as_published("pet", PET_OPEN),
    unstated={
        **PET.unstated,
        "rollouts and epochs": "8 environments of 64 intervals, 2 epochs of 8 minibatches",
        "level of rewards": "times 0.05: returns of about 1",
    },
    choices=(
        Choice(
            "coefficient of GAE",
            '"the coefficient of GAE ... is 0.01" (§5.2); it "adjusts variance and bias"',
            "lambda = 0.01",
            "1 - lambda = 0.01",
            {"pet:lambda-0.01": "lambda = 0.01", "pet:entropy-0.01": "weight of the entropy"},
        ),
        Choice(
            "level of rewards",
            "not stated",
            "as they are: returns of 14",
            "times 0.05: returns of about 1",
            {"pet:level-1": "as they are"},
        ),
        Choice(
            "size of an update",
            "not stated",
            "64 environments of 32 intervals",
            "8 environments of 64 intervals",
            {"pet:large-updates": "64 environments of 32 intervals"},
        ),
        Choice(
            "target of the critic",
            "the sum of all later rewards (Eq. 12)",
            "advantage plus old value",
            "advantage plus old value",
            {"pet:eq-12": "the sum of all later rewards, with lambda = 0.01"},
        ),
        Choice(
            "who acts",
            '"each switch acts as an agent" (§4.1.2); states "from the local port" (§4.2)',
            "every port",
            "every port",
            {"pet:per-switch": "every switch, with means over its ports"},
        ),
    ),
)
"""PET, §5.2, with the printed coefficient read as 1 - lambda."""

PET_PER_SWITCH = Row(
    "pet:per-switch",
    "PET: a switch acts for its ports",
    "alternative",
    as_published("pet", PET_OPEN, agents="switch"),
    unstated={**PET_READING.unstated, "ports of a switch": "means of their features and rewards"},
)
"""PET §4.1.2: each switch is an agent, and sets the same on all its ports; see `envs.agents`."""

PET_ABLATED = Row(
    "pet:no-incast-no-ratio",
    "PET without incast degree and M/E ratio",
    "ablated",
    as_published("pet", PET_OPEN, features="acc"),
    unstated=PET_READING.unstated,
)
"""PET §5.5.7: without its two further states PET sees what ACC sees."""

PET_TUNED = Row("pet:tuned", "PET tuned (ippo)", "tuned", LEARNERS["ippo"])

PET_ONLINE = Row(
    "pet:online", "PET, best reading, learning online", "online", trained="pet:reading"
)

ACC = Row(
    "acc:published",
    "ACC as published",
    "published",
    as_published("ddqn", {}, reward_options={"queue_scale_kb": ALPHA_KB}),
    unstated={
        "learning rate, discount": "1e-3, 0.95",
        "networks": _NETWORKS,
        "memories, batch, copies to the target": "8192 rows, 64, every 50 gradient steps",
        "form of the preference for large rewards": "exponent 0.6, its bias undone",
        "template of settings": "all of E(n) and Pmax; Q is a sum over Kmin, gap and Pmax",
        "steps of D(L)": "10",
        "tuning interval": _INTERVAL,
    },
)

_ACC_REWARD: dict[str, Any] = {"reward_options": {"queue_scale_kb": ALPHA_KB}}

ACC_OPEN: dict[str, Any] = {"centre": 64, "envs": 16, "rollout": 16, "gradient_steps": 16}
"""What ACC leaves open, as its best reading has it."""

_CENTRED = {
    "level of rewards": "less the mean of 64 intervals of random settings",
    "size of an update": "16 environments of 16 intervals, 16 gradient steps",
}
"""`ACC_OPEN` in words."""

ACC_READING = Row(
    "acc:reading",
    "ACC as published, best reading",
    "reading",
    as_published("ddqn", ACC_OPEN, **_ACC_REWARD),
    unstated={
        **ACC.unstated,
        **_CENTRED,
    },
    choices=(
        Choice(
            "level of rewards",
            "not stated; values start near 0 and would have to climb to 15",
            "as they are",
            "less their mean under random settings",
            {"acc:no-offset": "as they are"},
        ),
        Choice(
            "size of an update",
            "a gradient step per interval (Algorithm 1), of one switch",
            "64 environments of 8 intervals, 8 gradient steps",
            "16 environments of 16 intervals, 16 gradient steps",
            {"acc:large-updates": "64 environments of 8 intervals, 8 gradient steps"},
        ),
        Choice(
            "idle rule while training",
            "idle ports are not inferred, to spare the switch's CPU (§4.2)",
            "as in use",
            "as in use",
            {"acc:no-gate": "no idle rule at all", "acc:no-gate-no-offset": "nor an offset"},
        ),
    ),
)
"""ACC with values that start at their level."""

ACC_TUNED = Row("acc:tuned", "ACC tuned (ddqn-fct)", "tuned", LEARNERS["ddqn-fct"])

ACC_ONLINE = Row(
    "acc:online", "ACC, best reading, learning online", "online", trained="acc:reading"
)
"""ACC §4.3: the offline model is installed on every switch and goes on learning there."""

C_ACC = Row(
    "c-acc:reading",
    "C-ACC, one controller for the network",
    "ablated",
    as_published("c-acc", ACC_OPEN, **_ACC_REWARD),
    unstated=ACC_READING.unstated,
)
"""ACC, Fig. 14: sees the whole network and sets the same thresholds on all switches of a layer."""

HAECN = Row(
    "haecn:published",
    "HAECN as published",
    "published",
    as_published("haecn", {"every_interval": False}, reward_options={"queue_scale_kb": ALPHA_KB}),
    unstated={
        "weight of utilisation": "the training's",
        "exploration, memories": "1 to 0.02 by 0.98 per update; 8192 rows",
        "widths of the six layers": "64",
        "template of settings": "all of E(n) and Pmax; Q is a sum over Kmin, gap and Pmax",
        "history k": "3 intervals",
        "tuning interval": _INTERVAL,
    },
)
"""HAECN, Table 1: learning rate 0.005, discount 0.98, batch 64, copies every 20, penalty 0.05."""

HAECN_READING = Row(
    "haecn:reading",
    "HAECN as published, best reading",
    "reading",
    as_published("haecn", {**ACC_OPEN, "every_interval": True}, **_ACC_REWARD),
    unstated={
        **HAECN.unstated,
        **_CENTRED,
    },
    choices=(
        Choice(
            "level of rewards",
            "not stated",
            "as they are",
            "less their mean under random settings",
            {},
        ),
        Choice(
            "what the policy generator learns from",
            "triggered transitions only (Algorithm 1)",
            "triggered transitions",
            "all intervals, a setting valued for as long as it stays",
            {},
        ),
    ),
)
"""HAECN, Table 1, with values that start at their level and learn from all intervals."""

HAECN_TUNED = Row("haecn:tuned", "HAECN tuned (haecn-fct)", "tuned", LEARNERS["haecn-fct"])

_TITLES = {"secn1": "SECN1 (DCQCN)", "secn2": "SECN2 (HPCC)"}

SECN1_P20 = Row("static:5,200,0.2", "SECN1 with Pmax 20 %")
"""Neither PET nor ACC states Pmax of SECN1; the scenarios take 1 % (DCQCN's paper)."""

STATIC = (*(Row(PREFIX + name, _TITLES.get(name, name)) for name in STATIC_ECN), SECN1_P20)
"""Static settings: SECN1, SECN2, recommendations of vendors, and SECN1 with another Pmax."""

RULES = (
    Row("dynamic:ecn-sharp", "ECN#"),
    Row("dynamic:pi", "PI"),
    Row("dynamic:buffer", "coupled to the free buffer"),
)
"""Rules that change thresholds without learning: ECN#, PI marking, and a share of the free buffer,
the idea of draft-yang-dynamic-ecn-threshold."""

REFERENCES = (Row("static:best", "static:best"), Row("oracle", "oracle"))


def names(*groups: Row | tuple[Row, ...]) -> tuple[str, ...]:
    """Names of rows, for a cell."""
    flat = [row for group in groups for row in (group if isinstance(group, tuple) else (group,))]
    return tuple(row.name for row in flat)

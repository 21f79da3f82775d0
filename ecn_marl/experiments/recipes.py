"""Recipes: what each learner sees, sets, is paid for and is set to; how long all of them train.

`ecn-marl bench` trains by these. A row of its table is a recipe and says what it is: the papers'
algorithms as published (`pet`, `ddqn` of ACC, `c-acc`, `haecn`: their features, their rewards,
their gates and penalties), and learners of the benchmark's own reward (`ippo`, `mappo`, and with
`-fct` in their names the papers' Q-learners). A recipe cannot change the traffic, the time of an
episode or the number of steps: all learners of a scenario train for `steps_of(scenario)`.

Settings that `ecn-marl tune` found are entered here with the budget that they were found with. All
learners of the benchmark's reward had the same; the papers' have the settings that these state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from ecn_marl._errors import bad_value, unknown_name
from ecn_marl.baselines.algorithms import ALGORITHMS, algorithm_config

STEPS: dict[str, int] = {
    "restore-serve-v0": 80_000,
    "moving-tenants-v0": 80_000,
    "shuffle-serve-v0": 80_000,
    "mixed-rtt-v0": 80_000,
    "fabric-v0": 80_000,
}
"""Environment steps per seed of every learner of a scenario: decisions, `INTERVAL_US` apart."""

DEFAULT_STEPS = 80_000
"""Environment steps per seed in scenarios that `STEPS` does not name."""

KMIN_RANGE = (2.5, 640.0)
"""Kmin of `DEPTHS`, KB at 25 Gb/s: from two packets, below which a switch cannot mark before it has
queued anything, to what is left for a port of a 32 MiB buffer that some 48 busy ports share."""

KMAX_RATIO = 4.0
"""Kmax / Kmin of `DEPTHS`: that of SECN2, the setting of a cloud provider."""

PMAX = 1.0
"""Pmax of `DEPTHS`: Kmin then sets the queue, whatever the number of senders. With a Pmax of 1 % a
queue grows towards Kmax, and is still there when requests come."""


def ladder(rungs: int) -> tuple[tuple[float, float, float], ...]:
    """Settings from shallow to deep, by even steps of log Kmin.

    Args:
        rungs: how many, 2 or more.
    """
    low, high = KMIN_RANGE
    kmin = [float(f"{low * (high / low) ** (i / (rungs - 1)):.4g}") for i in range(rungs)]
    return tuple((k, KMAX_RATIO * k, PMAX) for k in kmin)


DEPTHS = ladder(9)
"""What learners choose from: an octave of Kmin per rung. It follows from the range of the hardware
alone. ACC's template is not published; the recipes of ACC and HAECN have this list as well."""


@dataclass(frozen=True)
class Tuning:
    """What the settings of a recipe cost to find.

    Attributes:
        trials: settings that were tried.
        steps: environment steps of each.
        episodes: tuning episodes that each was scored on.
        seeds: seeds that each was trained with.
        scenario: where.
    """

    trials: int
    steps: int
    episodes: int
    seeds: int = 1
    scenario: str = ""


@dataclass(frozen=True)
class Recipe:
    """How a learner is trained.

    Attributes:
        algorithm: name of the trainer.
        options: options of `ecn_marl.make` that belong to the learner, see `OPTIONS`.
        settings: settings of the trainer.
        tuning: the budget of `ecn-marl tune` that found the settings; None if nothing was tuned.
        anneal: whether learning rates fall over the whole run, see `settings_for`.
    """

    algorithm: str
    options: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    tuning: Tuning | None = None
    anneal: bool = False

    def __post_init__(self) -> None:
        """Check that the options are the learner's."""
        for name in self.options:
            if name not in OPTIONS:
                raise bad_value("option of a recipe", name, f"one of {', '.join(OPTIONS)}")

    def settings_for(
        self, steps: int, changes: Mapping[str, Any] = MappingProxyType({})
    ) -> dict[str, Any]:
        """Settings of the trainer for a run of some length.

        Args:
            steps: environment steps per seed.
            changes: settings that differ from the recipe's; with `anneal_updates` among them,
                learning rates fall as it says.
        """
        settings = {**self.settings, **changes}
        if self.anneal and "anneal_updates" not in changes:
            per_update = algorithm_config(self.algorithm, **settings).steps_per_update
            settings["anneal_updates"] = -(-steps // per_update)
        return settings


OPTIONS = (
    *("features", "history", "actions", "action_options", "interval_us"),
    *("reward", "credit", "reward_options"),
)
"""Options of `make` that a recipe may set: what the learner sees, sets, how often, and is paid."""

INTERVAL_US = 250.0
"""Time between decisions of every learner, µs: three of the longest round trips, 84 µs each. ACC
wants an order of magnitude, PET does not say. With 500 µs thresholds come too late: in
`restore-serve-v0` the simple rule then ends at J 6.9; with 250 µs at 6.1, with 100 µs at 5.6."""

_LADDER = {
    "actions": "discrete",
    "action_options": {"template": DEPTHS},
    "interval_us": INTERVAL_US,
}

_OWN = {
    **{"features": "flows", "reward": "slowdown-shaped", "credit": "path"},
    **{"reward_options": {"mice_factor": 2.0}, **_LADDER},
}
"""What learners of the benchmark's reward see, among others how many flows began, and earn.

J weighs classes in the logarithm, and the scenario's weights do so near SECN1. Under better
policies the slowdown of short flows is a third of that, and so is its share of the reward; hence
the factor.
"""

_PPO = {
    "gamma": 0.9975,
    "gae_lambda": 0.99,
    "rollout": 128,
    "envs": 8,
    "epochs": 4,
    "minibatches": 16,
    "actor_lr": 2e-3,
    "critic_lr": 2e-3,
    "entropy": 5e-4,
    "clip_decay": 1.0,
    "reward_scale": 0.03,
    "standardise": 64,
}
"""PPO for decisions whose gain comes late; where its tuning began. In `restore-serve-v0`, one
interval of deep marking while a port restores earns nothing within 2 ms, and 20 to 100 times its
first gain within 30 ms: what is read in time does not disturb the next phase. Features are
standardised: without it the phases are told apart too late. Eight environments make updates small
and many. All this, `PMAX`, `INTERVAL_US` and the factor of short flows were found by hand in some
25 runs of `ippo` and of the simple rule, on training and tuning episodes of `restore-serve-v0`.
Learning rates fall over the run: with constant ones J went up and down between the last checkpoints
by a tenth, and from seed to seed. Falling, 120 k steps did what 240 k had done."""

_Q = {
    "gamma": 0.99,
    "n_step": 32,
    "rollout": 32,
    "envs": 16,
    "gradient_steps": 32,
    "target_every": 200,
    "reward_scale": 0.03,
    "standardise": 64,
}
"""Q-learning for the same reward; where its tuning began. Returns of up to 32 steps (8 ms) carry
what an interval of deep marking earns late; with 3 steps J was 8.2 to 8.5 after 60 k steps, with 16
and standardised features 6.3 to 8.0, and steadier with rows drawn uniformly. Found by hand in 11
runs of `ddqn-fct` and 3 of `haecn-fct` of 60 to 100 k steps, two seeds each, on tuning episodes of
`restore-serve-v0`."""

TUNED = Tuning(trials=6, steps=48_000, episodes=32, seeds=2, scenario="restore-serve-v0")
"""What `ecn-marl tune` spent on each of the four learners below; trial 0 is their start above. The
winners' J was 6.06 (`ippo`; the start had 6.19), 5.48 (`mappo`; 6.61), 7.12 (`ddqn-fct`; 7.28) and
6.83 (`haecn-fct`, its start). Six more trials of `ippo` and `mappo` found nothing lower. The
settings serve in every scenario; nothing was tuned in another one."""


def with_settings(one: Recipe, settings: Mapping[str, Any], tuning: Tuning | None) -> Recipe:
    """A recipe with some settings changed, and the budget that this took."""
    return replace(one, settings={**one.settings, **settings}, tuning=tuning)


LEARNERS: dict[str, Recipe] = {
    "ippo": with_settings(
        Recipe("ippo", _OWN, _PPO, anneal=True),
        {
            **{"actor_lr": 0.00074, "critic_lr": 0.0013, "gamma": 0.9975, "gae_lambda": 0.9},
            **{"entropy": 0.00019, "rollout": 64, "epochs": 8, "minibatches": 4},
            "hidden": (128, 128),
        },
        TUNED,
    ),
    "mappo": with_settings(
        Recipe("mappo", _OWN, _PPO, anneal=True),
        {
            **{"actor_lr": 0.00054, "critic_lr": 0.0046, "gamma": 0.995, "gae_lambda": 0.98},
            **{"entropy": 0.0006, "rollout": 64, "epochs": 4, "minibatches": 16},
            "hidden": (128, 128),
        },
        TUNED,
    ),
    "ddqn-fct": with_settings(
        Recipe("ddqn", _OWN, {**_Q, "priority": 0.0, "idle_gating": False}, anneal=True),
        {
            **{"lr": 0.00072, "gamma": 0.98, "rollout": 32, "n_step": 32, "gradient_steps": 128},
            **{"batch": 64, "target_every": 200, "epsilon_decay": 0.98, "epsilon_min": 0.05},
            **{"hidden": (128, 128), "priority": 0.0, "local_capacity": 32_768},
        },
        TUNED,
    ),
    "haecn-fct": with_settings(
        Recipe("haecn", _OWN, {**_Q, "lr": 1e-3, "trigger_penalty": 1e-3}, anneal=True),
        {},
        TUNED,
    ),
    "pet": Recipe("ippo", {"features": "pet", "reward": "pet", **_LADDER}),
    "ddqn": Recipe("ddqn", {"features": "acc", "reward": "acc", **_LADDER}),
    "c-acc": Recipe("c-acc", {"features": "acc", "reward": "acc", **_LADDER}),
    "haecn": Recipe("haecn", {"features": "haecn", "reward": "haecn", **_LADDER}),
}
"""Learners by the names of their rows, as they are where `RECIPES` has nothing else.

The last four are the papers' (PET; ACC; ACC's central controller; HAECN), with all settings that
these state: the defaults of the trainers, ACC's idle gating and HAECN's penalty of 0.05 among them.
"""

PAPERS = ("pet", "ddqn", "c-acc", "haecn")
"""Learners as published: nothing of them is tuned, `RECIPES` must not change them."""

RECIPES: dict[str, dict[str, Recipe]] = {}
"""Other recipes in single scenarios, by scenario and learner, as `ecn-marl tune` prints them."""


def steps_of(scenario: str) -> int:
    """Environment steps per seed of every learner of a scenario."""
    return STEPS.get(scenario, DEFAULT_STEPS)


def learners() -> tuple[str, ...]:
    """Names of all learners: those of `LEARNERS`, and algorithms that were registered."""
    return (*LEARNERS, *ALGORITHMS.added)


def recipe(scenario: str, learner: str) -> Recipe:
    """The recipe of a learner for a scenario; a registered algorithm sees and earns as `ippo`.

    Raises:
        ValueError: unknown learner.
    """
    if learner in ALGORITHMS.added:
        options = ALGORITHMS[learner].recipe
        return Recipe(learner, _OWN if options is None else options)
    if learner not in LEARNERS:
        raise unknown_name("learner", learner, learners())
    return RECIPES.get(scenario, {}).get(learner, LEARNERS[learner])


def budgets(scenario: str) -> set[Tuning]:
    """The tuning budgets of a scenario's recipes, the papers' apart: if not one, unequal ones."""
    own = {recipe(scenario, name).tuning for name in LEARNERS if name not in PAPERS}
    return {budget for budget in own if budget is not None}

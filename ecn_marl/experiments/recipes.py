"""Recipes: features, actions, reward and settings of each learner, and the length of all trainings.

`ecn-marl bench` trains by these. Each learner in its table is a recipe. There are the papers'
algorithms as published (`pet`, `ddqn` of ACC, `c-acc`, `haecn`) with their own features, rewards,
gates and penalties. And there are learners of the benchmark's own reward: `ippo`, `mappo`, and the
papers' Q-learners with `-fct` in their names. A recipe cannot change the traffic, the length of an
episode or the number of steps: all learners of a scenario train for `steps_of(scenario)`.

Settings that `ecn-marl tune` found stand here with the budget of the search. All learners of the
benchmark's reward had the same budget, but for those without `tuning`, which had none. The papers'
learners have the settings that these state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from ecn_marl._errors import bad_value, unknown_name
from ecn_marl.baselines.algorithms import ALGORITHMS, algorithm_config, check_agents

STEPS: dict[str, int] = {
    "restore-serve-v0": 160_000,
    "moving-tenants-v0": 160_000,
    "shuffle-serve-v0": 160_000,
    "mixed-rtt-v0": 160_000,
    "fabric-v0": 80_000,
    "restore-files-v0": 640_000,
    "storage-train-v0": 640_000,
}
"""Environment steps (decisions, `INTERVAL_US` apart) per seed of every learner of a scenario.

After 80 k `ippo` was still improving on `mixed-rtt-v0`: J 4.34, after 160 k 4.17. Two seeds of
`mappo` on `restore-files-v0` had 3.9 and 4.2 after 192 k, and 3.2 and 3.5 after 384 k: no counter
tells its phases, and that takes longer to learn. On `storage-train-v0` the reward of two seeds of
`mappo` rose by a sixth between 80 k and 480 k.
"""

DEFAULT_STEPS = 80_000
"""Environment steps per seed in scenarios that `STEPS` does not name."""

KMIN_RANGE = (2.5, 640.0)
"""Kmin of `DEPTHS`, KB at 25 Gb/s. The lowest is two packets: a switch cannot mark before it has
queued something. The highest is a port's part of a 32 MiB buffer that some 48 busy ports share."""

KMAX_RATIO = 4.0
"""Kmax / Kmin of `DEPTHS`: that of SECN2, the setting of a cloud provider."""

PMAX = 1.0
"""Pmax of `DEPTHS`. With 1, Kmin sets the queue for any number of senders. With 1 %, a queue grows
towards Kmax, and is still there when requests come."""


def ladder(rungs: int) -> tuple[tuple[float, float, float], ...]:
    """Settings from shallow to deep, in even steps of log Kmin.

    Args:
        rungs: number of settings, 2 or more.
    """
    low, high = KMIN_RANGE
    kmin = [float(f"{low * (high / low) ** (i / (rungs - 1)):.4g}") for i in range(rungs)]
    return tuple((k, KMAX_RATIO * k, PMAX) for k in kmin)


DEPTHS = ladder(9)
"""Settings that learners choose from: Kmin doubles per rung. The list follows from the hardware's
range alone. ACC's template is not published, so the recipes of ACC and HAECN have this list too."""

BY_SETTINGS, BY_COSTS = "settings", "costs"
"""What a search tells a learner that is taught, see `Recipe.taught`."""


@dataclass(frozen=True)
class Tuning:
    """The budget of the search for the settings of a recipe.

    Attributes:
        trials: settings that were tried.
        steps: environment steps of each.
        episodes: tuning episodes that each was scored on.
        seeds: seeds that each was trained with.
        scenario: the scenario.
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
        taught: what a search tells it, see `taught`: `settings`, its list of settings is the
            oracle's, one a phase; `costs`, what each of its own costs in each phase; or nothing.
    """

    algorithm: str
    options: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    tuning: Tuning | None = None
    anneal: bool = False
    taught: str = ""

    def __post_init__(self) -> None:
        """Check that the options are the learner's."""
        for name in self.options:
            if name not in OPTIONS:
                raise bad_value("option of a recipe", name, f"one of {', '.join(OPTIONS)}")

    def settings_for(
        self, steps: int, changes: Mapping[str, object] = MappingProxyType({})
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
    *("features", "history", "actions", "action_options", "interval_us", "agents", "per_queue"),
    *("reward", "credit", "reward_options"),
)
"""Options of `make` that a recipe may set: features, actions, interval, agents and reward."""

INTERVAL_US = 250.0
"""Time between decisions of every learner, µs: three of the longest round trips, 84 µs each. ACC
wants an order of magnitude more than the round trip, PET does not say. With 500 µs thresholds
change too late: in `restore-serve-v0` the simple rule then has a J of 6.9, with 250 µs 6.1, with
100 µs 5.6."""

_LADDER = {
    "actions": "discrete",
    "action_options": {"template": DEPTHS},
    "interval_us": INTERVAL_US,
}

_OWN = {
    **{"features": "flows-memory", "history": 1},
    **{"reward": "slowdown-shaped", "credit": "flows"},
    **{"reward_options": {"mice_factor": 2.0}, **_LADDER},
}
"""Features and reward of learners of the benchmark's reward.

Moving averages show in which phase a port is; three intervals of `flows`, which these learners had
before, are too short for that where few flows begin. With the credit `path` a port earned more by a
short queue, though its flows were no faster: on `fabric-v0`, whose flows cross three queues, the
reward of some seeds fell while they learned. `docs/benchmark.md` has both changes by seed.

J weighs the logarithms of the classes' slowdowns. The scenario's weights do about the same near
SECN1. Under better policies the slowdown of short flows is a third of that under SECN1, and so is
its share of the reward. `mice_factor` makes up for it.
"""

_BENT = {name: x for name, x in _OWN.items() if name != "reward_options"} | {
    "reward": "objective-shaped"
}
"""The same view with costs that bend as J does.

With plain slowdowns `ippo` earned more than the rule and the oracle, and was behind in J: it sped
long flows up, and delayed the latest of the short ones, which make the p99. All learners have it.
"""

_SWITCH = _BENT | {"features": "flows-switch"}
"""The same, and what the other ports of the switch see: it tells web search from a job's pause,
which a port alone does not."""

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
"""PPO for decisions whose gain comes late; the start of its tuning. In `restore-serve-v0`, one
interval of deep marking while a port restores gains nothing within 2 ms, and 20 to 100 times its
first gain within 30 ms: data that are read in time do not disturb the next phase. Features are
standardised; without it the learner tells the phases apart too late. Eight environments make small
and frequent updates. All this, `PMAX`, `INTERVAL_US` and `mice_factor` were found by hand in some
25 runs of `ippo` and of the simple rule, on training and tuning episodes of `restore-serve-v0`.
Learning rates fall over the run: with constant ones J varied by a tenth between the last
checkpoints and between seeds. With falling ones, 120 k steps reached what 240 k had reached."""

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
"""Q-learning for the same reward; the start of its tuning. Returns of up to 32 steps (8 ms) include
the late gain of deep marking. With 3 steps J was 8.2 to 8.5 after 60 k steps, with 16 and
standardised features 6.3 to 8.0, and varied less with rows drawn uniformly. Found by hand in 11
runs of `ddqn-fct` and 3 of `haecn-fct` of 60 to 100 k steps, two seeds each, on tuning episodes of
`restore-serve-v0`."""

_PQN = {
    **{"gamma": 0.9975, "gae_lambda": 0.9, "rollout": 64, "envs": 8, "epochs": 4},
    **{"minibatches": 4, "lr": 1e-3, "reward_scale": 0.1, "standardise": 64},
    **{"hidden": (128, 128), "epsilon_decay": 0.95, "epsilon_min": 0.02},
}
"""PQN with the rollouts, the discount and the returns of the tuned `ippo`. Nothing was tuned. The
chance of random actions reaches its floor at half of the run. See `docs/benchmark.md`."""

_BOX = _BENT | {
    "actions": "box",
    "action_options": {"kmin_kb": KMIN_RANGE, "pmax": (0.02, PMAX)},
}
"""The same view with Kmin, Kmax and Pmax as real numbers, for learners of these."""

_SAC = {
    **{"gamma": 0.99, "n_step": 32, "rollout": 32, "envs": 8, "gradient_steps": 64},
    **{"batch": 512, "lr": 1e-3, "reward_scale": 0.1, "standardise": 64, "hidden": (128, 128)},
}
"""SAC with the returns of the Q-learners. Nothing was tuned."""

_DAGGER = {"envs": 8, "rollout": 64, "standardise": 64, "hidden": (128, 128)}
"""DAgger with the rollouts and the network of PPO. Nothing was tuned."""

TUNED = Tuning(trials=6, steps=48_000, episodes=32, seeds=2, scenario="restore-serve-v0")
"""Budget of `ecn-marl tune` for each of the four learners below; trial 0 is their start above. The
winners' J was 6.06 (`ippo`; the start had 6.19), 5.48 (`mappo`; 6.61), 7.12 (`ddqn-fct`; 7.28) and
6.83 (`haecn-fct`, its start). Six more trials of `ippo` and `mappo` found nothing lower. The
settings are used in every scenario; nothing was tuned in another one."""


_FOUND_IPPO = {
    **{"actor_lr": 0.00074, "critic_lr": 0.0013, "gamma": 0.9975, "gae_lambda": 0.9},
    **{"entropy": 0.00019, "rollout": 64, "epochs": 8, "minibatches": 4},
    "hidden": (128, 128),
}
"""What the search found for `ippo` on `restore-serve-v0`; `gnn` has it.

`ippo` had it until the fourth sealed set. On `fabric-v0` it took 60 % of the oracle's gain with it.
"""

_FOUND_MAPPO = {
    **{"actor_lr": 0.00054, "critic_lr": 0.0046, "gamma": 0.995, "gae_lambda": 0.98},
    **{"entropy": 0.0006, "rollout": 64, "epochs": 4, "minibatches": 16},
    "hidden": (128, 128),
}
"""What the search found for `mappo`; `ippo` has it, too, with exploration that lasts.

Chosen for `ippo` on tuning episodes of `fabric-v0`: J of five seeds after 40 k steps is 4.87 with
its own settings, 4.20 with these, 3.97 with these and `persistence` of a half (.75: 4.05). See
`docs/learners-log.md`.
"""

_EXPLORING = {"reward_scale": 0.1, "entropy_start": 0.01}
"""What PPO has with the reward of `_BENT`. Without entropy at the start, one seed in three
settled on the rung below the deepest one, and was late in some episodes. Both were chosen in 14
arms of three seeds on `restore-serve-v0` and 8 in others, see `results/objective.json`."""


_ORDERED = {"reward_scale": 0.1, "ordinal": 2}
"""What Q-learners with a replay have with the reward of `_BENT`. Two neighbouring rungs are worth
about the same, and with values of their own the better one was left to chance: while restoring the
mean rung of `ddqn-fct` was 5.2 of 8 where `mappo` has 6.4, while serving 2.3 where it has 1.1. On
`restore-serve-v0` J of five seeds is 5.91 with it, of three 6.46 without. See
`results/learners.json`."""


_STEADY = {
    **{"polyak": True, "persistence": 0.5, "ordinal": 1},
    **{"gamma": 0.995, "gradient_steps": 32},
}
"""What `ddqn-fct` has over what its search found. Even with an average of the network, and settings
that last while it learns, it changed its mind in 59 % of its decisions, where `mappo` does in 35 %.
Values that are linear in the place on the ladder, and a quarter of the passes over the same noisy
returns, leave less to chance. Chosen in 22 arms of two seeds on tuning episodes of `fabric-v0`,
`mixed-rtt-v0` and `restore-serve-v0`, see `docs/learners-log.md`."""


def with_settings(base: Recipe, settings: Mapping[str, object], tuning: Tuning | None) -> Recipe:
    """A recipe with some settings changed, and the budget of the search for them."""
    return replace(base, settings={**base.settings, **settings}, tuning=tuning)


LEARNERS: dict[str, Recipe] = {
    "ippo": with_settings(
        Recipe("ippo", _BENT, _PPO, anneal=True),
        {**_FOUND_MAPPO, **_EXPLORING, "persistence": 0.5},
        TUNED,
    ),
    "mappo": with_settings(
        Recipe("mappo", _BENT, _PPO, anneal=True), {**_FOUND_MAPPO, **_EXPLORING}, TUNED
    ),
    "ddqn-fct": with_settings(
        Recipe("ddqn", _BENT, {**_Q, "priority": 0.0, "idle_gating": False}, anneal=True),
        {
            **{"lr": 0.00072, "gamma": 0.98, "rollout": 32, "n_step": 32, "gradient_steps": 128},
            **{"batch": 64, "target_every": 200, "epsilon_decay": 0.98, "epsilon_min": 0.05},
            **{"hidden": (128, 128), "priority": 0.0, "local_capacity": 32_768},
            **_ORDERED,
            **_STEADY,
        },
        TUNED,
    ),
    "haecn-fct": with_settings(
        Recipe("haecn", _BENT, {**_Q, "lr": 1e-3, "trigger_penalty": 1e-3}, anneal=True),
        _ORDERED,
        TUNED,
    ),
    "generalist": Recipe("generalist", _SWITCH, _DAGGER, anneal=True, taught=BY_COSTS),
    "gnn": with_settings(
        Recipe("gnn", _BENT, _PPO, anneal=True), {**_FOUND_IPPO, **_EXPLORING}, None
    ),
    "dagger": Recipe("dagger", _BENT, _DAGGER, anneal=True, taught=BY_SETTINGS),
    "sac": Recipe("sac", _BOX, _SAC, anneal=True),
    "pqn": Recipe("pqn", _BENT, _PQN, anneal=True),
    "vdn": Recipe("pqn", _BENT, {**_PQN, "team": True}, anneal=True),
    "pet": Recipe("ippo", {"features": "pet", "reward": "pet", **_LADDER}),
    "ddqn": Recipe("ddqn", {"features": "acc", "reward": "acc", **_LADDER}),
    "c-acc": Recipe("c-acc", {"features": "acc", "reward": "acc", **_LADDER}),
    "haecn": Recipe("haecn", {"features": "haecn", "reward": "haecn", **_LADDER}),
}
"""Recipes by the names of learners, where `RECIPES` has no other one.

The last four are the papers' (PET; ACC; ACC's central controller; HAECN). They have all settings
that the papers state, which are the trainers' defaults, e.g. ACC's idle gating and HAECN's penalty
of 0.05.
"""

PAPERS = ("pet", "ddqn", "c-acc", "haecn")
"""Learners as published: they are not tuned, and `RECIPES` must not change them."""

GENERALIST = "generalist"
"""The learner that is trained in several scenarios at once, those of `LEARNT`."""

LEARNT = (
    *("restore-serve-v0", "shuffle-serve-v0", "moving-tenants-v0", "mixed-rtt-v0", "fabric-v0"),
    *("restore-files-v0", "storage-train-v0", "websearch-v0", "websearch-load-v0"),
    *("decode-cache-v0", "two-jobs-v0", "hot-experts-v0", "wide-restore-v0"),
    *("restore-serve-v0:senders/np50us", "restore-serve-v0:senders/hpcc-run"),
    *("restore-serve-v0:senders/hpcc-config", "restore-serve-v0:loads/requests-35"),
    *("restore-serve-v0:loads/requests-150", "restore-serve-v0:sizes/requests-5-to-70-KB"),
    *("restore-serve-v0:rates/g35", "restore-serve-v0:rates/g150", "restore-serve-v0:rtt/d15"),
)
"""Scenarios that the generalist learns in, the last ones variants of the train sides of splits.
`websearch-star-v0`, `near-far-v0`, `lost-link-v0` and `storage-train-full-v0` are left to try it in
others."""

RECIPES: dict[str, dict[str, Recipe]] = {}
"""Other recipes in single scenarios, by scenario and learner, as `ecn-marl tune` prints them."""


def steps_of(scenario: str, learner: str = "") -> int:
    """Environment steps per seed of a learner; the generalist's are for all its scenarios."""
    if learner == GENERALIST:
        return DEFAULT_STEPS * len({scenario, *LEARNT})
    return STEPS.get(scenario, DEFAULT_STEPS)


def learners() -> tuple[str, ...]:
    """Names of all learners: those of `LEARNERS`, and algorithms that were registered."""
    return (*LEARNERS, *ALGORITHMS.added)


def trainer_of(name: str) -> str:
    """The trainer of a learner, e.g. `ddqn` of `ddqn-fct`; another name is a trainer's itself."""
    return LEARNERS[name].algorithm if name in LEARNERS else name


def recipe(scenario: str, learner: str) -> Recipe:
    """The recipe of a learner for a scenario; by default a registered algorithm has `ippo`'s view.

    Raises:
        ValueError: unknown learner.
    """
    if learner in ALGORITHMS.added:
        options = ALGORITHMS[learner].recipe
        return Recipe(learner, _OWN if options is None else options)
    if learner not in LEARNERS:
        check_agents("learner", learner)
        raise unknown_name("learner", learner, learners())
    found = RECIPES.get(scenario, {}).get(learner, LEARNERS[learner])
    if learner != GENERALIST:
        return found
    also = tuple(name for name in LEARNT if name != scenario)
    return replace(found, settings={**found.settings, "also": also})


def budgets(scenario: str) -> set[Tuning]:
    """Tuning budgets of a scenario's recipes, without the papers'; fair only if there is one."""
    own = {recipe(scenario, name).tuning for name in LEARNERS if name not in PAPERS}
    return {budget for budget in own if budget is not None}

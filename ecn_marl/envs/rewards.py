"""Rewards: what a port earns in one tuning interval.

The benchmark's reward is in completion times:

    slowdown    - sum over size classes of w * slowdown accrued    Little's law, `sim.core.delays`

A flow accrues slowdown at the rate 1 / ideal FCT for as long as it is in the system. So an
episode's rewards add up to minus the weighted sum of the slowdowns of its flows, those that are not
finished at their age. With the credit `team` every port earns the whole; with `path` a flow's part
is shared by the ports on its way, in proportion to where a packet of it spends its time, and the
ports' rewards add up to the whole. A port can lower its share by a shorter queue, though the flow
is no faster. With `flows` every port earns all of the flows that cross it, whatever its share is.

    slowdown-shaped    the same, plus w times the share of its bytes that each flow delivered

A finished flow has earned its whole weight, whatever the thresholds were. So the returns differ
from those of `slowdown` by the weights of the finished flows and by what unfinished ones have
delivered. This is potential-based shaping (Ng, Harada, Russell, ICML'99): throughput earns reward
at once, not only when a flow of many milliseconds ends.

    objective, objective-shaped    likewise, with costs that bend as J does

The objective J has the p99 of short flows and the geometric mean of long ones. So a short flow of
slowdown s costs 1 + (s^2 - 1) / 2 here, and a long one 1 + log s. The sum over the long ones then
is the logarithm of J's part, and the latest short flows cost most. Steps of jobs cost what they do
with `slowdown`.

The papers' rewards are options. Each weighs the link's utilisation against a measure of its queue,
both in [0, 1], so the reward is in [0, 1] too:

    acc     w T + (1 - w) D(L)            ACC (SIGCOMM'21), section 3
    pet     w T + (1 - w) La              PET, section 4.2.3, eq. (6)-(8)
    haecn   w T + (1 - w) D(L)            HAECN, section 3.3, eq. (2); its trainer charges triggers

`T` is the utilisation of the interval, `L` the time mean of the queue over the interval. A queue
that happens to be short when it is read does not change a mean, and HAECN specifies the mean
(section 3.3, "averaging values from last report time to current report time").

Where the papers are silent or contradict each other, this module does the following:

* ACC draws D(L) as steps on its threshold scale E(n) = alpha 2^n KB, falling from 1 to 0. With its
  alpha of 20 KB every queue up to 20 KB earns the same, although ACC reports a mean queue of
  5.6 KB. The scale is a parameter. Its default is 5 KB, the smallest threshold of the DCQCN
  setting, so that typical queues (5 to 50 KB) lie on different steps.
* The number of steps is not given. Ten are taken, n = 0..9, PET's range of n: the first step ends
  at 5 KB and D is 0 above 2.56 MB.
* PET's La = 1 / queue_avg has no unit and no value for an empty queue. Here the queue is counted in
  units of a floor, La = floor / max(queue, floor): 1 up to the floor, which is 1 KB (one packet).
* HAECN calls its queue term both "higher is worse" (state) and "falling from 1 to 0" (reward), and
  adds it: the reward takes ACC's D(L), the state its complement.
* No paper says what a faster port should do. All queue scales grow with the port's rate, as the
  thresholds do, so that equal queueing delay earns equal reward.

D(L) is piecewise constant: its gradient with respect to the queue is zero. For gradients through
the simulator take `pet`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from numbers import Real as RealNumber
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Float

from ecn_marl._checks import FRACTION, NOT_NEGATIVE, POSITIVE, Kind, Real, check_value
from ecn_marl._errors import bad_value, unknown_name
from ecn_marl._registry import Registry
from ecn_marl._types import Leaf
from ecn_marl.sim.config import SimConfig
from ecn_marl.sim.core.stats import shapes
from ecn_marl.sim.network.topology import KB
from ecn_marl.sim.simulator import PortStats

MAX_STEPS = 32
"""Most steps that D(L) can have; a byte doubled 32 times is 4 GB, beyond any queue."""


@struct.dataclass
class RewardParams:
    """Traced constants of the rewards; every leaf is a float32 scalar. Build it with `create`.

    Attributes:
        utilisation_weight: w in [0, 1], the weight of utilisation; the queue term gets 1 - w.
        queue_scale: alpha, where the first step of D(L) ends on a 25 Gb/s port, bytes.
        queue_steps: N, the number of steps of D(L), a whole number in [1, 32].
        queue_floor: the queue at and below which PET's La is 1 on a 25 Gb/s port, bytes.
        slowdown_weights: weight of the slowdown of mice, medium flows and elephants, `[3]`.
        mean: what each port earns in an interval under the reference that rewards are relative to,
            `[A]`; None if they are relative to nothing, see `reward_reference`.
        headroom: what the oracle earns above it in an episode, mean over ports; None likewise.
    """

    utilisation_weight: Annotated[Leaf, FRACTION]
    queue_scale: Annotated[Leaf, POSITIVE]
    queue_steps: Annotated[Leaf, Real(low=1.0, high=MAX_STEPS)]
    queue_floor: Annotated[Leaf, POSITIVE]
    slowdown_weights: Annotated[Leaf, NOT_NEGATIVE]
    mean: Leaf = None
    headroom: Leaf = None

    @classmethod
    def create(
        cls,
        utilisation_weight: float = 0.3,
        queue_scale_kb: float = 5.0,
        queue_steps: int | float = 10,
        queue_floor_kb: float = 1.0,
        mice_weight: float = 1.0,
        medium_weight: float = 1.0,
        elephant_weight: float = 1.0,
        mice_factor: float = 1.0,
    ) -> RewardParams:
        """Checks the constants and makes arrays of them.

        Args:
            utilisation_weight: w. 0.3 is what PET and ACC use for WebSearch, 0.7 for DataMining
                (PET, section 5.2). HAECN does not give its weight.
            queue_scale_kb: alpha of D(L), KB for a 25 Gb/s port. ACC and PET print 20.
            queue_steps: N of D(L).
            queue_floor_kb: floor and unit of PET's queue, KB for a 25 Gb/s port.
            mice_weight: weight of the slowdown of flows up to 100 KB.
            medium_weight: weight of that of flows up to 1 MB.
            elephant_weight: weight of that of larger flows.
            mice_factor: factor of `mice_weight`. Built-in scenarios have weights that make classes
                count alike under SECN1; under a better policy short flows then count for less,
                and a learner may want them to count for more.

        Raises:
            ValueError: if a constant is outside its range.
        """
        check_options(
            utilisation_weight=utilisation_weight,
            queue_scale_kb=queue_scale_kb,
            queue_steps=queue_steps,
            queue_floor_kb=queue_floor_kb,
            mice_weight=mice_weight,
            medium_weight=medium_weight,
            elephant_weight=elephant_weight,
            mice_factor=mice_factor,
        )
        weights = [mice_weight * mice_factor, medium_weight, elephant_weight]
        return cls(
            utilisation_weight=jnp.float32(utilisation_weight),
            queue_scale=jnp.float32(queue_scale_kb * KB),
            queue_steps=jnp.float32(queue_steps),
            queue_floor=jnp.float32(queue_floor_kb * KB),
            slowdown_weights=jnp.array(weights, jnp.float32),
        )


OPTIONS: dict[str, tuple[float, float, str]] = {
    "utilisation_weight": (0.0, 1.0, "a number in [0, 1]"),
    "queue_scale_kb": (1e-9, 1e9, "a number of KB above 0"),
    "queue_steps": (1, MAX_STEPS, f"a whole number in [1, {MAX_STEPS}]"),
    "queue_floor_kb": (1e-9, 1e9, "a number of KB above 0"),
    "mice_weight": (0.0, 1e9, "a number of at least 0"),
    "medium_weight": (0.0, 1e9, "a number of at least 0"),
    "elephant_weight": (0.0, 1e9, "a number of at least 0"),
    "mice_factor": (0.0, 1e9, "a number of at least 0"),
}
"""Options of `RewardParams.create`: smallest and largest value, and what is allowed in words."""


def check_options(**options: float) -> None:
    """Checks options of `RewardParams.create` without making arrays.

    Raises:
        ValueError: for an unknown option (with the nearest names) or one outside its range.
    """
    for name, value in options.items():
        if name not in OPTIONS:
            raise unknown_name("reward option", name, tuple(OPTIONS))
        low, high, allowed = OPTIONS[name]
        check_value(name, value, Kind((RealNumber,), allowed))
        integral = name != "queue_steps" or float(value).is_integer()
        if not (low <= value <= high and integral):
            raise bad_value(name, value, allowed)


def queue_level(
    queue: Float[Array, " ports"],
    scale: Float[Array, " ports"],
    steps: Float[Array, ""],
) -> Float[Array, " ports"]:
    """The step that a queue has reached on the scale E(n) = scale 2^n, as a fraction of all steps.

    The level is n / N for E(n-1) < queue <= E(n) and n < N: 0 up to E(0), 1 above E(N-1).

    Args:
        queue: queue lengths, bytes.
        scale: E(0) of each port, bytes.
        steps: N, at most `MAX_STEPS`.

    Returns:
        Levels in [0, 1], never falling as the queue grows.
    """
    # The number of steps is traced, so all edges are there, and those beyond it are masked.
    # Comparisons are exact at the edges; a float32 logarithm of the queue would not be.
    n = np.arange(MAX_STEPS)
    edges = scale[:, None] * np.exp2(n).astype(np.float32)
    passed = (queue[:, None] > edges) & (n.astype(np.float32) < steps)
    return jnp.sum(passed.astype(jnp.float32), axis=-1) / steps


def _weigh(
    stats: PortStats, params: RewardParams, queue_term: Float[Array, " ports"]
) -> Float[Array, " ports"]:
    """The weighted sum w T + (1 - w) queue_term."""
    weight = params.utilisation_weight
    total: Array = weight * stats.utilisation + (1.0 - weight) * queue_term
    return total


def _step_reward(
    stats: PortStats,
    params: RewardParams,
    port_scale: Float[Array, " ports"],
    interval_us: Float[Array, ""] | float,
) -> Float[Array, " ports"]:
    """Utilisation against D(L), the reward of ACC and HAECN."""
    del interval_us
    level = queue_level(stats.queue_mean, params.queue_scale * port_scale, params.queue_steps)
    return _weigh(stats, params, 1.0 - level)


def _reciprocal_reward(
    stats: PortStats,
    params: RewardParams,
    port_scale: Float[Array, " ports"],
    interval_us: Float[Array, ""] | float,
) -> Float[Array, " ports"]:
    """Utilisation against the reciprocal of the mean queue, the reward of PET."""
    del interval_us
    # The floor also keeps an empty queue from a division by 0.
    floor = params.queue_floor * port_scale
    return _weigh(stats, params, floor / jnp.maximum(stats.queue_mean, floor))


def _slowdown_reward(
    stats: PortStats,
    params: RewardParams,
    port_scale: Float[Array, " ports"],
    interval_us: Float[Array, ""] | float,
) -> Float[Array, " ports"]:
    """Minus the weighted slowdown that accrued; each port gets its share."""
    del port_scale, interval_us
    reward: Array = -(stats.accrued * params.slowdown_weights).sum(-1)
    return reward


def _shaped_reward(
    stats: PortStats,
    params: RewardParams,
    port_scale: Float[Array, " ports"],
    interval_us: Float[Array, ""] | float,
) -> Float[Array, " ports"]:
    """The slowdown reward, plus the weight of a flow in proportion to its delivered bytes."""
    del port_scale, interval_us
    reward: Array = ((stats.progress - stats.accrued) * params.slowdown_weights).sum(-1)
    return reward


OBJECTIVE_POWERS = (2.0, 1.0, 0.0)
"""Powers of `delays.bent` for short, medium and long flows, after the parts of J."""

OBJECTIVE_WEIGHTS = (0.1, 1.0, 1.0)
"""Factors of the weights of size classes for such costs.

Scenarios have weights for plain slowdowns, with which classes count alike under SECN1. Squares of
slowdowns are larger, and logarithms smaller: in the five scenarios of the benchmark, under the
rule, all short flows and all long ones count as in J with a factor of .02 to .09."""


RewardRule = Callable[[PortStats, RewardParams, Array, Any], Array]
"""(stats, params, port_scale [A], interval_us) -> reward float32 [A]."""


@dataclass(frozen=True)
class Reward:
    """A named reward; hashable, so that it can be a static part of an environment.

    Attributes:
        name: its name in `REWARDS`.
        rule: the pure function that computes it.
        accrues: whether it reads `PortStats.accrued` and `progress`.
        team: whether every port earns the sum over all ports instead of its own part.
        whole: whether a port earns all of the flows that cross it instead of its share.
        powers: how costs grow with slowdowns, by size class, see `delays.bent`; empty for the
            slowdown itself.
        weights: factors of `slowdown_weights`, by size class; empty for none.
    """

    name: str
    rule: RewardRule
    accrues: bool = False
    team: bool = False
    whole: bool = False
    powers: tuple[float, ...] = ()
    weights: tuple[float, ...] = ()

    def __call__(
        self,
        stats: PortStats,
        params: RewardParams,
        port_scale: Float[Array, " ports"],
        interval_us: Float[Array, ""] | float,
        of_steps: Float[Array, ""] | None = None,
    ) -> Float[Array, " ports"]:
        """The reward of every port for one interval.

        Args:
            stats: statistics of the interval.
            params: constants of the reward.
            port_scale: port rate / 25 Gb/s; queue scales grow with it.
            interval_us: length of the interval, µs, for rules that need rates; unused by the rules
                of this module.
            of_steps: weighted slowdown that steps of jobs have accrued in the interval, see
                `envs.objectives`; None if the reward has no such part. All ports share it alike.

        Returns:
            float32 [ports]; in [0, 1] for the papers' rules, unless they are relative to a
            reference (`params.mean`).
        """
        if self.weights:
            weights = params.slowdown_weights * jnp.asarray(self.weights, jnp.float32)
            params = replace(params, slowdown_weights=weights)
        reward = self.rule(stats, params, port_scale, interval_us)
        if of_steps is not None:
            reward = reward - (of_steps / reward.shape[0]).astype(reward.dtype)
        if self.team:
            reward = jnp.broadcast_to(reward.sum(), reward.shape)
        # None is part of the tree's structure, so this is decided while tracing.
        if params.mean is not None:
            reward = (reward - params.mean) / params.headroom
        return reward


def _as_reward(name: str, reward: object) -> Reward:
    """A reward of this name, from one or from its rule."""
    if isinstance(reward, Reward):
        return replace(reward, name=name)
    if callable(reward):
        return Reward(name, reward)
    allowed = "a Reward, or a function (stats, params, port_scale, interval_us) -> float32 [ports]"
    raise bad_value(f"reward {name}", reward, allowed)


_AS_OBJECTIVE: dict[str, Any] = {
    **{"accrues": True, "team": True},
    **{"powers": OBJECTIVE_POWERS, "weights": OBJECTIVE_WEIGHTS},
}

REWARDS: Registry[Reward] = Registry(
    "reward",
    {
        "acc": Reward("acc", _step_reward),
        "pet": Reward("pet", _reciprocal_reward),
        "haecn": Reward("haecn", _step_reward),
        "slowdown": Reward("slowdown", _slowdown_reward, accrues=True, team=True),
        "slowdown-shaped": Reward("slowdown-shaped", _shaped_reward, accrues=True, team=True),
        "objective": Reward("objective", _slowdown_reward, **_AS_OBJECTIVE),
        "objective-shaped": Reward("objective-shaped", _shaped_reward, **_AS_OBJECTIVE),
    },
    _as_reward,
)
"""The rewards known by name."""

CREDITS = {
    "team": (True, False),
    "path": (False, False),
    "flows": (False, True),
}
"""Credits of rewards in completion times: `team` and `whole` of `Reward`."""


def register_reward(name: str, reward: Reward | RewardRule, replace: bool = False) -> None:
    """Register a reward, to be named wherever rewards are.

    Args:
        name: e.g. `short-queues`.
        reward: a `Reward`, or its rule `(stats, params, port_scale, interval_us) -> float32
            [ports]`. A rule that reads `stats.accrued` or `stats.progress` needs
            `Reward(name, rule, accrues=True)`.
        replace: whether to replace another reward registered under this name.

    Raises:
        ValueError: the name is no name or taken, or this is no reward. What a rule returns is
            checked by `make`.
    """
    REWARDS.register(name, reward, replace)


def reward_function(name: str | Reward, credit: str | None = None) -> Reward:
    """Look a reward up by name; return a `Reward` as it is.

    Args:
        name: a name of `REWARDS`, or a reward.
        credit: a key of `CREDITS`, for named rewards in completion times only; None for the
            reward's own, `team` for those of the package.

    Raises:
        ValueError: if a name is unknown (the message has the nearest names), or a credit is given
            for another reward.
    """
    if callable(name) and not isinstance(name, Reward):
        received = f"a function, {getattr(name, '__name__', 'without a name')}"
        registered = "a name that register_reward('mine', function) gives it"
        allowed = f"Reward('mine', function), or {registered}"
        raise bad_value("reward", received, allowed)
    if not isinstance(name, str | Reward):
        raise bad_value("reward", name, f"one of {', '.join(REWARDS)}, or a Reward")
    reward = REWARDS[name] if isinstance(name, str) else name
    if credit is None:
        return reward
    if credit not in CREDITS:
        raise unknown_name("credit", credit, tuple(CREDITS))
    if not isinstance(name, str) or not reward.accrues:
        shared = [reward_name for reward_name in REWARDS if REWARDS[reward_name].accrues]
        raise bad_value("credit", credit, f"none: only {' and '.join(shared)} are shared out")
    team, whole = CREDITS[credit]
    return replace(reward, team=team, whole=whole)


def check_reward(reward: Reward, cfg: SimConfig) -> None:
    """Checks that a reward gives one float32 per port; it is traced with shapes only.

    Raises:
        ValueError: another shape or type, or a rule that cannot be computed.
    """
    ports = jax.ShapeDtypeStruct((cfg.topology.n_ports,), jnp.float32)
    allowed = f"one float32 per port, [{cfg.topology.n_ports}]"
    params = jax.eval_shape(RewardParams.create)
    stats = shapes(cfg, cfg.counts)
    if cfg.accrue:
        by_size = jax.ShapeDtypeStruct((cfg.topology.n_ports, 3), jnp.float32)
        stats = replace(stats, accrued=by_size, progress=by_size)
    try:
        earned = jax.eval_shape(reward.rule, stats, params, ports, 1.0)
    except Exception as error:  # whatever a function of the user's own may raise
        cause = f"{type(error).__name__}: {error}"
        raise bad_value(f"reward {reward.name!r}", cause, allowed) from error
    shape, kind = getattr(earned, "shape", None), getattr(earned, "dtype", None)
    if shape != ports.shape or kind != jnp.float32:
        received = f"{kind} {list(shape)}" if shape is not None else type(earned).__name__
        raise bad_value(f"result of reward {reward.name!r}", received, allowed)

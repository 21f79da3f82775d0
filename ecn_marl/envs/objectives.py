"""What a scenario is measured by: its objective J, made of parts.

J is a weighted geometric mean of numbers at which lower is better. Without a declaration the parts
are those of the benchmark, (mean short · p99 short)^(1/4) · (geometric mean long)^(1/2), see
`baselines.evaluation.completion`. A scenario with jobs declares its own: slowdowns of flows, and
times of steps relative to the time that a step takes alone (a collective, a stripe that is read).

The reward in completion times follows. A job's step accrues 1 / `ideal_us` per µs for as long as it
is not over, as a flow accrues 1 / its ideal time. But a job is a closed loop: the sooner a step is
over, the sooner the next one begins, and time in steps alone would hardly depend on their length.
So what is done earns `par` per step, flow by flow:

    reward = - weight (time in steps / ideal - par · steps done)

A step that takes `par` times its ideal time earns 0, a faster one more, and every further one adds
to it. With `par` the ratio that is to be reduced, this is Dinkelbach's way to minimise a ratio, the
mean time of a step (Management Science 13(7), 1967). An episode's rewards add up to minus this sum
exactly, whatever is not finished at its age.

In metrics of an episode a part of steps is `part:NAME`, and the weight of every part `weight:NAME`:
so whoever has the metrics has J.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from ecn_marl._checks import TEXT, Real, check
from ecn_marl._errors import bad_value, unknown_name
from ecn_marl._parts import PART, WEIGHT
from ecn_marl.sim.traffic.base import Source
from ecn_marl.sim.traffic.graphs import Graph

OF_FLOWS = ("short_mean", "short_p99", "short_geomean", "medium_mean", "medium_p99",
            "medium_geomean", "long_mean", "long_p99", "long_geomean")  # fmt: skip
"""Parts that are slowdowns of flows, by size class."""

OF_JOB = ("between steps", "in a step")
"""Names of the phases where they are a job's steps."""


@dataclass(frozen=True)
class Part:
    """A part of an objective.

    Attributes:
        name: a slowdown of `OF_FLOWS`, or a name of your own for steps of jobs.
        weight: its exponent is this over the sum of all weights.
        sources: numbers of the traffic sources whose steps it is the mean time of, all `Graph`s;
            none for slowdowns of flows.
        ideal_us: time of such a step in an empty network, µs; times are relative to it.
        reward: weight of its slowdown in the reward; that of flows is the scenario's
            `slowdown_weights`.
        par: slowdown at which a step earns nothing; 0 if steps do not follow each other.
        longest: the longest step in place of their mean time: the p99, where an episode has fewer
            than a hundred of them. A present step counts with its age. The reward is of times in
            steps, so such a part has none.
    """

    name: Annotated[str, TEXT]
    weight: Annotated[float, Real(above=0.0, high=1e6)] = 1.0
    sources: tuple[int, ...] = ()
    ideal_us: Annotated[float, Real(low=0.0, high=1e9, unit="µs")] = 0.0
    reward: Annotated[float, Real(low=0.0, high=1e6)] = 0.0
    par: Annotated[float, Real(low=0.0, high=1e6)] = 0.0
    longest: bool = False

    def __post_init__(self) -> None:
        """Check all fields."""
        object.__setattr__(self, "sources", tuple(self.sources))
        check(self)
        if not self.sources and self.name not in OF_FLOWS:
            raise unknown_name("part without sources", self.name, OF_FLOWS)
        if self.sources and (self.name in OF_FLOWS or ":" in self.name or not self.ideal_us):
            allowed = "a name of its own without a colon, and ideal_us above 0, for steps of jobs"
            raise bad_value("part", self.name, allowed)
        if self.reward and not self.sources:
            raise bad_value("reward", self.reward, "0: flows have slowdown_weights")
        if self.longest and (self.reward or not self.sources):
            allowed = "False for slowdowns of flows, and where steps earn a reward"
            raise bad_value("longest", True, allowed)


def check_parts(parts: Sequence[Part], traffic: Sequence[Source]) -> None:
    """Refuse parts that traffic does not have.

    Raises:
        ValueError: a part twice, or a source that has no steps.
    """
    names = [part.name for part in parts]
    for name in names:
        if names.count(name) > 1:
            raise bad_value("objective", name, "each part once")
    for part in parts:
        for number in part.sources:
            if number not in range(len(traffic)) or not isinstance(traffic[number], Graph):
                jobs = [i for i, source in enumerate(traffic) if isinstance(source, Graph)]
                raise bad_value(f"part {part.name!r}: sources", number, f"Graphs, of {jobs}")


def check_phased_by(number: int | None, traffic: Sequence[Source]) -> None:
    """Refuse a source that has no steps.

    Raises:
        ValueError: the source is none, or no `Graph`.
    """
    if number is None:
        return
    if number not in range(len(traffic)) or not isinstance(traffic[number], Graph):
        jobs = [i for i, source in enumerate(traffic) if isinstance(source, Graph)]
        raise bad_value("phased_by", number, f"None, or a source that is a Graph, of {jobs}")


def within_step(source: Source, state: PyTree, tick_us: float) -> Bool[Array, ""]:
    """Whether a job is in a step, and not between two."""
    job: Any = source
    begun, _ = job.in_steps(state, tick_us)
    inside: Array = begun > state.steps
    return inside


def _in_steps(
    part: Part, traffic: Sequence[Source], states: Sequence[PyTree], tick_us: float
) -> tuple[Array, Array]:
    """Steps begun of a part's sources, and the time spent in them, µs."""
    begun, spent = jnp.zeros(()), jnp.zeros(())
    for number in part.sources:
        source: Any = traffic[number]
        steps, time = source.in_steps(states[number], tick_us)
        begun, spent = begun + steps, spent + time
    return begun, spent


def accrued(
    parts: Sequence[Part], traffic: Sequence[Source], states: Sequence[PyTree], tick_us: float
) -> Float[Array, ""]:
    """Weighted slowdown that the steps of jobs have accrued since the start, less what is done.

    Args:
        parts: the objective.
        traffic: all sources.
        states: their states.
        tick_us: length of a tick, µs.
    """
    total = jnp.zeros(())
    for part in parts:
        if part.reward:
            _, spent = _in_steps(part, traffic, states, tick_us)
            jobs: Any = [(traffic[i], states[i]) for i in part.sources]
            done = sum((job.progress(state) for job, state in jobs), jnp.zeros(()))
            total = total + part.reward * (spent / part.ideal_us - part.par * done)
    return total


def objective_metrics(
    parts: Sequence[Part], traffic: Sequence[Source], states: Sequence[PyTree], tick_us: float
) -> dict[str, Array]:
    """Weights of all parts, and the values of those of steps; NaN before the first step."""
    found: dict[str, Array] = {}
    for part in parts:
        found[WEIGHT + part.name] = jnp.float32(part.weight)
        if part.longest:
            jobs: Any = [(traffic[i], states[i]) for i in part.sources]
            times = [job.longest_step(state, tick_us) for job, state in jobs]
            found[PART + part.name] = jnp.stack(times).max() / part.ideal_us
        elif part.sources:
            begun, spent = _in_steps(part, traffic, states, tick_us)
            found[PART + part.name] = spent / begun / part.ideal_us
    return found

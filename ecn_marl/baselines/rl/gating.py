"""Idle queues: ports that keep their setting without an inference (ACC, §4.2).

ACC calls a queue idle if it is shorter than Kmin, or if its reward has not changed for three
intervals, and busy again once it is longer than Kmin. What that leaves open:

* A queue that is idle because its reward does not change may be longer than Kmin, and by ACC's rule
  it would be busy at once. Here such a queue is busy again when its reward changes.
* Changes up to a tolerance count as none, as utilisation is a real number.
* At the start of an episode no queue is idle, as there is no decision to keep.
"""

from __future__ import annotations

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float

from ecn_marl._types import Leaf


@struct.dataclass
class Gate:
    """State of every port, leaves `[..., A]`.

    Attributes:
        action: the last action, `[..., A, *action.shape]`.
        idle: whether it is kept.
        reward: reward of the last interval.
        unchanged: intervals since the reward changed.
    """

    action: Leaf
    idle: Leaf
    reward: Leaf
    unchanged: Leaf


def first_gate(action: Array, num_agents: int) -> Gate:
    """The state at the start of an episode: no port is idle.

    Args:
        action: any actions of all agents, for their shape.
        num_agents: number of agents A.
    """
    zero = jnp.zeros((num_agents,), jnp.int32)
    # Out of range, so that the first reward is a change.
    reward = jnp.full((num_agents,), 1e30, jnp.float32)
    return Gate(jnp.zeros_like(action), zero > 0, reward, zero)


def watch(
    gate: Gate,
    action: Array,
    reward: Float[Array, "*b agents"],
    queue: Float[Array, "*b agents"],
    kmin: Float[Array, "*b agents"],
    tolerance: float,
    intervals: int,
) -> Gate:
    """The state after an interval.

    Args:
        gate: the state before.
        action: actions of the interval.
        reward: its rewards.
        queue: queues at its end, bytes.
        kmin: thresholds in force, bytes.
        tolerance: changes of the reward up to this are none.
        intervals: intervals without a change that make a queue idle.
    """
    steady = jnp.abs(reward - gate.reward) <= tolerance
    unchanged = jnp.where(steady, gate.unchanged + 1, 0)
    return Gate(action, is_idle(queue, kmin, unchanged, intervals), reward, unchanged)


def is_idle(
    queue: Float[Array, "*b agents"],
    kmin: Float[Array, "*b agents"],
    unchanged: Array,
    intervals: int,
) -> Bool[Array, "*b agents"]:
    """ACC's rule: shorter than Kmin, or a reward that has not changed."""
    return (queue < kmin) | (unchanged >= intervals)

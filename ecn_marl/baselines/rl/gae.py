"""Generalised advantage estimation (Schulman et al., ICLR'16, Eqs. 11-16)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


def gae(
    reward: Float[Array, "time *batch"],
    value: Float[Array, "time *batch"],
    next_value: Float[Array, "time *batch"],
    terminated: Bool[Array, "time *batch"],
    truncated: Bool[Array, "time *batch"],
    gamma: float | Float[Array, ""],
    lam: float | Float[Array, ""],
) -> tuple[Float[Array, "time *batch"], Float[Array, "time *batch"]]:
    """Advantages and returns of a rollout that may hold several episodes.

    After a terminated step the value is 0. A truncated step is bootstrapped from `next_value`, the
    value of its final observation. Advantages of the next episode do not enter in either case.

    Args:
        reward: reward of each step.
        value: value of the observation each step started from.
        next_value: value of the observation each step led to; at the end of an episode that of its
            final observation, not of the next episode's first.
        terminated: whether the step ended the episode for good.
        truncated: whether it was cut off there.
        gamma: discount.
        lam: decay of the exponentially weighted average.

    Returns:
        Advantages, and the returns `advantage + value` that a critic is fitted to.
    """
    follows = 1.0 - terminated.astype(value.dtype)
    within = follows * (1.0 - truncated.astype(value.dtype))
    delta = reward + gamma * next_value * follows - value

    def back(carry: Array, step: tuple[Array, Array]) -> tuple[Array, Array]:
        d, keep = step
        carry = d + gamma * lam * keep * carry
        return carry, carry

    _, advantage = jax.lax.scan(back, jnp.zeros_like(delta[0]), (delta, within), reverse=True)
    return advantage, advantage + value

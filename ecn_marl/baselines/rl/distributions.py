"""Action distributions: factored categoricals and diagonal Gaussians, as pure functions.

A `Head` turns the outputs of a network into a distribution over one agent's actions. All
functions work on any leading axes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from ecn_marl import lanes
from ecn_marl._errors import bad_value
from ecn_marl.envs.actions import ThresholdsAction

LOG_STD_MIN, LOG_STD_MAX = -5.0, 1.0
"""Bounds of the Gaussian's log standard deviation."""


@dataclass(frozen=True)
class Head:
    """Distribution over the actions of one agent.

    Attributes:
        sizes: number of choices of each discrete component, empty for continuous actions.
        dim: number of continuous components, 0 for discrete actions.
        scalar: whether a single discrete component has no axis of its own.
    """

    sizes: tuple[int, ...] = ()
    dim: int = 0
    scalar: bool = False

    @property
    def outputs(self) -> int:
        """Number of network outputs."""
        return sum(self.sizes) or 2 * self.dim

    def _split(self, out: Array) -> list[Array]:
        components = jnp.split(out, np.cumsum(self.sizes)[:-1], axis=-1)
        return [jax.nn.log_softmax(component) for component in components]

    def sample(self, key: jax.Array, out: Float[Array, "*b n"]) -> Array:
        """Draw an action."""
        if self.dim:
            mean, log_std = _gaussian(out)
            return mean + jnp.exp(log_std) * jax.random.normal(key, mean.shape)
        log_ps = self._split(out)
        keys = jax.random.split(key, len(log_ps))
        return self._join([_draw(k, p) for k, p in zip(keys, log_ps, strict=True)])

    def mode(self, out: Float[Array, "*b n"]) -> Array:
        """The most likely action."""
        if self.dim:
            return _gaussian(out)[0]
        return self._join([jnp.argmax(log_p, -1) for log_p in self._split(out)])

    def _join(self, choices: list[Array]) -> Array:
        return (choices[0] if self.scalar else jnp.stack(choices, -1)).astype(jnp.int32)

    def log_prob(self, out: Float[Array, "*b n"], action: Array) -> Float[Array, "*b"]:
        """Log-probability (density) of an action, summed over its components."""
        if self.dim:
            mean, log_std = _gaussian(out)
            z = (action - mean) * jnp.exp(-log_std)
            return jnp.sum(-0.5 * z**2 - log_std - 0.5 * jnp.log(2 * jnp.pi), -1)
        choice = action[..., None] if self.scalar else action
        log_probs = [
            jnp.take_along_axis(log_p, choice[..., i : i + 1], -1)[..., 0]
            for i, log_p in enumerate(self._split(out))
        ]
        return sum(log_probs[1:], log_probs[0])

    def entropy(self, out: Float[Array, "*b n"]) -> Float[Array, "*b"]:
        """Entropy, summed over components."""
        if self.dim:
            return jnp.sum(_gaussian(out)[1] + 0.5 * jnp.log(2 * jnp.pi * jnp.e), -1)
        entropies = [-jnp.sum(jnp.exp(p) * p, -1) for p in self._split(out)]
        return sum(entropies[1:], entropies[0])


def evaluate_actions(
    head: Head, out: Float[Array, "*b n"], action: Array
) -> tuple[Float[Array, "*b"], Float[Array, "*b"]]:
    """Log-probabilities of actions, and entropies, for losses.

    The same as `log_prob` and `entropy`, but faster: `ecn_marl.lanes` compiles each row's
    distribution and its gradient for `out` as one program. XLA's CPU backend takes twice as long.
    """
    flat = out.reshape(-1, out.shape[-1])
    chosen = action.reshape(flat.shape[0], *action.shape[out.ndim - 1 :])
    log_prob, entropy = _evaluate_rows(head, flat, chosen)
    return log_prob.reshape(out.shape[:-1]), entropy.reshape(out.shape[:-1])


def _evaluate_row(head: Head, out: Array, action: Array) -> tuple[Array, Array]:
    return head.log_prob(out, action), head.entropy(out)


# Batches that `lanes` compiles cannot be differentiated, so the gradient is a second program.
@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _evaluate_rows(head: Head, out: Array, action: Array) -> tuple[Array, Array]:
    log_prob_and_entropy: tuple[Array, Array] = jax.vmap(
        lanes.mapped(partial(_evaluate_row, head))
    )(out, action)
    return log_prob_and_entropy


def _evaluate_forward(head: Head, out: Array, action: Array) -> PyTree:
    return _evaluate_rows(head, out, action), (out, action)


def _evaluate_backward(
    head: Head, residuals: tuple[Array, Array], grad: tuple[Array, Array]
) -> PyTree:
    def row(out: Array, action: Array, grad: tuple[Array, Array]) -> Array:
        _, pull = jax.vjp(lambda out: _evaluate_row(head, out, action), out)
        return jnp.asarray(pull(grad)[0])

    return jax.vmap(lanes.mapped(row))(*residuals, grad), None


_evaluate_rows.defvjp(_evaluate_forward, _evaluate_backward)


def _draw(key: jax.Array, log_p: Float[Array, "*b n"]) -> Array:
    """A choice by inversion: one random number; the Gumbel trick takes one for every choice."""
    below = jnp.cumsum(jnp.exp(log_p), -1)
    u = jax.random.uniform(key, (*log_p.shape[:-1], 1), log_p.dtype)
    # Rounding leaves the last sum off 1. Scaled by it, `u` gives each choice its share.
    return jnp.sum(u * below[..., -1:] >= below[..., :-1], -1)


def gaussian(out: Float[Array, "*b n"]) -> tuple[Float[Array, "*b dim"], Float[Array, "*b dim"]]:
    """Means and log standard deviations of a Gaussian, from outputs of a network."""
    mean, raw = jnp.split(out, 2, axis=-1)
    # Outputs of a fresh network are near 0, so the deviation starts at exp(-0.5) = 0.61.
    return mean, jnp.clip(raw - 0.5, LOG_STD_MIN, LOG_STD_MAX)


def _gaussian(out: Array) -> tuple[Array, Array]:
    """The same with means in [-1, 1], where continuous actions are."""
    mean, log_std = gaussian(out)
    return jnp.tanh(mean), log_std


def head_for(codec: Any) -> Head:
    """The distribution that fits an action codec.

    Args:
        codec: anything with `shape` and, for discrete actions, `nvec` or `n`.

    Raises:
        ValueError: `thresholds`, bytes without a scale.
    """
    if isinstance(codec, ThresholdsAction):
        raise bad_value("actions", codec.name, "multidiscrete, discrete or box, for a learner")
    if hasattr(codec, "nvec"):
        return Head(sizes=tuple(int(n) for n in codec.nvec))
    if hasattr(codec, "n"):
        return Head(sizes=(int(codec.n),), scalar=True)
    return Head(dim=int(codec.shape[-1]))

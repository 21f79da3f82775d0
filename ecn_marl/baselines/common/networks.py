"""Networks of the trainers: multilayer perceptrons for actors and critics."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


class Mlp(nn.Module):
    """Tanh layers with orthogonal weights, linear output.

    Attributes:
        hidden: widths of the hidden layers.
        outputs: width of the output.
        last_scale: gain of the output layer; small for policies, so that they start uniform.
    """

    hidden: Sequence[int]
    outputs: int
    last_scale: float = 1.0

    @nn.compact
    def __call__(self, x: Float[Array, "*batch features"]) -> Float[Array, "*batch outputs"]:
        """Evaluate the network."""
        for width in self.hidden:
            x = nn.Dense(width, kernel_init=nn.initializers.orthogonal(jnp.sqrt(2.0)))(x)
            x = jnp.tanh(x)
        return nn.Dense(self.outputs, kernel_init=nn.initializers.orthogonal(self.last_scale))(x)


def init_network(
    net: nn.Module, key: jax.Array, features: int, num_agents: int, shared: bool
) -> Any:
    """Parameters of a network.

    Those of several agents are drawn one after the other. Orthogonal weights come from a QR
    decomposition; of a batch of matrices, jaxlib's CPU kernel (0.10.2, `lapack_sorgqr_ffi`) hands
    parts to the thread pool that it runs in and waits for them. Where as many layers are drawn at
    once as there are cores, all threads wait and none is left to work: the program stands still.

    Args:
        net: the network.
        key: PRNG key.
        features: width of its input.
        num_agents: number of agents A.
        shared: one set of parameters for all agents, or one each (leaves get a leading axis A).
    """
    x = jnp.zeros((features,), jnp.float32)
    if shared:
        return net.init(key, x)
    return jax.lax.map(lambda one: net.init(one, x), jax.random.split(key, num_agents))


def apply_network(
    net: nn.Module, params: Any, x: Float[Array, "*batch agents features"], shared: bool
) -> Float[Array, "*batch agents outputs"]:
    """Evaluate a network for every agent, with shared or own parameters."""
    if shared:
        return jnp.asarray(net.apply(params, x))
    each = jax.vmap(net.apply, in_axes=(0, -2), out_axes=-2)
    return jnp.asarray(each(params, x))


def network_flops(hidden: Sequence[int], features: int, outputs: int) -> int:
    """Floating-point operations of one evaluation of an `Mlp`.

    Two for each weight (multiply, add), one for each bias and each activation.

    Args:
        hidden: widths of the hidden layers.
        features: width of the input.
        outputs: width of the output.
    """
    widths = (features, *hidden, outputs)
    weights = sum(2 * a * b + b for a, b in pairwise(widths))
    return weights + sum(hidden)


def one_agent(params: Any, shared: bool) -> Any:
    """The parameters that one agent needs: all of them if shared, else those of agent 0."""
    return params if shared else jax.tree.map(lambda x: x[0], params)

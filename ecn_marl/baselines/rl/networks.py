"""Networks of the trainers: multilayer perceptrons for actors and critics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol, runtime_checkable

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree
from numpy.polynomial.legendre import legvander


@runtime_checkable
class Applied(Protocol):
    """A network whose inference can be timed, such as a module of Flax."""

    def apply(self, variables: Any, /, *args: Any) -> Any:
        """Outputs for an observation."""


@dataclass(frozen=True)
class Polynomials:
    """Outputs that are polynomials of their place, for choices that have an order.

    Settings from shallow to deep are an example. Neighbours then learn from each other. With
    outputs of their own, the best one of two that are worth about the same is left to chance.

    Attributes:
        sizes: outputs of each component of an action.
        degree: degree of the polynomials, of each component alike.
    """

    sizes: tuple[int, ...]
    degree: int

    @property
    def width(self) -> int:
        """Number of coefficients, over all components."""
        return len(self.sizes) * (self.degree + 1)

    @property
    def matrix(self) -> Float[np.ndarray, "width outputs"]:
        """Legendre's polynomials, a row each, at the places of the outputs, from -1 to 1."""
        parts = [legvander(np.linspace(-1.0, 1.0, n), self.degree).T for n in self.sizes]
        matrix = np.zeros((self.width, sum(self.sizes)), np.float32)
        for i, part in enumerate(parts):
            start = sum(self.sizes[:i])
            rows = slice(i * (self.degree + 1), (i + 1) * (self.degree + 1))
            matrix[rows, start : start + part.shape[1]] = part
        return matrix


class Mlp(nn.Module):
    """Tanh layers with orthogonal weights, linear output.

    Attributes:
        hidden: widths of the hidden layers.
        outputs: width of the output.
        last_scale: gain of the output layer; small for policies, so that they start uniform.
        standardised: whether features are centred and scaled first, by `centre` and `gain`. They
            are parameters that are not learnt, see `standardise`.
        normalised: whether the inputs of every tanh are normalised over the layer (Ba et al. 2016,
            "Layer Normalization").
        ordinal: what outputs are made of; None for outputs of their own.
    """

    hidden: Sequence[int]
    outputs: int
    last_scale: float = 1.0
    standardised: bool = False
    normalised: bool = False
    ordinal: Polynomials | None = None

    @nn.compact
    def __call__(self, x: Float[Array, "*batch features"]) -> Float[Array, "*batch outputs"]:
        """Evaluate the network."""
        if self.standardised:
            x = centred(self, x)
        for width in self.hidden:
            x = layer(width, float(np.sqrt(2.0)))(x)
            x = jnp.tanh(nn.LayerNorm()(x) if self.normalised else x)
        if self.ordinal is None:
            return layer(self.outputs, self.last_scale)(x)
        return layer(self.ordinal.width, self.last_scale)(x) @ self.ordinal.matrix


def plain(net: Mlp, params: PyTree) -> PyTree:
    """Parameters of the same function as an `Mlp` whose outputs are of their own."""
    if net.ordinal is None:
        return params
    layers, matrix = dict(params["params"]), net.ordinal.matrix
    last = f"Dense_{len(net.hidden)}"
    layers[last] = {name: x @ matrix for name, x in layers[last].items()}
    return {**params, "params": layers}


def layer(width: int, scale: float) -> nn.Dense:
    """A linear layer with orthogonal weights of this gain."""
    return nn.Dense(
        width, kernel_init=nn.initializers.orthogonal(scale), dot_general=_layer_product
    )


def _layer_product(x: Array, w: Array, dimensions: object, precision: object = None) -> Array:
    """`x @ w` for `nn.Dense`."""
    return _product(x, w)


@jax.custom_vjp
def _product(x: Array, w: Array) -> Array:
    """`x @ w`, whose gradient for `w` is fast on a CPU.

    XLA's CPU backend multiplies `x.T @ g` with thousands of rows to a small matrix at a third of
    the speed of other products, on one core (jaxlib 0.10.2; 17 to 50 for 90 to 120 GFLOP/s). With
    `x.T` written out first, it takes both cores.
    """
    return x @ w


def _product_forward(x: Array, w: Array) -> tuple[Array, tuple[Array, Array]]:
    return x @ w, (x, w)


def _product_backward(residuals: tuple[Array, Array], g: Array) -> tuple[Array, Array]:
    x, w = residuals
    rows = x.reshape(-1, x.shape[-1]).T
    if jax.default_backend() == "cpu":
        # Without the barrier XLA folds the transposition back into the slow product.
        rows = jax.lax.optimization_barrier(rows)
    return g @ w.T, rows @ g.reshape(-1, g.shape[-1])


_product.defvjp(_product_forward, _product_backward)


def init_network(
    net: nn.Module, key: jax.Array, features: int, num_agents: int, shared: bool
) -> PyTree:
    """Parameters of a network.

    Those of several agents are drawn one after the other, or the program could deadlock. Orthogonal
    weights come from a QR decomposition. For a batch of matrices, jaxlib's CPU kernel (0.10.2,
    `lapack_sorgqr_ffi`) hands parts to the thread pool that it runs in and waits for them. Where as
    many layers are drawn at once as there are cores, all threads wait and none is left to work.

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
    return jax.lax.map(lambda agent_key: net.init(agent_key, x), jax.random.split(key, num_agents))


def centred(net: nn.Module, x: Float[Array, "*batch features"]) -> Float[Array, "*batch features"]:
    """Features centred and scaled by two parameters of a network that are not learnt."""
    # Parameters, so that they travel with the network into checkpoints and exported files.
    # Without a gradient, Adam leaves them as they are.
    centre = net.param("centre", nn.initializers.zeros_init(), (x.shape[-1],))
    gain = net.param("gain", nn.initializers.ones_init(), (x.shape[-1],))
    scaled: Array = (x - jax.lax.stop_gradient(centre)) * jax.lax.stop_gradient(gain)
    return scaled


FEATURE_STD_MIN = 0.02
"""Smallest standard deviation that a feature is divided by."""


def standardise(
    params: PyTree, mean: Float[Array, " features"], std: Float[Array, " features"]
) -> PyTree:
    """Parameters of a standardised `Mlp` that centres and scales its features by these moments.

    Features lie in [0, 1], most of them in a narrow band around a large mean. Without this, a
    network first learns that mean, and only late the differences between states.

    Args:
        params: parameters of an `Mlp(standardised=True)`, for all agents or with an axis of them.
        mean: mean of every feature.
        std: its standard deviation.
    """
    inner = params["params"]
    # A feature that did not vary under random actions has a deviation of 0.
    gain = 1.0 / jnp.maximum(std, FEATURE_STD_MIN)
    moments = {"centre": mean, "gain": gain}
    constants = {name: jnp.broadcast_to(x, inner[name].shape) for name, x in moments.items()}
    return {**params, "params": {**inner, **constants}}


def moments(params: PyTree) -> tuple[Float[Array, " features"], Float[Array, " features"]]:
    """The moments that `standardise` has put into a network, deviations at least its smallest."""
    inner = params["params"]
    return inner["centre"], 1.0 / inner["gain"]


def apply_network(
    net: nn.Module, params: PyTree, x: Float[Array, "*batch agents features"], shared: bool
) -> Float[Array, "*batch agents outputs"]:
    """Evaluate a network for every agent, with shared or own parameters."""
    if shared:  # one long batch: products of matrices, not of stacks of them
        out = jnp.asarray(net.apply(params, x.reshape(-1, x.shape[-1])))
        return out.reshape(*x.shape[:-1], -1)
    per_agent = jax.vmap(net.apply, in_axes=(0, -2), out_axes=-2)
    return jnp.asarray(per_agent(params, x))


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


def one_agent(params: PyTree, shared: bool) -> PyTree:
    """The parameters that one agent needs: all of them if shared, else those of agent 0."""
    return params if shared else jax.tree.map(lambda x: x[0], params)

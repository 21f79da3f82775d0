"""Networks with a memory: layers, a gated recurrent unit (GRU) and a linear output.

A port sees its own counters alone. What its traffic is up to shows over many intervals, and a
policy with a memory may learn how long to look back. The memory of an agent is the state of its
GRU, `[units]`. It is zero when an episode begins.

Cho et al., "Learning Phrase Representations using RNN Encoder-Decoder for Statistical Machine
Translation", EMNLP'14, in the form that Flax, PyTorch and cuDNN have: the reset gate acts on the
product of the candidate.

Functions here also take networks without a memory (`networks.Mlp`), whose memory is None.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, PyTree

from ecn_marl._errors import bad_value
from ecn_marl._types import Leaf
from ecn_marl.baselines.evaluation.own_policies import PurePolicy
from ecn_marl.baselines.rl.distributions import Head
from ecn_marl.baselines.rl.networks import (
    Applied,
    Mlp,
    apply_network,
    centred,
    init_network,
    layer,
    network_flops,
)
from ecn_marl.errors import InvalidValue


class Recurrent(nn.Module):
    """Tanh layers, a GRU, linear output, over a stretch of intervals.

    Attributes:
        hidden: widths of the layers before the GRU.
        units: numbers that it remembers.
        outputs: width of the output.
        last_scale: gain of the output layer, see `networks.Mlp`.
        standardised: whether features are centred and scaled first, see `networks.standardise`.
        normalised: whether the inputs of the layers' tanh are normalised, see `networks.Mlp`.
    """

    hidden: Sequence[int]
    units: int
    outputs: int
    last_scale: float = 1.0
    standardised: bool = False
    normalised: bool = False

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "time *batch features"],
        memory: Float[Array, "*batch units"],
        ended: Bool[Array, "time *batch"],
    ) -> tuple[Float[Array, "time *batch outputs"], Float[Array, "time *batch units"]]:
        """Outputs, and the memory after each interval.

        Args:
            x: features of the intervals.
            memory: memory before the first of them.
            ended: whether an episode ended with the interval: the next one begins with a memory of
                zeros. (What is returned for the interval itself is from before that.)
        """
        if self.standardised:
            x = centred(self, x)
        for width in self.hidden:
            x = layer(width, float(np.sqrt(2.0)))(x)
            x = jnp.tanh(nn.LayerNorm()(x) if self.normalised else x)
        # What the features add to all gates, for all intervals in one product.
        given = layer(3 * self.units, 1.0)(x)
        weights = self.param("recurrent", _three_orthogonal, (self.units, 3 * self.units))
        bias = self.param("recurrent_bias", nn.initializers.zeros_init(), (self.units,))

        def remember(memory: Array, row: tuple[Array, Array]) -> tuple[Array, Array]:
            after = gru(row[0], memory, weights, bias)
            return jnp.where(row[1][..., None], 0.0, after), after

        if x.shape[0] == 1:
            memories = gru(given[0], memory, weights, bias)[None]
        else:
            _, memories = jax.lax.scan(remember, memory, (given, ended))
        return layer(self.outputs, self.last_scale)(memories), memories


def gru(
    given: Float[Array, "*batch gates"],
    memory: Float[Array, "*batch units"],
    weights: Float[Array, "units gates"],
    bias: Float[Array, " units"],
) -> Float[Array, "*batch units"]:
    """Memory after an interval.

    Args:
        given: what the features add to the reset gate, the update gate and the candidate.
        memory: memory before.
        weights: of the memory, for the same three.
        bias: of the memory's part of the candidate.
    """
    reset, update, candidate = jnp.split(given, 3, -1)
    of_reset, of_update, of_candidate = jnp.split(memory @ weights, 3, -1)
    keep = jax.nn.sigmoid(update + of_update)
    new = jnp.tanh(candidate + jax.nn.sigmoid(reset + of_reset) * (of_candidate + bias))
    return keep * memory + (1.0 - keep) * new


def _three_orthogonal(key: jax.Array, shape: tuple[int, int]) -> Array:
    """Orthogonal weights for each of the three parts of a GRU."""
    draw = nn.initializers.orthogonal()
    parts = [draw(one, (shape[0], shape[0]), jnp.float32) for one in jax.random.split(key, 3)]
    return jnp.concatenate(parts, -1)


def check_memory(config: Any) -> None:
    """Check the settings `memory`, `hidden`, `envs` and `minibatches` of a trainer together.

    Raises:
        ValueError: no layer before the memory, or minibatches that are no whole sequences.
    """
    if config.memory and not config.hidden:
        raise bad_value("hidden", config.hidden, "at least one layer before the memory")
    if config.memory and config.envs % config.minibatches:
        allowed = f"a divisor of envs = {config.envs} with memory={config.memory}"
        raise bad_value("minibatches", config.minibatches, allowed)


def needs_memory(units: int) -> InvalidValue:
    """The error of `act` of a policy with a memory: observations alone do not tell its actions."""
    return bad_value("memory", units, "0 for act(); a policy with a memory acts by controller()")


def init_recurrent(
    net: Recurrent, key: jax.Array, features: int, num_agents: int, shared: bool
) -> PyTree:
    """Parameters of a network with a memory, as `networks.init_network` draws those of others."""
    x, memory = jnp.zeros((1, features)), jnp.zeros((net.units,))
    ended = jnp.zeros((1,), bool)
    if shared:
        return net.init(key, x, memory, ended)
    keys = jax.random.split(key, num_agents)
    return jax.lax.map(lambda agent_key: net.init(agent_key, x, memory, ended), keys)


def init_agents(
    net: nn.Module, key: jax.Array, features: int, num_agents: int, shared: bool
) -> PyTree:
    """Parameters of agents' networks, with a memory or without; see `networks.init_network`."""
    if isinstance(net, Recurrent):
        return init_recurrent(net, key, features, num_agents, shared)
    return init_network(net, key, features, num_agents, shared)


def unroll(
    net: Recurrent,
    params: PyTree,
    obs: Float[Array, "time *batch agents obs"],
    memory: Float[Array, "*batch agents units"],
    ended: Bool[Array, "time *batch agents"],
    shared: bool,
) -> tuple[Float[Array, "time *batch agents n"], Float[Array, "time *batch agents units"]]:
    """Outputs of all agents over a stretch of intervals, and their memory after each.

    Args:
        net: the network.
        params: its parameters, with a leading axis of agents unless `shared`.
        obs: observations.
        memory: memory before the first interval.
        ended: see `Recurrent`.
        shared: whether all agents have the same parameters.
    """
    if shared:
        out, memories = net.apply(params, obs, memory, ended)
    else:
        per_agent = jax.vmap(net.apply, (0, -2, -2, -1), (-2, -2))
        out, memories = per_agent(params, obs, memory, ended)
    return jnp.asarray(out), jnp.asarray(memories)


def respond(
    net: nn.Module,
    params: PyTree,
    obs: Float[Array, "*batch agents obs"],
    memory: Float[Array, "*batch agents units"] | None,
    shared: bool,
) -> tuple[Float[Array, "*batch agents n"], Float[Array, "*batch agents units"] | None]:
    """Outputs of all agents in one interval, and their memory after it.

    Args:
        net: the network; one without a memory has None for it.
        params: its parameters, with a leading axis of agents unless `shared`.
        obs: observations.
        memory: memory before.
        shared: whether all agents have the same parameters.
    """
    if not isinstance(net, Recurrent) or memory is None:
        return apply_network(net, params, obs, shared), None
    ended = jnp.zeros((1, *obs.shape[:-1]), bool)
    out, memories = unroll(net, params, obs[None], memory, ended, shared)
    return out[0], memories[0]


def after_end(
    memory: Float[Array, "*batch units"] | None, ended: Bool[Array, "*batch"]
) -> Float[Array, "*batch units"] | None:
    """The memory that the next interval begins with: zeros where an episode has ended."""
    return None if memory is None else jnp.where(ended[..., None], 0.0, memory)


class OneStep(NamedTuple):
    """A network with a memory as one from an observation to outputs, to time an inference."""

    net: Recurrent

    def apply(self, params: PyTree, obs: Float[Array, " obs"]) -> Float[Array, " n"]:
        """Outputs for a first observation."""
        memory, ended = jnp.zeros((self.net.units,)), jnp.zeros((1,), bool)
        return jnp.asarray(self.net.apply(params, obs[None], memory, ended)[0][0])


def recurrent_flops(net: Recurrent, features: int) -> int:
    """Floating-point operations of one evaluation, counted as in `networks.network_flops`."""
    units = net.units
    # The layers before, with the GRU's products of their output as the last one.
    before = network_flops(net.hidden, features, 3 * units)
    # Its products of the memory, and ten operations for each of the units.
    return before + 6 * units**2 + 10 * units + network_flops((), units, net.outputs)


def decision_flops(net: nn.Module, features: int) -> int:
    """Floating-point operations of one evaluation, without those of layer normalisation."""
    if isinstance(net, Recurrent):
        return recurrent_flops(net, features)
    assert isinstance(net, Mlp)  # others count their own
    return network_flops(net.hidden, features, net.outputs)


def timed(net: nn.Module) -> Applied:
    """The network as one from an observation to outputs, to time an inference."""
    return OneStep(net) if isinstance(net, Recurrent) else net


@struct.dataclass
class Memories:
    """Memories of a training's agents, zero at the start of an episode.

    Attributes:
        actor: those of the policies, `[envs, A, units]`.
        critic: those of the value functions, likewise; None for a critic without a memory.
    """

    actor: Leaf
    critic: PyTree


def sequences(batch: Any, memory: PyTree, ended: Bool[Array, "time envs agents"]) -> Any:
    """A rollout as whole sequences, which are the rows that minibatches are drawn from.

    Args:
        batch: a named tuple with `ended` and `memory` among its fields; leaves `[time, envs, ...]`.
        memory: memories before the rollout, leaves `[envs, A, units]`.
        ended: whether an episode ended with the interval.

    Returns:
        Leaves `[envs, 1, time, ...]`, with `memory` `[envs, 1, A, units]`.
    """
    whole = batch._replace(ended=ended, memory=None)
    rows = jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1)[:, None], whole)
    return rows._replace(memory=jax.tree.map(lambda x: x[:, None], memory))


def by_time(batch: Any) -> Any:
    """A minibatch of sequences, `[rows, time, ...]`, as `[time, rows, ...]`."""
    steps = batch._replace(memory=None)
    swapped = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), steps)
    return swapped._replace(memory=batch.memory)


def steps_of(batch: Any) -> Any:
    """Steps of sequences, `[time, rows, ...]`, as rows: `[time * rows, ...]`."""
    steps = batch._replace(memory=None)
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), steps)


@dataclass(frozen=True)
class Remembering(PurePolicy):
    """The greedy policy of a network with a memory, as a `StatefulController`.

    Attributes:
        net: the network.
        head: how its outputs become actions.
        actor: its parameters.
        num_agents: number of agents A of the environment to act in.
        shared: whether all agents have the same parameters.
    """

    net: Recurrent
    head: Head
    actor: PyTree
    num_agents: int
    shared: bool

    def init(self) -> Float[Array, "agents units"]:
        """Memory at the start of an episode."""
        return jnp.zeros((self.num_agents, self.net.units))

    def act(self, key: jax.Array, obs: Array, memory: Array) -> tuple[Array, Array | None]:
        """Actions and memory."""
        out, after = respond(self.net, self.actor, obs, memory, self.shared)
        return self.head.mode(out), after

    def costs(self, memory: Array) -> dict[str, float]:
        """What a decision costs: one inference."""
        kernel = self.actor["params"]["Dense_0"]["kernel"]
        flops = recurrent_flops(self.net, kernel.shape[-2])
        return {"inferences_per_decision": 1.0, "flops_per_decision": float(flops)}

"""IPPO whose ports exchange messages with their neighbours: a graph network as actor and critic.

A port's queue is filled by other ports and fills others, none of which it sees. Here ports speak
with each other before they act, a fixed number of times. In every round

    each port sends a message, a linear function of what it knows,
    each switch averages the messages of its own ports, and those of the ports that lead to it,
    each port takes in three averages: of the ports of its switch, of the ports that lead to its
    switch, and of the ports of the switch that it leads to (zeros if that is a host).

So a switch needs what its neighbours tell it, and nothing from afar. The cost is linear in the
number of ports, and weights do not depend on the network: a policy that was trained on 16 ports
runs on 432.

Gilmer et al., "Neural Message Passing for Quantum Chemistry", ICML'17 (§2), with the averages of
Hamilton et al., "Inductive Representation Learning on Large Graphs", NeurIPS'17 (§3.3).

Everything else is IPPO: each port earns its own reward, and all share their parameters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from ecn_marl._errors import bad_value
from ecn_marl.baselines.evaluation.episodes import Controller, StatefulController
from ecn_marl.baselines.ippo import IPPO
from ecn_marl.baselines.rl.networks import Applied, centred, layer, network_flops
from ecn_marl.baselines.rl.ppo_config import PPOConfig
from ecn_marl.baselines.training import settings as check
from ecn_marl.baselines.training.trainer import FLOAT_BYTES, Network
from ecn_marl.envs.agents import check_ports_act
from ecn_marl.envs.interface import PortEnvironment
from ecn_marl.sim.network.topology import Topology


@dataclass(frozen=True)
class GNNConfig(PPOConfig):
    """Settings of PPO; a round of messages lies between any two hidden layers.

    Attributes:
        message: numbers of a message.
    """

    message: int = 16

    def __post_init__(self) -> None:
        """Check all settings."""
        super().__post_init__()
        check.at_least_one(self, "message")
        check.widths(self, "hidden", least=2)
        if not self.shared:
            raise bad_value("shared", self.shared, "True: weights that fit every network")
        if self.memory:
            raise bad_value("memory", self.memory, "0: ports that exchange messages have none")


@dataclass(frozen=True)
class Neighbours:
    """Who speaks to whom in a network; hashable.

    Attributes:
        switch: the switch of every port, by number.
        leads_to: the switch that every port leads to; -1 for a host.
    """

    switch: tuple[int, ...]
    leads_to: tuple[int, ...]

    @classmethod
    def of(cls, topology: Topology) -> Neighbours:
        """The neighbours in a network."""
        index = {name: i for i, name in enumerate(topology.switches)}
        ends = (index.get(port.peer, -1) for port in topology.ports)
        return cls(tuple(map(int, topology.port_switch())), tuple(ends))

    @cached_property
    def exchanged(self) -> int:
        """Messages between switches in a round: one each way on every link between two switches."""
        return 2 * sum(end >= 0 for end in self.leads_to)

    def heard(self, message: Float[Array, "*b agents m"]) -> Float[Array, "*b agents three_m"]:
        """What every port hears: three averages of messages."""
        switches = 1 + max((*self.switch, *self.leads_to))
        own = _averages(message, self.switch, switches)
        # The last row is that of hosts, which say nothing.
        own = jnp.concatenate((own, jnp.zeros_like(own[..., :1, :])), -2)
        inward = _averages(message, self.leads_to, switches)
        here, there = np.asarray(self.switch), np.asarray(self.leads_to)
        parts = (own[..., here, :], inward[..., here, :], own[..., there, :])
        return jnp.concatenate(parts, -1)


def _averages(
    message: Float[Array, "*b agents m"], of: Sequence[int], switches: int
) -> Float[Array, "*b switches m"]:
    """Averages over the ports of every switch; zeros where it has none."""
    rows = [[port for port, switch in enumerate(of) if switch == i] for i in range(switches)]
    # All rows as long as the longest: what is read is linear in ports if switches are alike.
    longest = max(1, *map(len, rows))
    members = np.array([row + [0] * (longest - len(row)) for row in rows], np.int32)
    weight = np.zeros(members.shape, np.float32)
    for row, ports in zip(weight, rows, strict=True):
        row[: len(ports)] = 1.0 / max(len(ports), 1)  # a single switch has no port that leads to it
    told = message[..., members.reshape(-1), :]
    told = told.reshape(*message.shape[:-2], switches, longest, message.shape[-1])
    return (told * weight[..., None]).sum(-2)


class MessagePassing(nn.Module):
    """Outputs of all ports from the observations of all.

    Attributes:
        hidden: widths of the hidden layers.
        outputs: width of the output.
        neighbours: those of the network that it runs in; no parameter depends on them.
        message: numbers of a message.
        last_scale: gain of the output layer, see `networks.Mlp`.
        standardised: whether features are centred and scaled first, see `networks.standardise`.
    """

    hidden: Sequence[int]
    outputs: int
    neighbours: Neighbours
    message: int
    last_scale: float = 1.0
    standardised: bool = False

    @nn.compact
    def __call__(self, obs: Float[Array, "*b agents obs"]) -> Float[Array, "*b agents outputs"]:
        """Evaluate the network."""
        x = centred(self, obs) if self.standardised else obs
        for i, width in enumerate(self.hidden):
            if i:
                said = jnp.tanh(layer(self.message, 1.0)(x))
                x = jnp.concatenate((x, self.neighbours.heard(said)), -1)
            x = jnp.tanh(layer(width, float(np.sqrt(2.0)))(x))
        out: Array = layer(self.outputs, self.last_scale)(x)
        return out

    def flops(self, inputs: int) -> int:
        """Floating-point operations of one port's part of an inference."""
        first, *others = self.hidden
        total, before = network_flops((), inputs, first) + first, first
        for width in others:
            # Its message, nine operations for the averages (three sums, each of some of its own),
            # and the next layer.
            total += network_flops((), before, self.message) + 10 * self.message
            total += network_flops((), before + 3 * self.message, width) + width
            before = width
        return total + network_flops((), before, self.outputs)


class GNN(IPPO):
    """IPPO with messages between neighbours, for one environment and configuration."""

    config_class = GNNConfig

    config: GNNConfig

    def __init__(self, env: PortEnvironment, config: GNNConfig) -> None:
        """Set up networks and optimisers.

        Args:
            env: functional environment (it is wrapped in `AutoReset`), whose agents are ports.
            config: settings.

        Raises:
            ValueError: agents that are not ports.
        """
        check_ports_act(env, "messages between ports")
        self.neighbours = Neighbours.of(env.sim.topology)
        super().__init__(env, config)

    def agent_network(self, outputs: int, last_scale: float = 1.0) -> MessagePassing:
        """The network of all ports."""
        c = self.config
        return MessagePassing(
            c.hidden, outputs, self.neighbours, c.message, last_scale, c.standardise > 0
        )

    def init_agents(self, net: nn.Module, key: jax.Array) -> PyTree:
        """Its parameters."""
        return net.init(key, jnp.zeros((self.env.num_agents, self.env.obs_dim)))

    def respond(
        self, actor: PyTree, obs: Float[Array, "*b agents obs"], memory: Array | None = None
    ) -> tuple[Array, Array | None]:
        """Outputs of the policy for all ports; it has no memory."""
        return jnp.asarray(self.net.apply(actor, obs)), None

    def value(
        self, critic: PyTree, obs: Float[Array, "*b agents obs"]
    ) -> Float[Array, "*b agents"]:
        """Value of observations."""
        return jnp.asarray(self.critic.apply(critic, obs))[..., 0]

    def controller(self, actor: PyTree, env: PortEnvironment) -> Controller | StatefulController:
        """The greedy policy, among the neighbours of the environment to act in."""
        if Neighbours.of(env.sim.topology) == self.neighbours:
            return super().controller(actor, env)
        return GNN(env, self.config).controller(actor, env)

    @property
    def flops(self) -> int:
        """Floating-point operations of one port's part of an inference."""
        return self.net.flops(self.env.obs_dim)

    def modules(self, actor: PyTree) -> dict[str, tuple[Applied, PyTree]]:
        """None: a port alone cannot decide."""
        return {}

    def network(self, actor: PyTree) -> Network:
        """The policy, to be exported with its messages."""
        return Network(self.head, actor, message=self.config.message)

    def exchanged_bytes(self, env: PortEnvironment, rows: Sequence[Mapping[str, object]]) -> float:
        """Bytes of messages between switches, in training as in use."""
        rounds = len(self.config.hidden) - 1
        numbers = rounds * Neighbours.of(env.sim.topology).exchanged * self.config.message
        return float(numbers * FLOAT_BYTES * 1e6 / env.interval_us)

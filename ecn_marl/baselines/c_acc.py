"""C-ACC: one agent that observes the whole network and sets one action per tier of switches.

The central controller that ACC's authors compare with ("Automatic ECN Tuning for High-Speed
Datacenter Networks", SIGCOMM'21, Fig. 14). It is DDQN in the view of `Tiers`: one Q-network, one
memory. The exchange would only copy the agent's own rows, and idle gating is a rule for single
ports, so both are left out. ACC does not say how its controller summarises the network; `rl.tiers`
says what is done here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import jax
from jaxtyping import Array, PyTree

from ecn_marl.baselines.ddqn import DDQN, DDQNConfig, PolicyMemory
from ecn_marl.baselines.evaluation.episodes import Controller
from ecn_marl.baselines.evaluation.merit import Greedy
from ecn_marl.baselines.rl.tiers import Tiers, port_tiers
from ecn_marl.baselines.training.trainer import FLOAT_BYTES, Network
from ecn_marl.envs.agents import check_ports_act
from ecn_marl.envs.interface import PortEnvironment


class CentralACC(DDQN):
    """The algorithm for one environment and configuration; holds no arrays."""

    def __init__(self, env: PortEnvironment, config: DDQNConfig) -> None:
        """Set up the network.

        Args:
            env: functional environment with discrete actions. Its `tiers`, one per port, are those
                of its topology if it names none.
            config: settings; `shared`, the exchange and idle gating have no effect here.

        Raises:
            ValueError: its actions are continuous.
        """
        single = replace(config, shared=True, idle_gating=False, to_global=0.0, to_local=0.0)
        super().__init__(central_view(env), replace(single, global_capacity=1))

    def view(self, env: PortEnvironment) -> Tiers:
        """The environment of this algorithm's single agent."""
        return central_view(env)

    def costs(self, memory: PolicyMemory) -> dict[str, Array]:
        """Costs so far per port and interval: one inference makes the decisions of all ports."""
        ports = len(self.env.tier)
        return {name: cost / ports for name, cost in super().costs(memory).items()}

    def network(self, actor: PyTree) -> Network | None:
        """None: the network takes the observations of all ports at once."""
        return None

    def exchanged_bytes(self, env: PortEnvironment, rows: Sequence[Mapping[str, object]]) -> float:
        """Bytes that ports send to the centre (features of an interval) and get (settings)."""
        queues = env.sim.n_classes if env.per_queue else 1
        numbers = env.num_agents * (env.width + 3 * queues)
        return float(numbers * FLOAT_BYTES * 1e6 / env.interval_us)

    def controller(self, actor: PyTree, env: PortEnvironment) -> Controller:
        """The greedy policy for evaluation in `env`, whose agents are ports."""
        return Central(self, actor, central_view(env))


@dataclass(frozen=True)
class Central(Greedy):
    """The greedy policy of C-ACC on all ports; one inference makes all their decisions.

    Attributes:
        view: what the algorithm sees of the ports.
    """

    view: Tiers

    def __call__(self, key: jax.Array, obs: jax.Array) -> Array:
        """Actions of all ports."""
        summary = self.view.summary(obs)
        return self.view.to_ports(self.algorithm.act(self.actor, key, summary, greedy=True))

    def costs(self) -> dict[str, float]:
        """Costs of a decision for one port: its share of an inference."""
        ports = len(self.view.tier)
        return {name: cost / ports for name, cost in super().costs().items()}


def central_view(env: PortEnvironment) -> Tiers:
    """The environment of a central controller.

    Raises:
        ValueError: agents of the environment are switches.
    """
    check_ports_act(env, "c-acc, which decides for all ports of a tier")
    tier = getattr(env, "tiers", None)
    return Tiers(env, tuple(port_tiers(env.sim.topology) if tier is None else tier))

"""What a trainer says of its policy where that is one network."""

from __future__ import annotations

import flax.linen as nn
from jaxtyping import PyTree

from ecn_marl.baselines.evaluation.episodes import Controller, StatefulController
from ecn_marl.baselines.rl import recurrent as rc
from ecn_marl.baselines.rl.networks import Applied, one_agent
from ecn_marl.baselines.training.trainer import Network, Trainer
from ecn_marl.envs.interface import PortEnvironment


class OneNetwork(Trainer):
    """A trainer whose policy is one network from an agent's observation to its action.

    Attributes:
        net: the network; all agents share its parameters unless `config.shared` is False.
    """

    net: nn.Module

    @property
    def _shared(self) -> bool:
        return getattr(self.config, "shared", True)

    def controller(self, actor: PyTree, env: PortEnvironment) -> Controller | StatefulController:
        """The greedy policy for evaluation."""
        if not isinstance(self.net, rc.Recurrent):
            return super().controller(actor, env)
        return rc.Remembering(self.net, self.head, actor, env.num_agents, self._shared)

    def network(self, actor: PyTree) -> Network:
        """The policy, to be exported."""
        return Network(self.head, actor)

    @property
    def flops(self) -> int:
        """Floating-point operations of one inference, without those of layer normalisation."""
        return rc.decision_flops(self.net, self.env.obs_dim)

    def modules(self, actor: PyTree) -> dict[str, tuple[Applied, PyTree]]:
        """The network and the parameters that one port needs, to measure their cost."""
        return {"policy": (rc.timed(self.net), one_agent(actor, self._shared))}

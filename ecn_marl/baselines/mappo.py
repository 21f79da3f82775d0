"""MAPPO: decentralised actors, a centralised critic.

Yu et al., "The Surprising Effectiveness of PPO in Cooperative Multi-Agent Games", NeurIPS'22.
Actors have the observations of IPPO's, so a switch needs nothing else to act. The critic sees every
port, but only in training. An update is

    roll out `rollout` intervals in `envs` environments
    ->  values from the global state, normalised by the returns' running mean and deviation  ->  GAE
    ->  `epochs` passes of clipped policy loss and clipped Huber value loss

and is one compiled function, `rl.ppo_trainer.PPOTrainer.update`, as IPPO takes the same.

What its authors found to matter (section 5), as it is done here:

* value normalisation: running mean and standard deviation (`rl/value_norm.py`);
* the critic's input: the global state with agent-specific features (their "AS"), here the last
  interval of all ports, the agent's own history, and a learnt vector that identifies the agent. Of
  all ports it gets the mean of every feature, so that its input and the memory of an update grow
  with the number of ports, not with its square. `critic_state="ports"` is the paper's: the features
  of all ports side by side (432 ports with 6 features: 2,592 numbers for each port);
* few passes over a rollout, undivided: 5 passes, 1 minibatch;
* a clip of at most 0.2;
* large batches: 64 environments x 32 intervals x all agents.

Differences from the paper, beside the critic's input:

* Each agent's reward is that of its own port, as in IPPO, so that the two differ in the critic
  only. In the cooperative games of the paper all agents have the same reward.
* The policy has a GRU only with `memory`. The critic, which sees all ports, never has one.
* The discount is IPPO's; `MAPPOConfig` says why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from ecn_marl._errors import bad_value
from ecn_marl.baselines.rl.networks import Mlp, centred
from ecn_marl.baselines.rl.ppo_config import PPOConfig
from ecn_marl.baselines.rl.ppo_trainer import PPOTrainer
from ecn_marl.baselines.training import settings as check
from ecn_marl.baselines.training.trainer import FLOAT_BYTES
from ecn_marl.envs.interface import Environment, PortEnvironment

CRITIC_STATES = ("mean", "ports")
"""Forms of the global state in the critic's input."""


@dataclass(frozen=True)
class MAPPOConfig(PPOConfig):
    """Settings of MAPPO; its authors' but for `gamma`.

    They discount by 0.99 in games of hundreds of moves. Thresholds take effect within some ten
    intervals, so `gamma` is IPPO's.

    Attributes:
        critic_state: global state in the critic's input: `mean` over ports, or `ports` (the
            features of all).
    """

    epochs: int = 5
    minibatches: int = 1
    actor_lr: float = 5e-4
    critic_lr: float = 5e-4
    gae_lambda: float = 0.95
    clip_decay: float = 1.0
    entropy: float = 0.01
    max_grad_norm: float = 10.0
    value_norm: bool = True
    value_norm_decay: float = 0.99
    value_clip: float = 0.2
    huber: float = 10.0
    critic_state: str = "mean"

    def __post_init__(self) -> None:
        """Check all settings."""
        super().__post_init__()
        check.widths(self, "hidden", least=1)
        if self.critic_state not in CRITIC_STATES:
            raise bad_value("critic_state", self.critic_state, " or ".join(CRITIC_STATES))


class JointCritic(nn.Module):
    """Value of every agent from the state of all and its own observation.

    Every agent's input repeats the state of all. Two products, one of them made once for all
    agents, would save that memory, but deadlocked the CPU backend.

    Attributes:
        hidden: widths of the hidden layers.
        width: number of an observation's last entries that make up the global state.
        state: `mean`, the mean of these entries over agents, or `ports`, those of all agents.
    """

    hidden: tuple[int, ...]
    width: int
    state: str = "mean"
    standardised: bool = False

    @nn.compact
    def __call__(self, obs: Float[Array, "*b agents obs"]) -> Float[Array, "*b agents"]:
        """Evaluate the network."""
        agents, first = obs.shape[-2], self.hidden[0]
        if self.standardised:
            obs = centred(self, obs)
        joint = obs[..., -self.width :]
        if self.state == "mean":
            joint = joint.mean(-2, keepdims=True)
        else:
            joint = joint.reshape(*obs.shape[:-2], 1, agents * self.width)
        init = nn.initializers.orthogonal(jnp.sqrt(2.0))
        wide = jnp.broadcast_to(joint, (*obs.shape[:-1], joint.shape[-1]))
        x = nn.Dense(first, kernel_init=init)(jnp.concatenate((obs, wide), -1))
        x = x + self.param("agent", nn.initializers.normal(0.1), (agents, first))
        return Mlp(self.hidden[1:], 1)(jnp.tanh(x))[..., 0]


class MAPPO(PPOTrainer):
    """The algorithm for one environment and configuration; its actor is that of `PPOTrainer`."""

    config_class = MAPPOConfig
    one_critic: ClassVar[bool] = True

    config: MAPPOConfig

    def __init__(self, env: Environment, config: MAPPOConfig) -> None:
        """Set up networks and optimisers.

        Args:
            env: functional environment (it is wrapped in `AutoReset`); its global state is the end
                of all agents' observations, or all of them if it has no `state_dim`.
            config: settings.
        """
        super().__init__(env, config)
        features = env.num_agents * env.obs_dim
        width = getattr(env, "state_dim", features) // env.num_agents
        self.critic = JointCritic(config.hidden, width, config.critic_state, config.standardise > 0)

    def init_critic(self, key: jax.Array) -> PyTree:
        """Parameters of the critic: one, whether actors are shared or not."""
        return self.critic.init(key, jnp.zeros((self.env.num_agents, self.env.obs_dim)))

    def value(
        self, critic: PyTree, obs: Float[Array, "*b agents obs"]
    ) -> Float[Array, "*b agents"]:
        """The critic's output, a normalised value."""
        return jnp.asarray(self.critic.apply(critic, obs))

    def exchanged_bytes(self, env: PortEnvironment, rows: Sequence[Mapping[str, object]]) -> float:
        """Bytes of the critic's input in training."""
        return float(env.state_dim * FLOAT_BYTES * 1e6 / env.interval_us)

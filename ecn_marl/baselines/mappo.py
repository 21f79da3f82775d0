"""MAPPO: decentralised actors, a centralised critic.

Yu et al., "The Surprising Effectiveness of PPO in Cooperative Multi-Agent Games", NeurIPS'22.
Actors have the observations of IPPO's, so a switch needs nothing else to act. The critic sees every
port, but only in training. An update is

    roll out `rollout` intervals in `envs` environments
    ->  values from the global state, normalised by the returns' running mean and deviation  ->  GAE
    ->  `epochs` passes of clipped policy loss and clipped Huber value loss

and is one compiled function. What does not depend on the critic is in `rl.ppo.PPOTrainer`, as IPPO
does the same.

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
* Networks have no recurrent layers.
* The discount is IPPO's; `MAPPOConfig` says why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax import struct
from jaxtyping import Array, Float, PyTree

from ecn_marl._errors import bad_value
from ecn_marl.baselines.rl.networks import Mlp, centred, init_network, standardise
from ecn_marl.baselines.rl.ppo import (
    Batch,
    PPOConfig,
    PPOTrainer,
    TrainState,
    explained_variance,
    optimiser,
)
from ecn_marl.baselines.rl.value_norm import ValueNorm
from ecn_marl.baselines.training import settings as check
from ecn_marl.baselines.training.environments import start_measured
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
        value_norm: whether returns are normalised for the critic.
        value_norm_decay: factor of earlier returns' weight at every update.
        value_clip: change of the critic's output since the rollout beyond which its gradient is
            cut, in the critic's units.
        huber: error at which the value loss goes from squared to linear, in the critic's units.
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
        if not 0.0 <= self.value_norm_decay < 1.0:
            raise bad_value("value_norm_decay", self.value_norm_decay, "a number in [0, 1)")
        check.positive(self, "value_clip", "huber", infinite=True)
        check.widths(self, "hidden", least=1)
        if self.critic_state not in CRITIC_STATES:
            raise bad_value("critic_state", self.critic_state, " or ".join(CRITIC_STATES))


@struct.dataclass
class MAPPOState(TrainState):
    """Everything that is needed to continue training.

    Attributes:
        norm: running averages of the returns.
    """

    norm: ValueNorm


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
        # One critic, whether actors are shared or not.
        self.critic_opt = optimiser(config, config.critic_lr)

    def init(self, key: jax.Array, params: PyTree) -> MAPPOState:
        """Fresh networks, optimisers and environments."""
        c, env = self.config, self.env
        key, actor_key, critic_key, env_key, phase_key = jax.random.split(key, 5)
        actor = init_network(self.actor, actor_key, env.obs_dim, env.num_agents, c.shared)
        critic = self.critic.init(critic_key, jnp.zeros((env.num_agents, env.obs_dim)))
        obs, state, measured = start_measured(
            env, env_key, phase_key, params, c.envs, c.standardise
        )
        if measured is not None:
            actor = standardise(actor, *measured.obs)
            critic = standardise(critic, *measured.obs)
        return MAPPOState(
            actor=actor,
            critic=critic,
            actor_opt=self.actor_opt.init(actor),
            critic_opt=self.critic_opt.init(critic),
            env=state,
            obs=obs,
            key=key,
            updates=jnp.zeros((), jnp.int32),
            norm=ValueNorm.create(),
        )

    def value(
        self, critic: PyTree, obs: Float[Array, "*b agents obs"]
    ) -> Float[Array, "*b agents"]:
        """The critic's output, a normalised value."""
        return jnp.asarray(self.critic.apply(critic, obs))

    def update(self, state: MAPPOState, params: PyTree) -> tuple[MAPPOState, dict[str, Array]]:
        """Roll out, estimate advantages, improve policy and value function.

        Args:
            state: training state.
            params: parameters of the environment.

        Returns:
            New state, and the update's metrics.
        """
        c = self.config
        key, roll_key, learn_key = jax.random.split(state.key, 3)
        state, rollout, metrics = self.roll_out(replace(state, key=key), roll_key, params)
        old_output = self.value(state.critic, rollout.obs)
        value = state.norm.restore(old_output)
        next_value = state.norm.restore(self.value(state.critic, rollout.final_obs))
        advantage, target = self.advantages(rollout, value, next_value)
        norm = state.norm.updated(target, c.value_norm_decay) if c.value_norm else state.norm
        batch = Batch(
            rollout.obs,
            rollout.action,
            rollout.log_prob,
            advantage,
            norm.normalise(target),
            old_output,
        )
        state, losses = self.learn(replace(state, norm=norm), batch, learn_key)
        metrics |= losses | {"explained_variance": explained_variance(target, value)}
        return state, metrics

    def value_loss(self, critic: PyTree, batch: Batch) -> tuple[Array, dict[str, Array]]:
        """The larger of the Huber losses of the output and of the output clipped to the old one."""
        c = self.config
        value, old_value = self.value(critic, batch.obs), jnp.asarray(batch.value)
        clipped = old_value + jnp.clip(value - old_value, -c.value_clip, c.value_clip)
        error = jnp.maximum(
            optax.huber_loss(value, batch.target, delta=c.huber),
            optax.huber_loss(clipped, batch.target, delta=c.huber),
        )
        return error.mean(), {"value_loss": error.mean()}

    def exchanged_bytes(self, env: PortEnvironment, rows: Sequence[Mapping[str, object]]) -> float:
        """Bytes of the critic's input in training."""
        return float(env.state_dim * FLOAT_BYTES * 1e6 / env.interval_us)

"""The functional environment: every switch egress port is an agent that tunes its ECN thresholds.

In each tuning interval an agent observes the last intervals of its port, sets (Kmin, Kmax, Pmax),
and earns a reward, see `rewards`. Everything is an array with a leading axis of agents. `reset` and
`step` are pure and work under `jit`, `vmap` (over environments and parameters) and `scan`.

With `agent_kind="switch"` every switch is an agent, see `agents`: `[A]` is then an axis of switches
in observations, actions, rewards, ends and the `info` of `step`, and `[P]` one of ports.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from ecn_marl._checks import check_numbers
from ecn_marl.envs import queues
from ecn_marl.envs import telemetry as tm
from ecn_marl.envs.actions import ActionCodec, EcnSetting, parse_ecn
from ecn_marl.envs.agent_checks import check_shape
from ecn_marl.envs.agents import PORT, SWITCH, Agents, agents_of
from ecn_marl.envs.episode import (
    PHASE,
    SAME,
    EnvParams,
    EnvState,
    EpisodeSums,
    HostGroup,
    PhaseEcn,
    Step,
    accounts,
    episode_metrics,
)
from ecn_marl.envs.features import FeatureScale, FeatureSet, fill, flatten
from ecn_marl.envs.objectives import OF_JOB, Part, accrued, within_step
from ecn_marl.envs.reward_reference import RewardReference
from ecn_marl.envs.rewards import Reward, RewardParams
from ecn_marl.envs.settings import port_scale
from ecn_marl.envs.spaces import Box, Space, of_agents
from ecn_marl.sim.core.failures import fail_links
from ecn_marl.sim.core.stats import idle, summarise, to_info
from ecn_marl.sim.simulator import Ecn, PortStats, SimParams, SimState, Simulator
from ecn_marl.sim.state import PortSums
from ecn_marl.sim.traffic.jobs import Timeline, clock_of


@dataclass(frozen=True)
class EcnEnv:
    """Multi-agent ECN tuning; static and hashable, parameters and state are passed in.

    Attributes:
        name: scenario it was made from.
        sim: the simulator.
        feature: what an agent sees.
        action: what an agent can set.
        reward: what an agent earns.
        initial: thresholds at the start of an episode.
        horizon: default number of intervals in an episode.
        reward_options: arguments of `RewardParams.create`, as sorted pairs.
        margins_us: warm-up and cool-down. Flows that begin within them are not measured; those of
            the cool-down could not finish. Each is at most a quarter of the episode.
        objective: parts of J that the scenario declares; empty for the benchmark's.
        phased_by: number of the job (a traffic source) whose steps are the phases of the traffic;
            None for the phases of a timeline, if there is one.
        host_groups: named groups of hosts that differ in role, each with the number of phases by
            which it runs behind the timeline. All other hosts are one more group.
        failing: arguments of `fail_links` as sorted pairs; empty if no link fails.
        telemetry: delay, period and precision of observations and actions.
        reward_reference: what rewards are relative to, None for nothing.
        phase_info: whether `info` has the `phase` that every port is in at the start of the next
            interval, for policies that know it.
        agent_kind: `port` or `switch`, see `agents`.
        per_queue: whether each queue of a port has thresholds of its own, see `queues`; `action`
            is a `PerQueue` then.
    """

    name: str
    sim: Simulator
    feature: FeatureSet
    action: ActionCodec
    reward: Reward
    initial: EcnSetting
    horizon: int
    reward_options: tuple[tuple[str, float], ...] = ()
    margins_us: tuple[float, float] = (0.0, 0.0)
    objective: tuple[Part, ...] = ()
    phased_by: int | None = None
    host_groups: tuple[HostGroup, ...] = ()
    failing: tuple[tuple[str, Any], ...] = ()
    telemetry: tm.Telemetry = field(default_factory=tm.Telemetry)
    reward_reference: RewardReference | None = None
    phase_info: bool = False
    agent_kind: str = PORT
    per_queue: bool = False

    def __repr__(self) -> str:
        """One line: scenario, agents, and what they see, set and earn."""
        sees = f"{self.obs_dim} numbers ({self.feature.name}, history {self.feature.history})"
        return (
            f"<{type(self).__name__} {self.name}: {self._who} of "
            f"{self.sim.topology.name}, {sees}, {self.action.name} actions, reward "
            f"{self.reward.name}, {self.horizon} intervals of {self.interval_us:g} µs>"
        )

    @property
    def _who(self) -> str:
        """Number and kind of the agents."""
        return f"{self.num_agents} {'ports' if self.agent_kind == PORT else 'switches'}"

    @cached_property
    def grouping(self) -> Agents:
        """Which ports each agent has."""
        return agents_of(self.agent_kind, self.sim.topology)

    @cached_property
    def switches(self) -> Agents:
        """Which ports each switch has."""
        return agents_of(SWITCH, self.sim.topology)

    @property
    def num_agents(self) -> int:
        """Number of agents A, the switch egress ports (or the switches, see `agents`)."""
        return self.grouping.n

    @property
    def agents(self) -> tuple[str, ...]:
        """Names of the agents: `port_0`, `port_1`, …, or `switch_0`, `switch_1`, …."""
        return self.grouping.names

    @property
    def obs_dim(self) -> int:
        """Length of an observation."""
        return self.feature.history * self.width

    @property
    def width(self) -> int:
        """Number of features of one interval, those of all queues."""
        return self.feature.width * (self.sim.n_classes if self.per_queue else 1)

    def observation_space(self, params: EnvParams | None = None) -> Space:
        """Space of what `reset` and `step` return, `[A, obs_dim]`; the same for all parameters."""
        return Box(-np.inf, np.inf, (self.num_agents, self.obs_dim))

    def action_space(self, params: EnvParams | None = None) -> Space:
        """Space of what `step` takes, `[A, *shape]`; the same for all parameters."""
        return of_agents(self.action.gymnasium_space(), self.num_agents)

    @property
    def state_dim(self) -> int:
        """Length of the global state."""
        return self.num_agents * self.width

    @property
    def interval_us(self) -> float:
        """Length of a tuning interval, µs."""
        return self.sim.interval_us

    @property
    def default_params(self) -> EnvParams:
        """Parameters of the scenario as registered."""
        sim = replace(self.sim.default_params(), window=self._window())
        if self.failing:
            sim = fail_links(sim, self.sim.topology, self.sim.dt_us, **dict(self.failing))
        options = dict(self.reward_options)
        every = self.telemetry.every(self.interval_us)
        scale: dict[str, Any] = {"collected_us": every * self.interval_us}
        if "queue_scale_kb" in options:
            scale["step_kb"] = options["queue_scale_kb"]
        if "queue_steps" in options:
            scale["steps"] = options["queue_steps"]
        return EnvParams(
            sim=sim,
            reward=self._reward_params(options),
            scale=FeatureScale.create(self.port_scale(sim), **scale),
            max_steps=np.int32(self.horizon),
        )

    def _reward_params(self, options: dict[str, float]) -> RewardParams:
        """Constants of the reward, those of what it is relative to among them."""
        params = RewardParams.create(**options)
        relative = self.reward_reference
        if relative is None:
            return params
        mean = jnp.asarray(np.asarray(relative.returns) / self.horizon, jnp.float32)
        return replace(params, mean=mean, headroom=jnp.float32(relative.headroom))

    # Cached, so that it is one object: faces find their compiled code by it before every step.
    @cached_property
    def program(self) -> EcnEnv:
        """The environment without the numbers that only `default_params` reads.

        Its `reset` and `step` are the same. Environments that differ only in load, flow sizes,
        buffers, reward weights or episode length have equal programs. So they share compiled code,
        and each passes its own parameters.
        """
        return replace(
            self,
            name="",
            sim=self.sim.program,
            horizon=1,
            reward_options=(),
            margins_us=(0.0, 0.0),
            failing=(),
            reward_reference=None,
        )

    def _window(self) -> tuple[np.int32, np.int32]:
        """Substeps within which measured flows begin: the first, and one past the last."""
        per_us, length = 1.0 / self.sim.dt_us, self.horizon * self.interval_us
        warm_up, cool_down = (min(margin, 0.25 * length) for margin in self.margins_us)
        if cool_down == 0.0:
            # Without a cool-down the window has no end: the largest int32.
            return np.int32(round(warm_up * per_us)), np.int32(2**31 - 1)
        return np.int32(round(warm_up * per_us)), np.int32(round((length - cool_down) * per_us))

    @property
    def phase_names(self) -> tuple[str, ...]:
        """Names of the phases of its traffic; `all` alone if it has none."""
        if self.phased_by is not None:
            return OF_JOB
        return timeline.phase_names if (timeline := self._timeline) else ("all",)

    @property
    def _timeline(self) -> Timeline | None:
        timelines = [getattr(source, "timeline", None) for source in self.sim.traffic]
        return next((timeline for timeline in timelines if timeline is not None), None)

    def phase(self, state: EnvState, params: PyTree) -> Int[Array, " ports"]:
        """Index of the phase that every port is in at the start of the next interval, `[P]`.

        Ports to the hosts of a group are in the group's phase, all others in the timeline's. Where
        a job's steps are the phases, all ports are in the job's.
        """
        del params
        if self.phased_by is not None:
            inside = within_step(
                self.sim.traffic[self.phased_by],
                state.sim.traffic[self.phased_by],
                self.sim.tick_us,
            )
            return jnp.broadcast_to(inside.astype(jnp.int32), (self.sim.topology.n_ports,))
        timeline, clock = self._timeline, clock_of(self.sim.traffic, state.sim.traffic)
        if timeline is None or clock is None:
            return jnp.zeros((self.sim.topology.n_ports,), jnp.int32)
        shift = {host: group.shift for group in self.host_groups for host in group.hosts}
        behind = np.array([shift.get(p.peer, 0) for p in self.sim.topology.ports], np.int32)
        return ((clock.index - behind) % timeline.n_phases).astype(jnp.int32)

    @property
    def port_groups(self) -> tuple[str, ...]:
        """Group of every port: that of its host, else its kind (`host`, `fabric`); length P."""
        names = {host: group.name for group in self.host_groups for host in group.hosts}
        ports = self.sim.topology.ports
        return tuple(names.get(p.peer, "host" if p.kind == "host" else "fabric") for p in ports)

    def features(
        self, stats: PortStats, ecn: Ecn, scale: FeatureScale
    ) -> Float[Array, "ports width"]:
        """Features of an interval; with `per_queue` the rows of a port's queues side by side."""
        if not self.per_queue:
            return self.feature.compute(stats, ecn, scale, self.switches)
        rows = []
        for q in range(self.sim.n_classes):
            own = Ecn(ecn.kmin[:, q], ecn.kmax[:, q], ecn.pmax[:, q])
            of_queue = queues.of_queue(stats, q)
            rows.append(self.feature.compute(of_queue, own, scale, self.switches))
        return jnp.concatenate(rows, -1)

    @property
    def feature_share(self) -> np.ndarray | None:
        """Share of a new observation in what agents see of each column, `[width]` or None."""
        between_us = self.telemetry.every(self.interval_us) * self.interval_us
        return self.feature.share(between_us, self.width // self.feature.width)

    def wide(self, ecn: Ecn) -> Ecn:
        """Thresholds as this environment has them: `[P]`, with `per_queue` `[P, C]`."""
        return queues.for_queues(ecn, self.sim.n_classes) if self.per_queue else ecn

    @staticmethod
    def port_scale(sim: SimParams) -> Float[Array, " ports"]:
        """Link rate of every port over 25 Gb/s, `[P]`."""
        return port_scale(sim)

    def static_ecn(self, setting: str, params: EnvParams) -> Ecn:
        """Thresholds of a static setting on every port.

        Args:
            setting: a name of `STATIC_ECN`, or `KMIN,KMAX,PMAX` (KB at 25 Gb/s).
            params: parameters; thresholds scale with the ports' rates.

        Raises:
            ValueError: a setting that cannot be read or is not allowed.
        """
        return parse_ecn(setting).scaled(self.port_scale(params.sim))

    def idle_stats(self) -> PortStats:
        """Statistics of an interval without traffic, as before the first one."""
        return idle(self.sim)

    def port_info(self, number: int) -> dict[str, str | float]:
        """Switch, peer, rate (Gb/s) and kind of a port."""
        port = self.sim.topology.ports[number]
        return {
            "name": port.name,
            "switch": port.switch,
            "peer": port.peer,
            "rate_gbps": port.gbps,
            "kind": port.kind,
        }

    def reset(
        self, key: jax.Array, params: EnvParams
    ) -> tuple[Float[Array, "agents obs"], EnvState]:
        """Start an episode with an empty network under the initial thresholds.

        Args:
            key: PRNG key; fixes the whole episode for given actions.
            params: parameters.

        Returns:
            Observations `[A, obs_dim]`, and the state.

        Raises:
            InvalidValue: a parameter out of its range, unless the function is being compiled.
        """
        check_numbers(params)
        ecn = self.wide(self.initial.scaled(self.port_scale(params.sim)))
        ecn = self.telemetry.limited(ecn, self.sim.topology)
        features = self.features(self.idle_stats(), ecn, params.scale)
        sim = self.sim.init(key, params.sim)
        state = EnvState(
            sim=sim,
            ecn=ecn,
            history=fill(features, self.feature.history),
            steps=jnp.zeros((), jnp.int32),
            sums=EpisodeSums.start(self.sim.topology.n_ports, self.sim.n_classes),
            telemetry=tm.start(self.telemetry, self.sim, sim, params.sim, ecn, features),
        )
        return flatten(self.grouping.mean(state.history)), state

    def reset_info(self, state: EnvState, params: EnvParams) -> dict[str, Array]:
        """What the faces return as infos of a reset: the `phase` if it was asked for, else nothing.

        Args:
            state: the state that `reset` returned.
            params: parameters.
        """
        if not self.phase_info:
            return {}
        return {PHASE: self.phase(state, params).astype(jnp.float32)}

    def load(self, state: EnvState) -> Int[Array, ""]:
        """How busy an environment is, in flow slots; see `Simulator.load`."""
        return self.sim.load(state.sim)

    def step(self, key: jax.Array, state: EnvState, action: Array, params: EnvParams) -> Step:
        """Apply actions for one tuning interval.

        Args:
            key: unused (an episode's randomness is in its state); part of the usual signature.
            state: state of the episode.
            action: one action per agent, `(A, *action.shape)`.
            params: parameters.

        Returns:
            `obs [A, obs_dim], state, reward [A], terminated [A], truncated [A], info`. Episodes
            only ever end by their horizon: `terminated` is False, `truncated` True at the last
            step. `info` has per-agent arrays `[A]` of the interval: `PortStats`, with the counters
            that features, telemetry or `make(counts=...)` request (`class_bytes` as
            `small_bytes`, `medium_bytes`, `large_bytes`), the thresholds in force and the `reward`;
            and the episode's `accounts` so far, the same for all agents.
        """
        check_shape(action, (self.num_agents, *self.action.shape))
        by_port = self.grouping.spread(action)
        ecn = self.action.decode(by_port, self.port_scale(params.sim))
        obs, after, reward, terminated, truncated, info = self.step_ecn(key, state, ecn, params)
        return obs, after, reward, terminated, truncated, self.grouping.info(info, SAME)

    def step_ecn(self, key: jax.Array, state: EnvState, ecn: Ecn, params: EnvParams) -> Step:
        """Like `step`, with thresholds of ports instead of actions of agents.

        Args:
            key: unused.
            state: state of the episode.
            ecn: thresholds, bytes, `[P]` each, or a `PhaseEcn`.
            params: parameters.

        Returns:
            What `step` returns. `info` is that of the ports, `[P]`, whoever the agents are: rules
            in the switch read it.
        """
        del key
        bare = replace(state, sim=self.sim.traceable(state.sim))
        decide: Callable[..., Any] = self.in_force
        observe: Callable[..., Any] = self.observed
        if self.sim.on_host:
            decide, observe = partial(_decide, self), partial(_observe, self)
        ecn, in_flight = decide(bare, ecn, params)
        ticks = self.telemetry.late(self.interval_us, self.sim.tick_us)[1]
        steps = self._accrued(bare.sim) if self._steps_count else None
        sim, port_sums = self.sim.collect(state.sim, params.sim, ecn, state.ecn, ticks)
        bare = replace(bare, sim=self.sim.traceable(sim), telemetry=in_flight)
        obs, next_state, *outputs = observe(bare, port_sums, ecn, params, steps)
        return obs, replace(next_state, sim=sim), *outputs

    def in_force(
        self, state: EnvState, ecn: Ecn, params: EnvParams
    ) -> tuple[Ecn, tm.TelemetryState | None]:
        """Thresholds of the next interval, if these are set now; see `telemetry.act`."""
        if isinstance(ecn, PhaseEcn):
            ecn = ecn.during(self.phase(state, params))
        return tm.act(self.telemetry, state.telemetry, self.wide(ecn), self.sim.topology)

    def in_force_by_tick(self, state: EnvState, ecn: Ecn, params: EnvParams) -> Ecn:
        """Thresholds in every tick of the next interval, `[K, P]`, if these are set now."""
        new, _ = self.in_force(state, ecn, params)
        late = self.telemetry.late(self.interval_us, self.sim.tick_us)[1]
        ticks = np.arange(self.sim.interval_steps // self.sim.tick_steps)
        early = (ticks < late).reshape(-1, *(1,) * jnp.ndim(new.kmin))
        by_tick: Ecn = jax.tree.map(lambda old, now: jnp.where(early, old, now), state.ecn, new)
        return by_tick

    @property
    def _steps_count(self) -> bool:
        """Whether steps of jobs are a part of the reward."""
        return self.reward.accrues and any(part.reward for part in self.objective)

    def _accrued(self, sim: SimState) -> Array:
        """Weighted slowdown that steps of jobs have accrued since the start."""
        return accrued(self.objective, self.sim.traffic, sim.traffic, self.sim.tick_us)

    def observed(
        self,
        state: EnvState,
        port_sums: PortSums,
        ecn: Ecn,
        params: EnvParams,
        before: Array | None = None,
    ) -> Step:
        """What a step returns after its interval.

        Args:
            state: that before the interval, with the network and the telemetry after it.
            port_sums: sums of the interval.
            ecn: thresholds that were in force.
            params: parameters.
            before: what steps of jobs had accrued before the interval; None if they do not count.
        """
        options, sim, in_flight = self.telemetry, state.sim, state.telemetry
        stats = summarise(self.sim, sim, params.sim, port_sums)
        own = None if before is None else self._accrued(sim) - before
        scale = self.port_scale(params.sim)
        reward = self.reward(stats, params.reward, scale, self.interval_us, own)
        observed, in_flight = tm.collect(
            options, in_flight, state.steps, self.sim, sim, params.sim, port_sums, stats
        )
        features = self.features(observed, ecn, params.scale)
        history, in_flight = tm.see(
            *(options, in_flight, state.steps, self.interval_us, state.history, features),
            share=self.feature_share,
        )
        steps = state.steps + 1
        next_state = EnvState(
            sim=sim,
            ecn=ecn,
            history=history,
            steps=steps,
            sums=state.sums.with_interval(reward, stats),
            telemetry=in_flight,
        )
        of_ports = queues.for_ports(ecn)
        info = to_info(stats) | {name: getattr(of_ports, name) for name in queues.THRESHOLDS}
        if self.per_queue:
            info |= {f"class_{name}": getattr(ecn, name) for name in queues.THRESHOLDS}
        info["reward"] = reward
        if self.phase_info:
            info[PHASE] = self.phase(next_state, params).astype(reward.dtype)
        for name, count in self.accounts(sim, params).items():
            # One value per agent, as in all of `info`: faces split every entry by agent.
            info[name] = jnp.broadcast_to(count, reward.shape).astype(reward.dtype)
        terminated = jnp.zeros((self.num_agents,), bool)
        truncated = jnp.broadcast_to(steps >= params.max_steps, terminated.shape)
        obs = flatten(self.grouping.mean(history))
        return obs, next_state, self.grouping.mean(reward), terminated, truncated, info

    def global_state(self, state: EnvState, params: EnvParams) -> Float[Array, " state"]:
        """The last observation that each agent saw, `[state_dim]`, for centralised critics."""
        del params
        return self.grouping.mean(state.history[:, -1]).reshape(-1)

    def accounts(self, sim: SimState, params: EnvParams) -> dict[str, Array]:
        """Counts of the flows and bytes of the episode so far, see `episode.accounts`."""
        return accounts(self.sim, sim, params.sim)

    def episode_metrics(self, state: EnvState, params: EnvParams) -> dict[str, Array]:
        """Metrics of the episode so far, see `episode.episode_metrics`."""
        return episode_metrics(self.sim, self.objective, state, params)


# Both halves of a step, compiled one by one for simulators that run on the host.


@partial(jax.jit, static_argnums=0)
def _decide(env: EcnEnv, *args: PyTree) -> Any:
    return env.in_force(*args)


@partial(jax.jit, static_argnums=0)
def _observe(env: EcnEnv, *args: PyTree) -> Any:
    return env.observed(*args)

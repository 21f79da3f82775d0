"""One episode recorded for replay: queues at every tick, thresholds and marks, and every flow."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, PyTree

from ecn_marl.baselines.evaluation import host_loop
from ecn_marl.baselines.evaluation.episodes import (
    Controller,
    StatefulController,
    decide,
    evaluation_keys,
    thresholds,
    with_memory,
)
from ecn_marl.baselines.evaluation.own_policies import HostPolicy
from ecn_marl.envs.ecn import EcnEnv
from ecn_marl.envs.episode import EnvParams
from ecn_marl.sim.core import lifecycle as life
from ecn_marl.sim.core.queues import Ecn
from ecn_marl.sim.state import SimState
from ecn_marl.sim.traffic.sizes import CHUNK, PAYLOAD, wire_size

_SLOT_FIELDS = (
    *("stage", "src", "dst", "payload", "rest_high", "rest_low", "start_step", "start_rest"),
    *("tail", "ideal", "hop"),
)
"""Fields of the flow slots that are recorded at the end of every tick."""


@dataclass
class Flow:
    """A flow of the episode.

    Attributes:
        src: source host.
        dst: destination host.
        size: payload, bytes.
        wire: bytes to send, headers included.
        start_us: time of arrival, µs; a flow that waited for a slot arrived before it was admitted.
        ideal_us: completion time in an empty network, µs.
        path: ports on its way.
        end_us: time at which its last ACK was back, µs; None if the episode ended before.
    """

    src: int
    dst: int
    size: float
    wire: float
    start_us: float
    ideal_us: float
    path: list[int]
    end_us: float | None = None

    @property
    def slowdown(self) -> float | None:
        """Completion time over the ideal one."""
        return None if self.end_us is None else (self.end_us - self.start_us) / self.ideal_us


class Active(NamedTuple):
    """A flow in an interval.

    Attributes:
        flow: its number in `Episode.flows`.
        unsent: wire bytes not yet sent at the end of the interval.
        rate: bytes/µs sent in the interval.
    """

    flow: int
    unsent: float
    rate: float


@dataclass(frozen=True)
class Episode:
    """A recorded episode of T intervals with K ticks each on A ports.

    Attributes:
        ticks: queue at the end of every tick, bytes, `[T, K, A]`.
        info: infos of `EcnEnv.step` of every interval, each `[T, A]`.
        phase: index into `EcnEnv.phase_names` of the phase that every port was in at the start of
            each interval, `[T, A]`.
        flows: all flows, by the tick in which they were admitted.
        active: flows in progress in each interval, those that ended in it included.
    """

    ticks: np.ndarray
    info: dict[str, np.ndarray]
    phase: np.ndarray
    flows: list[Flow]
    active: list[list[Active]]


class Side(NamedTuple):
    """An episode that is shown, with its policy and environment.

    Attributes:
        label: name of the policy.
        env: the environment as the policy sees it.
        episode: the recorded episode.
    """

    label: str
    env: EcnEnv
    episode: Episode


def record(
    env: EcnEnv, params: EnvParams, controller: Controller | StatefulController, seed: int
) -> Episode:
    """Run the first evaluation episode of a seed.

    Args:
        env: the environment as the policy sees it.
        params: its parameters; `max_steps` is the length of the episode.
        controller: the policy.
        seed: seed of the evaluation stream.
    """
    ticks, info, phase, slots = jax.device_get(_run(env, params, controller, seed))
    flat = {name: values.reshape(-1, *values.shape[2:]) for name, values in slots.items()}
    flows, active = _trace_flows(env, params, flat, ticks.shape[1])
    n_ports = env.sim.topology.n_ports
    queues = ticks.reshape(*ticks.shape[:2], n_ports, -1).sum(-1)
    return Episode(queues, info, phase, flows, active)


def _run(
    env: EcnEnv, params: EnvParams, controller: Controller | StatefulController, seed: int
) -> tuple[Array, dict[str, Array], Array, dict[str, Array]]:
    """Queues `[T, K, Q]`, infos and phases `[T, A]`, flow slots `[T, K, ...]` of an episode.

    Every interval is run twice: tick by tick to record it, and as a whole for the next state. So
    the episode is bit for bit that of an evaluation.
    """
    sim, policy = env.sim, with_memory(controller)
    if sim.on_host:
        return _run_on_host(env, params, controller, seed)
    tick_simulator = replace(sim, interval_steps=sim.tick_steps)

    def tick(state: SimState, ecn: Ecn) -> tuple[PyTree, tuple[Array, dict[str, Array]]]:
        state, _ = tick_simulator.interval(state, params.sim, ecn)
        return state, (state.queue, {name: getattr(state.flows, name) for name in _SLOT_FIELDS})

    def step(carry: PyTree, key: jax.Array) -> tuple[PyTree, PyTree]:
        obs, state, memory = carry
        act_key, env_key = jax.random.split(key)
        chosen, memory = decide(policy, act_key, obs, memory)
        ecn = thresholds(env, params, state, chosen)
        phase = env.phase(state, params)
        by_tick = env.in_force_by_tick(state, ecn, params)
        _, (queue, slots) = jax.lax.scan(tick, state.sim, by_tick)
        obs, state, _, _, _, info = env.step_ecn(env_key, state, ecn, params)
        return (obs, state, policy.observe(memory, info)), (queue, info, phase, slots)

    def episode(key: jax.Array) -> Any:
        reset_key, run_key = jax.random.split(key)
        carry = (*env.reset(reset_key, params), policy.init())
        return jax.lax.scan(step, carry, jax.random.split(run_key, int(params.max_steps)))[1]

    queue, info, phase, slots = jax.jit(episode)(evaluation_keys(seed, 1)[0])
    return queue, {k: v for k, v in info.items() if v.ndim == 2}, phase, slots


def _run_on_host(
    env: EcnEnv, params: EnvParams, controller: Controller | StatefulController, seed: int
) -> tuple[Array, dict[str, Array], Array, dict[str, Array]]:
    """`_run` where the simulator cannot be traced: on packets."""
    sim = env.sim
    ticker = replace(sim, interval_steps=sim.tick_steps)
    if isinstance(controller, HostPolicy):
        player: host_loop.Player = host_loop.Hosted(controller)
    else:
        player = host_loop.Compiled(with_memory(controller), decide)
    rows: list[Any] = []
    for played in host_loop.intervals(env, params, player, evaluation_keys(seed, 1)[0]):
        before = host_loop.bare(env, played.before)
        ecn = thresholds(env, params, before, played.chosen)
        now, ticks = played.before.sim, []
        by_tick = jax.device_get(env.in_force_by_tick(before, ecn, params))
        for i in range(sim.interval_steps // sim.tick_steps):
            now, _ = ticker.collect(now, params.sim, jax.tree.map(lambda x, i=i: x[i], by_tick))
            slots = {name: np.asarray(getattr(now.flows, name)) for name in _SLOT_FIELDS}
            ticks.append((np.asarray(now.queue), slots))
        queue, held = jax.tree.map(lambda *x: np.stack(x), *ticks)
        info = {k: np.asarray(v) for k, v in played.info.items() if np.ndim(v) == 1}
        rows.append((queue, info, np.asarray(env.phase(before, params)), held))
    return jax.tree.map(lambda *x: np.stack(x), *rows)


def _trace_flows(
    env: EcnEnv, params: EnvParams, slots: dict[str, np.ndarray], ticks: int
) -> tuple[list[Flow], list[list[Active]]]:
    """Separate the flows that use the same slots one after the other.

    Args:
        env: the environment.
        params: its parameters.
        slots: `_SLOT_FIELDS` at the end of every tick, `[T K, F]`, `hop` `[T K, L, F]`.
        ticks: ticks per interval K.
    """
    sim = env.sim
    # float64, since a float32 cannot count the bytes of large flows; hence the two fields, too.
    unsent = slots["rest_high"].astype(np.float64) * CHUNK + slots["rest_low"]
    finished = np.isin(slots["stage"], (life.FREE, life.DONE))
    flows: list[Flow] = []
    active: list[list[Active]] = []
    holder = np.full(finished.shape[1], -1)
    before: dict[int, float] = {}
    present: dict[int, float] = {}
    for k in range(len(finished)):
        # A flow takes its slot at the start of a tick, so this is the first tick of a new one.
        admitted = (slots["start_step"][k] == k * sim.tick_steps) & (slots["payload"][k] > 0)
        for slot in np.flatnonzero(admitted):
            holder[slot] = len(flows)
            flows.append(
                _flow(env, params, {name: slots[name][k, ..., slot] for name in _SLOT_FIELDS})
            )
        for slot in np.flatnonzero(holder >= 0):
            flow = int(holder[slot])
            present[flow] = float(unsent[k, slot])
            if finished[k, slot]:
                now = (k + 1) * sim.tick_steps * sim.dt_us
                flows[flow].end_us = now + float(slots["tail"][k, slot])
                holder[slot] = -1
        if (k + 1) % ticks == 0:
            rows = []
            for flow, left in present.items():
                # Lost bytes must be sent again, so what is left may also grow.
                sent = before.get(flow, flows[flow].wire) - left
                rows.append(Active(flow, left, max(sent, 0.0) / env.interval_us))
            active.append(rows)
            before = {n: left for n, left in present.items() if flows[n].end_us is None}
            present = {}
    return flows, active


def _flow(env: EcnEnv, params: EnvParams, slot: dict[str, np.ndarray]) -> Flow:
    """A flow, read from its slot at the end of its first tick."""
    sim, bounds, c = env.sim, env.sim.queue_bounds, env.sim.n_classes
    path = [
        (low + int(hop)) // c
        for hop, low, high in zip(slot["hop"], bounds, bounds[1:], strict=False)
        if hop < high - low
    ]
    size = float(slot["payload"])
    header = float(params.sim.net.packet_bytes) - PAYLOAD
    return Flow(
        src=int(slot["src"]),
        dst=int(slot["dst"]),
        size=size,
        wire=float(wire_size(size, header)),
        start_us=int(slot["start_step"]) * sim.dt_us + float(slot["start_rest"]),
        ideal_us=float(slot["ideal"]),
        path=path,
    )

"""One episode recorded for replay: queues at every tick, thresholds and marks, and every flow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
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
    if env.sim.on_host:
        recorded: Any = _run_on_host(env, params, controller, seed)
    else:
        play = jax.jit(_recorder(env, params, [controller], _SLOT_FIELDS))
        recorded = play(0, evaluation_keys(seed, 1)[0])
    ticks, info, phase, slots = jax.device_get(recorded)
    flat = {name: values.reshape(-1, *values.shape[2:]) for name, values in slots.items()}
    flows, active = _trace_flows(env, params, flat, ticks.shape[1])
    return Episode(_of_ports(env, ticks), info, phase, flows, active)


def record_queues(
    env: EcnEnv,
    params: EnvParams,
    controllers: Sequence[Controller | StatefulController],
    seed: int,
) -> list[Episode]:
    """`record` under several policies in one compiled program, without the flows."""
    play = jax.jit(jax.vmap(_recorder(env, params, controllers, ()), (0, None)))
    numbers = jnp.arange(len(controllers))
    recorded = jax.device_get(play(numbers, evaluation_keys(seed, 1)[0]))
    each = [jax.tree.map(lambda x, i=i: x[i], recorded) for i in range(len(controllers))]
    return [Episode(_of_ports(env, ticks), info, phase, [], []) for ticks, info, phase, _ in each]


def _of_ports(env: EcnEnv, queues: np.ndarray) -> np.ndarray:
    """Queues of ports, `[T, K, A]`, from those of all their classes, `[T, K, Q]`."""
    total: np.ndarray = queues.reshape(*queues.shape[:2], env.sim.topology.n_ports, -1).sum(-1)
    return total


def _recorder(
    env: EcnEnv,
    params: EnvParams,
    controllers: Sequence[Controller | StatefulController],
    fields: Sequence[str],
) -> Callable[[Array, jax.Array], tuple[Array, dict[str, Array], Array, dict[str, Array]]]:
    """A function that plays the episode of a key under one of the controllers.

    Every interval is run twice: tick by tick to record it, and as a whole for the next state. So
    the episode is bit for bit that of an evaluation.

    Args:
        env: the environment.
        params: its parameters.
        controllers: the controllers.
        fields: fields of the flow slots that are recorded.

    Returns:
        `(number of the controller, key) -> ...`: queues `[T, K, Q]`, infos and phases `[T, A]`,
        flow slots `[T, K, ...]`.
    """
    sim, policies = env.sim, [with_memory(controller) for controller in controllers]
    tick_simulator = replace(sim, interval_steps=sim.tick_steps)

    def tick(state: SimState, ecn: Ecn) -> tuple[PyTree, tuple[Array, dict[str, Array]]]:
        state, _ = tick_simulator.interval(state, params.sim, ecn)
        return state, (state.queue, {name: getattr(state.flows, name) for name in fields})

    def episode(number: Array, key: jax.Array) -> Any:
        def step(carry: PyTree, key: jax.Array) -> tuple[PyTree, PyTree]:
            obs, state, memories = carry
            act_key, env_key = jax.random.split(key)
            # All controllers decide, and the number picks one: in a batch, a `lax.switch` would
            # run all of its branches, too.
            decided = [
                decide(policy, act_key, obs, memory)
                for policy, memory in zip(policies, memories, strict=True)
            ]
            options = [thresholds(env, params, state, chosen) for chosen, _ in decided]
            ecn: Ecn = jax.tree.map(lambda *x: jnp.stack(x)[number], *options)
            phase = env.phase(state, params)
            by_tick = env.in_force_by_tick(state, ecn, params)
            _, (queue, slots) = jax.lax.scan(tick, state.sim, by_tick)
            obs, state, _, _, _, info = env.step_ecn(env_key, state, ecn, params)
            memories = [
                policy.observe(memory, info)
                for policy, (_, memory) in zip(policies, decided, strict=True)
            ]
            of_ports = {name: x for name, x in info.items() if x.ndim == 1}
            return (obs, state, memories), (queue, of_ports, phase, slots)

        reset_key, run_key = jax.random.split(key)
        carry = (*env.reset(reset_key, params), [policy.init() for policy in policies])
        return jax.lax.scan(step, carry, jax.random.split(run_key, int(params.max_steps)))[1]

    return episode


def _run_on_host(
    env: EcnEnv, params: EnvParams, controller: Controller | StatefulController, seed: int
) -> tuple[Array, dict[str, Array], Array, dict[str, Array]]:
    """What a `_recorder` returns, where the simulator cannot be traced: on packets."""
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

"""Evaluation of a congestion control in a scenario of rate control, by the paper's metrics.

Tessler et al., §4.1, §7 and appendix E. The same code measures agents (`Steered`) and the senders
of `sim.transports` (`OwnRates`), seed by seed:

| name | what it is |
|---|---|
| `utilisation` | bytes that the congested ports sent, over what they could have sent; mean |
| `fairness` | smallest over largest goodput of the flows into a port; mean over ports |
| `queue_us` | queueing delay at these ports; mean over time and ports |
| `drop_rate` | bytes dropped over what these ports could have sent |

For a long flow that short ones interrupt, from the interruption on:

| name | what it is |
|---|---|
| `recovery_us` | from the end of the last short flow until the long one has 95 % of the line \
rate again, in steps of a row; NaN if that does not happen |
| `long_bandwidth` | the long flow's share of the line rate, to the end of the episode |

Last, `flags`: structures of fixed size that were too small, see `sim.core.flags`.

Congested ports are those towards hosts that receive flows. Everything is measured from the end of
the warm-up on. The paper does not state its window of time, nor what "recovered" means.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from ecn_marl import lanes
from ecn_marl._checks import Whole, check_seed, check_value
from ecn_marl._errors import bad_value
from ecn_marl._flags import FLAGGED
from ecn_marl.envs.rate.env import MOST_IN_LANES, RateEnv, RateState, thresholds
from ecn_marl.envs.rate.scenarios import RateScenario
from ecn_marl.sim.metrics import counter_bytes
from ecn_marl.sim.network.topology import GBPS
from ecn_marl.sim.simulator import SimParams, SimState, Simulator
from ecn_marl.sim.state import PortSums

ROWS = 25
"""Rows per compiled call."""

RECOVERED = 0.95
"""Share of the line rate at which the long flow has recovered."""


@dataclass(frozen=True)
class OwnRates:
    """Senders that set their rates themselves.

    Attributes:
        sim: the simulator.
        ecn: ECN setting of all ports.
    """

    sim: Simulator
    ecn: str

    def params(self) -> SimParams:
        """Parameters."""
        return self.sim.default_params()

    def network_params(self, params: SimParams) -> SimParams:
        """Parameters of the network."""
        return params

    def start(self, key: jax.Array, params: SimParams) -> SimState:
        """A fresh state."""
        return self.sim.init(key, params)

    def network(self, state: SimState) -> SimState:
        """The network in a state."""
        return state

    def advance(
        self, state: SimState, params: SimParams, actor: PyTree
    ) -> tuple[SimState, PortSums]:
        """A step."""
        del actor
        return self.sim.collect(state, params, thresholds(self.ecn, params))


@dataclass(frozen=True)
class Steered:
    """Agents that set the rates.

    Attributes:
        env: the environment.
        act: `(actor, obs) -> action`, pure.
    """

    env: RateEnv
    act: Callable[[Any, Array], Array]

    @property
    def sim(self) -> Simulator:
        """The simulator."""
        return self.env.sim

    def params(self) -> PyTree:
        """Parameters."""
        return self.env.default_params

    def network_params(self, params: PyTree) -> SimParams:
        """Parameters of the network."""
        sim: SimParams = params.sim
        return sim

    def start(self, key: jax.Array, params: PyTree) -> RateState:
        """A fresh state."""
        return self.env.reset(key, params)[1]

    def network(self, state: RateState) -> SimState:
        """The network in a state."""
        sim: SimState = state.sim
        return sim

    def advance(
        self, state: RateState, params: PyTree, actor: PyTree
    ) -> tuple[RateState, PortSums]:
        """A step."""
        return self.env.advance(state, self.act(actor, self.env.observe(state)), params)


Subject = OwnRates | Steered
"""What controls the rates of a scenario's flows; equal ones share what is compiled."""


class Row(NamedTuple):
    """Record of a row of steps.

    Attributes:
        utilisation: bytes that the congested ports sent over what they could have sent, `[B]`.
        queue_us: mean queueing delay at these ports, `[B]`.
        long_remaining: bytes that the flow in slot 0 has yet to send: chunks, and bytes beyond.
        finished: number of flows finished by then.
    """

    utilisation: Array
    queue_us: Array
    long_remaining: tuple[Array, Array]
    finished: Array


class Ended(NamedTuple):
    """Episodes at their end.

    Attributes:
        params: parameters of the network.
        net: the networks, leaves `[seeds, ...]`.
        sent: wire bytes that the flow in each slot has sent since the warm-up ended (in long-short
            since the interruption), float64 `[seeds, F]`; of a slot whose flow has not changed.
        elapsed_us: time since then.
    """

    params: SimParams
    net: SimState
    sent: np.ndarray
    elapsed_us: float


def measure(
    subject: Subject,
    spec: RateScenario,
    *,
    actor: PyTree | None = None,
    seed: int = 0,
    seeds: int = 1,
    row_us: float | None = None,
    progress: Callable[[float], None] | None = None,
    keep: Callable[[Ended], None] | None = None,
) -> dict[str, np.ndarray]:
    """Measure a congestion control.

    Args:
        subject: the congestion control.
        spec: the scenario that it was made from.
        actor: parameters of its policy.
        seed: first seed.
        seeds: number of episodes, of the seeds from `seed` on.
        row_us: time between records; None for 20 µs in long-short, else 200. Warm-up and episode
            are rounded up to whole calls of `ROWS` records.
        progress: called with the share that is done.
        keep: called with the episodes at their end.

    Raises:
        ValueError: `seeds` below 1, a seed outside of 0 to 2^32 - 1, or an episode longer than
            endless flows last.

    Returns:
        The metrics above, `[seeds]` each; in long-short those of the long flow
        instead of `fairness`.
    """
    check_value("seeds", seeds, Whole(low=1))
    check_seed(seed, count=seeds)
    sim, long_short = subject.sim, spec.kind == "long-short"
    steps = max(round((row_us or (20.0 if long_short else 200.0)) / sim.interval_us), 1)
    begin = spec.interrupt_us if long_short else spec.warm_up_us
    block_us = steps * sim.interval_us * ROWS
    before = math.ceil(begin / block_us)
    blocks = before + math.ceil((spec.duration_us - begin) / block_us)
    run = _compiled(subject, congested_ports(spec), steps)
    # On the device once: numpy arrays would be copied to it in every call.
    params = jax.tree.map(jnp.asarray, subject.params())
    keys = jax.vmap(jax.random.key)(np.arange(seed, seed + seeds, dtype=np.uint32))
    state: PyTree = jax.vmap(subject.start, (0, None))(keys, params)
    start, rows = _snapshot(subject.network(state)), []
    for i in range(blocks):
        if i == before:
            start = _snapshot(subject.network(state))
        state, block_rows = run(state, params, actor)
        if i >= before:
            rows.append(jax.device_get(block_rows))
        if progress is not None:
            progress((i + 1) / blocks)
    record = jax.tree.map(lambda *x: np.concatenate(x, 1), *rows)
    elapsed_us = (blocks - before) * block_us
    if not long_short and record.finished.any():
        raise bad_value("duration_us", spec.duration_us, "less: an endless flow has sent its bytes")
    net = subject.network(state)
    end = _snapshot(net)
    if keep is not None:
        sent = start.remaining - end.remaining
        keep(Ended(subject.network_params(params), net, sent, elapsed_us))
    metrics = _of_ports(spec, record, start, end, elapsed_us)
    metrics[FLAGGED] = np.asarray(net.flags, np.float64)
    if long_short:
        del metrics["fairness"]
        metrics |= _of_long_flow(spec, record, start, steps * sim.interval_us)
    return metrics


def congested_ports(spec: RateScenario) -> tuple[int, ...]:
    """Ports towards hosts that receive flows; in a star a port has the number of its host."""
    return tuple(sorted({host for group in spec.groups for host in group.destinations}))


@lru_cache(maxsize=64)
def _compiled(subject: Subject, ports: tuple[int, ...], steps: int) -> Callable[..., Any]:
    """`ROWS` rows of `steps` steps each, of a batch of episodes."""
    sim, congested = subject.sim, np.array(ports)

    def row(state: PyTree, params: PyTree, actor: PyTree) -> tuple[PyTree, Row]:
        rate = jnp.asarray(subject.network_params(params).net.port_rate)[congested]

        def step(state: PyTree, _: None) -> tuple[PyTree, tuple[Array, Array]]:
            state, sums = subject.advance(state, params, actor)
            sent = sums.sent[congested] / (rate * sim.interval_us)
            return state, (sent, sums.queue[congested] / (rate * sim.interval_steps))

        state, (sent, queue) = jax.lax.scan(step, state, None, length=steps)
        net = subject.network(state)
        # Slot 0 holds the long flow, the first of its scenario.
        remaining = (net.flows.rest_high[0], net.flows.rest_low[0])
        return state, Row(sent.mean(0), queue.mean(0), remaining, net.totals.finished.sum())

    def block(state: PyTree, params: PyTree, actor: PyTree) -> tuple[PyTree, Row]:
        return jax.lax.scan(lambda s, _: row(s, params, actor), state, None, length=ROWS)

    def load(state: PyTree, params: PyTree, actor: PyTree) -> Array:
        return sim.load(subject.network(state))

    use_lanes = sim.slots <= MOST_IN_LANES
    episode_block = lanes.mapped(block, {0: 0}, load) if use_lanes else block
    return jax.jit(jax.vmap(episode_block, (0, None, None)))


class Snapshot(NamedTuple):
    """Counters of a batch of networks, float64: bytes left `[seeds, F]`, dropped `[seeds]`.

    Also, the destinations of the flows, `[seeds, F]`.
    """

    remaining: np.ndarray
    dropped: np.ndarray
    dst: np.ndarray


def _snapshot(net: SimState) -> Snapshot:
    remaining = counter_bytes((net.flows.rest_high, net.flows.rest_low))
    return Snapshot(remaining, counter_bytes(net.totals.dropped), np.asarray(net.flows.dst))


def _of_ports(
    spec: RateScenario, record: Row, start: Snapshot, end: Snapshot, elapsed_us: float
) -> dict[str, np.ndarray]:
    """Metrics of the congested ports, `[seeds]`."""
    ports = congested_ports(spec)
    sent = start.remaining - end.remaining
    flows = [np.where(end.dst == port, sent, np.nan) for port in ports]
    # At least one byte: a port that nothing arrived at has fairness 0, not NaN.
    fairness = [np.nanmin(f, 1) / np.maximum(np.nanmax(f, 1), 1.0) for f in flows]
    capacity = len(ports) * spec.gbps * GBPS * elapsed_us
    return {
        "utilisation": record.utilisation.mean((1, 2), dtype=np.float64),
        "fairness": np.mean(fairness, 0),
        "queue_us": record.queue_us.mean((1, 2), dtype=np.float64),
        "drop_rate": (end.dropped - start.dropped) / capacity,
    }


def _of_long_flow(
    spec: RateScenario, record: Row, start: Snapshot, row_us: float
) -> dict[str, np.ndarray]:
    """Metrics of the long flow, `[seeds]`; rows count from the interruption."""
    remaining = np.concatenate([start.remaining[:, :1], counter_bytes(record.long_remaining)], 1)
    share = -np.diff(remaining, axis=1) / (spec.gbps * GBPS * row_us)
    shorts_done = record.finished >= spec.size - 1
    done_before = np.concatenate([np.zeros_like(shorts_done[:, :1]), shorts_done[:, :-1]], 1)
    # The row in which the last short flow ends is shared with it, so only later ones count.
    recovered = shorts_done & done_before
    recovered &= share >= RECOVERED
    rows = recovered.argmax(1) - shorts_done.argmax(1) - 1
    recovery_us = np.where(recovered.any(1), rows, np.nan) * row_us
    return {"recovery_us": recovery_us, "long_bandwidth": share.mean(1)}

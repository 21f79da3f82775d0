"""Traces of evaluated episodes: every flow, and every interval of every port, as columns.

An environment whose simulator keeps a log of flows (`SimConfig.flow_log`) is traced; `keeping`
makes one. Its episodes are bit for bit those without a trace.

Columns have their units in their names: `_us`, `_bytes`. A flow's slowdown is its completion time
over that in an empty network. Unfinished flows have their age and, as a lower bound of the
slowdown, what that is of the ideal time, at least 1: the same numbers from which J is computed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, PyTree

from ecn_marl._errors import bad_value
from ecn_marl._tables import Coded, Column
from ecn_marl.baselines.evaluation.completion import SIZES
from ecn_marl.sim.core import lifecycle as life
from ecn_marl.sim.replay import capacity
from ecn_marl.sim.traffic.sizes import SIZE_CLASSES

TRACE = "trace"
"""Entry of an episode's metrics that holds its trace."""

ROOM = 8192
"""Flows that a log has room for at first; it grows where an episode has more."""

INTERVAL = (
    *("queue_mean", "queue_sq", "queue_max", "tx_bytes", "marked_bytes"),
    *("utilisation", "paused", "kmin", "kmax", "pmax", "reward"),
)
"""What is kept of the `info` of every interval and port."""

SLOT = ("stage", "src", "dst", "kind", "start_step", "start_rest", "payload", "ideal", "hop")
"""What is kept of the slots at the end of an episode, for the flows that have not finished."""


def are_kept(env: Any) -> bool:
    """Whether episodes of an environment are traced."""
    return bool(getattr(getattr(env, "sim", None), "flow_log", 0))


def keeping(env: Any, flows: int = 0) -> Any:
    """The environment with a trace; its log has room for `flows`, at least `ROOM`."""
    room = max(ROOM, 1 << max(flows - 1, 0).bit_length())
    return replace(env, sim=replace(env.sim, flow_log=room))


def of_interval(
    env: Any, params: PyTree, state: PyTree, info: Mapping[str, Array]
) -> dict[str, Array]:
    """What is kept of an interval and its `phase`, `[A]` each.

    Args:
        env: the environment.
        params: its parameters.
        state: the state before the interval.
        info: the `info` of the step.
    """
    kept = {name: info[name] for name in INTERVAL if name in info}
    return kept | {"phase": env.phase(state, params)}


def of_episode(env: Any, state: PyTree, ports: dict[str, Array]) -> dict[str, Any]:
    """The trace of an episode as an entry `TRACE` of its metrics; empty if none is kept."""
    if not are_kept(env):
        return {}
    return {TRACE: {"ports": ports, **of_network(env.sim, state.sim)}}


def of_network(sim: Any, state: PyTree) -> dict[str, Any]:
    """What `flow_columns` reads of a network at the end of an episode."""
    slots = {name: getattr(state.flows, name) for name in SLOT}
    return {"log": sim.finished(state), "slots": slots, "step": state.step}


def stacked(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Traces of single episodes as that of a batch; logs are filled up to the longest."""
    rows = max(part["log"].hop.shape[-1] for part in parts)

    def fill(leaf: Any) -> np.ndarray:
        x = np.asarray(leaf)
        return np.pad(x, [*[(0, 0)] * (x.ndim - 1), (0, rows - x.shape[-1])]) if x.ndim else x

    filled = [{**part, "log": jax.tree.map(fill, part["log"])} for part in parts]
    joined: dict[str, Any] = jax.tree.map(lambda *x: np.stack(x), *jax.device_get(filled))
    return joined


def longest(metrics: Mapping[str, Any]) -> int:
    """Most flows that finished in an episode of a batch if a log had no room for them, else 0."""
    log = metrics[TRACE]["log"]
    most = int(np.max(log.count))
    return most if most > log.hop.shape[-1] else 0


def flow_columns(env: Any, params: PyTree, trace: Mapping[str, Any]) -> dict[str, Column]:
    """All flows of one episode, in the order of their start.

    Args:
        env: the environment.
        params: its parameters; `params.sim.window` says which flows are measured.
        trace: entry `TRACE` of the metrics of this episode.

    Returns:
        By name, `[flows]` each: `flow`, number by start; `source`, `destination` (names of hosts);
        `class` (short, medium, long), `traffic_class`; `size_bytes` (payload), `start_us`,
        `fct_us` (NaN if unfinished), `age_us` (NaN if finished), `ideal_us`, `slowdown`, `path`
        (numbers of its ports, joined by `-`; empty where it can be on several at once), `finished`,
        `measured` (whether it counts in J).
    """
    sim, log, slots = env.sim, trace["log"], trace["slots"]
    count = int(log.count)
    at_end = np.flatnonzero(~np.isin(slots["stage"], (life.FREE, life.DONE)))
    logged = {**log.whole, **log.real}

    def both(name: str) -> np.ndarray:
        return np.concatenate([logged[name][:count], slots[name][at_end]])

    finished = np.arange(count + at_end.size) < count
    ends = np.concatenate([log.whole["end_step"][:count], np.full(at_end.size, trace["step"])])
    tail = np.concatenate([log.real["tail"][:count], np.zeros(at_end.size, np.float32)])
    start_step, rest, ideal = both("start_step"), both("start_rest"), both("ideal")
    # In float32 as the simulator has it, so that slowdowns are those behind J.
    dt = np.float32(sim.dt_us)
    taken = (ends - start_step).astype(np.float32) * dt + (tail - rest)
    slowdown = taken / np.maximum(ideal, np.float32(1e-6))
    slowdown = np.where(finished, slowdown, np.maximum(slowdown, np.float32(1.0)))
    size = both("payload")
    begins = start_step + np.floor(np.clip(rest, -1e9, 1e9) / dt).astype(np.int32)
    first, last = (int(x) for x in params.sim.window)
    hosts, src = sim.topology.hosts, both("src")
    start_us = start_step * float(sim.dt_us) + rest.astype(np.float64)
    paths = _paths(sim, np.concatenate([log.hop[:, :count], slots["hop"][:, at_end]], 1))
    columns: dict[str, Column] = {
        "source": Coded(src, hosts),
        "destination": Coded(both("dst"), hosts),
        "class": Coded(np.searchsorted(SIZE_CLASSES, size), SIZES),
        "traffic_class": both("kind"),
        "size_bytes": size.astype(np.int64),
        "start_us": start_us,
        "fct_us": np.where(finished, taken, np.nan).astype(np.float64),
        "age_us": np.where(finished, np.nan, taken).astype(np.float64),
        "ideal_us": ideal.astype(np.float64),
        "slowdown": slowdown.astype(np.float64),
        "path": paths,
        "finished": finished,
        "measured": (begins >= first) & (begins < last),
    }
    order = np.lexsort((size, src, start_us))
    rows = {
        n: Coded(x.codes[order], x.names) if isinstance(x, Coded) else x[order]
        for n, x in columns.items()
    }
    return {"flow": np.arange(order.size), **rows}


def check_flows(env: Any, params: PyTree, columns: Mapping[str, Any]) -> None:
    """Hold the flows of an episode against what links can have carried, see `sim.replay.capacity`.

    Args:
        env: the environment.
        params: its parameters.
        columns: what `flow_columns` returned.

    Raises:
        ValueError: flows of this environment can be on several paths.
        BrokenInvariant: flows are through a link before it can have carried them.
    """
    topology = env.sim.topology
    if env.sim.n_ways > 1 or env.failing:
        allowed = "an environment whose flows stay on one path each: no flowlets, spray or failures"
        raise bad_value("check", env.name, allowed)
    names = [[int(p) for p in text.split("-") if p] for text in columns["path"].names]
    longest = max((len(way) for way in names), default=0)
    none = len(topology.ports)
    ways = np.array([way + [none] * (longest - len(way)) for way in names]).reshape(-1, longest)
    forward = ways[columns["path"].codes]
    begin = columns["start_us"]
    crossings = capacity.Crossings(
        src=columns["source"].codes,
        dst=columns["destination"].codes,
        forward=forward,
        back=np.full_like(forward, none),  # the way of ACKs is not logged: a weaker bound
        payload=columns["size_bytes"].astype(np.float64),
        begin=begin,
        end=begin + columns["fct_us"],
    )
    capacity.check_capacity(topology, crossings, float(params.sim.net.packet_bytes))


def _paths(sim: Any, hop: np.ndarray) -> Coded:
    """Ports on the way of every flow as text, `[flows]`; `hop` is `[rows, flows]`."""
    if sim.n_ways > 1:
        return Coded(np.zeros(hop.shape[1], np.int32), ("",))
    bounds, classes = np.asarray(sim.queue_bounds), sim.n_classes
    present = hop < np.diff(bounds)[:, None]
    port = (bounds[:-1, None] + hop) // classes
    ways, which = np.unique(np.where(present, port, -1), axis=1, return_inverse=True)
    texts = ["-".join(str(p) for p in way if p >= 0) for way in ways.T]
    return Coded(which.reshape(-1), texts)


def port_columns(env: Any, trace: Mapping[str, Any]) -> dict[str, Column]:
    """All intervals of all ports of a batch of episodes.

    Args:
        env: the environment.
        trace: entry `TRACE` of the metrics of the batch.

    Returns:
        By name, `[episodes T A]` each: `interval`, `start_us`, `port` (name, switch->peer), `phase`
        (its name); of the queue `queue_mean_bytes`, `queue_max_bytes`, `queue_std_bytes` over the
        interval; `sent_bytes`, `marked_bytes`, `utilisation` and `paused` (shares); the thresholds
        in force `kmin_bytes`, `kmax_bytes`, `pmax`; and the `reward`.
    """
    kept = {name: np.asarray(x) for name, x in trace["ports"].items()}
    shape = kept["queue_mean"].shape
    episodes, intervals, ports = shape
    number = np.broadcast_to(np.arange(intervals, dtype=np.int32)[:, None], shape).reshape(-1)
    port = np.tile(np.arange(ports, dtype=np.int32), episodes * intervals)
    flat = {name: x.reshape(-1) for name, x in kept.items()}
    mean = flat["queue_mean"].astype(np.float64)
    variance = flat["queue_sq"] - mean**2
    return {
        "interval": number,
        "start_us": number * float(env.interval_us),
        "port": Coded(port, [port.name for port in env.sim.topology.ports]),
        "phase": Coded(flat["phase"], env.phase_names),
        "queue_mean_bytes": flat["queue_mean"],
        "queue_max_bytes": flat["queue_max"],
        # For a steady queue the difference of two float32 can come out below 0.
        "queue_std_bytes": np.sqrt(np.maximum(variance, 0.0)).astype(np.float32),
        "sent_bytes": flat["tx_bytes"],
        "marked_bytes": flat["marked_bytes"],
        "utilisation": flat["utilisation"],
        "paused": flat["paused"],
        "kmin_bytes": flat["kmin"],
        "kmax_bytes": flat["kmax"],
        "pmax": flat["pmax"],
        "reward": flat["reward"],
    }


def episode_of(trace: PyTree, number: int) -> PyTree:
    """The trace of one episode of a batch."""
    return jax.tree.map(lambda x: x[number], trace)

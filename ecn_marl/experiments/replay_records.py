"""Records of a replay: the tables `flows`, `ports` and `episodes`, columns as of `recording`.

The list is one episode of one policy, its thresholds. Its `flow` is the list's `flow_id`, an
interval is a sample of 10 µs, and all flows are measured, so J is over the whole list. Nobody gives
rewards.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ecn_marl._tables import Coded, Column, TableWriter
from ecn_marl.baselines.evaluation.completion import PARTS, SIZES, objective
from ecn_marl.experiments.json_files import json_types
from ecn_marl.experiments.recording import TABLES, facts, named
from ecn_marl.sim.replay import Replay, Settings
from ecn_marl.sim.replay.samples import SAMPLE_US
from ecn_marl.sim.traffic.sizes import SIZE_CLASSES
from ecn_marl.sim.units import GBPS

CHUNK = 1000
"""Samples in a chunk of the ports' table."""


def write_replay(
    result: Replay, settings: Settings, folder: str | Path, overwrite: bool = False, **about: object
) -> None:
    """Write the tables of a replay that kept its samples.

    Args:
        result: the replay.
        settings: its settings.
        folder: where, see `TableWriter`.
        overwrite: whether to replace records that are there.
        **about: further facts, such as the name of the list.

    Raises:
        ValueError: see `TableWriter`; or the replay kept no samples.
    """
    setting = "static:by-rate"
    if not isinstance(settings.ecn, Mapping):
        setting = f"static:{','.join(f'{x:g}' for x in settings.ecn)}"
    times = range(0, len(result.time_us), CHUNK)
    parts = [f"000-{first:05}" for first in times]
    listed = [{"policy": setting, "seed": 0, "label": setting}]
    known = facts(
        scenario=result.topology.name,
        options=json_types(vars(settings), str),
        seed=settings.seed,
        episodes=1,
        policies=listed,
        **about,
    )
    one = {name: parts if name == "ports" else parts[:1] for name in TABLES}
    flows = flow_columns(result, settings.duration_ms * 1e3)
    with TableWriter(folder, known, one, overwrite) as writer:

        def write(table: str, part: str, columns: Mapping[str, Column]) -> None:
            rows = len(next(x for x in columns.values() if isinstance(x, np.ndarray)))
            episode = np.zeros(rows, np.int64)
            writer.write(table, part, named((setting, 0), episode) | dict(columns))

        for first, part in zip(times, parts, strict=True):
            write("ports", part, port_columns(result, first))
        write("flows", parts[0], flows)
        write("episodes", parts[0], episode_columns(result, flows))


def flow_columns(result: Replay, duration_us: float) -> dict[str, Any]:
    """The flows that start in the time simulated, in the order of their start."""
    start_us = result.flows.start_ns / 1e3
    order = np.argsort(start_us, kind="stable")
    order = order[start_us[order] < duration_us]
    flows, hosts, none = result.flows, result.topology.hosts, result.topology.n_ports
    size, ideal, begin = flows.size[order], result.ideal_us[order], start_us[order]
    fct = result.fct_ns[order] / 1e3
    finished = np.isfinite(fct)
    age = np.where(finished, np.nan, duration_us - begin)
    ways, which = np.unique(result.path[order], axis=0, return_inverse=True)
    texts = ["-".join(str(port) for port in way if port < none) for way in ways]
    return {
        "flow": flows.flow_id[order].astype(np.int64),
        "source": Coded(flows.src[order], hosts),
        "destination": Coded(flows.dst[order], hosts),
        "class": Coded(np.searchsorted(SIZE_CLASSES, size), SIZES),
        "traffic_class": np.zeros(order.size, np.int32),
        "size_bytes": size.astype(np.int64),
        "start_us": begin,
        "fct_us": fct,
        "age_us": age,
        "ideal_us": ideal,
        "slowdown": np.where(finished, result.slowdown[order], np.maximum(age / ideal, 1.0)),
        "path": Coded(which.reshape(-1), texts),
        "finished": finished,
        "measured": np.ones(order.size, bool),
    }


def port_columns(result: Replay, first: int) -> dict[str, Any]:
    """The samples of a chunk, from number `first` on, of all ports."""
    if result.samples is None:
        raise ValueError("samples = None is not allowed: expected a replay with keep=True")
    ports = result.topology.ports
    rows = {name: x[first : first + CHUNK] for name, x in result.samples._asdict().items()}
    count = len(rows["queue"])
    number = np.repeat(np.arange(first, first + count, dtype=np.int32), len(ports))
    flat = {name: x.reshape(-1) for name, x in rows.items()}
    mean = flat["queue_mean"].astype(np.float64)
    capacity = np.array([port.gbps for port in ports]) * GBPS * SAMPLE_US
    in_force = (result.ecn.kmin, result.ecn.kmax, result.ecn.pmax)
    kmin, kmax, pmax = (np.tile(np.asarray(x, np.float32), count) for x in in_force)
    port = np.tile(np.arange(len(ports), dtype=np.int32), count)
    return {
        "interval": number,
        "start_us": number * float(SAMPLE_US),
        "port": Coded(port, result.topology.port_names),
        "phase": Coded(np.zeros(number.size, np.int32), ("all",)),
        "queue_mean_bytes": flat["queue_mean"],
        "queue_max_bytes": flat["queue_max"],
        "queue_std_bytes": np.sqrt(np.maximum(flat["queue_sq"] - mean**2, 0.0)).astype(np.float32),
        "sent_bytes": flat["tx_bytes"],
        "marked_bytes": flat["marked_bytes"],
        "utilisation": (flat["tx_bytes"] / np.tile(capacity, count)).astype(np.float32),
        "paused": flat["paused"],
        "kmin_bytes": kmin,
        "kmax_bytes": kmax,
        "pmax": pmax,
        "reward": np.full(number.size, np.nan, np.float32),
    }


def episode_columns(result: Replay, flows: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Numbers of the whole list, `[1]` each; p99 is that of the flows, not of a histogram."""
    assert result.samples is not None
    codes, finished = flows["class"].codes, flows["finished"]
    slowdowns = {size: flows["slowdown"][codes == i] for i, size in enumerate(SIZES)}
    ended = {size: float(finished[codes == i].sum()) for i, size in enumerate(SIZES)}
    parts: dict[str, float] = {}
    for size, own in slowdowns.items():
        some = own.size > 0
        parts |= {
            f"{size}_mean": own.mean() if some else np.nan,
            f"{size}_p99": np.quantile(own, 0.99, method="inverted_cdf") if some else np.nan,
            f"{size}_geomean": np.exp(np.log(own).mean()) if some else np.nan,
        }
    of_j = (np.array(parts[name]) for name in PARTS)
    samples, counts = result.samples, result.counts
    capacity = np.array([port.gbps for port in result.topology.ports]) * GBPS * SAMPLE_US
    mean = samples.queue_mean.mean(dtype=np.float64)
    variance = samples.queue_sq.mean(dtype=np.float64) - mean**2
    numbers = {
        "J": float(objective(*of_j)),
        **parts,
        "return": np.nan,
        "queue_mean_bytes": mean,
        "queue_std_bytes": np.sqrt(max(variance, 0.0)),
        "utilisation": (samples.tx_bytes / capacity).mean(dtype=np.float64),
        "paused": samples.paused.mean(dtype=np.float64),
        "pauses": counts["pauses"],
        "offered_bytes": result.bytes["offered"],
        "dropped_bytes": result.bytes["dropped"],
    }
    for size, own in slowdowns.items():
        numbers |= {f"{size}_measured": own.size, f"{size}_unfinished": own.size - ended[size]}
        numbers[f"{size}_finished"] = ended[size]
    started, done = counts["started"], float(finished.sum())
    numbers |= {
        "flows_offered": counts["offered"],
        "flows_started": started,
        "flows_finished": done,
        "flows_unfinished": started - done,
        "flows_deferred": counts["deferred"],
        "flows_waiting": counts["offered"] - started,
    }
    return {name: np.asarray([x], np.float64) for name, x in numbers.items()}

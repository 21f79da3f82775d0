"""What a replay gives: completion times, samples of queues, a summary, and files of them."""

from __future__ import annotations

import csv
import io
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ecn_marl._files import without_nan
from ecn_marl.sim.core import flags
from ecn_marl.sim.core.queues import Ecn
from ecn_marl.sim.metrics import slowdown_summary
from ecn_marl.sim.network.topology import Topology
from ecn_marl.sim.replay.samples import Rows
from ecn_marl.sim.traffic.trace import FlowList

CLASS_LABELS = {
    "all": "all",
    "mice": "(0,100KB]",
    "medium": "(100KB,1MB]",
    "elephants": ">1MB",
}
"""How size classes are written in the summary."""


@dataclass(frozen=True)
class Replay:
    """Result of a replay. `N` flows in the order of the list, `T` samples, `P` ports.

    Attributes:
        topology: the network.
        flows: the list.
        fct_ns: completion times up to the last ACK, NaN if unfinished, ns, float64 `[N]`.
        slowdown: completion time over that of the flow alone on its path, NaN if unfinished, `[N]`.
        ideal_us: that time of the flow alone, NaN if it starts after the time simulated, `[N]`.
        path: ports on each flow's way, one for each level; P where there is none, and for flows
            that start after the time simulated; int32 `[N, L]`.
        time_us: ends of the samples, µs, `[T]`.
        queue_bytes: queue of every port at the end of each sample, float32 `[T, P]`.
        tx_bytes: bytes each port sent during each sample, ACKs included, float32 `[T, P]`.
        ports: per port class, statistics of queues, utilisation, marks and pauses.
        counts: flows offered, started, deferred and for how long; late feedback, pauses, drops;
            `flags`, see `sim.core.flags`.
        bytes: balance of wire bytes.
        ecn: thresholds of every port, bytes, `[P]` each.
        samples: statistics of every sample, `[T, P]` each; None unless they were asked for.
        regimes: names of regimes in which the fluid is off, see `sim.regimes`; none on packets.
    """

    topology: Topology
    flows: FlowList
    fct_ns: np.ndarray
    slowdown: np.ndarray
    ideal_us: np.ndarray
    path: np.ndarray
    time_us: np.ndarray
    queue_bytes: np.ndarray
    tx_bytes: np.ndarray
    ports: dict[str, dict[str, Any]]
    counts: dict[str, float]
    bytes: dict[str, float]
    ecn: Ecn
    samples: Rows | None = None
    regimes: tuple[str, ...] = ()

    def summary(self) -> dict[str, Any]:
        """All results but the series, ready for JSON (`None` where there is no number).

        Returns:
            `flows`: `total` in the list, `offered` (starting within the time simulated), `started`
            (with a slot), `finished`, `unfinished` (started, not finished), `waiting` (without a
            slot at the end), `deferred` (those that waited for one, or still do), `deferred_us`
            and `deferred_mean_us` (for how long, together and each), `dropped` (bytes),
            `late_feedback` (ticks of flows whose feedback was cut); `slowdown` per size class
            (flows, mean, p50, p95, p99); `ports` per port class (see `_port_class`); `marks`
            (expected number of marked packets), `pauses`, `drops` (in packets); names of the
            `flags` that are raised, see `sim.core.flags`; names of `regimes` in which the fluid is
            off, see `sim.regimes`; `bytes` (`offered = delivered + queued + waiting + dropped +
            error`, wire bytes; dropped bytes are offered again).
        """
        counts = self.counts
        started, finished = int(counts["started"]), int(np.isfinite(self.fct_ns).sum())
        offered = int(counts["offered"])
        by_class = slowdown_summary(self.slowdown, self.flows.size.astype(np.float64))
        tree = {
            "flows": {
                "total": len(self.flows),
                "offered": offered,
                "started": started,
                "finished": finished,
                "unfinished": started - finished,
                "waiting": offered - started,
                "deferred": int(counts["deferred"]),
                "deferred_us": counts["deferred_us"],
                "dropped": self.bytes["dropped"],
                "late_feedback": int(counts["late_feedback"]),
                "deferred_mean_us": counts["deferred_us"] / max(counts["deferred"], 1.0),
            },
            "slowdown": {
                label: by_class[name] | {"flows": int(by_class[name]["flows"])}
                for name, label in CLASS_LABELS.items()
            },
            "ports": self.ports,
            "marks": sum(row["marks"] for row in self.ports.values()),
            "pauses": int(counts["pauses"]),
            "drops": counts["drops"],
            "flags": list(flags.names(int(counts["flags"]))),
            "regimes": list(self.regimes),
            "bytes": self.bytes,
        }
        summary: dict[str, Any] = without_nan(tree)
        return summary


def write_fct(result: Replay, file: io.TextIOBase) -> None:
    """Write `flow_id,size_B,start_ns,fct_ns,slowdown`, one line per flow in the list's order.

    Times are rounded to the nanosecond; unfinished flows have empty `fct_ns` and `slowdown`.
    """
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["flow_id", "size_B", "start_ns", "fct_ns", "slowdown"])
    flows = result.flows
    columns = (flows.flow_id, flows.size, flows.start_ns, result.fct_ns, result.slowdown)
    for number, size, start, fct, slowdown in zip(*columns, strict=True):
        done = math.isfinite(fct)
        end = (f"{fct:.0f}", f"{slowdown:.5f}") if done else ("", "")
        writer.writerow([int(number), int(size), np.format_float_positional(start, trim="-"), *end])


def write_queues(result: Replay, file: io.BufferedIOBase) -> None:
    """Write a compressed npz: `time_us [T]`, `queue_bytes` and `tx_bytes` `[T, P]`, `port [P]`."""
    np.savez_compressed(
        file,
        time_us=result.time_us,
        queue_bytes=result.queue_bytes,
        tx_bytes=result.tx_bytes,
        port=np.array(result.topology.port_names),
    )

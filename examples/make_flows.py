"""Write flow lists for `ecn-marl replay` and `train --flows`: those in `flows`, or your own.

Flows between hosts of 25 Gb/s: Poisson arrivals with the sizes of web search, and an incast.

    python make_flows.py flows
    ecn-marl replay flows/websearch_star8.csv --topology star:8 --ecn secn1
    ecn-marl replay flows/incast_star17.csv --topology star:17 --ecn secn2
    ecn-marl train ippo --scenario websearch-star-v0 --flows flows/websearch_star8.csv
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from ecn_marl.sim.traffic.sizes import size_table

HEAD = "flow_id,src,dst,size_B,start_ns"
BYTES_PER_US = 3125.0  # 25 Gb/s


def websearch(hosts: int = 8, load: float = 0.6, length_us: float = 40_000.0, seed: int = 1):
    """Poisson arrivals between random hosts; sizes of the table WebSearch."""
    rng, table = np.random.default_rng(seed), size_table("WebSearch")
    rate = hosts * load * BYTES_PER_US / float(table.mean)  # flows per us
    # Twice the expected number of flows, so that the last one is beyond the end.
    start = np.cumsum(rng.exponential(1 / rate, int(2 * rate * length_us)))
    start = start[start < length_us]
    size = np.interp(rng.uniform(size=start.size), np.asarray(table.cdf), np.asarray(table.size))
    src = rng.integers(hosts, size=start.size)
    dst = (src + rng.integers(1, hosts, size=start.size)) % hosts  # never the source itself
    return src, dst, np.maximum(np.round(size), 1), start  # a flow has at least a byte


def incast(senders: int = 16, kb: float = 64.0, every_us: float = 1000.0, rounds: int = 10):
    """All others send to host 0 at once, again and again."""
    src = np.tile(np.arange(1, senders + 1), rounds)
    start = np.repeat(np.arange(rounds) * every_us, senders)
    return src, np.zeros_like(src), np.full(src.size, 1000 * kb), start


def write(path: Path, flows) -> None:
    """Write a list, in the order of the starts."""
    numbered = enumerate(zip(*flows, strict=True))
    rows = (f"{i},{src},{dst},{size:.0f},{1000 * us:.0f}" for i, (src, dst, size, us) in numbered)
    path.write_text("\n".join([HEAD, *rows]) + "\n")


if __name__ == "__main__":
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "flows")
    folder.mkdir(parents=True, exist_ok=True)
    write(folder / "websearch_star8.csv", websearch())
    write(folder / "incast_star17.csv", incast())

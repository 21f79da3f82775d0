"""The same flow lists in the fluid and packet by packet: errors by regime, `make differential`.

Long flows from N hosts meet at one port of a star; from 4 ms on, a message of 1 to 50 KB joins them
every 50 µs.
Compared are mean completion times of messages and of long flows, over seeds of sizes and marks. The
table goes into docs/validation.md, between the lines that name this file.

    python tests/packets/campaign.py [--seeds 12] [--dt-us 2] [--quick]
"""

from __future__ import annotations

import argparse
import itertools
import time
from pathlib import Path

import numpy as np

from ecn_marl.packets import replay as on_packets
from ecn_marl.sim import star
from ecn_marl.sim.replay import FlowList, Settings
from ecn_marl.sim.replay import replay as in_fluid

PAGE = Path(__file__).parents[2] / "docs" / "validation.md"
BEGIN, END = "<!-- tests/packets/campaign.py -->", "<!-- end of campaign.py -->"

SENDERS = ("dcqcn:hpcc-paper", "dcqcn:hpcc-run", "dctcp:hpcc")
THRESHOLDS = ((2.5, 5.0, 1.0), (5.0, 200.0, 0.01), (100.0, 400.0, 0.2))
DELAYS_US = (1.0, 10.0)
LONG_FLOWS = (2, 8, 32)
MESSAGES, HOSTS, LONG_BYTES = 64, 33, 32_000_000
"""Long flows have so many bytes together: they last for 10 ms."""


def flows(n: int, random: np.random.Generator) -> FlowList:
    """`n` long flows from the first hosts, and messages from any once they have settled."""
    # As many flows at the same times in every case, so that one compiled program runs all.
    size = np.ones(HOSTS - 1)
    size[:n] = LONG_BYTES // n
    size = np.append(size, np.floor(random.uniform(1_000, 50_000, MESSAGES)))
    start = np.append(np.zeros(HOSTS - 1), 4e6 + 5e4 * np.arange(MESSAGES))
    src = np.append(np.arange(1, HOSTS), 1 + random.integers(0, HOSTS - 1, MESSAGES))
    count = len(size)
    unset = np.full(count, -1)
    return FlowList(
        flow_id=np.arange(count),
        src=src.astype(int),
        dst=np.zeros(count, int),
        size=size.astype(np.int64),
        start_ns=start,
        spine_data=unset,
        spine_ack=unset,
    )


def case(
    sender: str, ecn: tuple[float, float, float], delay_us: float, n: int, seed: int, dt_us: float
) -> np.ndarray:
    """Mean completion times: messages and long flows (rows), in the fluid and on packets."""
    listed = flows(n, np.random.default_rng(seed))
    network = star(HOSTS, delay_us=delay_us)
    settings = Settings(
        transport=sender, ecn=ecn, duration_ms=40.0, seed=seed, dt_us=dt_us, slots=128
    )
    ends = [run(listed, network, settings).fct_ns / 1e3 for run in (in_fluid, on_packets)]
    groups = slice(HOSTS - 1, None), slice(0, n)
    return np.array([[np.nanmean(fct[group]) for fct in ends] for group in groups])


def table(rows: list[tuple[dict[str, str], np.ndarray]]) -> str:
    """Errors of the fluid by regime, as Markdown: median and largest of the cases, %."""
    lines = [
        "| regime | | cases | messages: median, worst | long flows: median, worst |",
        "|---|---|---|---|---|",
    ]
    for name in rows[0][0]:
        for value in dict.fromkeys(labels[name] for labels, _ in rows):
            errors = np.array([error for labels, error in rows if labels[name] == value])
            cells = []
            for column in errors.T:
                worst = column[np.argmax(np.abs(column))]
                cells.append(f"{np.median(column):+.1f} %, {worst:+.1f} %")
            lines.append(f"| {name} | {value} | {len(errors)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Run all cases, print the table, and write it into the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=12)
    parser.add_argument("--dt-us", type=float, default=2.0)
    parser.add_argument(
        "--quick", action="store_true", help="a seed and a sender; nothing is written"
    )
    options = parser.parse_args()
    seeds, senders = (1, SENDERS[:1]) if options.quick else (options.seeds, SENDERS)
    rows, begin = [], time.perf_counter()
    for sender, ecn, delay, n in itertools.product(senders, THRESHOLDS, DELAYS_US, LONG_FLOWS):
        means = np.mean(
            [case(sender, ecn, delay, n, seed, options.dt_us) for seed in range(seeds)], axis=0
        )
        labels = {
            "thresholds": "({:g}, {:g}, {:g})".format(*ecn),
            "round trip": f"{4 * delay:g} µs",
            "long flows": str(n),
            "sender": f"`{sender}`",
        }
        rows.append((labels, 100.0 * (means[:, 0] / means[:, 1] - 1.0)))
        print(*labels.values(), rows[-1][1].round(1), flush=True)
    minutes = (time.perf_counter() - begin) / 60
    text = (
        f"{len(rows)} cases, {seeds} seeds each, fluid at {options.dt_us:g} µs; "
        f"{minutes:.0f} min.\n\n"
        f"{table(rows)}"
    )
    print(text)
    page = PAGE.read_text(encoding="utf-8")
    if not options.quick and BEGIN in page:
        head, rest = page.split(BEGIN)
        tail = rest.split(END)[1]
        PAGE.write_text(f"{head}{BEGIN}\n\n{text}\n\n{END}{tail}", encoding="utf-8")


if __name__ == "__main__":
    main()

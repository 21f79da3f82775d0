"""J of many static settings in the fluid and on packets, `make settings`: error and order.

Both run the same episodes. The table, one line for each scenario, goes into docs/validation.md,
between the lines that name this file; settings whose J differs by more than its interval and 3 %
are listed below it.

    python tests/packets/settings.py [--episodes 8] [SCENARIO ...]

With `--dt-us` the fluid runs at these substeps beside the same packet runs, ticks as long as in
the scenario, and the table is printed with a line for each.

    python tests/packets/settings.py restore-serve-v0 --dt-us 0.5 1 2 2.5 5
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

import ecn_marl
from ecn_marl._errors import bad_value
from ecn_marl.envs.registry import benchmark
from ecn_marl.experiments.backends import agreement

PAGE = Path(__file__).parents[2] / "docs" / "validation.md"
BEGIN, END = "<!-- tests/packets/settings.py -->", "<!-- end of settings.py -->"

GRID = product((2.5, 10.0, 40.0, 160.0), (2.0, 8.0), (0.01, 0.05, 0.2, 1.0))
OTHERS = ("5,200,0.01", "100,400,0.2", "2.5,320,0.05", "5,320,0.02")
SETTINGS = (*(f"{k:g},{k * r:g},{p:g}" for k, r, p in GRID), *OTHERS)
"""Kmin and Kmax in KB for a port of 25 Gb/s, and Pmax."""

FAR = 0.03
"""Difference of J that is to be reached."""


def compared(
    scenario: str, episodes: int, clocks: list[dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    """`backends.agreement` of all settings with each of the clocks, options of the scenario."""
    names = [f"static:{setting}" for setting in SETTINGS]
    common: dict[str, Any] = {"episodes": episodes, "records": False}
    packets = ecn_marl.evaluate(names, scenario, backend="packets", **common)
    for clock in clocks:
        fluid = ecn_marl.evaluate(names, scenario, **common, **clock)
        yield agreement(fluid.records, packets.records)


def at_clock(scenario: str, dt_us: float) -> dict[str, Any]:
    """Options for a substep, with the scenario's tick.

    Raises:
        ValueError: the tick is no multiple of the substep.
    """
    tick_us = ecn_marl.make(scenario).sim.tick_us
    steps = round(tick_us / dt_us)
    if abs(steps * dt_us - tick_us) > 1e-6 * tick_us:
        raise bad_value("--dt-us", dt_us, f"a part of the tick of {scenario}, {tick_us:g} µs")
    return {"dt_us": dt_us, "tick_steps": steps}


def line(scenario: str, result: dict[str, Any]) -> str:
    """The line of a scenario, or of one of its clocks."""
    ratios = np.array([row["ratios"]["J"] for row in result["policies"]], float)
    worst = next(row for row in result["policies"] if row["name"] == result["worst"])
    error, low, high = (100.0 * (x - 1.0) for x in worst["ratios"]["J"])
    within = int((np.abs(ratios[:, 0] - 1.0) < FAR).sum())
    mean = 100.0 * (np.exp(np.log(ratios[:, 0]).mean()) - 1.0)
    setting = worst["name"].removeprefix("static:")
    cells = (
        scenario,
        f"{within} of {len(ratios)}",
        f"{mean:+.1f} %",
        f"{error:+.1f} % [{low:+.1f}, {high:+.1f}], ({setting})",
        f"{result['tau']:.2f}",
        f"{result['r']:.3f}",
    )
    return "| " + " | ".join(cells) + " |"


def off(scenario: str, result: dict[str, Any]) -> list[str]:
    """Settings that are further off than 3 %, for certain."""
    found = []
    for row in result["policies"]:
        ratio, low, high = row["ratios"]["J"]
        if abs(ratio - 1.0) > FAR and (low > 1.0) == (high > 1.0):
            setting = row["name"].removeprefix("static:")
            found.append(f"({setting}) {100.0 * (ratio - 1.0):+.1f} %")
    return [f"`{scenario}`: {', '.join(found)}."] if found else []


def main() -> None:
    """Run all scenarios, print the table, and write it into the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scenarios", nargs="*", default=list(benchmark()))
    parser.add_argument("--episodes", type=int, default=8)
    parser.add_argument("--dt-us", type=float, nargs="+", default=[], help="substeps")
    parser.add_argument("--dry", action="store_true", help="print only")
    asked = parser.parse_args()
    lines, far, begin = [], [], time.perf_counter()
    for scenario in asked.scenarios:
        clocks = [at_clock(scenario, dt_us) for dt_us in asked.dt_us] or [{}]
        for clock, result in zip(clocks, compared(scenario, asked.episodes, clocks), strict=True):
            at = f", {clock['dt_us']:g} µs" if clock else ""
            lines.append(line(f"`{scenario}`{at}", result))
            far += [] if clock else off(scenario, result)
            print(lines[-1], *far[-1:], sep="\n", flush=True)
    minutes = (time.perf_counter() - begin) / 60
    head = "| scenario | J within 3 % | mean | worst | τ | r of log J |\n|---|---|---|---|---|---|"
    text = "\n\n".join(
        (
            f"{len(SETTINGS)} settings, {asked.episodes} episodes each, fluid at the scenario's "
            f"clock unless noted; {minutes:.0f} min.",
            "\n".join((head, *lines)),
            *(["Further off than 3 %, by more than their intervals:", *far] if far else []),
        )
    )
    print(text)
    page = PAGE.read_text(encoding="utf-8")
    if not (asked.dry or asked.dt_us) and BEGIN in page:
        before, rest = page.split(BEGIN)
        after = rest.split(END)[1]
        PAGE.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()

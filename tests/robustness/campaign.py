"""The campaign: cases that try to break the package, and what became of them.

    python tests/robustness/campaign.py --quick                  # what the suite runs
    python tests/robustness/campaign.py --minutes 30 --out counts.json

Families of cases come in turn; each has its share of the time. What is written says how many cases
were tried and what became of them. The exit code is 1 if one was answered by an error that is not
one line, by no end, or by silent nonsense.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent / "baselines" / "training")]
from quick_compiling import compile_quickly  # noqa: E402 - after the path

compile_quickly()  # as the whole suite

import families  # noqa: E402 - after the path and XLA's flags
import faults  # noqa: E402 - after the path and XLA's flags
import jax  # noqa: E402 - after XLA's flags
from outcomes import FAULTS, Tally  # noqa: E402 - after the path and XLA's flags

QUICK = 20
"""Cases of each family in the suite."""

ROUND = 200
"""Cases of a family before it is another one's turn."""


def whole(asked: argparse.Namespace, say: Callable[[str], None]) -> dict[str, Any]:
    """Everything, in about as many minutes as were asked for; written after every part."""
    began = time.monotonic()
    tallies: dict[str, Tally] = {}
    memory: Any = None
    if asked.memory is not None:
        memory = json.loads(asked.memory.read_text().splitlines()[-1])

    def take(work: Callable[[], Tally]) -> None:
        tally, seconds = faults.timed(work)
        say(f"{tally.name}: {dict(tally.counts)} in {seconds:.0f} s")
        old = tallies.setdefault(tally.name, Tally(tally.name))
        old.counts += tally.counts
        old.faults += tally.faults
        write(asked.out, so_far())

    def so_far() -> dict[str, Any]:
        found = result(list(tallies.values()), time.monotonic() - began)
        return found | {"memory": memory}

    for family in families.FAMILIES:
        take(partial(family, ROUND, 0))
    take(partial(faults.processes, 3))
    take(partial(faults.long_run, asked.steps))
    take(partial(faults.kills, asked.kills))
    take(partial(faults.bench_kills, asked.bench_kills))
    take(partial(faults.sizes, asked.sizes))
    if asked.scenarios:
        memory = one_process(asked.scenarios)
    number = 1
    while time.monotonic() - began < 60.0 * asked.minutes:
        for family in families.FAMILIES:
            take(partial(family, ROUND, number))
        number += 1
    return so_far()


def write(path: Path | None, found: dict[str, Any]) -> None:
    """Write the results, if a file was asked for."""
    if path is not None:
        path.write_text(json.dumps(found, indent=1) + "\n")


def one_process(scenarios: int) -> Any:
    """What `memory.py` says; it needs a process of its own."""
    command = [sys.executable, str(HERE / "memory.py"), str(scenarios)]
    done = subprocess.run(command, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def result(tallies: list[Tally], seconds: float) -> dict[str, Any]:
    """What is written."""
    from importlib.metadata import version

    return {
        "minutes": round(seconds / 60.0, 1),
        "machine": f"{platform.machine()}, {len(os.sched_getaffinity(0))} core(s)",
        "versions": {name: version(name) for name in ("ecn-marl", "jax", "hypothesis")},
        "families": {tally.name: tally.as_json() for tally in tallies},
    }


def main() -> int:
    """Run it as the command line says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a few cases of each family")
    parser.add_argument("--minutes", type=float, default=25.0)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--bench-kills", type=int, default=4)
    parser.add_argument("--sizes", type=int, help="the first so many sizes; all by default")
    parser.add_argument("--scenarios", type=int, default=200, help="of memory.py; 0 for none")
    parser.add_argument("--memory", type=Path, help="what memory.py has printed, if it has run")
    parser.add_argument("--steps", type=int, default=200_000)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    if asked.quick:
        jax.config.update("jax_disable_most_optimizations", True)  # as most of the suite
        found = result([family(QUICK) for family in families.FAMILIES], 0.0)
    else:
        found = whole(asked, say)
    print(json.dumps(found, indent=1))
    write(asked.out, found)
    return int(any(each[name] for each in found["families"].values() for name in FAULTS))


if __name__ == "__main__":
    sys.exit(main())

"""Memory of a process that makes one scenario after the other: `python memory.py 200`.

Every scenario is a program of its own, with another number of flow slots, and gone before the next
one is made. Prints a line of JSON: MB at the start, after the first, after the
last, at most, and the programs that were compiled.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import jax

import ecn_marl
from ecn_marl.envs.parallel import PROGRAMS, EcnParallelEnv
from ecn_marl.sim import Incast, star

LIMIT_MB = 1000.0
"""What a process with 200 scenarios may take."""


def memory_mb() -> float:
    """Resident memory of this process, MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def use(number: int) -> EcnParallelEnv:
    """A scenario that was never used before: a reset and two steps."""
    env = ecn_marl.parallel_env(
        "incast-v0",
        topology=star(3),
        traffic=(Incast(n_max=2, flow_kb=50.0, width=2),),
        slots=4 + number,
        max_steps=6,
    )
    env.reset(seed=number)
    for _ in range(2):
        env.step({agent: env.action_space(agent).sample() for agent in env.agents})
    return env


def measure(scenarios: int) -> dict[str, float]:
    """Memory over so many scenarios in this process."""
    began, start = time.monotonic(), memory_mb()
    rows = []
    for number in range(scenarios):
        use(number)
        rows.append(memory_mb())
        if number % 10 == 0:
            print(f"{number + 1} scenarios: {rows[-1]:.0f} MB", file=sys.stderr, flush=True)
    return {
        "scenarios": scenarios,
        "start_mb": round(start),
        "first_mb": round(rows[0]),
        "last_mb": round(rows[-1]),
        "most_mb": round(max(rows)),
        "programs_kept": len(PROGRAMS),
        "seconds": round(time.monotonic() - began),
    }


if __name__ == "__main__":
    jax.config.update("jax_enable_compilation_cache", False)
    result = measure(int(sys.argv[1]) if len(sys.argv) > 1 else 200)
    print(json.dumps(result))
    sys.exit(result["scenarios"] >= 200 and result["most_mb"] > LIMIT_MB)

"""Times of `parallel_env()` in a new process; `cold` runs this as a script that prints JSON.

Nothing heavy is imported before the clock runs.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

STEPS, FRAMES = 200, 20
"""Steps and frames of a timed run after the first."""


def main(scenario: str, runs: int) -> dict[str, Any]:
    """Import, reset, step; then time steps and frames.

    Args:
        scenario: its name.
        runs: timed runs of `STEPS` steps, and of `FRAMES` steps with a frame each.

    Returns:
        Times of day after the import, reset and step, s; CPU time until then, s; steps and
        frames per second of wall and of CPU time, of each run.
    """
    import ecn_marl  # timed, so not at the top

    imported = time.time()
    env = ecn_marl.parallel_env(scenario, render_mode="rgb_array")
    env.reset(seed=0)
    reset = time.time()
    env.step({agent: env.action_space(agent).sample() for agent in env.agents})
    stepped, cpu = time.time(), time.process_time()
    # Sampling is part of the policy, not of the environment, so it is not timed.
    spaces = {agent: env.action_space(agent) for agent in env.possible_agents}
    actions = [{agent: s.sample() for agent, s in spaces.items()} for _ in range(STEPS)]

    def play(i: int) -> None:
        if not env.agents:
            env.reset()
        env.step(actions[i])

    times = {"imported": imported, "reset": reset, "stepped": stepped, "cpu_s": cpu}
    env.render()  # the first frame also loads the drawing, which is not timed
    steps = [_rate(play, STEPS) for _ in range(runs)]
    frames = [_rate(lambda _: env.render(), FRAMES, play) for _ in range(runs)]
    return times | {"steps": steps, "frames": frames}


def _rate(
    task: Callable[[int], object], count: int, before: Callable[[int], object] | None = None
) -> tuple[float, float]:
    """Rate of a task per second of wall and of CPU time; `before` is not timed."""
    wall = cpu = 0.0
    for i in range(count):
        if before is not None:
            before(i)
        began, used = time.perf_counter(), time.process_time()
        task(i)
        wall += time.perf_counter() - began
        cpu += time.process_time() - used
    return count / wall, count / max(cpu, 1e-9)  # a coarse CPU clock may not have moved


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], int(sys.argv[2]))))

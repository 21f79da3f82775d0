"""A scenario with short and long flows that takes little time, and small settings for it."""

from __future__ import annotations

from pathlib import Path

import ecn_marl
from ecn_marl._imports import import_extension
from ecn_marl.baselines.search import Effort
from ecn_marl.envs.actions import EcnSetting
from ecn_marl.envs.scenario import Scenario
from ecn_marl.sim import Incast, star

SMALL = "small-v0"

GRID = tuple(EcnSetting(k, 4 * k, p) for k in (5.0, 80.0) for p in (0.05, 1.0))

EFFORT = Effort(episodes=3, grid=GRID, thin=GRID[:1])

SETTINGS = {"envs": 2, "rollout": 4, "minibatches": 2, "epochs": 1, "batch": 4, "hidden": (4,)}


def small() -> Scenario:
    """Three hosts; bursts of 20 KB and flows of 2 MB to the first; 20 intervals of 50 µs.

    Learners decide every 250 µs: four times.
    """
    return Scenario(
        topology=star(3),
        traffic=(
            # A tick is 10 µs: with a burst in each at most, and so many slots, no flow waits.
            Incast(load=0.3, n_max=2, flow_kb=20.0, width=2, min_gap_us=10.0),
            Incast(load=0.5, n_min=1, n_max=1, flow_kb=2000.0, width=2, min_gap_us=10.0),
        ),
        slots=48,
        max_steps=20,
        interval_us=50.0,
        tick_steps=5,
        pfc=False,
        bins=80,
    )


def register() -> None:
    """Register it once."""
    if SMALL not in ecn_marl.scenarios():
        ecn_marl.register(SMALL, small)


def import_in_workers(folder: Path) -> None:
    """Register it by an import from a file in `folder`, which worker processes repeat."""
    file = folder / "own_scenarios.py"
    file.write_text("import small\n\nsmall.register()\n")
    import_extension(str(file))


def quiet(task: str):
    return lambda done, note="": None

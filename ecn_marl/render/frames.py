"""Results of `render()`: a frame of the network, or a table; `window` shows the frames."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from ecn_marl.envs.ecn import EcnEnv
from ecn_marl.sim.core.queues import Ecn
from ecn_marl.sim.network.topology import KB

if TYPE_CHECKING:
    from ecn_marl.render.picture import Painter


def table(core: EcnEnv, queue: np.ndarray, ecn: Ecn) -> str:
    """A text table, one line per port: queue, Kmin, Kmax (KB) and Pmax."""
    agent = [core.agents[i] for i in core.grouping.of_port]
    lines = [f"{'agent':>9}  {'port':<18} {'queue':>9} {'kmin':>9} {'kmax':>9} {'pmax':>6}"]
    for i, name in enumerate(core.sim.topology.port_names):
        low, high = float(ecn.kmin[i]) / KB, float(ecn.kmax[i]) / KB
        lines.append(
            f"{agent[i]:>9}  {name:<18} {queue[i] / KB:9.1f} {low:9.1f} {high:9.1f} "
            f"{float(ecn.pmax[i]):6.2f}"
        )
    return "\n".join(lines)


@lru_cache(maxsize=4)
def _painter(core: EcnEnv) -> Painter:
    """The page of an environment; cached, since making it takes as long as many frames."""
    # Imported here: matplotlib is loaded only where something is drawn.
    from ecn_marl.render.picture import Painter

    return Painter(core)


def draw(
    core: EcnEnv, queue: np.ndarray, ecn: Ecn, past: Sequence[Mapping[str, object]], steps: int
) -> np.ndarray:
    """A frame: the network, queues of the ports with thresholds and marks, and their past.

    Args:
        core: the environment.
        queue: backlog now, bytes, `[A]`.
        ecn: thresholds in force.
        past: infos of the last intervals, oldest first, see `EcnEnv.step`.
        steps: intervals since the episode began.

    Returns:
        uint8 `[height, width, 3]`, the same shape for every frame.
    """
    from ecn_marl.render.picture import scene

    low, high = np.asarray(ecn.kmin), np.asarray(ecn.kmax)
    return _painter(core).draw(scene(np.asarray(queue), low, high, past, steps))

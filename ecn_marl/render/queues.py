"""One episode in detail: queues at every tick of the simulator under several policies."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ecn_marl.baselines.evaluation.episodes import Controller, StatefulController
from ecn_marl.envs.ecn import EcnEnv
from ecn_marl.envs.episode import EnvParams
from ecn_marl.render.axes import busiest_host, tick_times
from ecn_marl.render.episode import Side, record_queues
from ecn_marl.render.plots import QueueSeries


def queue_series(
    env: EcnEnv,
    params: EnvParams,
    controllers: Mapping[str, Controller | StatefulController],
    seed: int,
) -> tuple[str, list[QueueSeries]]:
    """Run the first evaluation episode of a seed under every policy.

    Args:
        env: the environment.
        params: its parameters; `max_steps` is the length of the episode.
        controllers: policies by label.
        seed: seed of the evaluation stream.

    Returns:
        Name of the host port with the most traffic under the last policy, and its queue under each.
    """
    episodes = record_queues(env, params, list(controllers.values()), seed)
    sides = [Side(name, env, each) for name, each in zip(controllers, episodes, strict=True)]
    port = busiest_host(sides[-1])
    return str(env.port_info(port)["name"]), [series(side, port) for side in sides]


def series(side: Side, port: int) -> QueueSeries:
    """The queue of a port in an episode."""
    ticks, info = side.episode.ticks, side.episode.info
    return QueueSeries(
        label=side.label,
        time_ms=tick_times(side),
        queue=ticks[:, :, port].ravel(),
        interval_ms=np.arange(len(ticks)) * (side.env.interval_us / 1e3),
        kmin=info["kmin"][:, port],
        kmax=info["kmax"][:, port],
        utilisation=float(info["utilisation"][:, port].mean()),
    )

"""Queue series: the episode that is evaluated, only sampled more finely."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

from ecn_marl.baselines.static import Static
from ecn_marl.envs.episode import PhaseEcn
from ecn_marl.envs.registry import make
from ecn_marl.envs.scenario import Scenario
from ecn_marl.render import queues
from ecn_marl.render.episode import Episode, record, record_queues
from ecn_marl.sim import Incast, star
from ecn_marl.sim.traffic.jobs import FlowSets, Timeline


class Watched(NamedTuple):
    """Series of an episode; what the environment told meanwhile, and what it was played with."""

    port: str
    series: dict[str, Any]
    recorded: list[Episode]


@pytest.fixture(scope="module")
def watched() -> Watched:
    """Thresholds by phase, and two fixed settings; phases of three intervals alternate."""
    turns = Timeline((300.0, 300.0))
    pairs = ((1, 0), (2, 0))
    sets = tuple(
        FlowSets(phase=i, pairs=pairs, fill=0.9, start_us=50.0, width=2, timeline=turns)
        for i in (0, 1)
    )
    shape = {"topology": star(3), "traffic": sets, "dt_us": 5.0, "tick_steps": 4, "bins": 0}
    env = make(Scenario(**shape, slots=8, max_steps=6, pfc=False))
    params = env.default_params
    kmin = np.float32([[5e3], [1e5]]) * np.ones(env.num_agents, np.float32)
    oracle = PhaseEcn(kmin=kmin, kmax=4 * kmin, pmax=np.ones_like(kmin))
    controls = {
        "oracle": lambda key, obs: oracle,
        "tight": Static(env, params, "5,20,1"),
        "loose": Static(env, params, "secn2"),
    }
    recorded: list[Episode] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            queues, "record_queues", lambda *a: recorded.extend(record_queues(*a)) or recorded
        )
        port, series = queues.queue_series(env, params, controls, seed=3)
    assert [one.label for one in series] == list(controls)
    return Watched(port, {one.label: one for one in series}, recorded)


def test_series_is_the_episode_sampled_every_tick(watched):
    tight, loose = watched.series["tight"], watched.series["loose"]
    assert watched.port == "switch0->host0"
    assert tight.queue.shape == tight.time_ms.shape == (30,)
    assert (tight.time_ms[0], tight.time_ms[-1]) == (0.02, 0.6)
    assert (tight.kmin == 5e3).all() and (tight.kmax == 20e3).all()
    assert (loose.kmin == 100e3).all() and (loose.kmax == 400e3).all()
    assert 0 < tight.queue.mean() < loose.queue.mean()
    for episode, series in zip(watched.recorded, watched.series.values(), strict=True):
        info = episode.info
        # The last of the five ticks is the end of the interval, as the environment tells it.
        np.testing.assert_allclose(series.queue[4::5], info["queue"][:, 0], rtol=1e-5)
        assert np.isclose(series.utilisation, info["utilisation"][:, 0].mean())


def test_an_oracle_is_recorded_with_the_thresholds_of_the_current_phase(watched):
    lowest = watched.series["oracle"].kmin.reshape(6, -1)
    assert (lowest == lowest[:, :1]).all()
    assert sorted(lowest[:, 0]) == [5e3] * 3 + [1e5] * 3
    assert (np.diff(lowest[:, 0]) != 0).sum() == 1, "one phase after the other"


def test_late_thresholds_are_recorded_when_they_are_in_force():
    """The last tick of every interval has the queues that the step reports.

    `record_queues` is the same program but for flows; `watched` has all of its series.
    """
    bursts = Incast(load=0.8, n_max=2, flow_kb=2000.0, width=2)
    spec = Scenario(topology=star(3), traffic=(bursts,), slots=16, max_steps=16, pfc=False)
    env = make(spec, telemetry={"action_delay": 1}, decision_delay_us=40.0)
    params = env.default_params

    def drawn(key, obs):
        return env.action.sample(key, env.num_agents)

    whole = record(env, params, drawn, 5)
    assert np.ptp(whole.info["kmin"]) > 0
    np.testing.assert_array_equal(whole.ticks[:, -1], whole.info["queue"])

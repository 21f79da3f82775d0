"""Queue series: the episode that is evaluated, only sampled more finely."""

from __future__ import annotations

import numpy as np

from ecn_marl.baselines.static import Static
from ecn_marl.envs.ecn import PhaseEcn
from ecn_marl.envs.registry import make
from ecn_marl.envs.scenario import Scenario
from ecn_marl.render import queues
from ecn_marl.render.episode import record
from ecn_marl.sim import Incast, star
from ecn_marl.sim.jobs import FlowSets, Timeline


def test_series_is_the_episode_sampled_every_tick(monkeypatch):
    env = make(
        Scenario(
            topology=star(3),
            traffic=(Incast(n_min=2, n_max=2, flow_kb=200.0, width=2),),
            dt_us=5.0,
            slots=4,
            max_steps=6,
            tick_steps=4,
            pfc=False,
            bins=0,
        )
    )
    params, recorded = env.default_params, {}
    record_ticks = queues._record
    monkeypatch.setattr(
        queues, "_record", lambda *args: recorded.update(record_ticks(*args)) or recorded
    )
    controls = {"tight": Static(env, params, "5,20,1"), "loose": Static(env, params, "secn2")}
    port, (tight, loose) = queues.queue_series(env, params, controls, seed=7)

    assert port == "switch0->host0"
    assert (tight.label, loose.label) == ("tight", "loose")
    assert tight.queue.shape == tight.time_ms.shape == (30,)
    assert (tight.time_ms[0], tight.time_ms[-1]) == (0.02, 0.6)
    assert (tight.kmin == 5e3).all() and (tight.kmax == 20e3).all()
    assert (loose.kmin == 100e3).all() and (loose.kmax == 400e3).all()
    assert 0 < tight.queue.mean() < loose.queue.mean()
    for i, series in enumerate((tight, loose)):
        # The last of the five ticks is the end of the interval, as the environment tells it.
        np.testing.assert_allclose(series.queue[4::5], recorded["queue"][i, :, 0], rtol=1e-5)
        assert np.isclose(series.utilisation, recorded["utilisation"][i, :, 0].mean())


def test_an_oracle_is_recorded_with_the_thresholds_of_the_current_phase():
    """Thresholds by phase, beside a fixed setting; phases of three intervals alternate."""
    turns = Timeline((300.0, 300.0))
    pairs = ((1, 0), (2, 0))
    sets = tuple(
        FlowSets(phase=i, pairs=pairs, fill=0.9, start_us=50.0, width=2, timeline=turns)
        for i in (0, 1)
    )
    shape = {"topology": star(3), "traffic": sets, "dt_us": 5.0, "tick_steps": 4, "bins": 0}
    env = make(Scenario(**shape, slots=8, max_steps=6))
    params = env.default_params
    kmin = np.float32([[5e3], [1e5]]) * np.ones(env.num_agents, np.float32)
    oracle = PhaseEcn(kmin=kmin, kmax=4 * kmin, pmax=np.ones_like(kmin))
    controls = {"oracle": lambda key, obs: oracle, "static": Static(env, params, "secn2")}
    watched, (phased, static) = queues.queue_series(env, params, controls, seed=3)
    lowest = phased.kmin.reshape(6, -1)
    assert (lowest == lowest[:, :1]).all()
    assert sorted(lowest[:, 0]) == [5e3] * 3 + [1e5] * 3
    assert (np.diff(lowest[:, 0]) != 0).sum() == 1, "one phase after the other"
    assert (static.kmin == 1e5).all()
    played = record(env, params, controls["oracle"], seed=3)
    port = list(env.sim.topology.port_names).index(watched)
    np.testing.assert_array_equal(played.info["kmin"][:, port], lowest[:, 0])

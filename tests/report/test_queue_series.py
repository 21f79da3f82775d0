"""Queue series: the episode that is evaluated, only sampled more finely."""

from __future__ import annotations

import numpy as np

from ecn_marl.baselines.static import Static
from ecn_marl.envs.registry import Scenario, make
from ecn_marl.report import queues
from ecn_marl.sim import Incast, star


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
    params, seen = env.default_params, {}
    watch = queues._watch
    monkeypatch.setattr(queues, "_watch", lambda *args: seen.update(watch(*args)) or seen)
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
        np.testing.assert_allclose(series.queue[4::5], seen["queue"][i, :, 0], rtol=1e-5)
        assert np.isclose(series.utilisation, seen["utilisation"][i, :, 0].mean())

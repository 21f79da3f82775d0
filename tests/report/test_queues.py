"""Queue series: the same episode as evaluation runs, only sampled more finely."""

from __future__ import annotations

import jax
import numpy as np

from ecn_marl.baselines.common.evaluation import evaluation_keys
from ecn_marl.baselines.static import Static
from ecn_marl.envs.registry import Scenario, make
from ecn_marl.report.queues import queue_series
from ecn_marl.sim import Incast, star


def test_series_is_the_evaluated_episode():
    env = make(
        Scenario(
            topology=star(3),
            traffic=(Incast(n_min=2, n_max=2, flow_kb=200.0, width=2),),
            slots=4,
            max_steps=6,
            tick_steps=4,
            pfc=False,
            bins=0,
        )
    )
    params = env.default_params
    controls = {"tight": Static(env, params, "5,20,1"), "loose": Static(env, params, "secn2")}
    port, (tight, loose) = queue_series(env, params, controls, seed=7)
    assert port == "switch0->host0"
    assert tight.queue.shape == tight.time_ms.shape == (30,)
    assert (tight.time_ms[0], tight.time_ms[-1]) == (0.02, 0.6)
    assert (tight.kmin == 5e3).all() and (tight.kmax == 20e3).all()
    assert tight.queue.mean() < loose.queue.mean()

    @jax.jit
    def episode(ecn):
        def step(state, _):
            _, state, _, _, _, info = env.step_ecn(key, state, ecn, params)
            return state, (info["queue"][0], info["utilisation"][0])

        key, _ = jax.random.split(evaluation_keys(7, 1)[0])
        return jax.lax.scan(step, env.reset(key, params)[1], None, length=6)[1]

    for name, series in (("tight", tight), ("loose", loose)):
        queue, used = episode(controls[name].ecn)
        np.testing.assert_allclose(series.queue[4::5], queue, rtol=1e-5)
        assert series.utilisation == np.float32(np.mean(used)) or np.isclose(
            series.utilisation, np.mean(used), rtol=1e-5
        )

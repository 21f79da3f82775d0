"""An interval of a network is traced once, however many programs simulate it."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import jax
import numpy as np
from netcases import STAR, flow_list

from ecn_marl.sim.simulator import Simulator, scaled_ecn
from ecn_marl.sim.traffic.schedules import schedule

TRACES: list[Simulator] = []
"""The simulator of every interval that was traced."""


@dataclass(frozen=True)
class Noted(Simulator):
    """Notes what is traced."""

    def _admit(self, state, params):
        TRACES.append(self)
        return super()._admit(state, params)


def test_programs_share_the_trace_of_a_network():
    sim = Noted(**{f.name: getattr(STAR, f.name) for f in fields(STAR)})
    params = sim.default_params(traffic=(schedule(flow_list([(3, 7, 20_000, 0.0)]), sim.dt_us),))
    ecn = scaled_ecn(params.net, 5.0, 200.0, 0.01)
    state = sim.init(jax.random.key(0), params)

    def queues(own):
        return jax.jit(lambda state: own.interval(state, params, ecn)[1].queue_mean)(state)

    def several(own):
        states = jax.tree.map(lambda x: x[None], state)
        each = jax.vmap(lambda state: own.interval(state, params, ecn)[1].queue_mean)
        return jax.jit(each)(states)[0]

    first = queues(sim)
    once = len(TRACES)
    assert once > 0
    np.testing.assert_array_equal(queues(replace(sim)), first)
    np.testing.assert_array_equal(several(sim), first)
    assert len(TRACES) == once
    queues(replace(sim, interval_steps=2 * sim.interval_steps))
    assert len(TRACES) == 2 * once

"""A short incast on a star of three: what the tests of recorded episodes watch."""

from ecn_marl.envs.scenario import Scenario
from ecn_marl.sim import Incast, star

INTERVALS, SEED = 12, 7

SCENARIO = Scenario(
    topology=star(3),
    traffic=(Incast(n_min=2, n_max=2, flow_kb=100.0, width=2),),
    dt_us=5.0,
    slots=4,
    max_steps=INTERVALS,
    tick_steps=4,
    pfc=False,
    bins=0,
)

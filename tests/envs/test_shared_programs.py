"""Compiled programs: shared by environments that differ in numbers only, and freed after use."""

from __future__ import annotations

import gc
from dataclasses import replace

import jax
import numpy as np
import pytest

import ecn_marl
from ecn_marl._programs import Programs
from ecn_marl.envs.parallel import PROGRAMS, EcnParallelEnv
from ecn_marl.sim import Incast, Poisson, star

FEW = {"topology": star(3), "slots": 8, "max_steps": 3}


def few(*traffic, **options):
    """An environment of three hosts; nothing of it is compiled elsewhere."""
    return ecn_marl.make("incast-v0", traffic=traffic, **FEW, **options)


SAME = {
    "load": (few(Poisson(load=0.3, width=2)), few(Poisson(load=0.7, width=2))),
    "table": (few(Poisson(width=9)), few(Poisson(width=9, table="AliStorage2019"))),
    "bursts": (
        few(Incast(n_max=2, flow_kb=50.0, width=2)),
        few(Incast(load=0.5, n_max=3, flow_kb=90.0, jitter_us=3.0, receiver=2, width=2)),
    ),
    "weights": (
        few(Incast(width=2)),
        few(Incast(width=2), reward_options={"utilisation_weight": 0.9}, margins_us=(100.0, 0.0)),
    ),
    "buffer": (few(Incast(width=2)), few(Incast(width=2), buffer_mib=8.0)),
}


@pytest.mark.parametrize("differ", SAME)
def test_numbers_are_parameters_not_programs(differ):
    a, b = SAME[differ]
    assert a != b
    assert a.program == b.program
    assert hash(a.program) == hash(b.program)
    assert a.program.program == a.program


def test_what_fixes_the_program_stays_apart():
    base = few(Incast(width=2))
    for other in (
        few(Incast(width=3)),
        few(Poisson(width=2)),
        few(Incast(width=2), initial="secn2"),
        few(Incast(width=2), ack_priority=True),
        few(Incast(width=2), transport="dcqcn:paper"),
        few(Incast(width=2), features="pet"),
    ):
        assert base.program != other.program


def traced(function, *args):
    """A function as JAX traces it."""
    return str(jax.make_jaxpr(function)(*args))


@pytest.mark.parametrize(
    "core",
    [SAME["bursts"][1], ecn_marl.make("acc-offline-small-v0")],
    ids=["incast", "phases"],
)
def test_a_program_computes_what_its_environment_does(core):
    """Equal traces: a trace that read one of the numbers left out would differ."""
    params, key = core.default_params, jax.random.key(0)
    assert traced(core.reset, key, params) == traced(core.program.reset, key, params)
    _, state = jax.eval_shape(core.reset, key, params)
    action = core.action.sample(key, core.num_agents)
    jaxpr = traced(core.step, key, state, action, params)
    assert jaxpr == traced(core.program.step, key, state, action, params)


def test_another_load_compiles_nothing():
    first, second = (EcnParallelEnv(core) for core in SAME["bursts"])
    first.reset(seed=0)
    (reset, *_), count = PROGRAMS.of(first.core.program), len(PROGRAMS)
    assert reset._cache_size() == 1
    second.reset(seed=0)
    assert reset._cache_size() == 1
    assert len(PROGRAMS) == count
    assert float(second._params.sim.traffic[0].load) == np.float32(0.5)


class User:
    """A user of a program."""


def counted():
    """Programs of integers, and the integers that were compiled."""
    compiled = []

    def build(key):
        compiled.append(key)
        return (lambda: key,)

    return Programs(build, keep=2), compiled


def test_programs_stay_as_long_as_they_are_used():
    programs, compiled = counted()
    user = User()
    for key in range(1000, 1010):
        programs.of(key, user if key == 1000 else None)
    assert len(programs) == 3  # that of the user, and the latest two
    (function,) = programs.of(1000, user)
    assert function() == 1000
    assert compiled == [*range(1000, 1010)]
    del user
    programs.of(1008)
    programs.of(1009)
    gc.collect()
    assert len(programs) == 2
    programs.of(1000)
    assert compiled[-1] == 1000


def test_a_user_of_another_program_lets_go_of_the_first():
    programs, _ = counted()
    user = User()
    for key in range(1000, 1006):
        (function,) = programs.of(key, user)
        assert function() == key
    gc.collect()
    assert len(programs) == 2


def test_equal_keys_share_a_program():
    programs, compiled = counted()
    a, b = User(), User()
    key, copy = SAME["load"][0].program, replace(SAME["load"][0].program)
    assert key is not copy
    assert programs.of(key, a) is programs.of(copy, b)
    assert len(compiled) == 1

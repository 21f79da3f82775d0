"""Pictures of environments, and when they are drawn."""

from __future__ import annotations

from functools import partial

import matplotlib
import numpy as np
import pytest
from pettingzoo.test import render_test

import ecn_marl
from ecn_marl.envs.parallel import RENDER_MODES


@pytest.fixture
def screen():
    backend = matplotlib.get_backend()
    matplotlib.use("module://offscreen")
    yield
    matplotlib.use(backend)


def test_pettingzoo_render(screen: None):
    render_test(partial(ecn_marl.env, "incast-v0", features="pet", reward="pet"))


def test_render_shows_queues_and_thresholds(screen: None):
    drawn = {}
    for mode in RENDER_MODES:
        env = ecn_marl.parallel_env("incast-v0", mode, 6, features="pet", reward="pet")
        env.reset(seed=0)
        before = env.render()
        for _ in range(3):
            *_, infos = env.step(dict.fromkeys(env.agents, np.asarray([3, 2, 5])))
        drawn[mode] = before, env.render()
        env.close()
    before, after = drawn["rgb_array"]
    assert after.shape == before.shape and after.dtype == np.uint8 and (after != before).any()
    lines = drawn["ansi"][1].splitlines()
    assert len(lines) == 1 + 17
    row = next(line for line in lines if line.split()[0] == "port_0").split()
    want = [infos["port_0"][name] for name in ("queue", "kmin", "kmax")]
    np.testing.assert_allclose([float(x) * 1e3 for x in row[2:5]], want, atol=51)
    assert drawn["human"] == (None, None)


def test_render_without_a_mode_warns():
    env = ecn_marl.parallel_env("incast-v0", max_cycles=6)
    env.reset(seed=0)
    with pytest.warns(UserWarning, match="render_mode"):
        assert env.render() is None

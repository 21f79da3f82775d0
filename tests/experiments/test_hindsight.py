"""Hindsight: sequences of settings against `play` by phase, and against all sequences there are."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from ecn_marl.baselines.evaluation.objective import episode_objective
from ecn_marl.envs.actions import EcnSetting
from ecn_marl.envs.registry import make
from ecn_marl.envs.scenario import Scenario
from ecn_marl.experiments.hindsight import NUDGES, hindsight
from ecn_marl.experiments.interaction import play
from ecn_marl.sim.network.topology import star
from ecn_marl.sim.traffic.jobs import FlowSets, Requests, Timeline

WINDOW_US, WINDOWS, EPISODES = 500.0, 4, 3
LINE = Timeline((WINDOW_US,) * WINDOWS, names=tuple("abcd"))
SETTINGS = (EcnSetting(40, 80, 0.5), EcnSetting(5, 10, 1.0), EcnSetting(160, 320, 0.1))


@pytest.fixture(scope="module")
def env():
    """Every window is a phase, so that a sequence is a table by phase, too."""
    return make(
        Scenario(
            topology=star(3),
            traffic=(
                FlowSets(LINE, phase=0, pairs=((0, 2), (1, 2)), fill=2.0, start_us=100.0),
                FlowSets(LINE, phase=2, pairs=((0, 1),), fill=2.0, start_us=100.0),
                Requests(
                    LINE,
                    per_us=(0.02,) * WINDOWS,
                    sources=(0, 1, 2),
                    destinations=(1, 2),
                    width=4,
                ),
            ),
            slots=32,
            max_steps=20,
            pfc=False,
        )
    )


@pytest.fixture(scope="module")
def found(env):
    return hindsight(env, SETTINGS, episodes=EPISODES, seed=4, window_us=WINDOW_US)


@pytest.fixture(scope="module")
def by_sequence(env):
    """J of all 81 sequences under thresholds times .98, 1 and 1.02, `[factors, 81, episodes]`."""
    sequences = np.array(list(product(range(3), repeat=WINDOWS)))
    table = np.array(SETTINGS)[sequences][:, :, None].repeat(env.num_agents, 2)
    tables = np.stack([table * (x, x, 1.0) for x in (NUDGES[0], 1.0, NUDGES[1])])
    metrics = play(env, tables.reshape(-1, *table.shape[1:]), EPISODES, seed=4)
    return episode_objective(metrics)["J"].reshape(3, len(sequences), EPISODES)


def number(sequence):
    """Its place in `by_sequence`."""
    return int(np.dot(sequence, 3 ** np.arange(WINDOWS)[::-1]))


def test_scores_are_those_of_the_same_thresholds_by_phase(found, by_sequence):
    as_they_are, e = by_sequence[1], np.arange(EPISODES)
    np.testing.assert_allclose(found.base, as_they_are[0], rtol=1e-5)
    chosen = [number(x) for x in found.sequences]
    np.testing.assert_allclose(found.best, as_they_are[chosen, e], rtol=1e-5)


def test_no_change_of_one_window_is_better_as_the_search_sees_it(found, by_sequence):
    judged = np.exp(np.log(by_sequence[[0, 2]]).mean(0))
    singles = judged[[number([i] * WINDOWS) for i in range(3)]]
    np.testing.assert_allclose(found.searched[0], singles.min(0), rtol=1e-5)
    np.testing.assert_array_less(found.searched[1], singles.min(0) * (1 + 1e-6))
    for e, sequence in enumerate(found.sequences):
        last = WINDOWS - 1  # the last window is tried last, so nothing has changed since
        others = [[*sequence[:last], i] for i in range(3)]
        best = min(judged[number(x), e] for x in others)
        np.testing.assert_allclose(found.searched[1][e], best, rtol=1e-5)
    assert (found.searched[1] < found.searched[0] * 0.999).any(), "sequences that differ pay here"


def test_gains_are_paired_and_relative_to_the_first_setting(found):
    rows = found.as_dict()
    assert rows["episodes"] == EPISODES and rows["window_us"] == WINDOW_US
    want = 1 - np.exp(np.log(found.best / found.base).mean())
    assert rows["best"]["value"] == pytest.approx(want)
    assert rows["best"]["low"] < rows["best"]["value"] < rows["best"]["high"]
    assert rows["runs"] == found.runs
    over = found.gain(found.best, found.static)["value"]
    assert over == pytest.approx(1 - np.exp(np.log(found.best / found.static).mean()))
    assert found.gain(found.best, found.best)["value"] == 0.0


@pytest.mark.parametrize(
    ("options", "word"),
    [({"episodes": 1}, "episodes"), ({"episodes": 2, "window_us": 1e6}, "windows in an episode")],
)
def test_what_cannot_be_searched_is_refused(env, options, word):
    with pytest.raises(ValueError, match=word):
        hindsight(env, SETTINGS, **options)

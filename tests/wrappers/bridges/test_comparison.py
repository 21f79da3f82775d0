"""Scores of policies that JAX cannot trace, against those of the compiled evaluation."""

from __future__ import annotations

import numpy as np
import pytest
from tiny import AGENTS, OPTIONS, SCENARIO

import ecn_marl
from ecn_marl.baselines.evaluation.episodes import evaluate
from ecn_marl.wrappers import compare, evaluate_policy, show

HORIZON = 12  # marks take a while to tell
CORE = ecn_marl.make(SCENARIO, **(OPTIONS | {"max_steps": HORIZON}))


def by_hand(xp, obs):
    """Actions that depend on the observation, in numpy or JAX."""
    n = xp.asarray(CORE.action.nvec)
    return (100 * obs[..., :3] + xp.arange(AGENTS)[:, None]).astype("int32") % n


def test_episodes_are_those_of_the_compiled_evaluation():
    import jax.numpy as jnp

    observations = []

    def policy(obs):
        observations.append(obs)
        return by_hand(np, obs)

    evaluation = evaluate_policy(CORE, policy, name="mine", episodes=3, seed=5)
    expected = evaluate(
        CORE,
        CORE.default_params,
        lambda key, obs: by_hand(jnp, obs),
        name="mine",
        episodes=3,
        seed=5,
    )
    assert len(observations) == HORIZON and observations[0].shape == (3, AGENTS, CORE.obs_dim)
    assert evaluation.name == "mine" and evaluation.episodes.keys() == expected.episodes.keys()
    for name, values in expected.episodes.items():
        np.testing.assert_allclose(evaluation.episodes[name], values, rtol=1e-4, err_msg=name)
    assert np.ptp(expected.episodes["reward"]) > 0, "all episodes are alike"
    other = evaluate_policy(CORE, lambda obs: by_hand(np, obs) * 0, episodes=3, seed=5)
    assert not np.allclose(other.episodes["queue_mean"], evaluation.episodes["queue_mean"])


@pytest.mark.slow
def test_the_table_has_the_policy_beside_static_and_random_settings(capsys):
    result = compare(CORE, lambda obs: by_hand(np, obs), name="mine", episodes=3)
    assert [row["name"] for row in result["policies"]] == ["mine", "random", "SECN1", "SECN2"]
    assert all(row["episodes"] == 3 for row in result["policies"])
    show(result)
    out = capsys.readouterr().out
    assert all(row["name"] in out for row in result["policies"])


def test_no_module_hides_a_public_name():
    from ecn_marl import wrappers

    # Importing a module makes it an attribute of the package, in the name's place.
    assert not set(wrappers._HOME) & set(wrappers._HOME.values())
    import ecn_marl.wrappers.bridges.rllib  # noqa: F401 - what is tested is that this import does it

    assert wrappers.compare is compare and callable(compare)

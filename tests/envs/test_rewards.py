"""Rewards: the D(L) table, PET's reciprocal, weights, rate scaling, and their properties."""

from __future__ import annotations

import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from roundoff import U

from ecn_marl.envs.registry import make
from ecn_marl.envs.rewards import (
    MAX_STEPS,
    REWARDS,
    Reward,
    RewardParams,
    queue_level,
    reward_function,
)

KB = 1000.0
NAMES = ("acc", "pet", "haecn")
"""The papers' rewards."""

# queue KB -> D(L) for alpha = 5 KB and N = 10: 1 up to 5 KB, a tenth less per octave, 0 above 2560.
STEPS_BY_HAND = [
    (0.0, 1.0),
    (4.9, 1.0),
    (5.0, 1.0),
    (5.001, 0.9),
    (10.0, 0.9),
    (10.001, 0.8),
    (20.0, 0.8),
    (21.0, 0.7),
    (40.0, 0.7),
    (60.0, 0.6),
    (100.0, 0.5),
    (160.0, 0.5),
    (200.0, 0.4),
    (500.0, 0.3),
    (1000.0, 0.2),
    (2000.0, 0.1),
    (2560.0, 0.1),
    (2561.0, 0.0),
    (1e6, 0.0),
]


def value(reward, stats, scale=1.0, **constants):
    """The rewards of all ports, as numpy."""
    num_ports = stats.queue_mean.shape[0]
    port_scale = jnp.broadcast_to(jnp.asarray(scale, jnp.float32), (num_ports,))
    params = RewardParams.create(**constants)
    rewards = REWARDS[reward](stats, params, port_scale, 100.0)
    assert rewards.dtype == jnp.float32
    assert rewards.shape == (num_ports,)
    return np.asarray(rewards)


@pytest.mark.parametrize("name", ["acc", "haecn"])
def test_step_reward_follows_the_hand_table(port_stats, name):
    queue_kb, expected = np.asarray(STEPS_BY_HAND).T
    stats = port_stats(len(queue_kb), queue_mean=queue_kb * KB)
    np.testing.assert_allclose(value(name, stats, utilisation_weight=0.0), expected, atol=1e-6)


def test_weight_splits_utilisation_and_queue(port_stats):
    stats = port_stats(queue_mean=30 * KB, utilisation=0.5)
    assert value("acc", stats) == pytest.approx(0.3 * 0.5 + 0.7 * 0.7)
    assert value("haecn", stats) == pytest.approx(0.3 * 0.5 + 0.7 * 0.7)
    assert value("acc", stats, utilisation_weight=0.7) == pytest.approx(0.7 * 0.5 + 0.3 * 0.7)
    assert value("acc", stats, utilisation_weight=1.0) == pytest.approx(0.5)


def test_published_scale_saturates_below_20_kb_and_the_default_does_not(port_stats):
    stats = port_stats(3, queue_mean=np.asarray([1.0, 5.6, 20.0]) * KB)
    assert len(set(value("acc", stats, queue_scale_kb=20.0))) == 1
    assert len(set(value("acc", stats))) == 3


@pytest.mark.parametrize(("steps", "expected"), [(1, 0.0), (2, 0.0), (4, 0.25), (32, 29 / 32)])
def test_number_of_steps(port_stats, steps, expected):
    stats = port_stats(queue_mean=30 * KB)  # above E(0), E(1), E(2)
    reward = value("acc", stats, utilisation_weight=0.0, queue_steps=steps)
    assert reward == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("queue_kb", "term"), [(0.0, 1.0), (0.5, 1.0), (1.0, 1.0), (2.0, 0.5), (10.0, 0.1), (1e4, 1e-4)]
)
def test_pet_takes_the_reciprocal_of_the_mean_queue_in_kb(port_stats, queue_kb, term):
    stats = port_stats(queue_mean=queue_kb * KB, utilisation=0.8)
    assert value("pet", stats) == pytest.approx(0.3 * 0.8 + 0.7 * term)
    wide = value("pet", stats, queue_floor_kb=1e5)
    assert wide == pytest.approx(0.3 * 0.8 + 0.7)


@pytest.mark.parametrize("name", NAMES)
def test_only_the_mean_queue_and_the_utilisation_count(port_stats, name):
    plain = port_stats(queue_mean=50 * KB, utilisation=0.6)
    other = port_stats(
        queue_mean=50 * KB,
        utilisation=0.6,
        queue=9e6,
        queue_max=9e6,
        tx_bytes=1e6,
        paused=1.0,
        n_flows=9,
    )
    assert value(name, plain) == value(name, other)


@pytest.mark.parametrize("name", NAMES)
def test_faster_ports_earn_the_same_for_the_same_delay(port_stats, name):
    slow = port_stats(4, queue_mean=np.asarray([3, 12, 90, 700]) * KB, utilisation=0.4)
    fast = slow.replace(queue_mean=4 * slow.queue_mean)
    np.testing.assert_allclose(value(name, slow), value(name, fast, scale=4.0), rtol=1e-6)
    assert (value(name, slow, scale=4.0) > value(name, slow))[1:].all()


queues = st.floats(0, 1e9, width=32)
shares = st.floats(0, 1, width=32)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=60, deadline=None)
@given(
    queue=st.lists(queues, min_size=4, max_size=4),
    share=st.lists(shares, min_size=4, max_size=4),
    weight=shares,
    alpha=st.floats(1, 100, width=32),
    steps=st.integers(1, MAX_STEPS),
)
def test_range_and_monotonicity(port_stats, name, queue, share, weight, alpha, steps):
    options = {"utilisation_weight": weight, "queue_scale_kb": alpha, "queue_steps": steps}
    queue, share = np.sort(queue), np.sort(share)
    longer = value(name, port_stats(4, queue_mean=queue, utilisation=0.5), **options)
    busier = value(name, port_stats(4, queue_mean=2e4, utilisation=share), **options)
    for values in (longer, busier):
        assert (values >= 0).all()
        assert (values <= 1 + 4 * U).all()  # 1 - w, its product, the sum: three roundings
    assert (np.diff(longer) <= 0).all()  # rounding keeps the order
    assert (np.diff(busier) >= 0).all()


@pytest.mark.parametrize("name", NAMES)
def test_reward_falls_with_the_queue_and_rises_with_utilisation(port_stats, name):
    queue = np.asarray([2.0, 8.0, 30.0, 100.0]) * KB
    assert (np.diff(value(name, port_stats(4, queue_mean=queue))) < 0).all()
    share = np.asarray([0.0, 0.2, 0.5, 1.0])
    assert (np.diff(value(name, port_stats(4, utilisation=share))) > 0).all()


@settings(max_examples=60, deadline=None)
@given(queue=queues, scale=st.floats(1, 1e6, width=32), steps=st.integers(1, MAX_STEPS))
def test_queue_level_counts_the_edges_below(queue, scale, steps):
    level = queue_level(
        jnp.full(1, queue, jnp.float32), jnp.full(1, scale, jnp.float32), jnp.float32(steps)
    )
    edges = [np.float32(scale) * np.float32(2**n) for n in range(steps)]
    passed = sum(queue > edge for edge in edges)
    assert abs(float(level[0]) * steps - passed) <= U * passed  # one quotient


@pytest.mark.parametrize("name", NAMES)
def test_jit_and_vmap_over_constants(port_stats, name):
    stats = port_stats(2, queue_mean=np.asarray([7.0, 60.0]) * KB, utilisation=0.5)
    constants = [
        {"utilisation_weight": 0.1, "queue_steps": 10},
        {"utilisation_weight": 0.9, "queue_steps": 4, "queue_floor_kb": 3.0},
    ]
    params = jax.tree.map(
        lambda *leaves: jnp.stack(leaves),
        *(RewardParams.create(**options) for options in constants),
    )
    compute = jax.jit(jax.vmap(lambda p: REWARDS[name](stats, p, jnp.ones(2), 100.0)))
    expected = [value(name, stats, **options) for options in constants]
    np.testing.assert_allclose(compute(params), expected, rtol=1e-6)


def test_pet_has_a_gradient_and_the_steps_have_none(port_stats):
    def total(queue, name):
        stats = port_stats(2).replace(queue_mean=queue)
        return REWARDS[name](stats, RewardParams.create(), jnp.ones(2), 100.0).sum()

    queue = jnp.asarray([5e3, 5e4])
    assert (jax.grad(total)(queue, "pet") < 0).all()
    assert (jax.grad(total)(queue, "acc") == 0).all()


@pytest.mark.parametrize(
    ("field", "wrong", "allowed"),
    [
        ("utilisation_weight", 1.5, r"\[0, 1\]"),
        ("utilisation_weight", float("nan"), r"\[0, 1\]"),
        ("queue_scale_kb", 0.0, "above 0"),
        ("queue_scale_kb", float("inf"), "above 0"),
        ("queue_steps", 0, r"\[1, 32\]"),
        ("queue_steps", 33, r"\[1, 32\]"),
        ("queue_steps", math.nan, r"\[1, 32\]"),
        ("queue_steps", math.inf, r"\[1, 32\]"),
        ("queue_floor_kb", -1.0, "above 0"),
    ],
)
def test_constants_out_of_range_are_named(field, wrong, allowed):
    with pytest.raises(ValueError, match=f"{field}.*{wrong}.*{allowed}"):
        RewardParams.create(**{field: wrong})


def test_the_penalty_of_triggers_belongs_to_the_trainer_of_haecn():
    with pytest.raises(ValueError, match="unknown reward option 'trigger_penalty'"):
        make("websearch-star-v0", reward="haecn", reward_options={"trigger_penalty": 1.0})


def test_lookup():
    assert reward_function("pet").name == "pet"
    custom = Reward("mine", REWARDS["acc"].rule)
    assert reward_function(custom) is custom
    assert len({hash(REWARDS[name]) for name in NAMES}) == 3
    with pytest.raises(ValueError, match=r"(?s)reward.*'hacn'.*haecn"):
        reward_function("hacn")


ACCRUED = np.array([[3.0, 0.5, 0.0], [0.0, 0.25, 2.0]], np.float32)


@pytest.mark.parametrize("credit", ["team", "path"])
def test_slowdown_is_weighted_by_class_and_shared_by_credit(port_stats, credit):
    stats = replace(port_stats(2), accrued=jnp.asarray(ACCRUED))
    weights = {"mice_weight": 0.02, "medium_weight": 2.0, "elephant_weight": 0.5, "mice_factor": 5}
    rule = reward_function("slowdown", credit)
    assert rule.accrues
    unshaped = np.asarray(rule(stats, RewardParams.create(**weights), jnp.ones(2), 100.0))
    shares = -ACCRUED @ [0.1, 2.0, 0.5]
    np.testing.assert_allclose(
        unshaped, shares if credit == "path" else [shares.sum()] * 2, rtol=1e-6
    )
    stats = replace(stats, progress=jnp.asarray(ACCRUED[::-1] / 2))
    shaped = reward_function("slowdown-shaped", credit)
    added = np.asarray(shaped(stats, RewardParams.create(**weights), jnp.ones(2), 100.0)) - unshaped
    returned = ACCRUED[::-1] / 2 @ [0.1, 2.0, 0.5]
    np.testing.assert_allclose(
        added, returned if credit == "path" else [returned.sum()] * 2, rtol=1e-5
    )


@pytest.mark.parametrize("kind", ["", "-shaped"])
def test_the_objective_weighs_bent_costs_of_short_flows_less(port_stats, kind):
    accrued = {"accrued": jnp.asarray(ACCRUED), "progress": jnp.asarray(ACCRUED[::-1] / 2)}
    stats = replace(port_stats(2), **accrued)
    earned = reward_function(f"objective{kind}", "path")(
        stats, RewardParams.create(mice_weight=0.2, elephant_weight=0.5), jnp.ones(2), 100.0
    )
    same = reward_function(f"slowdown{kind}", "path")(
        stats, RewardParams.create(mice_weight=0.02, elephant_weight=0.5), jnp.ones(2), 100.0
    )
    np.testing.assert_allclose(earned, same, rtol=1e-6)
    assert reward_function(f"objective{kind}").powers == (2.0, 1.0, 0.0)


def test_credit_belongs_to_slowdown():
    assert reward_function("slowdown") == reward_function("slowdown", "team")
    with pytest.raises(ValueError, match=r"credit.*only"):
        reward_function("acc", "team")
    with pytest.raises(ValueError, match=r"(?s)credit.*'paths'.*path"):
        reward_function("slowdown", "paths")

"""Features: values by hand, ranges, scaling with the port rate, histories, lookup."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ecn_marl.envs.features import (
    FEATURE_SETS,
    FeatureScale,
    FeatureSet,
    feature_set,
    fill,
    flatten,
    push,
)
from ecn_marl.envs.rewards import REWARDS, RewardParams
from ecn_marl.sim.queues import Ecn

KB = 1000.0
NAMES = tuple(FEATURE_SETS)


def thresholds(num_ports=1, kmin=5 * KB, kmax=200 * KB, pmax=0.01):
    """The same setting on every port."""
    return Ecn(*(jnp.full(num_ports, x, jnp.float32) for x in (kmin, kmax, pmax)))


def columns(name, stats, ecn=None, scale=1.0, **options):
    """Features of all ports by name, as numpy."""
    num_ports = stats.queue.shape[0]
    port_scale = jnp.broadcast_to(jnp.asarray(scale, jnp.float32), (num_ports,))
    ecn = thresholds(num_ports) if ecn is None else ecn
    found = FEATURE_SETS[name].compute(stats, ecn, FeatureScale.create(port_scale, **options))
    assert found.dtype == jnp.float32
    assert found.shape == (num_ports, FEATURE_SETS[name].width)
    return dict(zip(FEATURE_SETS[name].names, np.asarray(found).T, strict=True))


def test_what_each_set_shows():
    assert FEATURE_SETS["acc"].names == ("queue", "tx_rate", "marked_rate", "kmin", "kmax", "pmax")
    assert FEATURE_SETS["pet"].names[:6] == FEATURE_SETS["acc"].names
    assert FEATURE_SETS["pet"].names[6:] == ("incast_degree", "mice_fraction")
    assert FEATURE_SETS["haecn"].names == ("queue_level", "tx_rate", "kmin", "kmax", "pmax")
    assert [FEATURE_SETS[name].obs_dim for name in ("acc", "pet", "haecn")] == [18, 24, 15]


def test_queue_is_on_a_log_scale_from_nothing_to_the_top(port_stats):
    top, unit = 10240.0, 1.0
    middle = unit * (np.sqrt(1 + top / unit) - 1)
    stats = port_stats(4, queue=np.asarray([0.0, middle, top, 100 * top]) * KB)
    for name in ("acc", "pet"):
        np.testing.assert_allclose(columns(name, stats)["queue"], [0, 0.5, 1, 1], atol=1e-6)
    wide = columns("acc", stats, queue_top_kb=100 * top)["queue"]
    assert wide[2] < 0.8
    assert wide[3] == pytest.approx(1.0)


def test_rates_are_shares_of_the_link(port_stats):
    stats = port_stats(
        3, utilisation=[0.8, 0.8, 0.0], tx_bytes=[1e5, 1e5, 0], marked_bytes=[25e3, 0, 0]
    )
    for name in ("acc", "pet"):
        found = columns(name, stats)
        np.testing.assert_allclose(found["tx_rate"], [0.8, 0.8, 0.0], rtol=1e-6)
        np.testing.assert_allclose(found["marked_rate"], [0.2, 0.0, 0.0], rtol=1e-6)
    np.testing.assert_allclose(columns("haecn", stats)["tx_rate"], [0.8, 0.8, 0.0], rtol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_setting_in_force(port_stats, name):
    sizes = jnp.asarray([5, 20, 80, 320], jnp.float32) * KB
    ecn = Ecn(sizes, 4 * sizes, jnp.asarray([0.001, 0.01, 0.1, 1.0]))
    found = columns(name, port_stats(4, queue=sizes), ecn)
    np.testing.assert_allclose(found["pmax"], [0, 1 / 3, 2 / 3, 1], atol=1e-6)
    np.testing.assert_allclose(found["kmax"][:3], found["kmin"][1:], rtol=1e-6)
    assert (found["kmin"] < found["kmax"]).all()
    if "queue" in found:
        np.testing.assert_array_equal(found["kmin"], found["queue"])


def test_incast_degree_and_mice(port_stats):
    stats = port_stats(
        5, n_senders=[0, 7, 64, 300, 1], n_mice=[0, 3, 0, 5, 0], n_elephants=[0, 1, 4, 0, 1]
    )
    found = columns("pet", stats)
    np.testing.assert_allclose(
        found["incast_degree"],
        [0, np.log(8) / np.log(65), 1, 1, np.log(2) / np.log(65)],
        rtol=1e-6,
    )
    np.testing.assert_allclose(found["mice_fraction"], [0.5, 0.75, 0, 1, 0], rtol=1e-6)


def test_haecn_level_is_what_the_reward_takes_off(port_stats):
    stats = port_stats(5, queue_mean=np.asarray([1, 8, 70, 900, 9000]) * KB, queue=1e9)
    params = RewardParams.create(utilisation_weight=0.0)
    worth = np.asarray(REWARDS["haecn"](stats, params, jnp.ones(5), 100.0))
    level = columns("haecn", stats)["queue_level"]
    np.testing.assert_allclose(level, [0, 0.1, 0.4, 0.8, 1.0], atol=1e-6)
    np.testing.assert_allclose(level, 1 - worth, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_faster_ports_show_the_same_for_the_same_delay(port_stats, name):
    queue = np.asarray([0, 7, 90, 2000]) * KB
    slow = port_stats(4, queue=queue, queue_mean=queue, utilisation=0.5, n_senders=3)
    fast = slow.replace(queue=4 * slow.queue, queue_mean=4 * slow.queue_mean)
    at_25 = columns(name, slow)
    at_100 = columns(name, fast, thresholds(4, 20 * KB, 800 * KB), scale=4.0)
    for feature in at_25:
        np.testing.assert_allclose(at_25[feature], at_100[feature], rtol=1e-5, err_msg=feature)
    unscaled = columns(name, fast)
    first = next(iter(at_25))
    assert (unscaled[first] > at_25[first])[1:3].all()


finite = st.floats(allow_nan=False, allow_infinity=False, width=32)
counts = st.floats(0, 2.0**100, width=32)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=60, deadline=None)
@given(
    queue=st.floats(0, 3.4028234663852886e38, width=32),
    share=finite,
    sent=counts,
    marked=counts,
    flows=st.tuples(counts, counts, counts),
    setting=st.tuples(counts, counts, st.floats(0, 1, width=32)),
    scale=st.sampled_from([0.04, 0.4, 1.0, 4.0, 32.0]),
)
def test_every_feature_stays_in_the_unit_interval(
    port_stats, name, queue, share, sent, marked, flows, setting, scale
):
    stats = port_stats(
        queue=queue,
        queue_mean=queue,
        utilisation=share,
        tx_bytes=sent,
        marked_bytes=marked,
        n_senders=flows[0],
        n_mice=flows[1],
        n_elephants=flows[2],
    )
    for feature, found in columns(name, stats, thresholds(1, *setting), scale).items():
        assert 0.0 <= found[0] <= 1.0, feature


@pytest.mark.parametrize("name", NAMES)
def test_queue_feature_never_falls_and_tells_small_queues_apart(port_stats, name):
    queue = np.asarray([0, 2, 6, 15, 50, 150, 500, 1500]) * KB
    found = columns(name, port_stats(8, queue=queue, queue_mean=queue))
    first = next(iter(found.values()))
    assert (np.diff(first) >= 0).all()
    assert (np.diff(first)[1:] > 0.04).all()


@pytest.mark.parametrize(
    ("name", "gone"), [("pet-no-incast", "incast_degree"), ("pet-no-mice", "mice_fraction")]
)
def test_ablations_are_pets_state_without_one_feature(port_stats, name, gone):
    stats = port_stats(2, queue=5 * KB, utilisation=0.4, n_senders=7, n_mice=3, n_elephants=1)
    whole = columns("pet", stats, thresholds(2))
    left = columns(name, stats, thresholds(2))
    assert list(left) == [feature for feature in whole if feature != gone]
    for feature, found in left.items():
        np.testing.assert_array_equal(found, whole[feature])


@pytest.mark.parametrize("name", NAMES)
def test_jit_and_vmap(port_stats, name):
    stats = [port_stats(3, queue=q, queue_mean=q, utilisation=0.3) for q in (2 * KB, 80 * KB)]
    batch = jax.tree.map(lambda *leaves: jnp.stack(leaves), *stats)
    scale = FeatureScale.create(jnp.ones(3))
    compute = FEATURE_SETS[name].compute
    found = jax.jit(jax.vmap(compute, in_axes=(0, None, None)))(batch, thresholds(3), scale)
    expected = np.stack([compute(one, thresholds(3), scale) for one in stats])
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-7)


def test_history_drops_the_oldest_and_flattens_oldest_first():
    first = jnp.asarray([[1.0, 2.0], [10.0, 20.0]])
    history = fill(first, 3)
    np.testing.assert_array_equal(history[0], [[1, 2], [1, 2], [1, 2]])
    history = push(push(history, first + 1), first + 2)
    assert history.shape == (2, 3, 2)
    np.testing.assert_array_equal(flatten(history), [[1, 2, 2, 3, 3, 4], [10, 20, 11, 21, 12, 22]])
    np.testing.assert_array_equal(flatten(push(history, first))[0], [2, 3, 3, 4, 1, 2])
    np.testing.assert_array_equal(push(fill(first, 1), first + 5)[:, 0], first + 5)


def test_lookup_and_history():
    assert feature_set("acc") is FEATURE_SETS["acc"]
    longer = feature_set("pet", history=5)
    assert (longer.history, longer.obs_dim, longer.name) == (5, 40, "pet")
    assert hash(longer) != hash(FEATURE_SETS["pet"])
    assert longer == feature_set("pet", history=5)
    own = FeatureSet("mine", 1, ("queue",), FEATURE_SETS["acc"].compute)
    assert feature_set(own) is own
    assert feature_set(own, history=2).obs_dim == 2
    with pytest.raises(ValueError, match=r"(?s)feature set.*'pte'.*pet"):
        feature_set("pte")
    with pytest.raises(ValueError, match=r"history.*0.*at least 1"):
        feature_set("acc", history=0)


@pytest.mark.parametrize(
    ("field", "wrong", "allowed"),
    [
        ("queue_unit_kb", 0.0, "above 0"),
        ("queue_top_kb", 0.5, "above queue_unit_kb"),
        ("step_kb", -5.0, "above 0"),
        ("steps", 0, "at least 1"),
        ("senders", 0, "at least 1"),
    ],
)
def test_scales_out_of_range_are_named(field, wrong, allowed):
    with pytest.raises(ValueError, match=f"{field}.*{wrong}.*{allowed}"):
        FeatureScale.create(jnp.ones(1), **{field: wrong})

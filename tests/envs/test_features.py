"""Features: values by hand, ranges, scaling with the port rate, histories, lookup, checks."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ecn_marl
from ecn_marl.envs.features import (
    FEATURE_SETS,
    FEATURES,
    Feature,
    FeatureScale,
    check_features,
    feature_set,
    fill,
    flatten,
    push,
)
from ecn_marl.envs.rewards import REWARDS, RewardParams
from ecn_marl.sim import dumbbell
from ecn_marl.sim.core.queues import Ecn
from ecn_marl.sim.state import COUNTS

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
    features = feature_set(name)
    values = features.compute(stats, ecn, FeatureScale.create(port_scale, **options))
    assert values.dtype == jnp.float32
    assert values.shape == (num_ports, features.width)
    return dict(zip(features.names, np.asarray(values).T, strict=True))


def test_what_each_set_shows():
    assert FEATURE_SETS["acc"] == ("queue", "tx_rate", "marked_rate", "kmin", "kmax", "pmax")
    assert FEATURE_SETS["pet"] == (*FEATURE_SETS["acc"], "incast_degree", "mice_fraction")
    assert FEATURE_SETS["haecn"] == ("queue_level", "tx_rate", "kmin", "kmax", "pmax")
    added = ("flows_begun", "flows_seen", "incast_degree", "small_bytes")
    assert FEATURE_SETS["flows"] == (*FEATURE_SETS["acc"], *added)
    assert [feature_set(name).obs_dim for name in ("acc", "pet", "haecn")] == [18, 24, 15]
    assert not set(FEATURE_SETS) & set(FEATURES), "a name means one thing"


def test_what_is_counted_follows_from_the_features():
    counted = {name: feature_set(name).needs for name in FEATURE_SETS}
    assert counted["acc"] == counted["haecn"] == ()
    assert counted["pet"] == ("n_senders", "n_mice", "n_elephants")
    assert counted["pet-no-mice"] == ("n_senders",)
    assert counted["pet-no-incast"] == ("n_mice", "n_elephants")
    assert counted["ports"] == ("marked_packets",)
    assert counted["flows"] == ("flows_begun", "flows_seen", "n_senders", "class_bytes")
    assert {n for f in FEATURES.values() for n in f.needs} == set(COUNTS), "none is unused"
    env = ecn_marl.make("websearch-star-v0", features="queue,incast_degree", counts=("n_mice",))
    assert env.sim.counts == ("n_senders", "n_mice")


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
        values = columns(name, stats)
        np.testing.assert_allclose(values["tx_rate"], [0.8, 0.8, 0.0], rtol=1e-6)
        np.testing.assert_allclose(values["marked_rate"], [0.2, 0.0, 0.0], rtol=1e-6)
    np.testing.assert_allclose(columns("haecn", stats)["tx_rate"], [0.8, 0.8, 0.0], rtol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_setting_in_force(port_stats, name):
    sizes = jnp.asarray([5, 20, 80, 320], jnp.float32) * KB
    ecn = Ecn(sizes, 4 * sizes, jnp.asarray([0.001, 0.01, 0.1, 1.0]))
    values = columns(name, port_stats(4, queue=sizes), ecn)
    np.testing.assert_allclose(values["pmax"], [0, 1 / 3, 2 / 3, 1], atol=1e-6)
    np.testing.assert_allclose(values["kmax"][:3], values["kmin"][1:], rtol=1e-6)
    assert (values["kmin"] < values["kmax"]).all()
    if "queue" in values:
        np.testing.assert_array_equal(values["kmin"], values["queue"])


def test_incast_degree_and_mice(port_stats):
    stats = port_stats(
        5, n_senders=[0, 7, 64, 300, 1], n_mice=[0, 3, 0, 5, 0], n_elephants=[0, 1, 4, 0, 1]
    )
    values = columns("pet", stats)
    np.testing.assert_allclose(
        values["incast_degree"],
        [0, np.log(8) / np.log(65), 1, 1, np.log(2) / np.log(65)],
        rtol=1e-6,
    )
    np.testing.assert_allclose(values["mice_fraction"], [0.5, 0.75, 0, 1, 0], rtol=1e-6)


def test_counts_are_on_a_log_scale_that_tells_a_few_apart(port_stats):
    """The rule sets deep thresholds below 2 flows begun per 100 µs: 0 to 20 must differ."""
    small_counts = np.arange(21)
    for name in ("flows_begun", "flows_seen"):
        values = columns(name, port_stats(21, **{name: small_counts}))[name]
        np.testing.assert_allclose(values, np.log1p(small_counts) / np.log(257), rtol=1e-5)
        assert np.diff(values).min() > 0.008
        top = columns(name, port_stats(2, **{name: [256, 999]}))[name]
        np.testing.assert_allclose(top, 1, rtol=1e-6)


def test_what_happens_is_shown_per_100_us(port_stats):
    """Events are scaled to 100 µs: ten times as many in ten times the time; states are not."""
    once = port_stats(2, flows_begun=4, marked_packets=30, flows_seen=7)
    tenfold = port_stats(2, flows_begun=40, marked_packets=300, flows_seen=7)
    name = "flows_begun,marked_packets,flows_seen"
    one_window = columns(name, once)
    ten_windows = columns(name, tenfold, collected_us=1000.0)
    for feature in one_window:
        np.testing.assert_allclose(one_window[feature], ten_windows[feature], rtol=1e-6)
    assert one_window["marked_packets"][0] == pytest.approx(np.log(31) / np.log(301), rel=1e-5)
    fast = port_stats(2, marked_packets=120)
    at_100 = columns("marked_packets", fast, scale=4.0)["marked_packets"]
    np.testing.assert_allclose(at_100, one_window["marked_packets"], rtol=1e-6)


def test_bytes_by_size_are_shares_of_the_data(port_stats):
    stats = port_stats(3, class_bytes=[[1e4, 3e4, 6e4], [0, 0, 0], [5, 0, 0]], tx_bytes=1e6)
    values = columns("small_bytes,medium_bytes", stats)
    np.testing.assert_allclose(values["small_bytes"], [0.1, 0, 1], rtol=1e-6)
    np.testing.assert_allclose(values["medium_bytes"], [0.3, 0, 0], rtol=1e-6)


def test_mean_and_largest_queue_are_on_the_scale_of_the_queue(port_stats):
    sizes = np.asarray([0, 3, 80, 20_000]) * KB
    stats = port_stats(4, queue=sizes, queue_mean=sizes[::-1], queue_max=2 * sizes, paused=0.25)
    values = columns("ports", stats)
    np.testing.assert_array_equal(values["queue_mean"], values["queue"][::-1])
    expected = columns("acc", port_stats(4, queue=2 * sizes))["queue"]
    np.testing.assert_array_equal(values["queue_max"], expected)
    np.testing.assert_array_equal(values["paused"], 0.25)


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
    assert {*FEATURE_SETS[name]} & {"queue", "queue_level"}
    at_25 = columns(name, slow)
    at_100 = columns(name, fast, thresholds(4, 20 * KB, 800 * KB), scale=4.0)
    for feature in at_25:
        np.testing.assert_allclose(at_25[feature], at_100[feature], rtol=1e-5, err_msg=feature)
    unscaled = columns(name, fast)
    first = next(iter(at_25))
    assert (unscaled[first] > at_25[first])[1:3].all()


finite = st.floats(allow_nan=False, allow_infinity=False, width=32)
counts = st.floats(0, 2.0**100, width=32)


@pytest.mark.parametrize("name", [",".join(FEATURES)])
@settings(max_examples=200, deadline=None)
@given(
    queue=st.floats(0, 3.4028234663852886e38, width=32),
    share=finite,
    sent=counts,
    marked=counts,
    flows=st.tuples(*[counts] * 9),
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
        flows_begun=flows[3],
        flows_seen=flows[4],
        class_bytes=flows[5:8],
        marked_packets=flows[8],
        queue_max=queue,
        paused=share,
    )
    for feature, values in columns(name, stats, thresholds(1, *setting), scale).items():
        assert 0.0 <= values[0] <= 1.0, feature


@pytest.mark.parametrize("name", NAMES)
def test_queue_feature_never_falls_and_tells_small_queues_apart(port_stats, name):
    queue = np.asarray([0, 2, 6, 15, 50, 150, 500, 1500]) * KB
    values = columns(name, port_stats(8, queue=queue, queue_mean=queue))
    first = next(iter(values.values()))
    assert (np.diff(first) >= 0).all()
    assert (np.diff(first)[1:] > 0.04).all()


@pytest.mark.parametrize(
    ("name", "gone"), [("pet-no-incast", "incast_degree"), ("pet-no-mice", "mice_fraction")]
)
def test_ablations_are_pets_state_without_one_feature(port_stats, name, gone):
    stats = port_stats(2, queue=5 * KB, utilisation=0.4, n_senders=7, n_mice=3, n_elephants=1)
    pet = columns("pet", stats, thresholds(2))
    ablated = columns(name, stats, thresholds(2))
    assert list(ablated) == [feature for feature in pet if feature != gone]
    for feature, values in ablated.items():
        np.testing.assert_array_equal(values, pet[feature])


@pytest.mark.parametrize("name", NAMES)
def test_jit_and_vmap(port_stats, name):
    stats = [port_stats(3, queue=q, queue_mean=q, utilisation=0.3) for q in (2 * KB, 80 * KB)]
    batch = jax.tree.map(lambda *leaves: jnp.stack(leaves), *stats)
    scale = FeatureScale.create(jnp.ones(3))
    compute = feature_set(name).compute
    batched = jax.jit(jax.vmap(compute, in_axes=(0, None, None)))(batch, thresholds(3), scale)
    expected = np.stack([compute(ports, thresholds(3), scale) for ports in stats])
    np.testing.assert_allclose(batched, expected, rtol=1e-6, atol=1e-7)


def test_history_drops_the_oldest_and_flattens_oldest_first():
    first = jnp.asarray([[1.0, 2.0], [10.0, 20.0]])
    history = fill(first, 3)
    np.testing.assert_array_equal(history[0], [[1, 2], [1, 2], [1, 2]])
    history = push(push(history, first + 1), first + 2)
    assert history.shape == (2, 3, 2)
    np.testing.assert_array_equal(flatten(history), [[1, 2, 2, 3, 3, 4], [10, 20, 11, 21, 12, 22]])
    np.testing.assert_array_equal(flatten(push(history, first))[0], [2, 3, 3, 4, 1, 2])
    np.testing.assert_array_equal(push(fill(first, 1), first + 5)[:, 0], first + 5)


OF_A_PORT = ("queue", "tx_rate", "queue~250", "tx_rate~1000")
OF_A_SWITCH = ("queue@switch", "tx_rate@switch~1000")


@pytest.fixture(scope="module")
def episode():
    """Twelve intervals between two switches of different sizes.

    The environment, observations `[13, A, 2, features]`, the last state and infos.
    """
    names = ",".join((*OF_A_PORT, *OF_A_SWITCH, "flows_begun", "small_bytes"))
    net = dumbbell(3, 1)
    env = ecn_marl.make("websearch-star-v0", topology=net, load=0.9, features=names, history=2)
    params, step = env.default_params, jax.jit(env.step_ecn)
    ecn = env.static_ecn("secn1", params)
    obs, state = jax.jit(env.reset)(jax.random.key(3), params)
    rows, infos = [obs], []
    for i in range(12):
        obs, state, *_, info = step(jax.random.key(i), state, ecn, params)
        rows.append(obs)
        infos.append(jax.device_get(info))
    return env, np.asarray(rows).reshape(13, env.num_agents, 2, -1), state, infos


def test_averages_of_an_episode_are_those_of_its_values(episode):
    env, rows, _, _ = episode
    seen = rows[..., :4]
    values, averages = seen[:, :, 1, :2], seen[:, :, 1, 2:]
    assert (values[1:].std(0) > 0).any(0).all()
    constants = np.array([250.0, 1000.0])
    expected = values[0].astype(np.float64)
    np.testing.assert_allclose(averages[0], expected, atol=1e-7)
    for t in range(1, len(rows)):
        kept = np.exp(-env.interval_us / constants)
        expected = kept * expected + (1.0 - kept) * values[t]
        np.testing.assert_allclose(averages[t], expected, atol=2e-6)
    np.testing.assert_array_equal(seen[1:, :, 0], seen[:-1, :, 1])


def test_averages_by_name():
    features = feature_set("queue,acc~500", history=1)
    assert features.names == ("queue", *(f"{name}~500" for name in FEATURE_SETS["acc"]))
    assert features.normalised and features.obs_dim == 7
    own = 1.0 - np.exp(-0.2)
    np.testing.assert_allclose(features.share(100.0), [1.0, *[own] * 6], rtol=1e-6)
    np.testing.assert_allclose(features.share(100.0, 2), np.tile([1.0, *[own] * 6], 2), rtol=1e-6)
    assert feature_set("acc").share(100.0) is None
    for wrong in ("queue~", "queue~0", "queue~-3", "queue~many", "queue~nan"):
        with pytest.raises(ValueError, match=rf"'{wrong}' .* expected queue~US, .* a number > 0"):
            feature_set(wrong)
    with pytest.raises(ValueError, match="queu"):
        feature_set("queu~500")
    with pytest.raises(ValueError, match=r"flows-memory~50.*without averages"):
        feature_set("flows-memory~50")
    columns = dict(feature_set("flows-memory").columns)
    assert columns["queue~5000"].over_us == 5000.0 and columns["queue"].over_us is None
    assert list(columns)[:10] == list(FEATURE_SETS["flows"])


def test_means_over_the_ports_of_a_switch(episode):
    """Beside numpy, with averages and history, on two switches of different sizes."""
    env, seen, _, _ = episode
    switch = env.sim.topology.port_switch()
    assert np.bincount(switch).tolist() == [4, 2]
    for s in set(switch.tolist()):
        mine = switch == s
        mean = seen[:, mine].astype(np.float64).mean(1, keepdims=True)
        for column, of_port in ((4, 0), (5, 3)):
            np.testing.assert_allclose(
                seen[:, mine][..., column],
                np.broadcast_to(mean[..., of_port], seen[:, mine][..., column].shape),
                atol=2e-6,
            )
    assert seen[1:, :, :, 0].std(1).max() > 0.01, "ports differ"


def test_features_of_a_switch_by_name():
    features = feature_set("acc,acc@switch,queue@switch~500")
    acc = FEATURE_SETS["acc"]
    assert features.names == (*acc, *(f"{name}@switch" for name in acc), "queue@switch~500")
    assert features.normalised and features.columns[-1][1].over_us == 500.0
    assert [f.of_switch for _, f in features.columns] == [False] * 6 + [True] * 7
    both = feature_set("flows-switch")
    assert both.columns == feature_set("flows-memory,flows-memory@switch").columns
    for wrong in ("queue@", "queue@leaf", "queue~5@switch", "queue@switch@switch"):
        with pytest.raises(ValueError, match=r"NAME@switch, or NAME@switch~US|a number > 0"):
            feature_set(wrong)
    with pytest.raises(ValueError, match="without those of switches"):
        feature_set("flows-switch@switch")


def test_lookup_and_history():
    assert feature_set("acc") == feature_set("acc")
    assert (feature_set("acc").history, feature_set("acc").name) == (3, "acc")
    longer = feature_set("pet", history=5)
    assert (longer.history, longer.obs_dim, longer.name) == (5, 40, "pet")
    assert hash(longer) != hash(feature_set("pet"))
    assert longer == feature_set("pet", history=5)
    assert feature_set(longer) is longer
    assert feature_set(longer, history=2).obs_dim == 16
    with pytest.raises(ValueError, match=r"history = 0 .*>= 1"):
        feature_set("acc", history=0)


def test_features_by_name_in_any_form():
    features = feature_set("queue, flows_begun")
    assert features.names == ("queue", "flows_begun")
    assert (features.name, features.needs, features.obs_dim) == (
        "queue,flows_begun",
        ("flows_begun",),
        6,
    )
    assert feature_set(("queue", "flows_begun")) == features
    assert feature_set("acc,flows_begun").names == (*FEATURE_SETS["acc"], "flows_begun")
    assert feature_set(FEATURE_SETS["acc"]).columns == feature_set("acc").columns
    assert feature_set("acc").normalised


def twice(stats, ecn, scale):
    """A custom feature that leaves [0, 1]."""
    return 2.0 * stats.utilisation


def test_a_feature_of_ones_own():
    custom = feature_set(("queue", ("twice", Feature(twice))))
    assert custom.names == ("queue", "twice")
    assert not custom.normalised
    env = ecn_marl.make("websearch-star-v0", features=custom)
    assert env.obs_dim == 6
    renamed = feature_set((("queue", FEATURES["tx_rate"]),))
    assert not renamed.normalised, "another feature under a known name"


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ("pte", r"unknown feature set or feature 'pte': did you mean 'pet'"),
        ("queue,flow_begun", r"'flow_begun': did you mean 'flows_begun'"),
        (("queue", "qeue_mean"), r"'qeue_mean': did you mean 'queue_mean'"),
        ("", r"unknown feature set or feature ''"),
        ((), r"features = '' is not allowed: expected at least one feature"),
        ("acc,queue", r"features = .*expected each feature once"),
    ],
)
def test_wrong_features_give_one_clear_error(features, message):
    with pytest.raises(ValueError, match=message):
        ecn_marl.make("websearch-star-v0", features=features)


def test_wrong_counters_of_a_feature_are_named():
    with pytest.raises(ValueError, match="unknown counter 'flow_begun': did you mean"):
        Feature(twice, needs=("flow_begun",))


@pytest.mark.parametrize(
    ("compute", "needs", "message"),
    [
        (lambda s, e, x: jnp.stack([s.queue, s.queue], -1), (), r"float32 \[8, 2\]"),
        (lambda s, e, x: s.queue.mean(), (), r"float32 \[\].*one float32 per port, \[8\]"),
        (lambda s, e, x: s.queue > 0, (), r"bool \[8\]"),
        (lambda s, e, x: (s.queue, s.queue), (), "tuple"),
        (lambda s, e, x: s.class_bytes, ("class_bytes",), r"float32 \[8, 3\]"),
        (lambda s, e, x: 1.0 * s.flows_begun, (), r"from what it needs \(nothing"),
        (lambda s, e, x: s.n_mice + s.n_elephants, ("n_mice",), r"needs \(n_mice\)"),
        (lambda s, e, x: s.backlog, (), "no attribute 'backlog'"),
        (lambda s, e, x: s.queue + jnp.ones(3), (), "TypeError.*one float32 per port"),
    ],
)
def test_features_that_do_not_fit_fail_at_construction(compute, needs, message):
    custom = feature_set(("pet", ("own", Feature(compute, needs))))
    with pytest.raises(ValueError, match=rf"(?s)feature 'own'.*{message}"):
        ecn_marl.make("websearch-star-v0", features=custom)


def test_every_feature_has_a_definition_and_fits():
    sim = ecn_marl.make("websearch-v0").sim
    check_features(feature_set(tuple(FEATURES)), sim)
    assert all(len(f.help) > 20 and "\n" not in f.help for f in FEATURES.values())


def test_observations_of_an_episode_show_what_info_counts(episode):
    """Columns of the newest interval follow from the info of the same step."""
    env, rows, state, infos = episode
    to_hosts = [port.peer not in env.sim.topology.switches for port in env.sim.topology.ports]
    begun = 0.0
    for row, info in zip(rows[1:], infos, strict=True):
        newest = dict(zip(env.feature.names, row[:, 1].T, strict=True))
        assert {np.shape(x) for x in info.values()} == {(env.num_agents,)}
        np.testing.assert_allclose(
            newest["flows_begun"], np.log1p(info["flows_begun"]) / np.log(257), rtol=1e-5
        )
        data = sum(info[f"{size}_bytes"] for size in ("small", "medium", "large"))
        np.testing.assert_allclose(
            newest["small_bytes"], info["small_bytes"] / np.maximum(data, 1), rtol=1e-5
        )
        begun += float(info["flows_begun"][np.array(to_hosts)].sum())
    assert begun == int(state.sim.totals.started) > 3


@pytest.mark.parametrize(
    ("field", "wrong", "allowed"),
    [
        ("queue_unit_kb", 0.0, "above 0"),
        ("queue_top_kb", 0.5, "above queue_unit_kb"),
        ("step_kb", -5.0, "above 0"),
        ("steps", 0, "at least 1"),
        ("senders", 0, "at least 1"),
        ("flows", 0, "at least 1"),
        ("packets", 0.5, "at least 1"),
        ("collected_us", 0.0, "above 0"),
    ],
)
def test_scales_out_of_range_are_named(field, wrong, allowed):
    with pytest.raises(ValueError, match=f"{field}.*{wrong}.*{allowed}"):
        FeatureScale.create(jnp.ones(1), **{field: wrong})

"""Action codecs: exact decoding, Kmin < Kmax everywhere, rate scaling, checks, static settings."""

from __future__ import annotations

from itertools import product

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ecn_marl.baselines.search import static_grid
from ecn_marl.envs.actions import (
    ACTIONS,
    PMAX_LEVELS,
    STATIC_ECN,
    ActionCodec,
    BoxAction,
    DiscreteAction,
    MultiDiscreteAction,
    action_codec,
    parse_ecn,
)

KB = 1000.0
NAMES = tuple(ACTIONS)


def all_actions(codec: ActionCodec) -> np.ndarray:
    """Every action of a discrete codec, a grid with the corners for the box."""
    if isinstance(codec, MultiDiscreteAction):
        return np.asarray(list(product(*(range(n) for n in codec.nvec))), np.int32)
    if isinstance(codec, DiscreteAction):
        return np.arange(codec.n, dtype=np.int32)
    return np.asarray(list(product(np.linspace(-1, 1, 9), repeat=3)), np.float32)


def decode(codec: ActionCodec, actions: np.ndarray, scale: float = 1.0):
    """Settings of all actions as numpy arrays: kmin, kmax (bytes), pmax."""
    actions = np.asarray(actions)
    ecn = codec.decode(jnp.asarray(actions), jnp.full(len(actions), scale, jnp.float32))
    for leaf in (ecn.kmin, ecn.kmax, ecn.pmax):
        assert leaf.dtype == jnp.float32
        assert leaf.shape == (len(actions),)
    return np.asarray(ecn.kmin), np.asarray(ecn.kmax), np.asarray(ecn.pmax)


CODECS = [
    MultiDiscreteAction(),
    MultiDiscreteAction(alpha_kb=20.0, levels=10, pmax=PMAX_LEVELS[1:]),
    MultiDiscreteAction(alpha_kb=0.3, levels=2, pmax=(0.5,)),
    DiscreteAction(),
    DiscreteAction(template=((1.0, 2.0, 0.5),)),
    BoxAction(),
    BoxAction(kmin_kb=(1.0, 100.0), kmax_kb=101.0, min_ratio=1.01, pmax=(0.001, 0.1)),
]


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
@pytest.mark.parametrize("scale", [0.4, 1.0, 4.0, 32.0])
def test_every_action_is_a_valid_setting(codec, scale):
    kmin, kmax, pmax = decode(codec, all_actions(codec), scale)
    assert (kmin > 0).all()
    assert (kmin < kmax).all()
    assert np.isfinite(kmax).all()
    assert (pmax > 0).all()
    assert (pmax <= 1).all()


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
def test_thresholds_grow_with_the_port_rate_and_pmax_does_not(codec):
    actions = all_actions(codec)
    kmin, kmax, pmax = decode(codec, actions)
    fast_kmin, fast_kmax, fast_pmax = decode(codec, actions, 4.0)
    np.testing.assert_allclose(fast_kmin, 4 * kmin, rtol=1e-6)
    np.testing.assert_allclose(fast_kmax, 4 * kmax, rtol=1e-6)
    np.testing.assert_array_equal(fast_pmax, pmax)


def test_multidiscrete_by_hand():
    codec = action_codec("multidiscrete")
    assert codec.nvec == (9, 9, 21)
    assert codec.shape == (3,)
    assert PMAX_LEVELS[:3] == (0.01, 0.05, 0.1)
    assert PMAX_LEVELS[-1] == 1.0
    kmin, kmax, pmax = decode(
        codec, [[0, 0, 0], [0, 4, 1], [3, 1, 4], [8, 0, 20], [8, 8, 20], [5, 8, 0]]
    )
    np.testing.assert_array_equal(kmin / KB, [5, 5, 40, 1280, 1280, 160])
    np.testing.assert_array_equal(kmax / KB, [10, 160, 160, 2560, 2560, 2560])
    np.testing.assert_allclose(pmax, [0.01, 0.05, 0.2, 1.0, 1.0, 0.01], rtol=1e-6)


def test_pet_template_has_45_pairs_and_20_probabilities():
    codec = action_codec("multidiscrete", alpha_kb=20.0, pmax=PMAX_LEVELS[1:])
    kmin, kmax, pmax = decode(codec, all_actions(codec))
    assert len(set(zip(kmin, kmax, strict=True))) == 45
    assert len(set(zip(kmin, kmax, pmax, strict=True))) == 900
    assert kmin.min() == 20 * KB
    assert kmax.max() == 10240 * KB


def test_discrete_template():
    codec = action_codec("discrete")
    assert codec.n == 24
    assert codec.shape == ()
    kmin, kmax, pmax = decode(codec, all_actions(codec))
    np.testing.assert_allclose(kmin[:4] / KB, [5, 100, 75, 5])
    np.testing.assert_allclose(kmax[:4] / KB, [200, 400, 75.001, 20], rtol=1e-7)
    np.testing.assert_allclose(pmax[:4], [0.01, 0.2, 1.0, 0.05], rtol=1e-6)
    assert len(set(zip(kmin, kmax, pmax, strict=True))) == 24
    assert (kmin[-1] / KB, kmax[-1] / KB, pmax[-1]) == (320, 1280, 1)


@pytest.mark.parametrize(
    ("name", "gbps", "kmin", "kmax", "pmax"),
    [
        ("huawei-25g", 25, 7, 150, 0.3),
        ("huawei-100g", 100, 7, 500, 0.3),
        ("arista", 100, 167, 283, 0.05),
        ("sonic-mellanox", 100, 2048, 10240, 0.05),
        ("alibaba", 25, 100, 400, 0.2),
        ("alibaba", 100, 400, 1600, 0.2),
    ],
)
def test_settings_of_vendors_on_ports_of_their_rate(name, gbps, kmin, kmax, pmax):
    ecn = parse_ecn(name).scaled(jnp.full(2, gbps / 25.0, jnp.float32))
    np.testing.assert_array_equal(ecn.kmin, 2 * [kmin * KB])
    np.testing.assert_array_equal(ecn.kmax, 2 * [kmax * KB])
    np.testing.assert_allclose(ecn.pmax, [pmax, pmax], rtol=1e-6)


def test_names_of_vendors_change_neither_template_nor_grid():
    """Trained policies depend on the template's indices, published results on the grid."""
    assert len(DiscreteAction().template) == 24
    assert len(static_grid()) == 183
    assert STATIC_ECN["alibaba"] == STATIC_ECN["secn2"]


def test_box_by_hand():
    codec = action_codec("box")
    kmin, kmax, pmax = decode(codec, np.asarray([[-1, -1, -1], [1, 1, 1], [0, -1, 0]], np.float32))
    np.testing.assert_allclose(kmin / KB, [5, 1280, 80], rtol=1e-5)
    np.testing.assert_allclose(kmax / KB, [6.25, 2560, 100], rtol=1e-5)
    np.testing.assert_allclose(pmax, [0.01, 1.0, 0.1], rtol=1e-5)
    kmin, kmax, _ = decode(codec, np.asarray([[-1, 1, 0], [0, 1, 0]], np.float32))
    np.testing.assert_allclose(kmax / KB, 2560, rtol=1e-5)


def test_box_rises_in_every_coordinate():
    rising = np.linspace(-1, 1, 21)
    for axis in range(3):
        actions = np.zeros((21, 3), np.float32)
        actions[:, axis] = rising
        kmin, kmax, pmax = decode(BoxAction(), actions)
        moved = (kmin, kmax, pmax)[axis]
        assert (np.diff(moved) > 0).all()


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
def test_decode_clips_what_is_out_of_range(codec):
    low, high = all_actions(codec)[0], all_actions(codec)[-1]
    outside = decode(codec, np.stack([low - 3, high + 3]))
    inside = decode(codec, np.stack([low, high]))
    np.testing.assert_array_equal(outside, inside)


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
def test_sample_covers_the_space_and_passes_the_check(codec):
    actions = codec.sample(jax.random.key(0), 500)
    assert actions.shape == (500, *codec.shape)
    assert actions.dtype == codec.dtype
    space = codec.gymnasium_space()
    checked = codec.check(np.asarray(actions), 500)
    assert all(space.contains(np.asarray(row, codec.dtype)) for row in checked)
    every = all_actions(codec)
    value_range = every.max(axis=0) - every.min(axis=0)
    assert (np.ptp(checked, axis=0) >= 0.9 * value_range).all()
    assert (
        not np.array_equal(actions, codec.sample(jax.random.key(1), 500)) or not value_range.any()
    )
    np.testing.assert_array_equal(actions, codec.sample(jax.random.key(0), 500))


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
def test_gymnasium_spaces(codec):
    space = codec.gymnasium_space()
    kind = {
        "multidiscrete": gymnasium.spaces.MultiDiscrete,
        "discrete": gymnasium.spaces.Discrete,
        "box": gymnasium.spaces.Box,
    }[codec.name]
    assert isinstance(space, kind)
    space.seed(3)
    samples = np.stack([space.sample() for _ in range(50)])
    assert codec.check(samples, 50).dtype == codec.dtype
    assert space.contains(codec.encode(20.0, 80.0, 0.3)) or codec.shape == ()


@pytest.mark.parametrize(
    ("codec", "setting", "nearest"),
    [
        (MultiDiscreteAction(), "secn1", (5.0, 160.0, 0.01)),
        (MultiDiscreteAction(), "secn2", (80.0, 320.0, 0.2)),
        (MultiDiscreteAction(alpha_kb=6.25), "secn2", (100.0, 400.0, 0.2)),
        (DiscreteAction(), "secn1", (5.0, 200.0, 0.01)),
        (DiscreteAction(), "secn2", (100.0, 400.0, 0.2)),
        (DiscreteAction(), "dctcp", (75.0, 75.001, 1.0)),
        (BoxAction(), "secn1", (5.0, 200.0, 0.01)),
        (BoxAction(), "secn2", (100.0, 400.0, 0.2)),
    ],
)
def test_nearest_action_of_static_settings(codec, setting, nearest):
    action = codec.encode(*STATIC_ECN[setting])
    assert action.shape == codec.shape
    assert action.dtype == codec.dtype
    assert codec.describe(action) == pytest.approx(nearest, rel=1e-5)


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
def test_encode_undoes_describe(codec):
    for action in all_actions(codec)[::37]:
        setting = codec.describe(action)
        reencoded = codec.describe(codec.encode(*setting))
        assert reencoded == pytest.approx(setting, rel=1e-4)


@settings(max_examples=60, deadline=None)
@given(
    kmin=st.floats(0.1, 1e5),
    ratio=st.floats(1.001, 1e4),
    pmax=st.floats(1e-4, 1.0),
)
def test_encode_is_always_a_valid_action(kmin, ratio, pmax):
    for codec in (MultiDiscreteAction(), DiscreteAction(), BoxAction()):
        codec.check(codec.encode(kmin, kmin * ratio, pmax)[None], 1)


def test_encode_finds_the_nearest_of_all_pairs():
    codec = MultiDiscreteAction()
    every = all_actions(codec)
    kmin, kmax, pmax = (np.log(x) for x in decode(codec, every))
    for setting in [
        (7.0, 900.0, 0.03),
        (3000.0, 4000.0, 1.0),
        (1.0, 2.0, 0.001),
        (30.0, 31.0, 0.6),
    ]:
        target = np.log([setting[0] * KB, setting[1] * KB, setting[2]])
        best = ((kmin - target[0]) ** 2 + (kmax - target[1]) ** 2 + (pmax - target[2]) ** 2).min()
        low, high, p = np.log(codec.describe(codec.encode(*setting)))
        distance = (low - target[0] + np.log(KB)) ** 2 + (high - target[1] + np.log(KB)) ** 2
        assert distance + (p - target[2]) ** 2 == pytest.approx(best, abs=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_jit_and_vmap(name):
    codec = action_codec(name)
    actions = jnp.asarray(all_actions(codec)[-4:])
    batch = jnp.stack([actions, actions[::-1]])
    scale = jnp.linspace(1.0, 4.0, len(actions))
    batched = jax.jit(jax.vmap(codec.decode, in_axes=(0, None)))(batch, scale)
    expected = [codec.decode(row, scale) for row in batch]
    for leaf, *alone in zip(*(jax.tree.leaves(x) for x in (batched, *expected)), strict=True):
        np.testing.assert_allclose(leaf, np.stack(alone), rtol=1e-6)
    keys = jax.random.split(jax.random.key(0), 3)
    assert jax.jit(jax.vmap(lambda k: codec.sample(k, 2)))(keys).shape == (3, 2, *codec.shape)


@pytest.mark.parametrize(
    ("name", "action", "message"),
    [
        ("multidiscrete", [[0, 0, 0]], r"shape.*\(1, 3\).*\(2, 3\)"),
        ("multidiscrete", [[0, 0], [0, 0]], r"shape.*\(2, 2\).*\(2, 3\)"),
        ("multidiscrete", [[0, 0, 0], [0, 0]], r"dtype.*ragged.*integer"),
        ("multidiscrete", [[0.0, 0, 0], [0, 0, 0]], r"dtype.*float64.*integer"),
        ("multidiscrete", [[True, 0, 0], [0, 0, None]], r"dtype.*not numeric.*integer"),
        ("multidiscrete", [[0, 0, 0], [0, 9, 0]], r"port_1, gap.*9.*\[0, 8\]"),
        ("multidiscrete", [[-1, 0, 0], [0, 0, 0]], r"port_0, kmin.*-1.*\[0, 8\]"),
        ("multidiscrete", [[0, 0, 0], [8, 8, 21]], r"port_1, pmax.*21.*\[0, 20\]"),
        ("discrete", [0, 24], r"port_1.*24.*\[0, 23\]"),
        ("discrete", [[0], [1]], r"shape.*\(2, 1\).*\(2,\)"),
        ("discrete", [0.5, 1.0], r"dtype.*float64.*integer"),
        ("discrete", [True, False], r"dtype.*bool.*integer"),
        ("box", [[0.0, 0.0, 0.0], [0.0, 1.5, 0.0]], r"port_1, ratio.*1\.5.*\[-1\.0, 1\.0\]"),
        ("box", [[0.0, 0.0, float("nan")], [0.0, 0.0, 0.0]], r"port_0, pmax.*nan"),
        ("box", [[0, 0, 0], [0, 0, 0]], r"dtype.*int64.*float"),
    ],
)
def test_check_names_entry_value_and_limits(name, action, message):
    with pytest.raises(ValueError, match=message):
        action_codec(name).check(action, 2)


def test_check_hands_back_the_codecs_dtype():
    checked = action_codec("multidiscrete").check(np.asarray([[1, 2, 3]], np.uint8), 1)
    assert checked.dtype == np.int32
    assert checked.tolist() == [[1, 2, 3]]
    assert action_codec("box").check(np.zeros((2, 3)), 2).dtype == np.float32
    with pytest.raises(ValueError, match=r"9.*\[0, 8\]"):
        action_codec("multidiscrete").describe([9, 0, 0])


@pytest.mark.parametrize(
    ("name", "option", "wrong", "message"),
    [
        ("multidiscrete", "alpha_kb", 0.0, r"alpha_kb = 0\.0 .*> 0"),
        ("multidiscrete", "levels", 1, r"levels = 1 .*>= 2 and <= 24"),
        ("multidiscrete", "pmax", (0.5, 0.1), "pmax.*increasing"),
        ("multidiscrete", "pmax", (0.5, 1.1), r"pmax.*1\.1.*> 0 and <= 1"),
        ("multidiscrete", "pmax", (), r"pmax = \(\).*at least 1 value, each"),
        ("discrete", "template", (), "template.*at least one"),
        ("discrete", "template", ((5.0, 4.0, 0.1),), r"template\[0\].*5\.0.*0 < Kmin <= Kmax"),
        ("discrete", "template", ((5.0, 9.0, 0.0),), r"template\[0\].*Pmax.*0\.0.*\(0, 1\]"),
        ("box", "kmin_kb", (5.0, 5.0), "kmin_kb.*rising"),
        ("box", "min_ratio", 1.0, r"min_ratio.*1\.0.*1\.01"),
        ("box", "kmax_kb", 1500.0, "kmax_kb.*1500.*1600"),
        ("box", "pmax", (0.0, 1.0), r"pmax.*0\.0.*> 0 and <= 1"),
    ],
)
def test_options_out_of_range_are_named(name, option, wrong, message):
    with pytest.raises(ValueError, match=message):
        action_codec(name, **{option: wrong})


def test_lookup_and_hash():
    for name in NAMES:
        assert action_codec(name).name == name
        assert hash(action_codec(name)) == hash(action_codec(name))
        assert action_codec(name) == action_codec(name)
    assert action_codec("multidiscrete", alpha_kb=20.0) != action_codec("multidiscrete")
    codec = action_codec("multidiscrete", pmax=(0.1, 0.2))
    assert codec.nvec == (9, 9, 2)
    assert isinstance(hash(codec), int)
    custom = BoxAction(pmax=(0.1, 0.5))
    assert action_codec(custom) is custom
    with pytest.raises(ValueError, match=r"(?s)actions.*'multidiscret'.*multidiscrete"):
        action_codec("multidiscret")
    with pytest.raises(ValueError, match=r"(?s)multidiscrete.*'alpha'.*alpha_kb"):
        action_codec("multidiscrete", alpha=20.0)
    with pytest.raises(ValueError, match="alpha_kb"):
        action_codec(custom, alpha_kb=20.0)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("secn1", (5, 200, 0.01)),
        ("SECN2", (100, 400, 0.2)),
        ("dctcp", (75, 75.001, 1)),
        ("5,200,0.01", (5, 200, 0.01)),
        (" 20, 80 ,0.5 ", (20, 80, 0.5)),
        ("75,75,1", (75, 75, 1)),
    ],
)
def test_static_settings(spec, expected):
    assert parse_ecn(spec) == pytest.approx(expected)
    ecn = parse_ecn(spec).scaled(jnp.asarray([1.0, 4.0]))
    np.testing.assert_allclose(ecn.kmin, expected[0] * KB * np.asarray([1, 4]), rtol=1e-6)
    np.testing.assert_allclose(ecn.kmax, expected[1] * KB * np.asarray([1, 4]), rtol=1e-6)
    np.testing.assert_allclose(ecn.pmax, [expected[2]] * 2, rtol=1e-6)
    assert ((ecn.kmin < ecn.kmax) == (expected[0] < expected[1])).all()


def test_a_step_is_a_setting_like_others():
    """DCTCP's own configuration, as an entry of a list and as the target of other codecs."""
    codec = DiscreteAction(template=((5.0, 200.0, 0.01), (75.0, 75.0, 1.0)))
    kmin, kmax, _ = decode(codec, all_actions(codec))
    np.testing.assert_array_equal(kmin == kmax, [False, True])
    assert codec.encode(75.0, 75.0, 1.0) == 1
    for other in (MultiDiscreteAction(), BoxAction()):
        kmin, kmax, _ = decode(other, other.encode(75.0, 75.0, 1.0)[None])
        assert 37e3 < kmin[0] <= 75.1e3 <= kmax[0] < 151e3


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("secn3", r"(?s)ECN setting.*'secn3'.*secn"),
        ("200,5,0.01", r"Kmin, Kmax.*\(200\.0, 5\.0\).*0 < Kmin <= Kmax"),
        ("75,74.9,1", r"Kmin, Kmax.*75.*0 < Kmin <= Kmax"),
        ("nan,75,1", r"Kmin, Kmax.*nan"),
        ("0,75,1", r"Kmin, Kmax.*0 < Kmin <= Kmax"),
        ("5,inf,1", r"Kmin, Kmax.*inf"),
        ("nan,5,1", r"Kmin, Kmax.*nan"),
        ("5,200,0", r"Pmax.*0\.0.*\(0, 1\]"),
        ("5,200,1.5", r"Pmax.*1\.5.*\(0, 1\]"),
        ("5,200", r"'5,200'.*KMIN,KMAX,PMAX.*5,200,0\.01"),
        ("5,200,x", r"'5,200,x'.*KMIN,KMAX,PMAX"),
        ("5", r"'5'.*KMIN,KMAX,PMAX"),
        ("", r"(?s)ECN setting.*secn1"),
    ],
)
def test_static_settings_that_cannot_be_are_named(spec, message):
    with pytest.raises(ValueError, match=message):
        parse_ecn(spec)

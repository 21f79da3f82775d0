"""Exported policies of flows: float, int8 and trees, against plain Python and the run."""

from __future__ import annotations

import json
from functools import partial
from itertools import pairwise
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from commands import failure, run

from ecn_marl.baselines.exporting import rate_export
from ecn_marl.baselines.exporting.distil import MIN_ROWS, grow
from ecn_marl.baselines.exporting.files import read_policy, save_policy
from ecn_marl.baselines.exporting.quantise import dense_arrays, quantise
from ecn_marl.baselines.exporting.rate_export import export_rate_policy, record
from ecn_marl.baselines.exporting.rate_policy import RatePolicy, dense, int8, int8_codes, tree
from ecn_marl.baselines.rate_exported import Deployed, device_arrays
from ecn_marl.envs.rate.scenarios import make_rate
from ecn_marl.experiments.rate import run_actor

LIMITS = (1.0, 0.2)
TINY = ("senders=4", "envs=4", "rollout=128", "events=24")
SHORT = ("--env", "duration_us=1.2e4", "--env", "warm_up_us=6e3", "--json")


def network(seed: int, biases: bool = False):
    """A random network of four inputs, twelve and twelve units, as ADPG's."""
    rng = np.random.default_rng(seed)
    widths = [4, 12, 12, 1]
    return [
        (rng.normal(size=(a, b)) / np.sqrt(a), biases * rng.normal(size=b))
        for a, b in pairwise(widths)
    ]


def observations(seed: int, n: int = 2000) -> np.ndarray:
    """Heavy tails, as errors have while flows start."""
    rng = np.random.default_rng(seed)
    return (rng.normal(size=(n, 4)) * np.exp(2 * rng.normal(size=(n, 1)))).astype(np.float32)


@pytest.fixture(scope="module")
def one_recorder():
    """Policies are recorded by one program per form, whichever trainer has read the run."""
    programs, make = {}, rate_export._recorder

    def recorder(env, act):
        form = env, getattr(act, "__func__", act)
        return programs.setdefault(form, make(env, act))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rate_export, "_recorder", recorder)
        yield


@pytest.fixture(scope="module")
def trained(one_recorder, tmp_path_factory):
    """A run of ADPG, and its policy in three files."""
    folder = tmp_path_factory.mktemp("rate") / "run"
    sets = [word for text in TINY for word in ("--set", text)]
    result = run("train", "adpg", "--out", folder, "--steps", 4 * 128 * 100, *sets)
    assert result.exit_code == 0, result.output
    files = {"dense": (), "int8": ("--int8",), "tree": ("--tree", 4)}
    outputs = {}
    for form, options in files.items():
        result = run("export", folder, "--out", folder.parent / f"{form}.npz", *options)
        assert result.exit_code == 0, result.output
        outputs[form] = result.stdout
    return folder, outputs


def plain_code(arrays, codes: list[int]) -> int:
    """A quantised network in Python's integers; every value must fit in int32."""

    def fits(value: int) -> int:
        assert -(2**31) <= value < 2**31
        return value

    for i in range(3):
        weight, last = arrays[f"w{i}"].tolist(), i == 2
        new = []
        for o in range(len(weight[0])):
            total = int(arrays[f"b{i}"][o])
            for j, code in enumerate(codes):
                total = fits(total + code * weight[j][o])
            shift = int(arrays[f"shift{i}"])
            scaled = fits(fits(total * int(arrays[f"m{i}"][o])) + 2 ** (shift - 1)) // 2**shift
            new.append(max(-127 if last else 0, min(127, scaled)))
        codes = new
    return codes[0]


@pytest.mark.parametrize("biases", [False, True])
def test_integers_are_those_of_plain_python(biases):
    obs = observations(1)
    arrays, _ = quantise(network(2, biases), LIMITS, obs)
    assert arrays["w1"].dtype == np.int8
    codes = np.random.default_rng(3).integers(-127, 128, (200, 4)).astype(np.int32)
    codes[:2] = [[127] * 4, [-127] * 4]
    expected = [plain_code(arrays, row) for row in codes.tolist()]
    assert len(set(expected)) > 20
    np.testing.assert_array_equal(int8_codes(np, arrays, codes), expected)
    np.testing.assert_array_equal(jax.jit(partial(int8_codes, jnp))(arrays, codes), expected)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4])
def test_no_sum_leaves_int32(scale):
    """The largest sums that weights allow, unit by unit."""
    layers = [(w * scale, b) for w, b in network(5)]
    arrays, _ = quantise(layers, LIMITS, observations(6))
    for i in range(3):
        largest = 127 * np.abs(arrays[f"w{i}"].astype(np.int64)).sum(0) + np.abs(arrays[f"b{i}"])
        half = 2 ** (int(arrays[f"shift{i}"]) - 1)
        assert (largest * arrays[f"m{i}"].astype(np.int64) + half < 2**31).all()


def test_quantised_networks_act_like_their_own():
    """Also with biases; without them, an error of 0 gives no change of rate."""
    for biases in (False, True):
        layers, obs = network(7, biases), observations(8)
        arrays, about = quantise(layers, LIMITS, obs)
        expected = dense(np, dense_arrays(layers, LIMITS), obs)
        error = np.abs(int8(np, arrays, obs) - expected)
        assert error.mean() < 0.1 * expected.std()
        assert about["mean_difference"] == pytest.approx(error.mean(), rel=1e-3)
        if not biases:
            assert int8(np, arrays, np.zeros(4, np.float32)) == 1.0
    with pytest.raises(ValueError, match=r"observations = \(0, 4\)"):
        quantise(network(7), LIMITS, np.zeros((0, 4)))


def test_splits_are_optimal():
    """Against trying every threshold of every column."""
    rng = np.random.default_rng(9)
    x = rng.normal(size=(60, 3)).astype(np.float32)
    y = 0.3 * (x[:, 1] > 0.2) + 0.1 * x[:, 2] + 0.05 * rng.normal(size=60)
    arrays = grow(x, y, 1)

    def error(column: int, limit: float) -> float:
        right = x[:, column] > limit
        if min(right.sum(), (~right).sum()) < MIN_ROWS:
            return np.inf
        return sum(((y[side] - y[side].mean()) ** 2).sum() for side in (right, ~right))

    errors = {(c, float(limit)): error(c, limit) for c in range(3) for limit in x[:, c]}
    assert (arrays["feature"][0], float(arrays["threshold"][0])) == min(errors, key=errors.get)
    right = x[:, arrays["feature"][0]] > arrays["threshold"][0]
    np.testing.assert_allclose(arrays["value"], [y[~right].mean(), y[right].mean()], rtol=1e-6)


def test_trees_follow_their_comparisons():
    rng = np.random.default_rng(10)
    x = rng.normal(size=(3000, 4)).astype(np.float32)
    y = 1.0 + 0.2 * np.tanh(x @ [0.5, -1.0, 0.3, -0.5])
    errors = []
    for depth in (1, 3, 6):
        arrays = grow(x, y, depth)
        expected = []
        for row in x:
            node = 0
            while node < 2**depth - 1:
                right = bool(row[arrays["feature"][node]] > arrays["threshold"][node])
                node = 2 * node + 1 + right
            expected.append(arrays["value"][node - (2**depth - 1)])
        np.testing.assert_array_equal(tree(np, arrays, x), expected)
        np.testing.assert_array_equal(jax.jit(partial(tree, jnp))(arrays, x), expected)
        errors.append(np.abs(np.array(expected) - y).mean())
    assert errors[0] > 1.3 * errors[1] > 1.3 * 1.3 * errors[2]
    flat = grow(x, np.full(3000, 1.1), 3)
    np.testing.assert_allclose(tree(np, flat, x), 1.1, rtol=1e-6)
    with pytest.raises(ValueError, match="depth = 13"):
        grow(x, y, 13)


def test_files_act_like_the_run(trained):
    folder, outputs = trained
    trainer, actor, _ = run_actor(folder)
    obs = record(trainer, trainer.act, actor, 11)
    expected = np.asarray(trainer.act(actor, jnp.asarray(obs)))
    assert np.std(expected) > 0.01
    for form, mean in {"dense": 1e-6, "int8": 0.01, "tree": 0.02}.items():
        policy = read_policy(folder.parent / f"{form}.npz")
        assert (policy.model, policy.columns, policy.history) == (form, ("change", "error"), 2)
        assert policy.header["algorithm"] == "adpg"
        assert repr(policy) == f"<RatePolicy of adpg: {form}, 2 events of 2 numbers>"
        assert np.abs(policy(obs) - expected).mean() < mean
        rows = dict(zip(("flow_0", "flow_1"), obs.reshape(-1, policy.obs_dim), strict=False))
        assert policy(rows) == {agent: policy(row) for agent, row in rows.items()}
        deployed = Deployed(form)(device_arrays(policy), jnp.asarray(obs))
        np.testing.assert_allclose(policy(obs), deployed, atol=1e-6)
        assert "us per decision of one flow" in outputs[form]


def test_eval_takes_files(trained):
    folder, _ = trained
    names = [str(folder), *(str(folder.parent / f"{form}.npz") for form in ("dense", "int8"))]
    result = run("eval", *names, "--scenario", "many-to-one-4-v0", *SHORT)
    assert result.exit_code == 0, result.output
    run_result, file, quantised = (json.loads(result.stdout)["policies"][name] for name in names)
    for name, values in run_result.items():
        # Rounding of the two programs: flows near a quarter of the link are in step, or just not.
        assert file[name] == pytest.approx(values, rel=1e-2)
        # A policy that has hardly learnt lets its queue grow: small differences of rates add up.
        rel = 0.5 if name == "queue_us" else 0.2
        assert quantised[name] == pytest.approx(values, rel=rel, abs=0.5)


def test_wrong_files_are_refused(trained, tmp_path):
    folder, _ = trained
    out, file = tmp_path / "x.npz", folder.parent / "int8.npz"
    assert "int8, depth" in failure("export", folder, "--out", out, "--int8", "--tree", 3)
    assert "depth = 0" in failure("export", folder, "--out", out, "--tree", 0)
    assert "whose agents are ports" in failure("export", "runs/none", "--out", out, "--int8")
    assert "a policy of ports here" in failure("eval", file, "--scenario", "incast-v0")
    ports = failure("eval", "pretrained:restore-serve-ippo", "--scenario", "many-to-one-4-v0")
    assert "a policy of flows, as the scenario" in ports
    policy = read_policy(file)
    with pytest.raises(ValueError, match=r"obs shape = \(3,\)"):
        policy(np.zeros(3))
    for arrays in (
        {"w0": policy.arrays["w0"]},
        {**policy.arrays, "w0": np.zeros((3, 12), np.int8)},
    ):
        save_policy(RatePolicy(policy.header, arrays), out)
        with pytest.raises(ValueError, match=r"rate_policy\.MODELS"):
            read_policy(out)
    with pytest.raises(ValueError, match="form of the policy 'int9'"):
        RatePolicy({**policy.header, "model": {"form": "int9"}}, policy.arrays)


def test_int8_needs_a_network():
    """Learners whose policy is something else can be exported as a tree only."""
    no_network = SimpleNamespace(envs=(make_rate("many-to-one-4-v0"),), policy=None)
    with pytest.raises(ValueError, match=r"algorithm = 'other' .*export a tree"):
        export_rate_policy(no_network, {}, int8=True, algorithm="other", seed=0)
    discrete = SimpleNamespace(envs=(make_rate("many-to-one-4-v0", actions="discrete"),))
    with pytest.raises(ValueError, match="actions = 'discrete'"):
        export_rate_policy(discrete, {}, algorithm="other", seed=0)

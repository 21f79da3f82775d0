"""The scripts in `examples`, with settings that make them quick."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def load(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SHORT = [
    "--flows",
    "4",
    "--gap-ms",
    "0.5",
    "--more-ms",
    "2",
    "--dt-us",
    "4",
    "--grid",
    "3",
    "--steps",
    "25",
    "--seeds",
    "2",
]


def check(result, printed):
    """Descent ends below the grid, which is below its start; the table shows what is returned."""
    assert result.descent <= result.grid < result.start
    for kmin, kmax, pmax in (result.grid_setting, result.descent_setting):
        assert 0 <= kmin < kmax and 0 < pmax <= 1
    lines = printed.splitlines()
    assert [line.split()[0] for line in lines[1:]] == [
        "SECN1",
        "grid",
        "descent",
        "grid,",
        "descent,",
    ]
    cost = [float(line.split("|")[1].split()[0]) for line in lines[1:4]]
    want = [result.start, result.grid, result.descent]
    assert cost == pytest.approx(want, abs=1e-4)


@pytest.mark.slow
@pytest.mark.thorough
def test_tuning_by_gradient_beats_the_grid(capsys):
    check(load("tune_by_gradient").main(SHORT), capsys.readouterr().out)


def test_both_searches_find_the_valley_of_a_cost_that_is_known(capsys, monkeypatch):
    """A bowl around 20 KB, 160 KB and 0.3, which no point of the grid hits."""
    example = load("tune_by_gradient")
    bottom = example.coordinates((20.0, 160.0, 0.3))

    def episode(args, source, softness):
        def run(setting, seed=0):
            cost = 0.01 * example.jnp.square(coordinates(setting) - bottom).sum()
            return example.Outcome(cost, 1.0 - cost, 10.0 * cost + 0.0 * seed)

        return run

    def coordinates(setting):
        kmin, kmax, pmax = setting
        logs = (example.jnp.log(x) for x in (kmin, kmax - kmin, pmax / (1.0 - pmax + 1e-6)))
        return example.jnp.stack(list(logs))

    monkeypatch.setattr(example, "episode", episode)
    result = example.main(SHORT)
    check(result, capsys.readouterr().out)
    assert result.descent < 0.1 * result.grid


def test_episodes_have_costs_and_gradients_of_all_thresholds():
    """Traced, but not run: that descent through the simulator pays, the long test shows."""
    example = load("tune_by_gradient")
    args = example.parse(SHORT)
    setting = example.Setting(*map(example.jnp.float32, example.SECN1))
    smooth = example.episode(args, "mean_field", 2000.0)
    slope = example.jax.eval_shape(example.jax.grad(lambda x: smooth(x).cost), setting)
    assert [x.shape for x in slope] == [(), (), ()]
    sampled = example.jax.eval_shape(example.episode(args, "timers", 0.0), setting, 1)
    assert [x.shape for x in sampled] == [(), (), ()]


def test_transformed_thresholds_are_allowed_and_invertible():
    example = load("tune_by_gradient")
    for start in example.STARTS:
        assert tuple(example.allowed(example.coordinates(start))) == pytest.approx(start, rel=1e-4)
    kmin, kmax, pmax = example.allowed(example.jnp.array([-9.0, -2.0, 9.0]))
    assert 0 <= kmin < kmax and 0 < pmax <= 1

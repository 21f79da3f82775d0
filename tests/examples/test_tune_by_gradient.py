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


@pytest.mark.slow
def test_tuning_by_gradient_beats_the_grid(capsys):
    example = load("tune_by_gradient")
    short = "--flows 4 --gap-ms 0.5 --more-ms 2 --dt-us 4 --grid 3 --steps 25 --seeds 2"
    result = example.main(short.split())
    assert result.descent <= result.grid < result.start
    for kmin, kmax, pmax in (result.grid_setting, result.descent_setting):
        assert 0 <= kmin < kmax and 0 < pmax <= 1
    lines = capsys.readouterr().out.splitlines()
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


def test_transformed_thresholds_are_allowed_and_invertible():
    example = load("tune_by_gradient")
    for start in example.STARTS:
        assert tuple(example.allowed(example.coordinates(start))) == pytest.approx(start, rel=1e-4)
    kmin, kmax, pmax = example.allowed(example.jnp.array([-9.0, -2.0, 9.0]))
    assert 0 <= kmin < kmax and 0 < pmax <= 1

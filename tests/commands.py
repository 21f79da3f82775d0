"""The command line as tests call it, and a scenario that costs next to nothing."""

from __future__ import annotations

import jax
from typer.testing import CliRunner

from ecn_marl.cli import app
from ecn_marl.envs.scenario import Scenario
from ecn_marl.sim import Incast, star

TINY = "tiny-v0"
"""Name of `tiny`, where the fixture `tiny_scenario` is used."""


def tiny() -> Scenario:
    """Three hosts, two of which keep sending to the first; six intervals of 8 substeps, 40 µs."""
    return Scenario(
        topology=star(3),
        traffic=(Incast(n_max=2, flow_kb=50.0, width=2),),
        dt_us=5.0,
        slots=4,
        max_steps=6,
        interval_us=40.0,
        pfc=False,
        bins=40,
    )


class Counter:
    """A policy of `tiny`, pure, with a state: shallow for two intervals, then deep."""

    def init(self):
        return jax.numpy.zeros((), jax.numpy.int32)

    def act(self, key, obs, state):
        setting = jax.numpy.where(state < 2, 0, 6)
        action = jax.numpy.broadcast_to(setting, (obs.shape[0],))
        return jax.numpy.stack([action, action * 0, action * 0 + 3], -1), state + 1


def run(*args: object):
    return CliRunner().invoke(app, [str(a) for a in args])


def failure(*args: object) -> str:
    """The error of a command that must fail: one line on stderr, nothing on stdout, code 2."""
    result = run(*args)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("ecn-marl: ")
    assert result.stderr.count("\n") == 1
    return result.stderr

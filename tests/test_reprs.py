"""The `repr` of environments and policies: one line that describes them."""

from __future__ import annotations

import pytest

import ecn_marl
from ecn_marl.baselines.exported import exported_controller, view_of
from ecn_marl.baselines.static import Static
from ecn_marl.wrappers import AutoReset, Checked, Lanes

STAR = "websearch-star-v0"


def policy():
    return ecn_marl.load_policy("pretrained:restore-serve-mappo")


def exported():
    env = ecn_marl.make("restore-serve-v0", **view_of(policy()))
    return exported_controller(env, policy(), "mine.npz")


SHOWN = {
    "core": (lambda: ecn_marl.make(STAR), ("<EcnEnv websearch-star-v0: 8 ports of star:8", "acc")),
    "large": (lambda: ecn_marl.make("pet-websearch-v0"), ("432 ports",)),
    "parallel": (lambda: ecn_marl.parallel_env(STAR, max_cycles=7), (STAR, "port_7", "7 steps")),
    "aec": (lambda: ecn_marl.env(STAR), ("EcnAECEnv(<EcnParallelEnv websearch-star-v0",)),
    "vector": (lambda: ecn_marl.vector_env(STAR, 3), ("num_envs=3", STAR)),
    "jaxmarl": (lambda: ecn_marl.jaxmarl_env(STAR), ("EcnJaxMARL(<EcnEnv", STAR)),
    "rate": (
        lambda: ecn_marl.make_rate("many-to-one-8-v0"),
        ("<RateEnv many-to-one-8-v0: 8 ",),
    ),
    "flows": (lambda: ecn_marl.rate_parallel_env("many-to-one-8-v0"), ("flow_0 … flow_7",)),
    "lanes": (lambda: Lanes(ecn_marl.make(STAR)), ("Lanes(env=<EcnEnv",)),
    "reset": (lambda: AutoReset(Checked(ecn_marl.make(STAR))), ("AutoReset(env=Checked(env=<Ecn",)),
    "policy": (policy, ("<Policy of mappo for restore-serve-v0",)),
    "exported": (exported, ("<Exported mine.npz: layers of 30, ",)),
    "static": (
        lambda: Static(env := ecn_marl.make(STAR), env.default_params, "5,60,1"),
        ("<Static Kmin 5 KB, Kmax 60 KB, Pmax 1>",),
    ),
}


@pytest.mark.parametrize("name", SHOWN)
def test_environments_and_policies_print_as_a_line(name):
    make, parts = SHOWN[name]
    line = repr(make())
    assert "\n" not in line and len(line) <= 200, line
    assert all(part in line for part in parts), line

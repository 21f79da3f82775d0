"""`speed --gpu-plan`: what a program for a GPU launches, reads and writes."""

from __future__ import annotations

import importlib.util

import pytest
from commands import failure

import ecn_marl
from ecn_marl import lanes
from ecn_marl.baselines.algorithms import ALGORITHMS, algorithm_config
from ecn_marl.baselines.training.loop import compiled_update, initial_state
from ecn_marl.speed import gpu_plan

TWO = {"template": ((640.0, 2560.0, 1.0), (2.5, 5.0, 1.0))}
"""A setting for each phase of `restore-serve-v0`."""

PROGRAM = """
HloModule jit_step, is_scheduled=true

%fused (p: f32[8,4]) -> f32[8,4] {
  %p = f32[8,4]{1,0} parameter(0)
  ROOT %double = f32[8,4]{1,0} add(%p, %p)
}

%turn (state: (s32[], f32[8,4])) -> (s32[], f32[8,4]) {
  %state = (s32[], f32[8,4]{1,0}) parameter(0)
  %k = s32[] get-tuple-element(%state), index=0
  %x = f32[8,4]{1,0} get-tuple-element(%state), index=1
  %y = f32[8,4]{1,0} fusion(%x), kind=kLoop, calls=%fused
  %z = f32[8,4]{1,0} copy(%y)
  ROOT %next = (s32[], f32[8,4]{1,0}) tuple(%k, %z)
}

%more (state.1: (s32[], f32[8,4])) -> pred[] {
  %state.1 = (s32[], f32[8,4]{1,0}) parameter(0)
  ROOT %less = pred[] constant(true)
}

ENTRY %main (a: f32[8,4], b: pred[8]) -> (s32[], f32[8,4]) {
  %a = f32[8,4]{1,0} parameter(0)
  %b = pred[8]{0} parameter(1)
  %s = f32[8,4]{1,0} fusion(%a, %b), kind=kLoop, calls=%fused
  %zero = s32[] constant(0)
  %start = (s32[], f32[8,4]{1,0}) tuple(%zero, %s)
  ROOT %loop = (s32[], f32[8,4]{1,0}) while(%start), condition=%more, body=%turn, {"known_trip_count":{"n":"50"}}
}
"""  # noqa: E501


def test_launches_of_loops_count_in_each_of_their_turns() -> None:
    found = gpu_plan.launches(PROGRAM)
    assert (found.launches, found.copies, found.innermost) == (1 + 2 * 50, 50, 2)
    assert found.bytes == 128 + 8 + 128 + 50 * 2 * (128 + 128)
    assert found.seconds == pytest.approx(found.bytes / 3.35e12 + 101 * 2e-6)


def test_a_loop_of_unknown_length_is_refused() -> None:
    text = PROGRAM.replace(', {"known_trip_count":{"n":"50"}}', "")
    with pytest.raises(ValueError, match="turns of %loop is not known"):
        gpu_plan.launches(text)


@pytest.mark.skipif(
    importlib.util.find_spec("jax_plugins") is not None, reason="this environment has a plugin"
)
def test_without_a_plugin_it_says_so() -> None:
    message = failure("speed", "--gpu-plan", "--scenario", "websearch-star-v0")
    assert message.startswith("ecn-marl: --gpu-plan = ")
    assert message.endswith("is not allowed: expected jax[cuda12] or jax[cuda13]\n")


def test_small_environments_are_kept_by_a_warp() -> None:
    facts = gpu_plan.kernel(ecn_marl.make("websearch-star-v0"), 4096)
    assert (facts["environments"], facts["warps"]) == (1, 16)
    assert 0 < facts["shared_bytes"] <= 232_448 // 16
    assert facts.get("registers", 128) <= 128


@pytest.mark.thorough
@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
def test_updates_lower_for_a_gpu(algorithm: str) -> None:
    """XLA's program for CUDA; what only a CPU can run would be refused."""
    env = ecn_marl.make("websearch-star-v0")
    if algorithm == "dagger":  # its teacher needs phases
        env = ecn_marl.make("restore-serve-v0", actions="discrete", action_options=TWO)
    trainer = ALGORITHMS[algorithm](env, algorithm_config(algorithm, envs=8))
    with lanes.off():
        state = initial_state(trainer, env.default_params, seed=0)
        traced = compiled_update(trainer).trace(state, env.default_params)
        text = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert "stablehlo.while" in text

"""Lower bounds of the time of a substep: its work over the rates that the machine reaches.

There are two floors. The floor of the *program* adds up the times of its memory traffic (bytes that
XLA's fused operations read and write), arithmetic, logarithms, scattered sums and look-ups, each at
the rate that this machine reaches in a micro-benchmark, as if nothing overlapped. The floor of the
*state* is the time to read and write every flow's state once.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from ecn_marl._memory import tree_bytes
from ecn_marl.envs.ecn import EcnEnv
from ecn_marl.sim.core import stats
from ecn_marl.sim.core.slots import look_up_one, segment_sum
from ecn_marl.sim.core.tick import prepare
from ecn_marl.speed.programs import compiled_steps
from ecn_marl.speed.timing import Compiled, Plan, Timing, compiled, measure

MICRO_S = 0.1
"""Approximate length of a run of a micro-benchmark, s."""

CACHE_BYTES = 2**15
"""Working set of the arithmetic benchmarks: fits the first-level cache."""
CHAIN = 16
"""Dependent multiply-adds per element of the arithmetic benchmark."""
SEGMENTS = 8
"""Table size of the scatter and gather benchmarks: the ports of one level of a small network."""


@dataclass(frozen=True)
class Rates:
    """Rates that one core reaches, by CPU time; times are per element.

    Attributes:
        copy: bytes per second read and written by a copy of the working set.
        copy_large: the same for 256 MiB, beyond the caches.
        numpy_copy: `numpy.copyto` of the working set, bytes per second.
        flops: float32 multiplications and additions per second.
        scatter_s: adding a float to a bin, s.
        gather_s: looking a float up in a small table, s.
        log1p_s: a logarithm, s.
    """

    copy: float
    copy_large: float
    numpy_copy: float
    flops: float
    scatter_s: float
    gather_s: float
    log1p_s: float


def machine_rates(working_set: int, shape: tuple[int, int], plan: Plan) -> Rates:
    """Micro-benchmarks on one device.

    Args:
        working_set: bytes of the state that a substep reads and writes.
        shape: environments and flow slots, for scatter and gather.
        plan: number and length of the timed runs.
    """
    small = max(working_set // 8, 1024)  # numbers: one is read and written, 4 bytes each
    n, slots = CACHE_BYTES // 4, shape[0] * shape[1]
    index = jnp.asarray(np.random.default_rng(0).integers(0, SEGMENTS, shape), jnp.int32)
    return Rates(
        copy=8 * small / _loop(_next, jnp.zeros(small), plan),
        copy_large=2 * 2**28 / _loop(_next, jnp.zeros(2**26), plan),
        numpy_copy=_numpy_copy(small, plan),
        flops=2 * CHAIN * n / _loop(_multiply_add, jnp.ones(n), plan),
        scatter_s=_loop(partial(_scatter, index), jnp.ones(shape), plan) / slots,
        gather_s=_loop(partial(_gather, index), jnp.ones(shape), plan) / slots,
        log1p_s=_loop(jnp.log1p, jnp.ones(n), plan) / n,
    )


def _next(x: Array) -> Array:
    return x + 1.0  # not a plain copy, which XLA would leave out of the loop


def _multiply_add(x: Array) -> Array:
    for i in range(CHAIN):
        x = x * 0.5 + (1.0 + i)
    return x


def _scatter(index: Array, x: Array) -> Array:
    sums = jax.vmap(partial(segment_sum, size=SEGMENTS))(x, index)
    # The next turn reads a sum, so XLA cannot leave the scatter out. Scaled, it stays small.
    return x.at[:, 0].set(1e-9 * sums[:, 0])


def _gather(index: Array, x: Array) -> Array:
    def look_up(table: Array, index: Array) -> Array:
        return look_up_one(table, index)

    # With fewer slots than SEGMENTS the table is shorter than the index assumes.
    return jax.vmap(look_up)(x[:, :SEGMENTS], index % x.shape[1])


def _loop(step: Callable[[Array], Array], value: Array, plan: Plan) -> float:
    """CPU time of a step that is repeated, s."""

    def run(x: Array, n: Array) -> Array:
        result: Array = jax.lax.fori_loop(0, n, lambda _, x: step(x), x)
        return result

    # The number of turns is traced, so that one program serves runs of every length.
    program = compiled(jax.jit(run, donate_argnums=0), value, jnp.int32(1))

    def advance(n: int) -> None:
        nonlocal value  # the call takes the memory of the old value
        value = jax.block_until_ready(program.call(value, jnp.int32(n)))

    return measure(advance, Plan(plan.runs, None, min(MICRO_S, plan.target_s))).least_cpu_s


def _numpy_copy(floats: int, plan: Plan) -> float:
    """Bytes per second of `numpy.copyto`, read and written."""
    source, target = np.ones(floats, np.float32), np.zeros(floats, np.float32)

    def advance(n: int) -> None:
        for _ in range(n):
            np.copyto(target, source)

    timing = measure(advance, Plan(plan.runs, None, min(MICRO_S, plan.target_s)))
    return 8 * floats / timing.least_cpu_s


def substep_program(env: EcnEnv, envs: int, warm: int = 50) -> tuple[Compiled, PyTree, PyTree]:
    """One substep of a batch of loaded networks, compiled by itself.

    Args:
        env: the environment.
        envs: number of environments.
        warm: steps of the warm-up under random actions.

    Returns:
        The program `(state, sums, slotless, tick) -> (state, sums, slotless)`, its first three
        arguments, and `tick`, which stays fixed.
    """
    program, carry, params = compiled_steps(env, envs, 1)
    state = program.call(*carry, params, jnp.int32(warm))[1].env.sim
    sim, ecn = env.sim, env.static_ecn("secn1", params)
    net = jax.tree.map(jnp.asarray, params.sim)
    tick, state = jax.jit(jax.vmap(lambda s: prepare(sim, s, net, ecn)))(state)
    sums = jax.vmap(lambda s: stats.empty_sums(sim, s, net))(state)
    arguments = (state, sums, jnp.zeros((envs, 3), jnp.float32))
    jitted = jax.jit(jax.vmap(sim._substep), donate_argnums=(0, 1, 2))
    return compiled(jitted, *arguments, tick), arguments, tick


def _repeated(env: EcnEnv, carry: PyTree, tick: PyTree, plan: Plan) -> Timing:
    """Time substeps in a compiled loop; a step is one substep of all environments."""

    def run(carry: PyTree, tick: PyTree, n: Array) -> PyTree:
        def body(_: object, carry: PyTree) -> PyTree:
            state, sums, slotless = carry
            return jax.vmap(env.sim._substep)(state, sums, slotless, tick)

        return jax.lax.fori_loop(0, n, body, carry)

    program = compiled(jax.jit(run, donate_argnums=0), carry, tick, jnp.int32(1))

    def advance(n: int) -> None:
        nonlocal carry
        carry = program.call(carry, tick, jnp.int32(n))
        jax.block_until_ready(carry)

    return measure(advance, plan)


def operations(text: str) -> dict[str, int]:
    """Operations of an optimised program by kind; a group of fused operations counts once.

    Args:
        text: the program as `as_text` prints it.
    """
    # Only the entry: the bodies of fusions come before it, and would be counted a second time.
    entry = text[text.index("\nENTRY ") :] if "\nENTRY " in text else text
    names = re.findall(r"= (?:\([^=]*\)|\S+) ([a-z][a-z-]*)\(", entry)
    without_cost = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast"}
    kinds = sorted(set(names) - without_cost)
    return {kind: names.count(kind) for kind in kinds}


def floor(env: EcnEnv, envs: int, plan: Plan) -> dict[str, Any]:
    """Substeps of a batch against their floors, on one device.

    Returns:
        `per_flow_substep` (flops, transcendentals, bytes, scatters and gathers that XLA's program
        needs for each flow slot and substep, and bytes of the state), `operations` of the program
        per substep, `rates` of the machine, `floor_ns` (time of each, `program` and `state`, per
        flow slot and substep), `measured_ns` (least CPU time in a loop of substeps), `over_program`
        and `over_state`.
    """
    program, carry, tick = substep_program(env, envs)
    size = tree_bytes((carry, tick))
    flows = envs * env.sim.slots
    text = program.call.as_text() or ""  # some backends print no program
    amounts = {name: x / flows for name, x in program.costs.items()}
    # In the whole text, unlike `operations`, because they may be inside of fusions.
    amounts["scatters"], amounts["gathers"] = (
        len(re.findall(rf"\b{kind}\(", text)) for kind in ("scatter", "gather")
    )
    amounts["state_bytes"] = 2 * tree_bytes(carry[0]) / flows
    rates = machine_rates(size, (envs, env.sim.slots), plan)
    floors = {
        "arithmetic": amounts["flops"] / rates.flops,
        "memory": amounts["bytes"] / rates.copy,
        "transcendentals": amounts["transcendentals"] * rates.log1p_s,
        "scatters": amounts["scatters"] * rates.scatter_s,
        "gathers": amounts["gathers"] * rates.gather_s,
    }
    floors["program"] = sum(floors.values())
    floors["state"] = amounts["state_bytes"] / rates.copy
    timing = _repeated(env, carry, tick, plan)
    measured = timing.least_cpu_s / flows
    return {
        "envs": envs,
        "slots": env.sim.slots,
        "working_set_bytes": size,
        "per_flow_substep": amounts,
        "operations": operations(text),
        "rates": rates.__dict__,
        "floor_ns": {name: 1e9 * x for name, x in floors.items()},
        "measured_ns": 1e9 * measured,
        "measured_wall_ns": 1e9 * timing.least_s / flows,
        "over_program": measured / floors["program"],
        "over_state": measured / floors["state"],
    }

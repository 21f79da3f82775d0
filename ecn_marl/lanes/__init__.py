"""One environment per lane: programs of one environment as vector code for this processor.

XLA's CPU backend runs a batch of environments operation by operation, and every look-up or scatter ends
a fused loop: most time goes into moving arrays. Here the same program, traced by JAX, is compiled with
each environment in a lane of the processor's vectors, its loops fused across look-ups and scatters, and
its state updated in place.

    fast = lanes.vmap(env.step, in_axes=(0, 0, 0, None))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

LANES = 16
"""Environments in a vector: 16 float32 are 512 bits. Processors with shorter vectors use several."""


def vmap(
    fun: Callable[..., Any],
    in_axes: Sequence[int | None],
    updates: dict[int, int] | None = None,
) -> Callable[..., Any]:
    """`jax.vmap(fun, in_axes)`, compiled for lanes: same results within rounding, not differentiable.

    Args:
        fun: a function of one environment.
        in_axes: 0 or None for each argument: with a leading axis of environments, or shared by all.
        updates: arguments that are not needed any more, and the number of the result that has the
            same arrays: it is written in their place where the caller lets it.

    Returns:
        The function of a batch; usable inside `jax.jit`.
    """
    from ecn_marl.lanes.emit import write_module
    from ecn_marl.lanes.lower import lower
    from ecn_marl.lanes.native import register
    from ecn_marl.lanes.schedule import make_plan

    def is_key(x: Any) -> bool:
        return bool(jax.dtypes.issubdtype(jnp.result_type(x) if not hasattr(x, "dtype") else x.dtype, jax.dtypes.prng_key))

    def batched(*args: Any) -> Any:
        single, lanes, leaves = [], [], []
        for arg, axis in zip(args, in_axes, strict=True):
            for leaf in jax.tree.leaves(arg):
                leaf = leaf if is_key(leaf) else jnp.asarray(leaf)
                shape = leaf.shape if axis is None else leaf.shape[1:]
                single.append(jax.ShapeDtypeStruct(shape, leaf.dtype))
                lanes.append(axis is not None)
                leaves.append(leaf)
        tree = jax.tree.structure(args)
        out_tree = None

        def flat(*values: Any) -> Any:
            nonlocal out_tree
            out, out_tree = jax.tree.flatten(fun(*jax.tree.unflatten(tree, values)))
            return out

        jaxpr = jax.make_jaxpr(flat)(*single)
        top, arguments, results = lower(jaxpr, lanes)
        plan = make_plan(top, results, LANES)
        name = register(write_module(plan, arguments, results, LANES))
        batch = next(x.shape[0] for x, own in zip(leaves, lanes, strict=True) if own)
        raw = [jax.random.key_data(x) if is_key(x) else x for x in leaves]
        outs = []
        for aval in jaxpr.out_avals:
            key = is_key(aval)
            shape = (*aval.shape, 2) if key else aval.shape
            outs.append(jax.ShapeDtypeStruct((batch, *shape), jnp.uint32 if key else aval.dtype))
        aliases = _aliases(args, jax.tree.unflatten(out_tree, range(len(outs))), updates or {})
        found = jax.ffi.ffi_call(name, outs, input_output_aliases=aliases)(*raw)
        found = [
            jax.random.wrap_key_data(x) if is_key(a) else x
            for x, a in zip(found, jaxpr.out_avals, strict=True)
        ]
        return jax.tree.unflatten(out_tree, found)

    return batched


def _aliases(args: tuple[Any, ...], results: Any, updates: dict[int, int]) -> dict[int, int]:
    """Leaves of arguments and the leaves of results that take their places."""
    counts = [len(jax.tree.leaves(a)) for a in args]
    found = {}
    for argument, result in updates.items():
        first = sum(counts[:argument])
        target = jax.tree.leaves(results[result])
        found.update({first + k: number for k, number in enumerate(target)})
    return found

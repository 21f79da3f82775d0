"""Everything that depends on the version of JAX or of XLA's interface.

It is written for jax 0.10. Differences of later versions are handled beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import jax
from jax.core import ShapedArray
from jax.extend import core, source_info_util
from jax.extend.core import JaxprEqn
from jax.extend.random import threefry_prng_impl
from jax.interpreters import ad, mlir
from jax.typing import ArrayLike

from ecn_marl.lanes.errors import Unsupported

__all__ = [
    "CALLS",
    "FFI",
    "THREEFRY",
    "aval_of",
    "canonical",
    "expanded",
    "is_key",
    "jaxpr_and_constants",
    "late_primitive",
    "on_cuda",
    "origin",
    "out_of_bounds",
    "scan_counts",
    "threefry_prng_impl",
    "varies_by_device",
]

CALLS = {
    "jit": "jaxpr",
    "closed_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "custom_vmap_call": "call",
    "remat2": "jaxpr",
    "checkpoint": "jaxpr",
}
"""Primitives that call a jaxpr, and the parameter that holds it."""

_SYNONYMS = {
    "add_any": "add",  # the name in derivatives
    "copy_p": "copy",
    "scatter-add": "scatter_add",
    "scatter-mul": "scatter_mul",
    "scatter-min": "scatter_min",
    "scatter-max": "scatter_max",
}

THREEFRY = "threefry2x32"
"""The only implementation of typed keys that is compiled: JAX's default."""

FFI = {
    "extension": 8,
    "extension_kind": 8,
    "api": 16,
    "context": 24,
    "arguments": 56,
    "argument_list": 72,
    "results": 96,
    "result_list": 112,
    "buffer_data": 24,
    "buffer_dims": 40,
    "metadata": 24,
    "metadata_kind": 1,
    "major": 0,
    "minor": 1,
    "version_major": 24,
    "version_minor": 28,
    "traits": 32,
    "error_create": 48,
    "error_size": 28,
    "error_message": 16,
    "stream_get": 80,
    "stream_size": 32,
    "stream_context": 16,
    "stream_stream": 24,
}
"""XLA's foreign function interface, version 0.1: offsets in its structures, bytes, and numbers.

A call frame has struct_size 0, extension 8, api 16, context 24, stage 32, args 40 {size 56, types
64, list 72}, rets 80 {size 96, types 104, list 112}; a buffer struct_size 0, extension 8, dtype 16,
data 24, rank 32, dims 40. Of the api, behind struct_size 0, extension 8, version 16 to 39 and
internal_api 40, there are Error_Create 48 and Stream_Get 80; behind struct_size 0 and extension 8,
the one takes message 16 and code 24, the other context 16 and fills in stream 24.
The source is `xla/ffi/api/c_api.h`; tests check the numbers with the installed XLA.
"""


def aval_of(var: core.Var | core.Literal) -> ShapedArray:
    """Shape and type of a variable; JAX's type is any abstract value, but here all are arrays."""
    return cast(ShapedArray, var.aval)


def canonical(name: str) -> str:
    """The name of a primitive in the table."""
    return _SYNONYMS.get(name, name)


def jaxpr_and_constants(inner: Any) -> tuple[core.Jaxpr, Sequence[Any]]:
    """A jaxpr in a parameter, and its constants; from jax 0.11 on it may have none."""
    if isinstance(inner, core.ClosedJaxpr):
        return inner.jaxpr, inner.consts
    return inner, ()


def scan_counts(params: dict[str, Any]) -> tuple[int, int]:
    """Numbers of constants and carried values of a scan; jax >= 0.11 has them as a tree."""
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    constants, carried, _ = params["ft_in"].unpack()
    return len(constants), len(carried)


def expanded(params: dict[str, Any]) -> Callable[..., list[Any]]:
    """The function of an operation that jax >= 0.12 keeps whole (`searchsorted`).

    Its arguments and results are flat lists of arrays.
    """
    operation = params["_prim"]

    def fun(*flat: Any) -> Any:
        return jax.tree.leaves(operation.expand(*jax.tree.unflatten(operation.in_tree, flat)))

    return fun


def is_key(dtype: Any) -> bool:
    """Whether a type is that of typed keys, which are two words each.

    Raises:
        Unsupported: they are of another implementation than threefry.
    """
    if not jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key):
        return False
    # `_impl` is private: in a JAX without it, keys count as those of the default.
    name = getattr(getattr(dtype, "_impl", None), "name", THREEFRY)
    if name != THREEFRY:
        raise Unsupported(f"typed keys of {name!r}")
    return True


def out_of_bounds(mode: object) -> str:
    """What a gather or scatter does out of bounds: `promise`, `clip` or `fill_or_drop`."""
    name = str(mode).rsplit(".", 1)[-1].lower()
    return {"promise_in_bounds": "promise", "clip": "clip", "fill_or_drop": "fill_or_drop"}[name]


def origin(equation: JaxprEqn) -> str:
    """The user's line that an equation comes from: `file:line`, or an empty string."""
    place = source_info_util.summarize(equation.source_info)
    file, _, line = place.split(" ")[0].partition(":")
    return f"{'/'.join(Path(file).parts[-2:])}:{line.split(':')[0]}" if line else ""


def late_primitive(
    name: str,
    run: Callable[..., Sequence[Any]],
    avals: Callable[..., Sequence[ShapedArray]],
    differentiate: Callable[..., Any],
) -> core.Primitive:
    """A primitive whose program is not known before it is lowered.

    Args:
        name: in jaxprs.
        run: of arrays and the primitive's parameters; what the primitive does. It is traced when a
            program that has the primitive is lowered.
        avals: of the same; shapes and types of the results.
        differentiate: called with whatever a rule for derivatives is called with.
    """
    primitive = core.Primitive(name)
    primitive.multiple_results = True
    primitive.def_impl(run)
    primitive.def_abstract_eval(avals)
    mlir.register_lowering(primitive, mlir.lower_fun(run, multiple_results=True))
    ad.primitive_jvps[primitive] = differentiate
    return primitive


def varies_by_device(x: ArrayLike) -> bool:
    """Whether `jax.shard_map` tracks that an array differs between devices."""
    return bool(jax.typeof(x).manual_axis_type.varying)


def on_cuda() -> bool:
    """Whether the default backend is an NVIDIA GPU."""
    if jax.default_backend() != "gpu":
        return False
    # AMD's GPUs have the name `gpu`, too.
    return "cuda" in jax.devices()[0].client.platform_version.lower()

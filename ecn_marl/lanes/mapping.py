"""`jax.vmap` over environments: compiled for lanes where possible, left to XLA elsewhere."""

from __future__ import annotations

import functools
import importlib.util
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray
from jax.custom_batching import custom_vmap
from jax.extend.core import ClosedJaxpr
from jax.tree_util import PyTreeDef
from jax.typing import ArrayLike
from jaxtyping import PyTree

from ecn_marl.lanes.calls import Code, bind, ffi
from ecn_marl.lanes.compat import THREEFRY, on_cuda, varies_by_device
from ecn_marl.lanes.errors import InvalidValue, Unsupported
from ecn_marl.lanes.settings import GPU, cores, gpu_mode
from ecn_marl.lanes.trial import device_verdict, kernel_is_better

__all__ = ["LANES", "Unsupported", "available", "mapped", "off", "vmap"]

LANES = (4, 8, 16)
"""Sizes of vectors, environments; a batch gets the smallest that holds it, up to `widest`.

Small batches in wide vectors would compute unused lanes: one environment takes 1.1 times as long in
8 lanes as in 4, and 1.7 times in 16.
"""


@functools.cache
def widest() -> int:
    """Environments in a vector of a large batch on this processor.

    16 where registers have 512 bits (AVX-512): there it is faster than 8, although more elements
    are busy in one of 16 environments than in one of 8. Elsewhere 8: the numbers of 16 do not fit
    into the registers, and their state less well into the cache. With AVX2 16 took 1.1 to 1.2 times
    as long on one core (512 environments of three scenarios, AMD EPYC of family 25, model 1), and
    1.07 times, within the spread of runs, on two (1000 of `websearch-v0`). 8 compile faster.
    """
    from ecn_marl.lanes.native import has_wide_registers

    return LANES[-1] if has_wide_registers() else LANES[-2]


_OFF: ContextVar[bool] = ContextVar("off", default=False)


@contextmanager
def off() -> Iterator[None]:
    """Leave batches that are traced in this context to XLA.

    It is for programs that XLA itself splits over several devices: it cannot split a call of
    compiled code.
    """
    token = _OFF.set(True)
    try:
        yield
    finally:
        _OFF.reset(token)


def available() -> bool:
    """Whether batches are compiled for lanes.

    They are on a CPU, if llvmlite is installed, not under Windows and not within `off`. On an
    NVIDIA GPU a trial decides (`trial`), unless the environment variable `LANES_GPU` is `1` or `0`.
    """
    return not _OFF.get() and _installed() and (_on_cpu() or _for_gpus())


def way() -> str:
    """How batches run in this process, and why, in one line; on a GPU this may start a trial."""
    if _OFF.get():
        return "XLA: lanes are off here"
    if not _installed():
        return "XLA: lanes need llvmlite, and POSIX threads"
    if _on_cpu():
        return f"lanes: one environment in each of {widest()} lanes of a vector"
    mode = gpu_mode()
    if mode in ("0", "1"):
        return f"{'lanes: the kernel' if mode == '1' else 'XLA'}, as {GPU}={mode} says"
    if not _on_cuda():
        return f"XLA: lanes have no kernel for {jax.default_backend()}"
    verdict = device_verdict()
    return f"{'lanes: the kernel' if verdict.kernel else 'XLA'}, after a trial: {verdict.reason}"


@functools.cache
def _installed() -> bool:
    posix_threads = sys.platform != "win32"
    # Looked for, not imported: that would load LLVM.
    return posix_threads and importlib.util.find_spec("llvmlite") is not None


@functools.cache
def _on_cpu() -> bool:
    # JAX settles its backend once per process, and asking for it starts it.
    return jax.default_backend() == "cpu"


@functools.cache
def _on_cuda() -> bool:
    return on_cuda()


def _for_gpus() -> bool:
    mode = gpu_mode()
    return mode == "1" or (mode == "auto" and _on_cuda() and kernel_is_better())


def mapped(
    fun: Callable[..., Any],
    updates: dict[int, int] | None = None,
    load: Callable[..., Any] | None = None,
) -> Callable[..., Any]:
    """The same function, compiled for lanes where `jax.vmap` maps it over environments.

    Without `jax.vmap`, or where `available` is False, calls run `fun` itself. Results of lanes are
    those of XLA within rounding. Programs that cannot be compiled run through XLA, with a warning.
    Batches cannot be differentiated. Inside `jax.shard_map` they need `check_vma=False`.

    Args:
        fun: a function of one environment; arguments and results are trees of arrays.
        updates: see `vmap`.
        load: see `vmap`.

    Raises:
        InvalidValue: when called inside `jax.shard_map` with `check_vma=True`.
    """

    @custom_vmap
    def one(*args: object) -> PyTree:
        return fun(*args)

    @one.def_vmap
    def batch(size: int, batched: PyTree, *args: object) -> tuple[PyTree, PyTree]:
        with_axis = tuple(any(jax.tree.leaves(b)) for b in batched)
        # One axis for a whole argument: `custom_vmap` may map only some leaves of it.
        args = tuple(
            _with_leading_axis(a, b, size) if o else a
            for a, b, o in zip(args, batched, with_axis, strict=True)
        )
        if not available():
            results = jax.vmap(fun, tuple(0 if o else None for o in with_axis))(*args)
        else:
            results = _compiled_or_not(fun, with_axis, updates, load, args)
        return results, jax.tree.map(lambda _: True, results)

    def call(*args: object) -> PyTree:
        _check_manual(jax.tree.leaves(args))
        kept = [k for k, arg in enumerate(args) if all(map(_is_array, jax.tree.leaves(arg)))]
        if len(kept) == len(args):
            return one(*args)

        # `custom_vmap` takes arrays only. Other arguments, such as static parameters, are closed
        # over.
        def of_arrays(fun: Callable[..., Any]) -> Callable[..., Any]:
            def call(*arrays: object) -> PyTree:
                whole = dict(enumerate(args)) | dict(zip(kept, arrays, strict=True))
                return fun(*whole.values())

            return call

        moved = {kept.index(k): v for k, v in (updates or {}).items() if k in kept}
        inner = mapped(of_arrays(fun), moved, None if load is None else of_arrays(load))
        return inner(*(args[k] for k in kept))

    return call


def _check_manual(leaves: Sequence[object]) -> None:
    """Refuse to be traced inside `jax.shard_map` while it tracks which values differ by device.

    Results of compiled code do not carry this information. JAX would report it as a mismatch of
    types in some loop of the program.

    Raises:
        InvalidValue: `shard_map` has `check_vma=True`, its default.
    """
    if any(varies_by_device(x) for x in leaves if _is_array(x)):
        allowed = "jax.shard_map(..., check_vma=False) around what is compiled for lanes"
        raise InvalidValue("check_vma", True, allowed)


def _is_array(x: object) -> TypeGuard[ArrayLike]:
    return isinstance(x, jax.Array | np.ndarray | np.generic | float | int | bool)


def _compiled_or_not(
    fun: Callable[..., Any],
    with_axis: tuple[bool, ...],
    updates: dict[int, int] | None,
    load: Callable[..., Any] | None,
    args: Sequence[object],
) -> PyTree:
    """Results of lanes, or of XLA with a warning if the program cannot be compiled."""
    try:
        return _nested(fun, with_axis, updates, load)(*args)
    except Unsupported as problem:
        warnings.warn(f"{problem}: this batch is left to XLA, and slower", stacklevel=2)
        return jax.vmap(fun, tuple(0 if o else None for o in with_axis))(*args)


def _nested(
    fun: Callable[..., Any],
    with_axis: tuple[bool, ...],
    updates: dict[int, int] | None,
    load: Callable[..., Any] | None,
) -> Callable[..., Any]:
    """Lanes for a batch that may itself be mapped over, for example by seeds.

    All inner batches then become one, which fills vectors better.
    """
    axes = tuple(0 if o else None for o in with_axis)

    @custom_vmap
    def batch(*args: object) -> PyTree:
        return vmap(fun, axes, updates, load)(*args)

    @batch.def_vmap
    def nested(size: int, batched: PyTree, *args: object) -> tuple[PyTree, PyTree]:
        first = with_axis.index(True)
        (x, *_), (b, *_) = jax.tree.leaves(args[first]), jax.tree.leaves(batched[first])
        inner = x.shape[1 if b else 0]
        differ = [any(jax.tree.leaves(flags)) for flags in batched]
        shares = any(d and not axis for d, axis in zip(differ, with_axis, strict=True))
        # Only inner batches that fill a vector: smaller ones in turn would leave lanes unused.
        if shares and inner >= widest():
            results = _one_by_one(batch, size, differ, batched, args)
            return results, jax.tree.map(lambda _: True, results)
        flat, outer = [], []
        for arg, axis, flags in zip(args, with_axis, batched, strict=True):
            own_axis = any(jax.tree.leaves(flags))
            outer.append(axis or own_axis)
            if not (axis or own_axis):
                flat.append(arg)
                continue
            arg = _with_leading_axis(arg, flags, size)
            if not axis:  # shared by an inner batch: each of its environments gets a copy
                arg = jax.tree.map(lambda v: jnp.repeat(v[:, None], inner, 1), arg)
            # Two leading axes become one: compiled code knows a single axis of environments.
            flat.append(jax.tree.map(lambda v: v.reshape(size * inner, *v.shape[2:]), arg))
        results = _nested(fun, tuple(outer), updates, load)(*flat)
        results = jax.tree.map(lambda v: v.reshape(size, inner, *v.shape[1:]), results)
        return results, jax.tree.map(lambda _: True, results)

    return batch


def _one_by_one(
    batch: Callable[..., Any],
    size: int,
    differ: list[bool],
    batched: PyTree,
    args: Sequence[object],
) -> PyTree:
    """Batches one after the other; each shares some arguments among its environments.

    Seeds with a network each are an example: all at once, every environment would need a copy of
    its network.
    """
    trees = [
        _with_leading_axis(a, b, size) if d else ()
        for a, b, d in zip(args, batched, differ, strict=True)
    ]

    def one(own_args: list[PyTree]) -> PyTree:
        return batch(*(x if d else a for x, a, d in zip(own_args, args, differ, strict=True)))

    return jax.lax.map(one, trees)


def _with_leading_axis(tree: PyTree, batched: PyTree, size: int) -> PyTree:
    """A tree whose leaves all have the leading axis."""
    return jax.tree.map(
        lambda x, b: x if b else jnp.broadcast_to(x, (size, *jnp.shape(x))), tree, batched
    )


def vmap(
    fun: Callable[..., Any],
    in_axes: Sequence[int | None],
    updates: dict[int, int] | None = None,
    load: Callable[..., Any] | None = None,
) -> Callable[..., Any]:
    """`jax.vmap(fun, in_axes)`, compiled for lanes.

    Args:
        fun: a function of one environment.
        in_axes: 0 or None for each argument: with a leading axis of environments, or shared by all.
        updates: numbers of arguments that are not needed after the call, each with the number of a
            result of the same arrays. The result takes the argument's memory if the caller allows
            it.
        load: function of one environment's arguments that estimates its work, a number.
            Environments of similar load share a vector, as its loops run for the busiest of them.
            Results do not depend on it.

    Returns:
        The function of a batch; usable inside `jax.jit`.

    Raises:
        Unsupported: when called, if `fun` uses something that cannot be compiled.
        InvalidValue: when called with arrays that do not fit `in_axes`, or inside `jax.shard_map`
            with `check_vma=True`.
    """

    def batch(*args: object) -> PyTree:
        _check_manual(jax.tree.leaves(args))
        leaves, single, with_axis = _of_one(args, in_axes)
        size = _size(leaves, with_axis, in_axes)
        if not size:  # then unused lanes have no last environment to repeat
            return jax.vmap(fun, tuple(in_axes))(*args)
        tree, shapes = jax.tree.structure(args), tuple(single)
        jaxpr, out_tree = traced(fun, tree, shapes)
        places = jax.tree.unflatten(out_tree, range(len(jaxpr.out_avals)))
        aliases = _aliases(args, places, updates or {})
        # XLA's interface takes plain arrays: keys travel as their words.
        raw = [jax.random.key_data(x) if _is_key(x) else x for x in leaves]
        # A batch that fits into one vector needs no order.
        ordered = load is not None and size > widest()
        if load is not None and ordered:
            raw.append(jnp.argsort(jax.vmap(load, tuple(in_axes))(*args)).astype(jnp.int32))

        outs = [_raw_aval(a, size) for a in jaxpr.out_avals]

        def vector_code() -> Callable[..., list[jax.Array]]:
            return bind(_for_cpu(jaxpr, with_axis, size, ordered), outs, aliases)

        if not _for_gpus():
            results = vector_code()(*raw)
        else:
            # A program may be lowered for another platform than this process's, to be exported.
            plain = _flat(jax.vmap(fun, tuple(in_axes)), args)
            other = vector_code() if _on_cpu() else plain
            name, memory = _for_cuda(jaxpr, with_axis, size, ordered)
            kernel = ffi(name, outs, memory, aliases)
            results = jax.lax.platform_dependent(*raw, cuda=kernel, default=other)
        wrap = functools.partial(jax.random.wrap_key_data, impl=THREEFRY)
        results = [
            wrap(x) if _is_key(a) else x for x, a in zip(results, jaxpr.out_avals, strict=True)
        ]
        return jax.tree.unflatten(out_tree, results)

    return batch


def _of_one(
    args: Sequence[object], in_axes: Sequence[int | None]
) -> tuple[list[jax.Array], list[jax.ShapeDtypeStruct], list[bool]]:
    """All arrays of a batch, their shapes in one environment, and which have the leading axis."""
    leaves, single, with_axis = [], [], []
    for arg, axis in zip(args, in_axes, strict=True):
        for x in map(jnp.asarray, jax.tree.leaves(arg)):
            leaves.append(x)
            single.append(jax.ShapeDtypeStruct(x.shape if axis is None else x.shape[1:], x.dtype))
            with_axis.append(axis is not None)
    return leaves, single, with_axis


def _size(
    leaves: Sequence[jax.Array], with_axis: Sequence[bool], in_axes: Sequence[int | None]
) -> int:
    """Number of environments of a batch.

    Raises:
        InvalidValue: no axis has it, several differ in it, or an axis is not a leading one.
    """
    lead = {x.shape[:1] for x, o in zip(leaves, with_axis, strict=True) if o}
    if len(lead) != 1 or () in lead or any(axis not in (0, None) for axis in in_axes):
        allowed = "0 for arguments with a leading axis of environments, all as long, else None"
        raise InvalidValue("in_axes", tuple(in_axes), allowed)
    ((size,),) = lead
    return size


def _flat(fun: Callable[..., Any], like: PyTree) -> Callable[..., list[jax.Array]]:
    """A function of trees as one of raw arrays; it ignores further arrays after its own."""
    leaves, tree = jax.tree.flatten(like)

    def call(*raw: jax.Array) -> list[jax.Array]:
        wrap = functools.partial(jax.random.wrap_key_data, impl=THREEFRY)
        values = [
            wrap(x) if _is_key(jnp.asarray(y)) else x
            for x, y in zip(raw[: len(leaves)], leaves, strict=True)
        ]
        results = jax.tree.leaves(fun(*jax.tree.unflatten(tree, values)))
        return [jax.random.key_data(x) if _is_key(x) else x for x in results]

    return call


def _for_cpu(jaxpr: ClosedJaxpr, with_axis: Sequence[bool], size: int, ordered: bool) -> Code:
    """Vector code for this processor.

    Raises:
        Unsupported: it cannot be compiled.
    """
    # Here, not above: only compiling needs the compiler, and `native` needs llvmlite.
    from ecn_marl.lanes.lower import lower

    program = lower(jaxpr, with_axis)

    def build() -> tuple[str, int]:
        from ecn_marl.lanes.emit import write_module
        from ecn_marl.lanes.native import register
        from ecn_marl.lanes.schedule import make_plan

        # Host devices run at the same time, and each call starts all its threads.
        threads = max(cores() // jax.local_device_count(), 1)
        lanes = next((n for n in LANES if size <= n <= widest()), widest())
        plan = make_plan(program.top, program.results, program.flags, lanes)
        text, memory = write_module(
            plan, program.arguments, program.results, lanes, threads, ordered
        )
        return register(text), memory

    return Code(build)


def _for_cuda(
    jaxpr: ClosedJaxpr, with_axis: Sequence[bool], size: int, ordered: bool
) -> tuple[str, int]:
    """Compile a kernel for NVIDIA's GPUs; its name, and the bytes of its workspace.

    A process without a GPU loads nothing: to export a program, the name is enough.
    """
    from ecn_marl.lanes import cuda
    from ecn_marl.lanes.kernel import planned, write_kernel
    from ecn_marl.lanes.lower import lower

    program = lower(jaxpr, with_axis)
    launch, plan = planned(program, size, cuda.block_bytes())
    text, memory = write_kernel(plan, program.arguments, program.results, launch, ordered)
    name = cuda.name_of(text) if _on_cpu() else cuda.register(text, launch)
    return name, memory * launch.warps(size)


def traced(
    fun: Callable[..., Any], tree: PyTreeDef, shapes: Sequence[object]
) -> tuple[ClosedJaxpr, PyTreeDef]:
    """Jaxpr of a function of flat arguments, and the structure of its results."""
    # Flattening loses the structure of the results: `flat` hands it out while it is traced.
    structure: PyTreeDef | None = None

    def flat(*values: object) -> PyTree:
        nonlocal structure
        out, structure = jax.tree.flatten(fun(*jax.tree.unflatten(tree, values)))
        return out

    jaxpr = jax.make_jaxpr(flat)(*shapes)
    assert structure is not None
    return jaxpr, structure


def _is_key(x: jax.Array | ShapedArray) -> bool:
    return bool(jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key))


def _raw_aval(aval: ShapedArray, size: int) -> jax.ShapeDtypeStruct:
    """A batch of results; keys as their words."""
    if _is_key(aval):
        return jax.ShapeDtypeStruct((size, *aval.shape, 2), jnp.uint32)
    return jax.ShapeDtypeStruct((size, *aval.shape), aval.dtype)


def _aliases(args: tuple[object, ...], results: PyTree, updates: dict[int, int]) -> dict[int, int]:
    """Numbers of arguments' leaves, and of the results' leaves that take their memory."""
    counts = [len(jax.tree.leaves(a)) for a in args]
    aliases = {}
    for argument, result in updates.items():
        first = sum(counts[:argument])
        target = jax.tree.leaves(results[result])
        aliases.update({first + k: number for k, number in enumerate(target)})
    return aliases

"""Primitives that only rearrange elements. They become views, and no code."""

from __future__ import annotations

import math

import numpy as np
from jax.extend.core import JaxprEqn

from ecn_marl.lanes.builder import Builder, constant_value, is_key, raw_shape
from ecn_marl.lanes.compat import aval_of
from ecn_marl.lanes.errors import Unsupported
from ecn_marl.lanes.graph import View
from ecn_marl.lanes.primitives import primitive

GROUP = "Shapes"

ALL = "fiubk"
"""Types, typed keys included."""


@primitive(GROUP, "broadcast_in_dim", kinds=ALL)
def broadcast_in_dim(build: Builder, eqn: JaxprEqn, x: View, *_: View) -> list[View]:
    """Elements are read several times."""
    shape, dims = raw_shape(aval_of(eqn.outvars[0])), eqn.params["broadcast_dimensions"]
    if is_key(aval_of(eqn.outvars[0])):
        dims = (*dims, len(shape) - 1)
    place = [1] * len(shape)
    for d, size in zip(dims, x.where.shape, strict=True):
        place[d] = size
    return [View(x.node, np.broadcast_to(x.where.reshape(place), shape))]


@primitive(GROUP, "reshape", kinds=ALL, limits="`dimensions`")
def reshape(build: Builder, eqn: JaxprEqn, x: View, *_: View) -> list[View]:
    """The same elements in another shape."""
    if eqn.params.get("dimensions") is not None:
        raise Unsupported("'reshape' with dimensions")
    return [View(x.node, x.where.reshape(raw_shape(aval_of(eqn.outvars[0]))))]


@primitive(GROUP, "squeeze", kinds=ALL)
def squeeze(build: Builder, eqn: JaxprEqn, x: View) -> list[View]:
    """The same elements without axes of length 1."""
    return [View(x.node, np.squeeze(x.where, eqn.params["dimensions"]))]


@primitive(GROUP, "expand_dims", kinds=ALL)
def expand_dims(build: Builder, eqn: JaxprEqn, x: View) -> list[View]:
    """The same elements with more axes of length 1."""
    return [View(x.node, np.expand_dims(x.where, eqn.params["dimensions"]))]


@primitive(GROUP, "transpose", kinds=ALL)
def transpose(build: Builder, eqn: JaxprEqn, x: View) -> list[View]:
    """The same elements in another order."""
    axes = eqn.params["permutation"]
    words = range(len(axes), x.where.ndim)  # of typed keys: they stay last
    return [View(x.node, np.transpose(x.where, (*axes, *words)))]


@primitive(GROUP, "rev", kinds=ALL)
def rev(build: Builder, eqn: JaxprEqn, x: View) -> list[View]:
    """The same elements backwards."""
    return [View(x.node, np.flip(x.where, eqn.params["dimensions"]))]


@primitive(GROUP, "slice", kinds=ALL)
def slice_(build: Builder, eqn: JaxprEqn, x: View) -> list[View]:
    """Some of the elements."""
    p = eqn.params
    steps = p["strides"] or [1] * len(p["start_indices"])
    cut = tuple(
        slice(a, b, s)
        for a, b, s in zip(p["start_indices"], p["limit_indices"], steps, strict=True)
    )
    return [View(x.node, x.where[cut])]


@primitive(GROUP, "split", kinds=ALL)
def split(build: Builder, eqn: JaxprEqn, x: View) -> list[View]:
    """Parts of the elements."""
    ends = np.cumsum(eqn.params["sizes"])[:-1]
    return [View(x.node, w) for w in np.split(x.where, ends, eqn.params["axis"])]


@primitive(GROUP, "unstack", kinds=ALL)
def unstack(build: Builder, eqn: JaxprEqn, x: View) -> list[View]:
    """Parts of the elements."""
    return [View(x.node, w) for w in np.moveaxis(x.where, eqn.params["axis"], 0)]


@primitive(GROUP, "stop_gradient", "reshard", "pvary", kinds=ALL)
def unchanged(build: Builder, eqn: JaxprEqn, x: View) -> list[View]:
    """The same elements."""
    return [x]


@primitive(GROUP, "optimization_barrier", kinds=ALL)
def optimization_barrier(build: Builder, eqn: JaxprEqn, *args: View) -> list[View]:
    """The same elements: barriers are for XLA, which does not see this code."""
    return list(args)


@primitive(GROUP, "tile")
def tile(build: Builder, eqn: JaxprEqn, x: View) -> list[View]:
    """Elements are read several times."""
    return [View(x.node, np.tile(x.where, eqn.params["reps"]))]


@primitive(GROUP, "iota")
def iota(build: Builder, eqn: JaxprEqn, *_: View) -> list[View]:
    """Constants."""
    p = eqn.params
    shape = [1] * len(p["shape"])
    shape[p["dimension"]] = p["shape"][p["dimension"]]
    line = np.arange(p["shape"][p["dimension"]]).astype(np.dtype(p["dtype"])).reshape(shape)
    view = build.constant(line)
    return [View(view.node, np.broadcast_to(view.where, p["shape"]))]


@primitive(GROUP, "iota_2x32_shape")
def iota_2x32_shape(build: Builder, eqn: JaxprEqn) -> list[View]:
    """Constants."""
    shape = eqn.params["shape"]
    # The high words are 0: no array here has 2^32 elements.
    low = np.arange(math.prod(shape), dtype=np.uint32).reshape(shape)
    return [build.constant(np.zeros(shape, np.uint32)), build.constant(low)]


@primitive(GROUP, "stack", kinds=ALL)
def stack(build: Builder, eqn: JaxprEqn, *args: View) -> list[View]:
    """A view of all arrays; they are copied together only if a reader needs it."""
    axis = int(eqn.params["axis"])
    parts = [View(a.node, np.expand_dims(a.where, axis)) for a in args]
    return [_joined(build, parts, axis)]


@primitive(GROUP, "concatenate", kinds=ALL)
def concatenate(build: Builder, eqn: JaxprEqn, *args: View) -> list[View]:
    """A view of all arrays; they are copied together only if a reader needs it."""
    return [_joined(build, list(args), int(eqn.params["dimension"]))]


def _joined(build: Builder, parts: list[View], axis: int) -> View:
    """A `Bundle` of arrays, which copies nothing: most readers need one of them at a time."""
    parts = [p for p in parts if p.where.size]
    shapes = [list(p.where.shape) for p in parts]
    shape = list(shapes[0])
    shape[axis] = sum(s[axis] for s in shapes)
    numbers = [n for p in parts if (n := constant_value(p)) is not None]
    if len(numbers) == len(parts):
        return build.constant(np.concatenate(numbers, axis), parts[0].node.dtype)
    # Parts of one node, put together again: still positions of that node.
    if all(p.node is parts[0].node for p in parts):
        return View(parts[0].node, np.concatenate([p.where for p in parts], axis))
    flat = np.arange(math.prod(shape)).reshape(shape)
    places = np.split(flat, np.cumsum([s[axis] for s in shapes])[:-1], axis)
    return build.bundle(parts, places, shape)


@primitive(GROUP, "pad", limits="negative padding")
def pad(build: Builder, eqn: JaxprEqn, x: View, value: View) -> list[View]:
    """A store of the array and the filler around it."""
    shape = aval_of(eqn.outvars[0]).shape
    numbers = np.arange(math.prod(shape)).reshape(shape)
    inside, outside = [], np.ones(shape, bool)
    for (low, _, gap), n in zip(eqn.params["padding_config"], x.where.shape, strict=True):
        if low < 0:
            raise Unsupported("negative padding")
        inside.append(slice(low, low + (n - 1) * (gap + 1) + 1 if n else low, gap + 1))
    if any(high < 0 for _, high, _ in eqn.params["padding_config"]):
        raise Unsupported("negative padding")
    outside[tuple(inside)] = False
    around = numbers[outside]
    filler = View(value.node, np.broadcast_to(value.where.reshape(1), around.shape))
    writes = [("set", x, numbers[tuple(inside)]), ("set", filler, around)]
    return [View(build.store(numbers.size, x.node.dtype, writes), numbers)]

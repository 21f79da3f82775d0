"""Primitives that only move elements about: they become views."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ecn_marl.lanes.builder import Builder, is_key, known, raw_shape
from ecn_marl.lanes.errors import Unsupported
from ecn_marl.lanes.graph import View


class Moving(Builder):
    """Rules for primitives that move elements."""

    def _broadcast_in_dim(self, eqn: Any, x: View, *_: View) -> list[View]:
        shape, dims = raw_shape(eqn.outvars[0].aval), eqn.params["broadcast_dimensions"]
        if is_key(eqn.outvars[0].aval):
            dims = (*dims, len(shape) - 1)
        place = [1] * len(shape)
        for d, size in zip(dims, x.where.shape, strict=True):
            place[d] = size
        return [View(x.node, np.broadcast_to(x.where.reshape(place), shape))]

    def _reshape(self, eqn: Any, x: View, *_: View) -> list[View]:
        return [View(x.node, x.where.reshape(raw_shape(eqn.outvars[0].aval)))]

    def _squeeze(self, eqn: Any, x: View) -> list[View]:
        return [View(x.node, np.squeeze(x.where, eqn.params["dimensions"]))]

    def _expand_dims(self, eqn: Any, x: View) -> list[View]:
        return [View(x.node, np.expand_dims(x.where, eqn.params["dimensions"]))]

    def _transpose(self, eqn: Any, x: View) -> list[View]:
        return [View(x.node, np.transpose(x.where, eqn.params["permutation"]))]

    def _rev(self, eqn: Any, x: View) -> list[View]:
        return [View(x.node, np.flip(x.where, eqn.params["dimensions"]))]

    def _slice(self, eqn: Any, x: View) -> list[View]:
        p = eqn.params
        steps = p["strides"] or [1] * len(p["start_indices"])
        cut = tuple(
            slice(a, b, s)
            for a, b, s in zip(p["start_indices"], p["limit_indices"], steps, strict=True)
        )
        return [View(x.node, x.where[cut])]

    def _split(self, eqn: Any, x: View) -> list[View]:
        ends = np.cumsum(eqn.params["sizes"])[:-1]
        return [View(x.node, w) for w in np.split(x.where, ends, eqn.params["axis"])]

    def _unstack(self, eqn: Any, x: View) -> list[View]:
        return [View(x.node, w) for w in np.moveaxis(x.where, eqn.params["axis"], 0)]

    def _copy(self, eqn: Any, x: View) -> list[View]:
        return [x]

    _copy_p = _stop_gradient = _reshard = _pvary = _copy

    def _tile(self, eqn: Any, x: View) -> list[View]:
        return [View(x.node, np.tile(x.where, eqn.params["reps"]))]

    def _iota(self, eqn: Any, *_: View) -> list[View]:
        p = eqn.params
        shape = [1] * len(p["shape"])
        shape[p["dimension"]] = p["shape"][p["dimension"]]
        line = np.arange(p["shape"][p["dimension"]]).astype(np.dtype(p["dtype"])).reshape(shape)
        view = self.constant(line)
        return [View(view.node, np.broadcast_to(view.where, p["shape"]))]

    def _iota_2x32_shape(self, eqn: Any) -> list[View]:
        shape = eqn.params["shape"]
        low = np.arange(math.prod(shape), dtype=np.uint32).reshape(shape)
        return [self.constant(np.zeros(shape, np.uint32)), self.constant(low)]

    def _stack(self, eqn: Any, *args: View) -> list[View]:
        axis = int(eqn.params["axis"])
        parts = [View(a.node, np.expand_dims(a.where, axis)) for a in args]
        return [self._joined(parts, axis)]

    def _concatenate(self, eqn: Any, *args: View) -> list[View]:
        return [self._joined(list(args), int(eqn.params["dimension"]))]

    def _joined(self, parts: list[View], axis: int) -> View:
        parts = [p for p in parts if p.where.size]
        shapes = [list(p.where.shape) for p in parts]
        shape = list(shapes[0])
        shape[axis] = sum(s[axis] for s in shapes)
        numbers = [n for p in parts if (n := known(p)) is not None]
        if len(numbers) == len(parts):
            return self.constant(np.concatenate(numbers, axis), parts[0].node.dtype)
        if all(p.node is parts[0].node for p in parts):
            return View(parts[0].node, np.concatenate([p.where for p in parts], axis))
        flat = np.arange(math.prod(shape)).reshape(shape)
        places = np.split(flat, np.cumsum([s[axis] for s in shapes])[:-1], axis)
        return self.bundle(parts, places, shape)

    def _pad(self, eqn: Any, x: View, value: View) -> list[View]:
        shape = eqn.outvars[0].aval.shape
        numbers = np.arange(math.prod(shape)).reshape(shape)
        inside, outside = [], np.ones(shape, bool)
        for (low, _, gap), n in zip(eqn.params["padding_config"], x.where.shape, strict=True):
            if low < 0:
                raise Unsupported("negative padding")
            inside.append(slice(low, low + (n - 1) * (gap + 1) + 1 if n else low, gap + 1))
        if any(high < 0 for _, high, _ in eqn.params["padding_config"]):
            raise Unsupported("negative padding")
        outside[tuple(inside)] = False
        rest = numbers[outside]
        filler = View(value.node, np.broadcast_to(value.where.reshape(1), rest.shape))
        writes = [("set", x, numbers[tuple(inside)]), ("set", filler, rest)]
        return [View(self.store(numbers.size, x.node.dtype, writes), numbers)]

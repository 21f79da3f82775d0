"""A call of vector code in a jaxpr, compiled when the jaxpr is lowered and not when it is traced.

JAX traces some programs more than once and keeps the last result: the body of a `scan` under
`vmap`, for example, until it knows which parts of the carry are mapped. Compiling takes seconds, so
it waits until a program is sure to be run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
from jax.core import ShapedArray

from ecn_marl.lanes.compat import late_primitive
from ecn_marl.lanes.errors import InvalidValue

__all__ = ["Code", "bind", "ffi"]

Build = Callable[[], tuple[str, int]]
"""Compiles a program: its name for XLA, and the bytes of its workspace."""


class Code:
    """The code of a program. It is compiled when it is asked for the first time."""

    def __init__(self, build: Build) -> None:
        """Keep the way to compile it, until it is compiled."""
        self._build: Build | None = build
        self._made = ("", 0)

    def __call__(self) -> tuple[str, int]:
        """The name of the code for XLA, and the bytes of its workspace."""
        build = self._build  # another thread may be faster
        if build is not None:
            self._made = build()
            self._build = None  # what it was compiled from takes much memory
        return self._made

    def __repr__(self) -> str:
        """Short, for jaxprs that are printed."""
        return "Code()"


def bind(
    code: Code, outs: Sequence[jax.ShapeDtypeStruct], aliases: Mapping[int, int]
) -> Callable[..., list[jax.Array]]:
    """A function of raw arrays that calls the code of a program.

    Args:
        code: of the program.
        outs: its results.
        aliases: arguments whose memory a result may take, by number.
    """
    avals = tuple(ShapedArray(x.shape, x.dtype) for x in outs)
    options = {"code": code, "avals": avals, "aliases": tuple(aliases.items())}
    return lambda *raw: list(_PRIMITIVE.bind(*raw, **options))


def ffi(
    name: str, outs: Sequence[Any], memory: int, aliases: Mapping[int, int]
) -> Callable[..., list[jax.Array]]:
    """A function of raw arrays that calls compiled code.

    The last result is the workspace of `memory` bytes, which XLA allocates and frees.
    """
    shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in outs]
    shapes.append(jax.ShapeDtypeStruct((memory,), jnp.uint8))
    call = jax.ffi.ffi_call(name, shapes, input_output_aliases=dict(aliases))
    return lambda *raw: list(call(*raw))[:-1]


def _run(
    *raw: jax.Array, code: Code, avals: Sequence[ShapedArray], aliases: Sequence[tuple[int, int]]
) -> list[jax.Array]:
    name, memory = code()
    return ffi(name, avals, memory, dict(aliases))(*raw)


def _not_differentiable(*_: object, **__: object) -> NoReturn:
    allowed = "functions of a single environment, or a batch within lanes.off()"
    raise InvalidValue("differentiate", "a batch that is compiled for lanes", allowed)


_PRIMITIVE = late_primitive("lanes", _run, lambda *_, avals, **__: avals, _not_differentiable)

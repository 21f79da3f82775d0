"""Run-time type checker of the suite: beartype, int taken for float as type checkers do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial, wraps
from types import CodeType, FunctionType
from typing import Any

from beartype import BeartypeConf, beartype
from jaxtyping import jaxtyped

check = beartype(conf=BeartypeConf(is_pep484_tower=True))

CHECK_LANES = "LANES_CHECK_TYPES"
"""Environment variable: if set, functions of `ecn_marl.lanes` are checked like all others."""

CHECKED_CALLS = 100
"""Calls of a function that are checked, its first ones in a process: a few are called a million
times, to describe networks and tables, and to check all of these took most of some tests' time."""

_calls: Counter[CodeType] = Counter()


def first_calls(fn: Any = None, *, typechecker: Any) -> Any:
    """`jaxtyping.jaxtyped`, for the first calls of functions."""
    if fn is None:
        return partial(first_calls, typechecker=typechecker)
    if not isinstance(fn, FunctionType):
        return jaxtyped(fn, typechecker=typechecker)
    code = fn.__code__
    if _calls[code] >= CHECKED_CALLS:  # a function within another, defined again in every call
        return fn
    checked: Callable[..., Any] = jaxtyped(fn, typechecker=typechecker)

    @wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        if _calls[code] >= CHECKED_CALLS:
            return fn(*args, **kwargs)
        _calls[code] += 1
        return checked(*args, **kwargs)

    return call

"""Walks through a jaxpr and makes nodes by the rules in the table of primitives.

Calls are inlined. Loop-invariant code moves out of loops.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend import core
from jax.extend.core import JaxprEqn

from ecn_marl.lanes.builder import Builder, is_key, raw
from ecn_marl.lanes.compat import CALLS, aval_of, canonical, jaxpr_and_constants
from ecn_marl.lanes.errors import Unsupported
from ecn_marl.lanes.graph import NUMPY, View
from ecn_marl.lanes.primitives import PRIMITIVES


class Lowering(Builder):
    """Nodes of one program; see `lower`."""

    def run(self, jaxpr: core.Jaxpr, consts: Sequence[object], args: Sequence[View]) -> list[View]:
        """Lower a jaxpr applied to views."""
        env: dict[core.Var, View] = {}

        def read(atom: core.Var | core.Literal) -> View:
            if isinstance(atom, core.Literal):
                return self.constant(np.asarray(atom.val, getattr(atom.aval, "dtype", None)))
            return env[atom]

        for var, const in zip(jaxpr.constvars, consts, strict=True):
            env[var] = const if isinstance(const, View) else self.constant(raw(const))
        for var, arg in zip(jaxpr.invars, args, strict=True):
            env[var] = arg
        for eqn in jaxpr.eqns:
            self.origin = eqn
            views = self.equation(eqn, [read(v) for v in eqn.invars])
            for var, view in zip(eqn.outvars, views, strict=True):
                env[var] = view
        return [read(v) for v in jaxpr.outvars]

    def inline(self, inner: object, args: Sequence[View]) -> list[View]:
        """Lower a jaxpr that is a parameter of an equation."""
        return self.run(*jaxpr_and_constants(inner), args)

    def equation(self, eqn: JaxprEqn, args: list[View]) -> list[View]:
        """Lower one equation.

        Raises:
            Unsupported: there is no record of its primitive, or its rule does not cover this case.
        """
        name = canonical(eqn.primitive.name)
        # A call's rules for derivatives are dropped: compiled batches cannot be differentiated.
        if name in CALLS:
            return self.inline(eqn.params[CALLS[name]], args)
        # Rules need not know of arrays without elements.
        if eqn.outvars and all(0 in getattr(v.aval, "shape", ()) for v in eqn.outvars):
            return [self.empty(aval_of(v)) for v in eqn.outvars]
        record = PRIMITIVES.get(name)
        if record is None or record.lower is None:
            raise Unsupported(f"primitive {name!r} cannot be compiled for lanes")
        # A key has one axis more here than in the jaxpr, its two words: rules have to know of it.
        if "k" not in record.kinds and any(map(_holds_keys, eqn.invars)):
            raise Unsupported(f"primitive {name!r} of typed keys cannot be compiled for lanes")
        try:
            return record.lower(self, eqn, *args)
        except Unsupported:
            raise
        except Exception as problem:  # a newer JAX's parameters, which the rule does not know
            raise Unsupported(
                f"primitive {name!r} cannot be compiled for lanes with these parameters "
                f"({type(problem).__name__}: {problem})"
            ) from problem

    def traced(self, fun: Callable[..., Any], *args: View) -> list[View]:
        """Lower a function of raw key data, traced for these shapes."""
        avals = [jax.ShapeDtypeStruct(a.where.shape, NUMPY[a.node.dtype]) for a in args]
        closed = jax.make_jaxpr(fun)(*avals)
        return self.run(closed.jaxpr, closed.consts, args)


def _holds_keys(atom: core.Var | core.Literal) -> bool:
    # Tokens and other abstract values have no type of elements.
    return hasattr(atom.aval, "dtype") and is_key(aval_of(atom))

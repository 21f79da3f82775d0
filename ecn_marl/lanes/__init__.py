"""Compiles JAX programs of one environment to vector code with one environment per SIMD lane.

XLA's CPU backend runs a batch of environments operation by operation. Every look-up or scatter ends
a fused loop, and most time goes into moving arrays. Here, LLVM compiles the same traced program
with one environment in each lane of the processor's vectors. Loops are fused across look-ups and
scatters, state is updated in place, and threads share the batch.

    step = lanes.mapped(env.step)       # the same function of one environment
    jax.vmap(step, (0, 0, 0, None))     # fast batches on a CPU

The package imports nothing of the package around it. `README.md` says what it compiles and how.
Names are loaded on first use: a program that only marks flags (`busy`) loads no compiler.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ecn_marl.lanes.errors import InvalidValue, Unsupported
    from ecn_marl.lanes.explanation import Explanation, explain, explain_kernel
    from ecn_marl.lanes.mapping import available, mapped, off, vmap, way
    from ecn_marl.lanes.optimisation_hints import busy
    from ecn_marl.lanes.settings import set_trial_program

_HOME = {
    "Explanation": "explanation",
    "InvalidValue": "errors",
    "Unsupported": "errors",
    "available": "mapping",
    "busy": "optimisation_hints",
    "explain": "explanation",
    "explain_kernel": "explanation",
    "mapped": "mapping",
    "off": "mapping",
    "set_trial_program": "settings",
    "vmap": "mapping",
    "way": "mapping",
}

__all__ = [
    "Explanation",
    "InvalidValue",
    "Unsupported",
    "available",
    "busy",
    "explain",
    "explain_kernel",
    "mapped",
    "off",
    "set_trial_program",
    "vmap",
    "way",
]


if not TYPE_CHECKING:  # else type checkers accept any name

    def __getattr__(name: str) -> object:
        """Load a public name on first use (PEP 562)."""
        if name not in _HOME:
            raise AttributeError(
                f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}"
            )
        value: object = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
        # Python then finds the name without this function.
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    """Public names, loaded or not."""
    return sorted({*globals(), *__all__})

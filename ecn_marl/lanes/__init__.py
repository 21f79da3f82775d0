"""One environment per lane: programs of one environment as vector code for this processor.

XLA's CPU backend runs a batch of environments operation by operation: every look-up or scatter ends
a fused loop, and most time goes into moving arrays. Here the same program, traced by JAX, is
compiled (by LLVM) with one environment in each lane of the processor's vectors, its loops fused
across look-ups and scatters, its state updated in place, and the batch shared among threads. No
physics is written twice.

    step = lanes.mapped(env.step)       # the same function of one environment ...
    jax.vmap(step, (0, 0, 0, None))     # ... but fast in batches, on a CPU

The package imports nothing of the one around it; `README.md` says what it compiles and how. Names
are loaded when they are first used: a program that only marks flags (`busy`) loads no compiler.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ecn_marl.lanes.errors import InvalidValue, Unsupported
    from ecn_marl.lanes.explanation import Explanation, explain
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
    "mapped",
    "off",
    "set_trial_program",
    "vmap",
    "way",
]


if not TYPE_CHECKING:  # type checkers then report names that do not exist

    def __getattr__(name: str) -> Any:
        """Load a public name on first use (PEP 562)."""
        if name not in _HOME:
            raise AttributeError(
                f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}"
            )
        value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    """Public names, loaded or not."""
    return sorted({*globals(), *__all__})

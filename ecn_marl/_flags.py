"""Flags: which structures of fixed size were too small in an episode, one bit each.

Arrays have fixed sizes. Where something does not fit, the simulation goes on with an approximation,
and sets the bit of the structure in `SimState.flags`. `FLAGS` is the table of all bits: what
happened, and the option that cures it. A bit stays set until the episode ends. It says that
something happened, `Totals` how often. When a flagged result counts is decided in one place,
`baselines.evaluation.completion.invalid_reasons`.

Nothing here needs JAX: tables of results are made without it. `sim.core.flags` sets the bits.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

FLAGGED = "flags"
"""Name of the flags among infos, metrics and columns."""


class Flag(NamedTuple):
    """A bit.

    Attributes:
        name: of the structure.
        event: what happens where it is too small.
        cure: what makes it large enough.
    """

    name: str
    event: str
    cure: str


SLOTS, WIDTH, MEMORY, MARKS, WAYS, BUFFERS, COUNTERS, NUMBERS = range(8)
"""Numbers of the bits."""

FLAGS = (
    Flag("slots", "flows waited for a free slot", "more `slots`"),
    Flag(
        "width",
        "more flows began in a tick than a source offers",
        "a larger `width`, or a shorter tick (`tick_steps`)",
    ),
    Flag("memory", "feedback was older than the history that is kept", "a longer `memory_us`"),
    Flag(
        "marks",
        "CNPs were further away than their delay line is long",
        "`ack_priority`, a longer `dt_us`, or `tick_steps` above 20",
    ),
    Flag(
        "ways",
        "flows kept a path, because they had bytes on two others",
        "a longer `flowlet_gap_us`, or `load_balancing='spray'`",
    ),
    Flag("buffers", "full buffers dropped bytes that PFC protects", "a larger `buffer_mib`"),
    Flag("counters", "a counter passed 2^31 and is wrong", "a shorter episode (`max_steps`)"),
    Flag(
        "numbers",
        "a parameter was NaN",
        "other parameters; `wrappers.Checked(env).check(params)` says which",
    ),
)
"""All bits; the first one is the lowest."""

BITS = {flag.name: 1 << number for number, flag in enumerate(FLAGS)}
"""Value of each bit, by name."""


def names(flags: int | np.integer[Any] | np.ndarray) -> tuple[str, ...]:
    """Names of the bits that are set, in any entry of an array."""
    entries = np.asarray(flags).astype(np.int64).reshape(-1)
    union = int(np.bitwise_or.reduce(entries, initial=0))
    return tuple(name for name, bit in BITS.items() if union & bit)


def flag(name: str) -> Flag:
    """The row of a name in `FLAGS`."""
    return next(row for row in FLAGS if row.name == name)

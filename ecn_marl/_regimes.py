"""Regimes in which the fluid is known to be off, so that results can say so.

A queue of the fluid is a number, and all times below a substep are one. Where packets of our own or
recorded ones show that this matters, the regime is a row of `REGIMES`. Commands name the regimes of
what they ran below their tables. Nothing is refused: how far it is off is part of the row, and
`--backend packets` runs the same without that error. `docs/limits.md` has more, that cannot be told
from a configuration.

Nothing here needs JAX. `sim.regimes` says which regimes a configuration is in. Flags are another
matter, see `_flags`: they say that a structure of fixed size was too small.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Regime(NamedTuple):
    """A regime in which results are off, or are not checked.

    Attributes:
        name: short name.
        where: what it is about.
        error: how far the fluid is off there, and against what that was measured.
    """

    name: str
    where: str
    error: str


REGIMES = (
    Regime(
        "few-packets",
        "thresholds below three packets",
        "a fluid queue is empty where packets queue by chance: differences of a few KB in queues, "
        "and of some per cent in short flows, are no evidence",
    ),
    Regime(
        "coarse-clock",
        "DCQCN with a substep above 2 µs",
        "short flows are 4 to 7 % fast, shallow oscillations up to 30 % too small, and "
        "utilisation up to 3 points too high with 64 senders",
    ),
    Regime(
        "hpcc-clock",
        "HPCC with a substep other than 2 µs",
        "it lacks the noise of packets: utilisation is 3.5 points too high with 16 senders at 1 µs",
    ),
    Regime(
        "unrecorded",
        "Swift, Reno and agents that set rates",
        "there are no recorded packet runs of them: they are checked against closed forms only",
    ),
    Regime(
        "balanced-bursts",
        "a dozen flows or more from every NIC to several hosts, all begun at once",
        "NICs offer what ports carry, and backlogs end sooner than on packets: under shallow "
        "thresholds short flows are 6 to 14 % too fast, and their p99 is up to 20 % too low",
    ),
    Regime(
        "losses",
        "full buffers without PFC",
        "losses are of bytes and not of packets: goodput of paced senders is within 10 %, that of "
        "bursts too high, and there are no timeouts",
    ),
)
"""All regimes that follow from a configuration or from thresholds."""


def regime(name: str) -> Regime:
    """The regime of a name.

    Raises:
        KeyError: there is none.
    """
    return {row.name: row for row in REGIMES}[name]


def remarks(names: Iterable[str]) -> list[str]:
    """A sentence for each regime, to stand below a table of results of the fluid."""
    return [f"Fluid, {(r := regime(name)).where}: {r.error}." for name in names]

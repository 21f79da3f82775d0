"""A switch's WRED profile: thresholds in whole bytes and cells, a probability in whole percents."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ecn_marl._checks import Whole, check_value
from ecn_marl._errors import bad_value
from ecn_marl.sim.core.queues import checked_thresholds
from ecn_marl.sim.units import KB

LARGEST_CELL = 1_000_000
"""Largest buffer cell, bytes; those of switches have some hundred bytes."""

LARGEST = 2**32 - 1
"""Largest threshold, bytes: switches store 32 bits."""

MIN, MAX, PERCENT = "kmin", "kmax", "percent"


class WredProfile(NamedTuple):
    """Thresholds as a switch stores them."""

    kmin: int
    """Queue at which marking starts, bytes."""
    kmax: int
    """Queue above which every packet is marked, bytes."""
    percent: int
    """Marking probability at kmax, %, 1 to 100."""

    @classmethod
    def of(cls, kmin: float, kmax: float, pmax: float, cell: int = 1) -> WredProfile:
        """The profile nearest to thresholds in bytes and a probability.

        It rounds as `envs.telemetry.Telemetry` does with `quantum_kb` and `pmax_percent`:
        thresholds to the nearest number of cells, Kmax to at least one cell above Kmin, the
        probability to whole percents, at least 1.

        Args:
            kmin: bytes.
            kmax: bytes.
            pmax: probability in (0, 1].
            cell: buffer cell of the switch, bytes.

        Raises:
            ValueError: not 0 <= kmin <= kmax, more than 32 bits, a probability out of range, or no
                such cell.
        """
        check_value("cell", cell, Whole(low=1, high=LARGEST_CELL, unit="bytes"))
        checked_thresholds((kmin / KB, kmax / KB, pmax), "thresholds", above_zero=False)
        low = round(kmin / cell)
        high = max(round(kmax / cell), low + 1)
        if high * cell > LARGEST:
            raise bad_value("kmax", kmax, f"at most {LARGEST} bytes, what a switch can store")
        return cls(low * cell, high * cell, min(max(round(100.0 * pmax), 1), 100))


def changes(before: WredProfile, after: WredProfile) -> Iterator[tuple[str, int]]:
    """Single changes from one profile to another: a field's name and its new value.

    Kmin never exceeds Kmax on the way: thresholds that rise have Kmax changed first, others Kmin.
    The probability comes last.
    """
    order = (MAX, MIN) if after.kmax >= before.kmin else (MIN, MAX)
    for field in (*order, PERCENT):
        if getattr(before, field) != getattr(after, field):
            yield field, getattr(after, field)

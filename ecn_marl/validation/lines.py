"""Results of a comparison: lines with a verdict, and the curves to draw beside them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np

Basis = Literal["tuned", "independent", "other seed", "repeated", "finer", "theory"]
"""Origin of a reference. `tuned`: a recorded run that the simulator was developed against.
`independent`: a setting, network or flow list that nothing was fitted to. `other seed`: another
seed of a tuned setting. `repeated`: a tuned run again, row for row. `finer`: our own run at a finer
substep. `theory`: a closed form.
"""

BASES: tuple[Basis, ...] = get_args(Basis)

Verdict = Literal["pass", "FAIL", "reported"]
"""`reported`: a line without a tolerance, for the reader to judge."""

ROUNDING = 1e-9
"""Relative slack on a tolerance, so that an error equal to it passes despite rounding."""


@dataclass(frozen=True)
class Tolerance:
    """Largest accepted deviation from the reference: the larger of the two counts.

    Attributes:
        relative: share of the reference.
        absolute: in the line's unit.
    """

    relative: float = 0.0
    absolute: float = 0.0

    def allowed(self, reference: float) -> float:
        """Largest deviation from `reference` that passes, in its unit."""
        return max(self.relative * abs(reference), self.absolute)


@dataclass(frozen=True)
class Line:
    """One quantity compared with its reference.

    Attributes:
        group: kind of comparison, e.g. `incast`.
        case: what was run, e.g. `run N=8 SECN1`.
        quantity: what was measured, e.g. `queue mean`.
        unit: its unit, empty for ratios.
        reference: recorded or computed value.
        simulated: the simulator's value, NaN if it has none (a flow did not finish).
        tolerance: None if the line is only reported.
        basis: where the reference comes from.
        note: remark for the reader.
        noise: how far chance alone may move the simulated value, in the line's unit, where that is
            more than a share of the tolerance. It does not enter the verdict.
    """

    group: str
    case: str
    quantity: str
    unit: str
    reference: float
    simulated: float
    tolerance: Tolerance | None = None
    basis: Basis = "tuned"
    note: str = ""
    noise: float = 0.0

    @property
    def error(self) -> float:
        """Our value minus the reference, in the line's unit."""
        return self.simulated - self.reference

    @property
    def relative_error(self) -> float:
        """Error as a share of the reference, NaN for a reference of 0."""
        return self.error / abs(self.reference) if self.reference else math.nan

    @property
    def allowed(self) -> float:
        """Largest error that passes, NaN if the line is only reported."""
        return math.nan if self.tolerance is None else self.tolerance.allowed(self.reference)

    @property
    def verdict(self) -> Verdict:
        """Whether the error is within the tolerance; without a number the line fails."""
        if self.tolerance is None:
            return "reported"
        slack = ROUNDING * max(abs(self.reference), self.allowed)
        return "pass" if abs(self.error) <= self.allowed + slack else "FAIL"

    def as_dict(self) -> dict[str, Any]:
        """The line for JSON; numbers that are not finite become `None` when it is written."""
        t = self.tolerance
        limits = (
            {"relative": t.relative, "absolute": t.absolute, "allowed": self.allowed} if t else t
        )
        return {
            "group": self.group,
            "case": self.case,
            "quantity": self.quantity,
            "unit": self.unit,
            "reference": float(self.reference),
            "ours": float(self.simulated),
            "error": float(self.error),
            "relative_error": float(self.relative_error),
            "tolerance": limits,
            "verdict": self.verdict,
            "basis": self.basis,
            "note": self.note,
            "noise": float(self.noise),
        }


def lines_of(
    group: str,
    case: str,
    table: Iterable[tuple[str, str, float, float, Tolerance | None]],
    basis: Basis = "tuned",
    note: str = "",
) -> list[Line]:
    """Lines of a case that differ in what they compare.

    Args:
        group: group of the lines.
        case: what was run.
        table: quantity, unit, reference, simulated value and tolerance of each line.
        basis: where the references come from.
        note: of the lines.
    """
    return [
        Line(group, case, quantity, unit, float(reference), float(simulated), limit, basis, note)
        for quantity, unit, reference, simulated, limit in table
    ]


@dataclass(frozen=True)
class Trace:
    """A queue over time, recorded and simulated.

    Attributes:
        page: traces of one page are drawn together.
        label: what was run.
        time_ms: times of the samples, `[T]`.
        recorded: queue, bytes, `[T]`.
        simulated: queue of one of our seeds, bytes, `[T]`.
    """

    page: str
    label: str
    time_ms: np.ndarray
    recorded: np.ndarray
    simulated: np.ndarray


@dataclass(frozen=True)
class Slowdowns:
    """FCT slowdowns of a flow list under one ECN setting, recorded and simulated.

    Attributes:
        page: flow list and senders; settings of one page are drawn together.
        ecn: name of the setting.
        size: payloads, bytes, `[N]`.
        recorded: slowdowns, `[N]`.
        simulated: slowdowns of all our seeds, `[S, N]`.
    """

    page: str
    ecn: str
    size: np.ndarray
    recorded: np.ndarray
    simulated: np.ndarray


@dataclass(frozen=True)
class Outcome:
    """Results of a case."""

    lines: list[Line]
    traces: list[Trace] = field(default_factory=list)
    slowdowns: list[Slowdowns] = field(default_factory=list)


@dataclass(frozen=True)
class Case:
    """Some comparisons that are run together.

    Attributes:
        name: `group/what`, all lower case; `--only` matches against it.
        run: simulates and compares.
        cost: approximate seconds on one core; long cases start first.
        quick: whether `--quick` runs it.
        program: cases of one program are run by one process, which compiles it once; the name if
            empty.
        long: whether `--long` alone runs it.
    """

    name: str
    run: Callable[[], Outcome]
    cost: float = 5.0
    quick: bool = False
    program: str = ""
    long: bool = False


def theory_case(name: str, lines: Callable[[], list[Line]], cost: float = 5.0) -> Case:
    """A case made from a function that returns lines; quick runs include it."""
    return Case(name, lambda: Outcome(lines()), cost, quick=True)

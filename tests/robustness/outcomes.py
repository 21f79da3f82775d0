"""What becomes of a case: refused in one line, accepted and sound, or a fault of the package."""

from __future__ import annotations

import signal
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.strategies import SearchStrategy

import ecn_marl
from ecn_marl.errors import EcnMarlError

REFUSED, SOUND, ACCEPTED = "refused", "sound", "accepted"
RAW, HANG, SILENT = "raw", "hang", "silent"
OUTCOMES = (REFUSED, SOUND, ACCEPTED, RAW, HANG, SILENT)
"""Refused in one line; accepted, simulated and sound; accepted and not simulated; another error; no
end; accepted, and what comes out is nonsense."""

FAULTS = (RAW, HANG, SILENT)

SECONDS = 60
"""A case that takes longer hangs."""

PACKAGE = str(Path(ecn_marl.__file__).parent)


class Hang(BaseException):
    """A case took too long."""


class Unsound(AssertionError):
    """What was accepted came to nonsense."""


@dataclass
class Tally:
    """Outcomes of a family of cases.

    Attributes:
        name: the family.
        counts: cases by outcome.
        faults: the first few cases that showed a fault of the package, with what was said.
    """

    name: str
    counts: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    def add(self, outcome: str, case: Any, said: str = "") -> None:
        """Count a case."""
        self.counts[outcome] += 1
        if outcome in FAULTS and len(self.faults) < 20:
            self.faults.append(f"{outcome}: {case!r:.300}: {said:.300}")

    def as_json(self) -> dict[str, Any]:
        """What is written to the file of results."""
        counts = {name: self.counts[name] for name in OUTCOMES}
        return {"tried": sum(counts.values()), **counts, "faults": self.faults}


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """`Hang` after so many seconds, where the main thread runs Python at all."""

    def stop(*_: Any) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def is_refusal(error: BaseException) -> bool:
    """Whether an error is one line that the package raised on purpose."""
    if "\n" in str(error) or not str(error):
        return False
    if isinstance(error, EcnMarlError):
        return True
    last = traceback.extract_tb(error.__traceback__)[-1]
    return isinstance(error, ValueError | OSError) and last.filename.startswith(PACKAGE)


def judge(tally: Tally, case: Any, run: Callable[[Any], str], seconds: float = SECONDS) -> None:
    """Run a case and count what became of it; `run` returns `SOUND` or `ACCEPTED`, or raises."""
    try:
        with limited(seconds):
            outcome, said = run(case), ""
    except Hang:
        outcome, said = HANG, f"more than {seconds:g} s"
    except Unsound as error:
        outcome, said = SILENT, str(error)
    except Exception as error:  # what escapes raw is what is counted here
        outcome = REFUSED if is_refusal(error) else RAW
        said = f"{type(error).__name__}: {error}"
    tally.add(outcome, case, said)


def tried(
    name: str,
    cases: SearchStrategy[Any],
    run: Callable[[Any], str],
    examples: int,
    number: int = 0,
) -> Tally:
    """Cases of a family, drawn by hypothesis.

    Args:
        name: the family.
        cases: what is drawn.
        run: see `judge`.
        examples: cases at most; fewer if there are no more.
        number: seed of the draws.
    """
    tally = Tally(name)

    @seed(number)
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        derandomize=False,
    )
    @given(cases)
    def each(case: Any) -> None:
        judge(tally, case, run)

    each()
    return tally

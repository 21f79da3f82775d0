"""Dataclasses whose fields say what they may hold: type, range, unit.

    @dataclass(frozen=True)
    class Bursts:
        load: Annotated[float, Real(above=0.0)] = 0.8
        jitter_us: Annotated[float, Real(low=0.0, unit="µs")] = 0.0

        def __post_init__(self) -> None:
            check(self)

`check` raises an `InvalidValue` for the first field that breaks its rule. Nothing is converted:
what passes stays what it is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral
from numbers import Real as RealNumber
from typing import Annotated, Any, Protocol, get_args, get_origin, get_type_hints, runtime_checkable

from ecn_marl._errors import bad_value

INT32 = 2**31 - 1
"""Largest number that is counted; steps, flows and substeps are int32."""


@runtime_checkable
class Rule(Protocol):
    """What a field may hold."""

    def fits(self, value: Any) -> bool:
        """Whether this is allowed."""

    @property
    def allowed(self) -> str:
        """What is allowed, in words."""


@dataclass(frozen=True)
class Real:
    """A finite number.

    Attributes:
        low: smallest.
        high: largest.
        above: it must be more than this.
        below: it must be less than this.
        unit: its unit.
        words: words that may stand in its place.
        none: whether None may.
        infinite: whether infinity is allowed.
    """

    low: float = -math.inf
    high: float = math.inf
    above: float = -math.inf
    below: float = math.inf
    unit: str = ""
    words: tuple[str, ...] = ()
    none: bool = False
    infinite: bool = False

    def fits(self, value: Any) -> bool:
        """Whether it is such a number, or one of the words."""
        if value is None or isinstance(value, str):
            return self.none if value is None else value in self.words
        if not self._is_kind(value) or isinstance(value, bool):
            return False
        if not math.isfinite(value):
            return self.infinite and value > 0
        return bool(self.low <= value <= self.high and self.above < value < self.below)

    def _is_kind(self, value: Any) -> bool:
        return isinstance(value, RealNumber)

    @property
    def _kind(self) -> str:
        return "a number"

    @property
    def allowed(self) -> str:
        """What is allowed, in words."""
        signs = {">=": self.low, ">": self.above, "<=": self.high, "<": self.below}
        limits = [f"{sign} {_short(x)}" for sign, x in signs.items() if math.isfinite(x)]
        text = " ".join([self._kind, " and ".join(limits), self.unit])
        others = [*self.words, *["infinity"] * self.infinite, *["None"] * self.none]
        return ", or ".join([" ".join(text.split()), *others])


@dataclass(frozen=True)
class Whole(Real):
    """An integer; `True` and `2.0` are none."""

    high: float = INT32

    def _is_kind(self, value: Any) -> bool:
        return isinstance(value, Integral)

    @property
    def _kind(self) -> str:
        return "an integer"


@dataclass(frozen=True)
class Flag:
    """True or False, and nothing that is taken for one of them."""

    def fits(self, value: Any) -> bool:
        """Whether it is one."""
        return isinstance(value, bool)

    @property
    def allowed(self) -> str:
        """What is allowed, in words."""
        return "True or False"


@dataclass(frozen=True)
class Kind:
    """An object of some type.

    Attributes:
        types: types, or names of methods that it must have.
        what: what is allowed, in words.
    """

    types: tuple[type | str, ...]
    what: str

    def fits(self, value: Any) -> bool:
        """Whether it is of one of the types, or has one of the methods."""
        return any(
            hasattr(value, one) if isinstance(one, str) else isinstance(value, one)
            for one in self.types
        )

    @property
    def allowed(self) -> str:
        """What is allowed, in words."""
        return self.what


@dataclass(frozen=True)
class Each:
    """A tuple, or list, of which each element keeps a rule.

    Attributes:
        rule: the rule.
        count: how many there must be, None for any number.
        least: how many there must be at least.
    """

    rule: Rule
    count: int | None = None
    least: int = 0

    def fits(self, value: Any) -> bool:
        """Whether it is such a tuple."""
        if not isinstance(value, tuple | list | range) or len(value) < self.least:
            return False
        return self.count in (None, len(value)) and all(self.rule.fits(x) for x in value)

    @property
    def allowed(self) -> str:
        """What is allowed, in words."""
        size = f"{self.count} values" if self.count is not None else "values"
        if self.least:
            size = f"at least {self.least} value{'s' if self.least > 1 else ''}"
        return f"a tuple of {size}, each {self.rule.allowed}"


TEXT = Kind((str,), "a word")
OPTIONS = Kind((Mapping,), "a dict of options by name")


def check(checked: Any) -> None:
    """Check the fields of a dataclass that declare a rule.

    Raises:
        InvalidValue: the first field whose value breaks its rule.
    """
    for name, rule in rules_of(type(checked)).items():
        value = getattr(checked, name)
        if not rule.fits(value):
            raise bad_value(name, value, rule.allowed)


def check_value(field: str, value: Any, rule: Rule) -> None:
    """Check one value.

    Raises:
        InvalidValue: it breaks the rule.
    """
    if not rule.fits(value):
        raise bad_value(field, value, rule.allowed)


_RULES: dict[type, dict[str, Rule]] = {}


def rules_of(kind: type) -> dict[str, Rule]:
    """The rules that a class declares, by field; its annotations are read once."""
    if kind in _RULES:
        return _RULES[kind]
    found: dict[str, Rule] = {}
    for name, hint in get_type_hints(kind, include_extras=True).items():
        if get_origin(hint) is Annotated:
            rules = [x for x in get_args(hint)[1:] if hasattr(x, "fits")]
            if rules:
                found[name] = rules[0]
    _RULES[kind] = found
    return found


def _short(number: float) -> str:
    return f"{number:,}" if isinstance(number, int) else f"{number:g}"

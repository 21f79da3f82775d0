"""Dataclasses whose fields say what they may hold: type, range, unit.

    @dataclass(frozen=True)
    class Bursts:
        load: Annotated[float, Real(above=0.0)] = 0.8
        jitter_us: Annotated[float, Real(low=0.0, unit="µs")] = 0.0

        def __post_init__(self) -> None:
            check(self)

`check` raises an `InvalidValue` for the first field that breaks its rule. Values are checked, not
converted. `check_numbers` does the same for the arrays of traced parameters.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from numbers import Integral
from numbers import Real as RealNumber
from typing import (
    Annotated,
    Protocol,
    TypeGuard,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    runtime_checkable,
)

import numpy as np

from ecn_marl._errors import bad_value

INT32 = 2**31 - 1
"""Largest number that is counted; steps, flows and substeps are int32."""


@runtime_checkable
class Rule(Protocol):
    """The values that a field may have."""

    def fits(self, value: object) -> bool:
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
        words: words that are allowed instead of a number.
        none: whether None is allowed.
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

    def fits(self, value: object) -> bool:
        """Whether it is such a number, or one of the words."""
        if value is None or isinstance(value, str):
            return self.none if value is None else value in self.words
        if not self._is_kind(value) or isinstance(value, bool):  # a bool is a number in Python
            return False
        # Integers are finite, and may be too large for `isfinite`, which makes them floats.
        if not isinstance(value, Integral) and not math.isfinite(value):
            return self.infinite and value > 0
        return bool(self.low <= value <= self.high and self.above < value < self.below)

    def fit(self, entries: np.ndarray) -> np.ndarray:
        """Mask of the entries of an array that are such numbers, bool of its shape."""
        inside = (entries >= self.low) & (entries <= self.high)
        inside &= (entries > self.above) & (entries < self.below) & np.isfinite(entries)
        return np.asarray(inside | (np.isposinf(entries) & self.infinite))

    @property
    def kinds(self) -> str:
        """Kinds of numpy dtypes that arrays of such numbers have."""
        return "iuf"

    def _is_kind(self, value: object) -> TypeGuard[float]:
        return isinstance(value, RealNumber)

    @property
    def _kind(self) -> str:
        return "a number"

    @property
    def allowed(self) -> str:
        """What is allowed, in words."""
        signs = {">=": self.low, ">": self.above, "<=": self.high, "<": self.below}
        limits = [f"{sign} {_format_number(x)}" for sign, x in signs.items() if math.isfinite(x)]
        text = " ".join([self._kind, " and ".join(limits), self.unit])
        alternatives = [*self.words, *["infinity"] * self.infinite, *["None"] * self.none]
        return ", or ".join([" ".join(text.split()), *alternatives])


@dataclass(frozen=True)
class Whole(Real):
    """An integer; `True` and `2.0` are not allowed."""

    high: float = INT32

    @property
    def kinds(self) -> str:
        """Kinds of numpy dtypes that arrays of such numbers have."""
        return "iu"

    def _is_kind(self, value: object) -> TypeGuard[float]:
        return isinstance(value, Integral)

    @property
    def _kind(self) -> str:
        return "an integer"


SEED = Whole(low=0, high=2**32 - 1)
"""Seeds of everything random: what `jax.random.key` tells apart. Integers of numpy are allowed;
`3.0`, `'3'` and `True` are not."""

STREAM_SEED = Whole(low=0, high=math.inf, none=True)
"""Seeds of streams of episodes, of any size; None continues the stream, or is not seeded."""


@dataclass(frozen=True)
class Flag:
    """True or False; no other value that converts to one of them."""

    def fits(self, value: object) -> bool:
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
        description: what is allowed, in words.
    """

    types: tuple[type | str, ...]
    description: str

    def fits(self, value: object) -> bool:
        """Whether it is of one of the types, or has one of the methods."""
        return any(
            hasattr(value, kind) if isinstance(kind, str) else isinstance(value, kind)
            for kind in self.types
        )

    @property
    def allowed(self) -> str:
        """What is allowed, in words."""
        return self.description


@dataclass(frozen=True)
class Each:
    """A tuple or list whose elements keep a rule.

    Attributes:
        rule: the rule.
        count: exact number of elements, None for any number.
        least: smallest number of elements.
    """

    rule: Rule
    count: int | None = None
    least: int = 0

    def fits(self, value: object) -> bool:
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


LARGEST = 1e15
"""Largest value of a traced parameter, far below the largest float32."""

POSITIVE = Real(above=0.0, high=LARGEST)
NOT_NEGATIVE = Real(low=0.0, high=LARGEST)
SHARE = Real(above=0.0, high=1.0)
FRACTION = Real(low=0.0, high=1.0)
FINITE = Real()
"""Rules of traced parameters; the last one is for fields that declare none."""

TEXT = Kind((str,), "a word")
OPTIONS = Kind((Mapping,), "a dict of options by name")


def check(checked: object) -> None:
    """Check the fields of a dataclass that declare a rule.

    Raises:
        InvalidValue: the first field whose value breaks its rule.
    """
    for name, rule in rules_of(type(checked)).items():
        value = getattr(checked, name)
        if not rule.fits(value):
            raise bad_value(name, value, rule.allowed)


def check_value(field: str, value: object, rule: Rule) -> None:
    """Check one value.

    Raises:
        InvalidValue: it breaks the rule.
    """
    if not rule.fits(value):
        raise bad_value(field, value, rule.allowed)


def check_seed(seed: object, field: str = "seed", count: int = 1) -> int:
    """Check the seed of everything random, or the first of several in a row.

    Args:
        seed: what was given.
        field: its name.
        count: number of seeds in a row.

    Returns:
        The seed as Python's integer, which JSON has a type for.

    Raises:
        InvalidValue: it is no integer from 0 to 2^32 - 1, or the last one is beyond that.
    """
    check_value(field, seed, replace(SEED, high=SEED.high - count + 1))
    return int(cast("int", seed))


def check_numbers(tree: object, where: str = "params") -> None:
    """Check the numbers of traced parameters: every entry keeps the rule of its field.

    Floats without a rule have to be finite. Under `vmap` the numbers of the whole batch are
    checked. While a function is compiled (`jit`, `scan`) its arguments have no numbers yet, so
    nothing is checked; an episode with NaN among its parameters is flagged then (`sim.core.flags`).

    Args:
        tree: dataclasses, tuples and lists of arrays or numbers.
        where: name of the tree in messages.

    Raises:
        InvalidValue: the first entry that breaks its rule; the message says which.
    """
    if isinstance(tree, tuple | list):
        for number, part in enumerate(tree):
            check_numbers(part, f"{where}[{number}]")
    elif is_dataclass(tree):
        rules = cast("dict[str, Real]", rules_of(type(tree)))  # those of arrays are all `Real`
        for field in fields(tree):
            part, name = getattr(tree, field.name), f"{where}.{field.name}"
            if field.name in rules:
                _check_entries(name, part, rules[field.name])
            else:
                check_numbers(part, name)
    else:
        _check_entries(where, tree, FINITE)


def _check_entries(name: str, numbers: object, rule: Real) -> None:
    """Check every entry of an array whose numbers are known."""
    try:
        entries = np.asarray(of_batch(numbers))
    except TypeError:  # traced numbers, or a PRNG key
        return
    if numbers is None or (rule is FINITE and entries.dtype.kind not in "f"):
        return
    if entries.dtype.kind not in rule.kinds:
        raise bad_value(name, f"{entries.dtype} numbers", rule.allowed)
    outside = ~rule.fit(entries)  # the negation finds NaN too: no comparison with it is true
    if outside.any():
        index = tuple(int(i) for i in np.argwhere(outside)[0])
        at = f"[{', '.join(map(str, index))}]" if index else ""
        raise bad_value(f"{name}{at}", entries[index].item(), rule.allowed)


def of_batch(numbers: object) -> object:
    """The numbers of all members, axes of batches first, where `vmap` shows those of one.

    Raises:
        TypeError: they are traced otherwise as well.
    """
    if not (hasattr(numbers, "val") and hasattr(numbers, "batch_dim")):
        return numbers
    known = np.asarray(of_batch(numbers.val))
    if numbers.batch_dim is None:
        return known
    return np.moveaxis(known, known.ndim - np.ndim(numbers.val) + numbers.batch_dim, 0)


_RULES: dict[type, dict[str, Rule]] = {}
"""Rules of each class. `get_type_hints` evaluates annotations from text, which is slow."""


def rules_of(kind: type) -> dict[str, Rule]:
    """The rules that a class declares, by field."""
    if kind in _RULES:
        return _RULES[kind]
    by_field: dict[str, Rule] = {}
    for name, hint in get_type_hints(kind, include_extras=True).items():
        if get_origin(hint) is Annotated:
            rules = [x for x in get_args(hint)[1:] if hasattr(x, "fits")]
            if rules:
                by_field[name] = rules[0]
    _RULES[kind] = by_field
    return by_field


def _format_number(number: float) -> str:
    return f"{number:,}" if isinstance(number, int) else f"{number:g}"

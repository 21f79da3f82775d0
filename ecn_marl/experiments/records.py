"""Records: files with every episode of a scored policy, from which tables and figures are made.

One file per policy and scenario, `FOLDER/SCENARIO/scores/NAME.json` (or `.json.gz`): what was
evaluated and how (`meta`), a column `[seeds, episodes]` for each per-episode number (those of
`Evaluation.columns`), and the learning curve of each seed. Whole numbers are kept exactly, all
others with 6 significant digits; this changes a ratio by less than 1e-5, far below its interval.
Numbers are rounded when a record is made, not when it is written: results computed before writing
and after reading are equal. Equal records make equal bytes.
"""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ecn_marl._errors import bad_value
from ecn_marl._files import without_nan, write_all

if TYPE_CHECKING:  # reading records and making tables of them must not load JAX
    from ecn_marl.baselines.evaluation.episodes import Evaluation

FORMAT, VERSION = "ecn-marl record", 1

SUFFIXES = (".json", ".json.gz")

DIGITS = 6
"""Significant digits of numbers that are not whole."""


class Curve(NamedTuple):
    """Learning curve of one seed.

    Attributes:
        steps: environment steps, `[n]`.
        value: what the policy reached then, `[n]`; `meta["curve"]` names the column that it is
            comparable with, `reward` if it does not say.
    """

    steps: np.ndarray
    value: np.ndarray


@dataclass(frozen=True, eq=False)
class Record:
    """Every episode of a scored policy.

    Attributes:
        name: the policy, e.g. `ippo` or `static:best`.
        meta: JSON-able facts: `scenario`, `algorithm`, `options`, `settings` (of a rule the list of
            `[kmin, kmax, pmax]` it sets), `steps`, `seeds`, `eval_seed`, `versions`, `commit`,
            `seconds` of training, `us_per_decision`, `exchanged_bytes_per_second`, …
        columns: per-episode numbers by name, each `[seeds, episodes]` float64; a rule has one seed.
        curves: learning curves, one per seed, or none.

    Raises:
        ValueError: columns of different shapes, no column, `meta` that JSON cannot hold, or curves
            that are not one per seed or of no column.
    """

    name: str
    meta: dict[str, Any]
    columns: dict[str, np.ndarray]
    curves: tuple[Curve, ...] = field(default=())

    def __post_init__(self) -> None:
        """Check the shapes, and round all numbers."""
        try:
            meta = json.loads(json.dumps(without_nan(dict(self.meta)), allow_nan=False))
        except (TypeError, ValueError) as error:
            raise bad_value("meta", self.meta, f"what JSON can hold ({error})") from None
        columns = {name: _rounded(x) for name, x in self.columns.items()}
        shapes = {x.shape for x in columns.values()}
        if len(shapes) != 1 or len(shape := next(iter(shapes))) != 2 or 0 in shape:
            raise bad_value("columns", sorted(shapes), "arrays of one shape [seeds, episodes]")
        curves = tuple(Curve(_rounded(c.steps), _rounded(c.value)) for c in self.curves)
        if any(c.steps.ndim != 1 or c.steps.shape != c.value.shape for c in curves):
            raise bad_value("curves", [c.value.shape for c in curves], "as many values as steps")
        if curves and len(curves) != shape[0]:
            raise bad_value("curves", len(curves), f"one per seed, {shape[0]}")
        if curves and (column := meta.get("curve", "reward")) not in columns:
            raise bad_value("meta['curve']", column, f"a column: {', '.join(columns)}")
        for name, value in (("meta", meta), ("columns", columns), ("curves", curves)):
            object.__setattr__(self, name, value)

    @property
    def seeds(self) -> int:
        """Number of seeds."""
        return int(next(iter(self.columns.values())).shape[0])

    @property
    def episodes(self) -> int:
        """Number of episodes of each seed."""
        return int(next(iter(self.columns.values())).shape[1])

    @classmethod
    def of(
        cls,
        name: str,
        evaluations: Sequence[Evaluation],
        meta: Mapping[str, object],
        curves: Sequence[tuple[Any, Any]] | None = None,
    ) -> Record:
        """The record of a policy.

        Args:
            name: the policy.
            evaluations: one per seed (one for a rule), all of the same episodes.
            meta: facts, see `Record`.
            curves: `(steps [n], value [n])` of each seed.

        Raises:
            ValueError: see `Record`; or evaluations of different length or with other metrics.
        """
        seed_columns = [evaluation.columns for evaluation in evaluations]
        kinds = {
            (tuple(sorted(columns_of_seed)), len(next(iter(columns_of_seed.values()))))
            for columns_of_seed in seed_columns
        }
        if len(kinds) != 1:
            raise bad_value(
                "evaluations", len(seed_columns), "at least one, all of the same episodes"
            )
        columns = {
            key: np.stack([columns_of_seed[key] for columns_of_seed in seed_columns])
            for key in seed_columns[0]
        }
        seed_curves = tuple(Curve(np.asarray(x), np.asarray(y)) for x, y in curves or ())
        return cls(name, dict(meta), columns, seed_curves)

    def save(self, path: Path) -> None:
        """Write the file, whole or not at all; gzip if its name ends in `.gz`."""
        data = self._text().encode()
        if _suffix(path) == ".json.gz":
            # Without a time stamp, so that equal records make equal bytes.
            data = gzip.compress(data, compresslevel=9, mtime=0)
        write_all({path: data})

    @classmethod
    def load(cls, path: Path) -> Record:
        """Read a file.

        Raises:
            ValueError: not a record, a damaged one, or one of another version.
            OSError: it cannot be read.
        """
        data = path.read_bytes()
        try:
            text = gzip.decompress(data) if _suffix(path) == ".json.gz" else data
            tree = json.loads(text)
        except (EOFError, OSError, zlib.error, ValueError) as error:  # gzip raises the first three
            raise bad_value("record", str(path), f"a whole JSON file ({error})") from None
        if not isinstance(tree, dict) or tree.get("format") != FORMAT:
            raise bad_value("record", str(path), f"a file whose format is {FORMAT!r}")
        if tree.get("version") != VERSION:
            allowed = f"version {VERSION} of the format, not {tree.get('version')!r}"
            raise bad_value("record", str(path), allowed)
        try:
            columns = {name: _floats(rows) for name, rows in tree["columns"].items()}
            curves = tuple(Curve(_floats(x), _floats(y)) for x, y in tree["curves"])
            return cls(tree["name"], tree["meta"], columns, curves)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            allowed = f"name, meta, columns and curves as they were written ({error})"
            raise bad_value("record", str(path), allowed) from None

    def _text(self) -> str:
        """The text of the file: one line per column, so that diffs show which columns changed."""
        columns = [f"  {_json(name)}: {_json(_plain(x))}" for name, x in self.columns.items()]
        curves = [f"  {_json([_plain(c.steps), _plain(c.value)])}" for c in self.curves]
        return (
            f'{{"format": {_json(FORMAT)},\n"version": {VERSION},\n"name": {_json(self.name)},\n'
            f'"meta": {json.dumps(self.meta, sort_keys=True)},\n'
            '"columns": {\n' + ",\n".join(columns) + "\n},\n"
            '"curves": [\n' + ",\n".join(curves) + "\n]}\n"
        )


def _suffix(path: Path) -> str:
    """`.json` or `.json.gz`."""
    for suffix in SUFFIXES:
        if path.name.endswith(suffix):
            return suffix
    raise bad_value("record", str(path), f"a name that ends in {' or '.join(SUFFIXES)}")


def _rounded(values: object) -> np.ndarray:
    """As float64; whole numbers as they are, others with `DIGITS` significant digits."""
    array = np.array(values, np.float64, order="C")  # or `reshape` would copy, not view
    flat = array.reshape(-1)
    # Formatting is slow, and whole numbers need none. Rounding by way of text makes floats that are
    # written with few digits; arithmetic could leave more behind.
    fractional = np.flatnonzero(np.isfinite(flat) & (flat != np.round(flat)))
    flat[fractional] = [float(f"{x:.{DIGITS}g}") for x in flat[fractional]]
    flat[np.isinf(flat)] = np.nan  # JSON has neither; a record that is read back equals this one
    return array


def _plain(array: np.ndarray) -> Any:
    """Nested lists, whole numbers as integers and `None` for NaN."""
    if array.ndim > 1:
        return [_plain(row) for row in array]
    return [
        None if math.isnan(x) else int(x) if x == int(x) else x for x in map(float, array.tolist())
    ]


def _floats(rows: Sequence[object]) -> np.ndarray:
    """Nested lists of numbers and `None` as float64."""
    return np.array(rows, np.float64)


def _json(tree: object) -> str:
    return json.dumps(tree, separators=(",", ":"), allow_nan=False)

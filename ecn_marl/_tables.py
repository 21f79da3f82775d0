"""Tidy tables in a folder, written chunk by chunk: Parquet with pyarrow, CSV without it.

    FOLDER/records.json              facts, units, which chunks there will be, whether all are there
    FOLDER/flows/000-00000.parquet   a chunk of a table; others beside it

A chunk is written whole or not at all. A writer that is killed leaves whole chunks, the reader says
which are missing, and a writer of the same facts can go on with them. Equal columns make equal
files, so a run that is repeated bit by bit writes the same tables.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ecn_marl._errors import bad_value, unknown_name
from ecn_marl._files import check_output_folder, json_text, write_all
from ecn_marl.errors import DamagedFile

if TYPE_CHECKING:
    import pandas as pd

INDEX = "records.json"
FORMAT, VERSION = "ecn-marl-records", 1

UNITS = {"us": "µs", "bytes": "bytes (1 KB = 1000 bytes)", "gbps": "Gb/s"}
"""Units by the last word of a column's name; columns without one are numbers or names."""

EXTRA = "ecn-marl[records]"
"""What to install for Parquet."""


def unit(column: str) -> str | None:
    """Unit of a column, from its name."""
    return UNITS.get(column.rpartition("_")[2])


class Coded(NamedTuple):
    """A column of names that repeat: far smaller than as text, and quicker to write.

    Attributes:
        codes: number of the name in each row, int32.
        names: the names, each once.
    """

    codes: np.ndarray
    names: Sequence[str]

    def text(self) -> np.ndarray:
        """The names in each row."""
        return np.asarray(self.names)[self.codes] if len(self.names) else np.empty(0, str)


Column = np.ndarray | Coded
"""A column of a table."""


class TableWriter:
    """Writes the tables of a folder; a context that is left by an error leaves them incomplete."""

    def __init__(
        self,
        folder: str | Path,
        facts: Mapping[str, object],
        parts: Mapping[str, Sequence[str]],
        overwrite: bool = False,
        resume: bool = False,
    ) -> None:
        """Begin a folder, or go on in one.

        Args:
            folder: where; new or empty.
            facts: what the tables are of, JSON-able, without times: equal runs write equal files.
            parts: names of the chunks that will come, by table.
            overwrite: replace the tables that are there.
            resume: keep the chunks that are there, if they are of the same facts.

        Raises:
            ValueError: the folder holds something else, or tables that are neither to be replaced
                nor gone on with.
            OSError: it cannot be written.
        """
        self.folder = Path(folder)
        self.suffix = "parquet" if find_spec("pyarrow") else "csv"
        self.facts, self.parts = dict(facts), {name: list(x) for name, x in parts.items()}
        self.columns: dict[str, dict[str, str | None]] = {}
        begun = resume and not overwrite and self._go_on()
        if not begun:
            check_folder(self.folder, overwrite)
        self.folder.mkdir(parents=True, exist_ok=True)
        for name in self.parts:
            if not begun:
                shutil.rmtree(self.folder / name, ignore_errors=True)
            (self.folder / name).mkdir(exist_ok=True)
        self._index(complete=False)

    def _go_on(self) -> bool:
        """Whether the folder holds chunks of these tables; notes their columns."""
        try:
            index = json.loads((self.folder / INDEX).read_text(encoding="utf-8"))
            if _content(index) != _content(json.loads(json_text(self._content(False)))):
                return False
            self.columns = index["columns"]
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return False
        return True

    def has(self, part: str) -> bool:
        """Whether a chunk of every table is there."""
        return all(self._path(table, part).is_file() for table in self.parts)

    def _path(self, table: str, part: str) -> Path:
        return self.folder / table / f"{part}.{self.suffix}"

    def write(self, table: str, part: str, columns: Mapping[str, Column]) -> None:
        """Write a chunk.

        Args:
            table: name of the table.
            part: name of the chunk.
            columns: its columns, of equal length.

        Raises:
            OSError: it cannot be written; chunks before it stay.
        """
        self.columns[table] = {name: unit(name) for name in columns}
        content = _parquet(columns, self.facts) if self.suffix == "parquet" else _csv(columns)
        path = self._path(table, part)
        write_all({path: content})

    def close(self) -> None:
        """Note that all chunks are there."""
        self._index(complete=True)

    def __enter__(self) -> TableWriter:
        """The writer."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: object, trace: TracebackType | None
    ) -> None:
        """Close it, unless an error has cut it off."""
        if kind is None:
            self.close()

    def _content(self, complete: bool) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "version": VERSION,
            "files": self.suffix,
            "complete": complete,
            "facts": self.facts,
            "parts": self.parts,
            "columns": self.columns,
        }

    def _index(self, complete: bool) -> None:
        text = json_text(self._content(complete)) + "\n"
        write_all({self.folder / INDEX: text})


def _content(index: Mapping[str, Any]) -> dict[str, Any]:
    """What two indices have in common if one goes on with the other; the commit may have moved."""
    facts = {name: x for name, x in index["facts"].items() if name != "commit"}
    return {name: index[name] for name in ("format", "version", "files", "parts")} | facts


def check_folder(folder: Path, overwrite: bool, option: str = "records") -> None:
    """Raise a ValueError unless tables can be written to a folder; before long computations."""
    check_output_folder(option, folder)
    if not folder.is_dir() or not any(folder.iterdir()):
        return
    if not (folder / INDEX).is_file():
        raise bad_value(option, str(folder), "a new or empty folder: this one holds other files")
    if not overwrite:
        allowed = "a new folder: this one holds records (--overwrite, overwrite=True replaces them)"
        raise bad_value(option, str(folder), allowed)


def _parquet(columns: Mapping[str, Column], facts: Mapping[str, object]) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    def column(values: Column) -> Any:
        if isinstance(values, Coded):
            codes = pa.array(np.asarray(values.codes, np.int32))
            return pa.DictionaryArray.from_arrays(codes, pa.array(list(values.names), pa.string()))
        return pa.array(values)

    units = {name: unit(name) for name in columns}
    metadata = {"ecn_marl": json_text({"facts": dict(facts), "units": units})}
    table = pa.table({name: column(x) for name, x in columns.items()})
    file = BytesIO()
    pq.write_table(table.replace_schema_metadata(metadata), file, compression="zstd")
    return file.getvalue()


def _csv(columns: Mapping[str, Column]) -> bytes:
    import pandas as pd

    texts = {n: x.text() if isinstance(x, Coded) else x for n, x in columns.items()}
    return pd.DataFrame(texts).to_csv(index=False, lineterminator="\n").encode()


class Tables:
    """The tables of a folder as data frames.

    Attributes:
        folder: the folder.
        facts: what they are of.
        columns: unit of every column by table, in their order; those of the whole chunks.
        suffix: what the files of the chunks end in, `parquet` or `csv`.
        missing: names of the chunks that are not there, by table; empty if all are.
    """

    def __init__(self, folder: str | Path) -> None:
        """Read what is there.

        Raises:
            ValueError: no such folder, or one of another version.
            DamagedFile: its list of chunks cannot be read.
        """
        self.folder, file = Path(folder), Path(folder) / INDEX
        if not file.is_file():
            raise bad_value("records", str(folder), f"a folder with {INDEX}, as --records writes")
        try:
            index = json.loads(file.read_text(encoding="utf-8"))
            version, self.suffix = index["version"], str(index["files"])
            self.columns: dict[str, dict[str, str | None]] = index["columns"]
            self.facts: dict[str, Any] = index["facts"]
            self._parts: dict[str, list[str]] = index["parts"]
            is_ours = index["format"] == FORMAT
        except (ValueError, KeyError, TypeError):
            raise DamagedFile(f"{file} is damaged: it is no list of records") from None
        if not is_ours or version != VERSION:
            raise bad_value("records", str(folder), f"records of version {VERSION}")
        self.missing = {
            table: lacking
            for table, parts in self._parts.items()
            if (lacking := [p for p in parts if not self._path(table, p).is_file()])
        }

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the tables."""
        return tuple(self._parts)

    def _path(self, table: str, part: str) -> Path:
        return self.folder / table / f"{part}.{self.suffix}"

    def _files(self, table: str) -> list[Path]:
        if table not in self._parts:
            raise unknown_name("table", table, self._parts)
        return [path for p in self._parts[table] if (path := self._path(table, p)).is_file()]

    def frame(self, table: str) -> pd.DataFrame:
        """A table, chunks in the order in which they were written.

        Raises:
            ValueError: unknown table.
            DamagedFile: a chunk that cannot be read, or Parquet without pyarrow.
        """
        import pandas as pd

        frames = [self._frame(path) for path in self._files(table)]
        if not frames:
            return pd.DataFrame()
        return pd.concat(frames, ignore_index=True)

    def _frame(self, path: Path) -> pd.DataFrame:
        import pandas as pd

        if path.suffix == ".parquet" and not find_spec("pyarrow"):
            raise DamagedFile(f"{path} cannot be read without pyarrow: pip install '{EXTRA}'")
        try:
            if path.suffix == ".csv":
                frame = pd.read_csv(path, dtype={"path": str})
                return frame.fillna({"path": ""}) if "path" in frame else frame
            frame = pd.read_parquet(path, engine="pyarrow")
        except (OSError, ValueError) as error:
            raise DamagedFile(f"{path} is damaged: {error}") from None
        # Categories of chunks differ, and pandas would not join them.
        texts = frame.select_dtypes("category").columns
        return frame.astype(dict.fromkeys(texts, str))

    def __repr__(self) -> str:
        """One line: what there is, and what is missing."""
        parts = ", ".join(f"{name} ({len(self._files(name))} chunks)" for name in self._parts)
        lost = sum(map(len, self.missing.values()))
        return f"<Tables {self.folder}: {parts}" + (f"; {lost} chunks missing>" if lost else ">")

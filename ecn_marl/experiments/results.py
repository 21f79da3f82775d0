"""The result of `ecn_marl.evaluate`: a table, data frames, paired comparisons and figures."""

from __future__ import annotations

import io
from collections.abc import Mapping
from os import PathLike, fspath
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from ecn_marl._errors import bad_value, unknown_name
from ecn_marl._tables import Tables
from ecn_marl.baselines.evaluation.statistics import crossed_interval, mean_interval
from ecn_marl.experiments.compare import is_geometric
from ecn_marl.experiments.policies import Arena
from ecn_marl.experiments.records import Record

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from ecn_marl.render.tables import Table


class Result:
    """Policies on the same episodes.

    Attributes:
        summary: what `ecn-marl eval --json` prints: `scenario`, `options`, `episodes`, `seed`, and
            the rows `policies`, see `evaluation.rows_of`; each row also has the policy's
            `interval_us` and, of a rule, its `settings`; where a search found them, also `found`,
            see `oracle.labelled`. Of packets with the fluid beside them also
            `beside`, see `backends.agreement`.
        records: all numbers of all episodes by policy, see `records.Record`.
        labels: how policies are shown, by name.
        keys: uint32 `[episodes, 2]`: `env.reset(options={"key": result.keys[i]})` begins episode i.
        arena: scenario and options.
        tables: the records on disk; None if none were kept.
        fluid: of packets, the same episodes in the fluid; None if they were not run.
    """

    def __init__(
        self,
        summary: dict[str, Any],
        records: Mapping[str, Record],
        labels: Mapping[str, str],
        keys: np.ndarray,
        arena: Arena,
        tables: Tables | None,
    ) -> None:
        self.summary, self.records, self.keys = summary, dict(records), keys
        self.labels, self.arena, self.tables = dict(labels), arena, tables
        self.fluid: Result | None = None
        self.temporary: TemporaryDirectory[str] | None = None  # removed with the result

    def label(self, name: str) -> str:
        """How a policy is shown."""
        return self.labels.get(name, name)

    def rich(self, width: int = 110) -> list[Table]:
        """Tables of rich."""
        from ecn_marl.render.tables import evaluation_tables

        return evaluation_tables(self.summary, self.label, width)

    def __str__(self) -> str:
        """The tables as text."""
        from rich.console import Console

        from ecn_marl.render.fitting import fitted

        # In notebooks rich would display what it prints, instead of writing it.
        options: dict[str, Any] = {"force_jupyter": False, "color_system": None}
        console = Console(width=110, file=io.StringIO(), record=True, **options)
        for table in self.rich():
            for part in fitted(table, 110):
                console.print(part)
        return "\n".join(line.rstrip() for line in console.export_text().splitlines()).rstrip()

    def __repr__(self) -> str:
        """The tables as text, so that a bare `result` shows them."""
        return str(self)

    def table(self) -> pd.DataFrame:
        """A row for each policy, the lowest J first; intervals are of 95 %."""
        import pandas as pd

        rows = []
        for row in self.summary["policies"]:
            slowdown = row["slowdown"]
            rows.append(
                {
                    "policy": self.label(row["name"]),
                    "J": row["J"]["value"],
                    "J_low": row["J"]["low"],
                    "J_high": row["J"]["high"],
                    "short_mean": slowdown["short"]["mean"],
                    "short_p99": slowdown["short"]["p99"],
                    "long_geomean": slowdown["long"]["geomean"],
                    "queue_mean_bytes": row["queue_mean"],
                    "utilisation": row["utilisation"],
                    "interval_us": row["interval_us"],
                    "seeds": row["seeds"],
                    "invalid": "; ".join(row["invalid"]),
                }
            )
        return pd.DataFrame(rows).sort_values("J", ignore_index=True)

    def _repr_html_(self) -> str:
        """The table, for notebooks."""
        frame = self.table().dropna(axis=1, how="all")
        title = f"{self.summary['scenario']}: {self.summary['episodes']} episodes"
        return f"<p>{title}</p>{frame.to_html(index=False, float_format='{:.3f}'.format)}"

    @property
    def episodes(self) -> pd.DataFrame:
        """A row for each policy, seed and episode: J, its parts, return, accounts."""
        return self._frame("episodes")

    @property
    def flows(self) -> pd.DataFrame:
        """A row for each flow: who, when, how large, how long it took."""
        return self._frame("flows")

    @property
    def ports(self) -> pd.DataFrame:
        """A row for each interval and port: queue, bytes, thresholds, reward."""
        return self._frame("ports")

    def _frame(self, name: str) -> pd.DataFrame:
        if self.tables is None:
            raise bad_value("records", False, "True, or a folder: this result kept no tables")
        return self.tables.frame(name)

    @property
    def plot(self) -> Plots:
        """Figures: `result.plot.slowdown()` and others, see `Plots`."""
        return Plots(self)

    def save(self, folder: str | Path) -> Path:
        """Copy records in a temporary folder to a new one; returns it."""
        import shutil

        from ecn_marl._tables import check_folder

        if self.tables is None:
            raise bad_value("records", False, "True, or a folder: this result kept no tables")
        check_folder(Path(folder), overwrite=False)
        shutil.copytree(self.tables.folder, folder, dirs_exist_ok=True)
        return Path(folder)

    def compare(
        self, a: str | PathLike[str], b: str | PathLike[str], figure: str = "J"
    ) -> Comparison:
        """A figure of one policy relative to that of another, paired by episode.

        Args:
            a: a policy: its name, its label, or a run.
            b: the other.
            figure: `J`, a slowdown such as `short_p99`, or another column of `records`.

        Raises:
            ValueError: an unknown policy or figure.
        """
        names = [self._name(fspath(policy)) for policy in (a, b)]
        columns = [self.records[name].columns for name in names]
        for own in columns:
            if figure not in own:
                raise unknown_name("figure", figure, own)
        first, second = (self.label(name) for name in names)
        return Comparison(first, second, figure, columns[0][figure], columns[1][figure])

    def _name(self, policy: str) -> str:
        names = {label: name for name, label in self.labels.items()} | {n: n for n in self.records}
        if policy not in names:
            raise unknown_name("policy of this result", policy, self.records)
        return names[policy]


class Comparison:
    """Two policies in the same episodes.

    Attributes:
        a: label of a policy.
        b: label of the other.
        figure: what is compared.
        ratio: whether `values` are ratios a / b (of J and slowdowns), else differences a - b.
        values: by seeds and episodes, `[seeds, episodes]`; NaN where one has none.
        value: their mean: geometric of ratios.
        low: lower end of its 95 % interval, see `statistics.crossed_interval`; NaN if none. Where
            both have seeds, those of b add to it like those of a.
        high: the upper end.
    """

    def __init__(self, a: str, b: str, figure: str, of_a: np.ndarray, of_b: np.ndarray) -> None:
        self.a, self.b, self.figure = a, b, figure
        self.ratio = is_geometric(figure)
        if self.ratio:
            of_a, of_b = np.log(of_a), np.log(of_b)
        seeds_of_b = 0.0
        if min(len(of_a), len(of_b)) > 1:
            # Seeds of two learners have nothing to do with each other: a meets the mean of b.
            of_b = np.ma.masked_invalid(of_b)
            seeds_of_b = mean_interval(of_b.mean(1).compressed())[1]
            of_b = of_b.mean(0).filled(np.nan)
        paired = of_a - of_b
        mean, half = crossed_interval(paired)
        half = float(np.hypot(half, seeds_of_b))
        ends = np.asarray([mean, mean - half, mean + half])
        self.value, self.low, self.high = (float(x) for x in (np.exp(ends) if self.ratio else ends))
        self.values = np.exp(paired) if self.ratio else paired

    def __repr__(self) -> str:
        """One line."""
        way = "relative to" if self.ratio else "minus that of"
        interval = f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}] (95 %)"
        return f"{self.figure} of {self.a} {way} {self.b}: {interval}"


class Plots:
    """Figures of a result, each returned as a figure of matplotlib; see `render.record_plots`."""

    def __init__(self, result: Result) -> None:
        self._result = result

    def _draw(self, kind: str, **options: Any) -> Figure:
        from ecn_marl.render.record_plots import draw

        if self._result.tables is None:
            raise bad_value("records", False, "True, or a folder: figures are drawn from records")
        return draw(self._result.tables, kind, labels_of(self._result.tables), **options)

    def slowdown(self, **options: Any) -> Figure:
        """Slowdown against flow size: median, p95 and p99 in bins with equal counts."""
        return self._draw("slowdown", **options)

    def classes(self, **options: Any) -> Figure:
        """Distribution of slowdowns by size class."""
        return self._draw("classes", **options)

    def queues(self, **options: Any) -> Figure:
        """Distribution of queue lengths."""
        return self._draw("queues", **options)

    def thresholds(self, **options: Any) -> Figure:
        """Thresholds against time and against the port's queue."""
        return self._draw("thresholds", **options)

    def paired(self, **options: Any) -> Figure:
        """J of every policy relative to the first, episode by episode."""
        return self._draw("paired", **options)

    def phases(self, **options: Any) -> Figure:
        """Slowdown of every policy in each phase of the traffic."""
        return self._draw("phases", **options)


def read_records(folder: str | Path) -> Tables:
    """The tables that `--records` and `records=` write: `read_records(DIR).frame("flows")`.

    Raises:
        ValueError: no such folder, or records of another version.
        DamagedFile: its list of chunks cannot be read.
    """
    return Tables(folder)


def labels_of(tables: Tables) -> dict[str, str]:
    """How the policies of records were shown, by name."""
    return {row["policy"]: row["label"] for row in tables.facts.get("policies", ())}

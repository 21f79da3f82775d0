"""Figures from records, as papers of this field print them: a column wide, readable in black.

Each kind has two functions: `NAME_numbers(frames) -> data frame` computes what is shown, and a
drawing. Policies differ by line, marker and shade, so that they can be told apart without colour.
Flows are those that J counts (`measured`); unfinished ones enter with a lower bound.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from os import fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from ecn_marl._errors import bad_value, unknown_name
from ecn_marl._files import Output, write_all
from ecn_marl._tables import Tables
from ecn_marl.baselines.evaluation.statistics import mean_interval
from ecn_marl.render.plots import INK, png, style_axis
from ecn_marl.sim.traffic.sizes import SIZE_CLASSES

if TYPE_CHECKING:
    import pandas as pd

WIDTH_IN = 3.4
"""Width of a column of a two-column page, inches."""

STYLES: tuple[dict[str, Any], ...] = (
    {"color": "#0b0b0b", "linestyle": "-", "marker": "o"},
    {"color": "#d1652a", "linestyle": "--", "marker": "s"},
    {"color": "#1b6ca8", "linestyle": "-.", "marker": "^"},
    {"color": "#3a8f5c", "linestyle": ":", "marker": "D"},
    {"color": "#7b4fa3", "linestyle": (0, (5, 1, 1, 1, 1, 1)), "marker": "v"},
    {"color": "#8a8a8a", "linestyle": (0, (1, 1)), "marker": "x"},
)
"""Lines of policies, in turn."""

FONTS: dict[Any, Any] = {
    "pdf.fonttype": 42,  # TrueType, which publishers ask for
    "ps.fonttype": 42,
    "svg.fonttype": "path",
    "svg.hashsalt": "ecn-marl",  # else equal figures would make files that differ
    "font.size": 7.5,
    "axes.titlesize": 7.5,
    "axes.labelsize": 7.5,
    "legend.fontsize": 6.8,
}

QUANTILES = {"median": 0.5, "p95": 0.95, "p99": 0.99}
CLASSES = ("short", "medium", "long")

LEAST = 3
"""Bins of each size class at least."""

GAP = 20.0
"""Ratio of the sizes of two bins above which no line joins them."""

EMPTY = 1e3
"""Queue below which a port counts as empty in the figure of thresholds, bytes."""

FORMATS = (".pdf", ".svg", ".png")
BINS = 12


def draw(
    tables: Tables, kind: str, labels: Mapping[str, str] | None = None, **options: Any
) -> Figure:
    """A figure of records.

    Args:
        tables: the records.
        kind: a name of `KINDS`.
        labels: how policies are shown, by name.
        **options: those of the kind, e.g. `bins=20` of `slowdown`.

    Raises:
        ValueError: unknown kind, or records without a row that it needs.
    """
    if kind not in KINDS:
        raise unknown_name("kind of figure", kind, KINDS)
    with rc_context(FONTS):
        return KINDS[kind](tables, dict(labels or {}), **options)


def save(figure: Figure, path: Path) -> None:
    """Write a figure as PDF, SVG or PNG, by the end of its name; equal figures make equal files.

    Raises:
        ValueError: another ending.
    """
    if path.suffix not in FORMATS:
        raise bad_value("out", str(path), f"a file that ends in {', '.join(FORMATS)}")
    dates = {".pdf": {"CreationDate": None}, ".svg": {"Date": None}, ".png": {}}[path.suffix]

    def write(file: Any) -> None:
        with rc_context(FONTS):
            figure.savefig(file, format=path.suffix[1:], dpi=300, metadata=dates)

    write_all({path: Output("wb", write)})


def measured(tables: Tables) -> pd.DataFrame:
    """The flows that J counts.

    Raises:
        ValueError: there are none.
    """
    flows = tables.frame("flows")
    if flows.empty or not flows["measured"].any():
        raise bad_value("records", str(tables.folder), "records with flows that J counts")
    return flows[flows["measured"]]


def slowdown_numbers(flows: pd.DataFrame, bins: int = BINS) -> pd.DataFrame:
    """Quantiles of the slowdown in bins of flow sizes, the same for all policies.

    Bins have equal counts within a size class (short, medium, long), and each class has at least
    `LEAST` of them: long flows are few, and bins over all sizes would hide them among the short
    ones. Sizes that many flows share cannot be divided, so there may be fewer bins.

    Args:
        flows: rows of the table `flows`.
        bins: number of bins, about.

    Returns:
        Index policy and bin (from 0); columns `size_bytes` (median size in it), `flows`, `median`,
        `p95`, `p99`.
    """
    sizes = flows["size_bytes"].to_numpy()
    # An edge belongs to the bin below it.
    number = np.searchsorted(size_edges(sizes, bins), sizes, side="left")
    groups = flows.assign(bin=number).groupby(["policy", "bin"], sort=True)
    quantiles = {name: groups["slowdown"].quantile(q) for name, q in QUANTILES.items()}
    table = groups["size_bytes"].agg(size_bytes="median", flows="size")
    return table.assign(**quantiles)


def size_edges(sizes: np.ndarray, bins: int) -> np.ndarray:
    """Inner edges of the bins of `slowdown_numbers`, bytes, rising."""
    kind = np.searchsorted(SIZE_CLASSES, sizes)
    edges: list[float] = []
    for number in np.unique(kind):
        members = sizes[kind == number]
        count = max(LEAST, round(bins * members.size / sizes.size))
        edges += np.quantile(members, np.linspace(0.0, 1.0, count + 1)[1:]).tolist()
    inner: np.ndarray = np.unique(edges)[:-1]
    return inner


def _slowdown(tables: Tables, labels: dict[str, str], bins: int = BINS) -> Figure:
    flows = measured(tables)
    numbers = slowdown_numbers(flows, bins)
    figure, axes = _page(3, 4.6)
    for axis, name in zip(axes, QUANTILES, strict=True):
        for i, policy in enumerate(_policies(flows)):
            rows = numbers.loc[policy]
            x, y = rows["size_bytes"].to_numpy() / 1e3, rows[name].to_numpy()
            gaps = np.flatnonzero(x[1:] > GAP * x[:-1]) + 1  # no line across sizes without flows
            x, y = np.insert(x, gaps, np.nan), np.insert(y, gaps, np.nan)
            axis.plot(x, y, label=labels.get(policy, policy), **_line(i))
        axis.set(xscale="log", yscale="log", ylabel=f"{name} slowdown")
        _plain_numbers(axis)
    axes[-1].set_xlabel("flow size, KB (in a size class, bins of equal counts)")
    _legend(figure, axes[0])
    return figure


def classes_numbers(flows: pd.DataFrame, points: int = 200) -> pd.DataFrame:
    """Quantiles of the slowdowns of each size class: `policy`, `class`, `share`, `slowdown`.

    Args:
        flows: rows of the table `flows`.
        points: quantiles of each.
    """
    shares = 1.0 - np.logspace(0.0, -3.0, points)
    groups = flows.groupby(["policy", "class"], sort=True)["slowdown"]
    table = groups.quantile(shares).rename_axis(["policy", "class", "share"])
    return table.reset_index()


def _classes(tables: Tables, labels: dict[str, str]) -> Figure:
    flows = measured(tables)
    numbers = classes_numbers(flows)
    present = [kind for kind in CLASSES if (flows["class"] == kind).any()]
    figure, axes = _page(len(present), 0.6 + 1.35 * len(present), sharex=False)
    for axis, kind in zip(axes, present, strict=True):
        of_class = numbers[numbers["class"] == kind]
        for i, policy in enumerate(_policies(flows)):
            rows = of_class[of_class["policy"] == policy]
            line = {**_line(i), "marker": "", "label": labels.get(policy, policy)}
            axis.plot(rows["slowdown"], 1.0 - rows["share"], **line)
        axis.set(xscale="log", yscale="log", ylabel="share of flows above", ylim=(1e-3, 1.0))
        axis.set_title(f"{kind} flows", loc="left", color=INK)
        _plain_numbers(axis, which="x")
    axes[-1].set_xlabel("slowdown")
    _legend(figure, axes[0])
    return figure


def queues_numbers(ports: pd.DataFrame, points: int = 200) -> pd.DataFrame:
    """Quantiles over ports and intervals of queues: `policy`, `share`, `queue_mean_bytes`, `max`.

    Args:
        ports: rows of the table `ports`.
        points: quantiles of each.
    """
    shares = 1.0 - np.logspace(0.0, -4.0, points)
    groups = ports.groupby("policy", sort=True)[["queue_mean_bytes", "queue_max_bytes"]]
    return groups.quantile(shares).rename_axis(["policy", "share"]).reset_index()


def _queues(tables: Tables, labels: dict[str, str]) -> Figure:
    ports = tables.frame("ports")
    numbers = queues_numbers(ports)
    figure, axes = _page(2, 3.6)
    titles = {
        "queue_mean_bytes": "mean of an interval",
        "queue_max_bytes": "largest of an interval",
    }
    for axis, (column, title) in zip(axes, titles.items(), strict=True):
        for i, policy in enumerate(_policies(ports)):
            rows = numbers[numbers["policy"] == policy]
            x = rows[column] / 1e3
            line = {**_line(i), "marker": ""}
            axis.plot(x, 1.0 - rows["share"], label=labels.get(policy, policy), **line)
        axis.set(yscale="log", ylabel="share of ports\nand intervals above", ylim=(1e-4, 1.0))
        axis.set_xscale("symlog", linthresh=1.0)
        axis.set_xlim(left=0.0)
        axis.xaxis.set_major_formatter(FuncFormatter(_thousands))
        axis.set_title(title, loc="left", color=INK)
    axes[-1].set_xlabel("queue, KB")
    _legend(figure, axes[0])
    return figure


def thresholds_numbers(ports: pd.DataFrame, bins: int = BINS) -> pd.DataFrame:
    """Kmin against the port's queue in the interval before.

    Bin 0 has the intervals after an empty queue (below 1 KB), the others equal counts.

    Args:
        ports: rows of the table `ports`.
        bins: number of bins, bin 0 apart.

    Returns:
        Index policy and bin; columns `queue_bytes` (median), `intervals`, and the quartiles of Kmin
        `low`, `median`, `high`, bytes.
    """
    order = ["policy", "seed", "episode", "port", "interval"]
    rows = ports.sort_values(order, ignore_index=True)
    same = rows.groupby(order[:-1], sort=False)
    rows = rows.assign(before=same["queue_mean_bytes"].shift()).dropna(subset=["before"])
    before = rows["before"].to_numpy()
    filled = before[before >= EMPTY]
    quantiles = np.linspace(0.0, 1.0, bins + 1)[1:-1]
    edges = np.unique(np.quantile(filled, quantiles)) if filled.size else np.empty(0)
    number = np.where(before < EMPTY, 0, 1 + np.searchsorted(edges, before, side="left"))
    groups = rows.assign(bin=number).groupby(["policy", "bin"], sort=True)
    table = groups["before"].agg(queue_bytes="median", intervals="size")
    kmin = groups["kmin_bytes"]
    return table.assign(low=kmin.quantile(0.25), median=kmin.median(), high=kmin.quantile(0.75))


def busiest_port(ports: pd.DataFrame) -> str:
    """The port that sent most over all policies and episodes."""
    return str(ports.groupby("port", sort=False)["sent_bytes"].sum().idxmax())


def _thresholds(tables: Tables, labels: dict[str, str], episode: int = 0) -> Figure:
    ports = tables.frame("ports")
    figure, axes = _page(2, 4.0, sharex=False)
    one = ports[(ports["episode"] == episode) & (ports["seed"] == 0)]
    if one.empty:
        raise bad_value("episode", episode, f"0 to {int(ports['episode'].max())}")
    numbers, port = thresholds_numbers(ports), busiest_port(ports)
    for i, policy in enumerate(_policies(ports)):
        line, label = {**_line(i), "marker": ""}, labels.get(policy, policy)
        rows = one[(one["policy"] == policy) & (one["port"] == port)]
        time, kmin = rows["start_us"] / 1e3, rows["kmin_bytes"] / 1e3
        axes[0].plot(time, kmin, label=label, drawstyle="steps-post", **line)
        binned = numbers.loc[policy]
        queue = binned["queue_bytes"] / 1e3
        low, high = binned["low"] / 1e3, binned["high"] / 1e3
        axes[1].fill_between(queue, low, high, color=line["color"], alpha=0.12, lw=0)
        axes[1].plot(queue, binned["median"] / 1e3, label=label, **_line(i))
    axes[0].set(xlabel="time, ms", ylabel="Kmin, KB")
    axes[0].set_title(f"episode {episode}, port {port}", loc="left", color=INK)
    axes[1].set(xlabel="queue of the port in the interval before, KB", ylabel="Kmin, KB")
    axes[1].set_xscale("symlog", linthresh=1.0)
    axes[1].set_xlim(left=-0.1)
    axes[1].xaxis.set_major_formatter(FuncFormatter(_thousands))
    axes[1].set_title("all ports: median and quartiles", loc="left", color=INK)
    for axis in axes:
        axis.set_yscale("symlog", linthresh=1.0)  # rules may set a Kmin of 0
        axis.set_ylim(bottom=-0.15)
        axis.yaxis.set_major_formatter(FuncFormatter(_thousands))
    _legend(figure, axes[0])
    return figure


def paired_numbers(episodes: pd.DataFrame, baseline: str) -> pd.DataFrame:
    """J relative to a baseline's in the same episode: columns `policy`, `seed`, `episode`, `ratio`.

    Args:
        episodes: rows of the table `episodes`.
        baseline: name of a policy with one seed.
    """
    base = episodes[(episodes["policy"] == baseline) & (episodes["seed"] == 0)]
    base = base.set_index("episode")["J"]
    others = episodes[episodes["policy"] != baseline]
    ratio = others["J"] / others["episode"].map(base)
    return others[["policy", "seed", "episode"]].assign(ratio=ratio).reset_index(drop=True)


def _paired(tables: Tables, labels: dict[str, str], baseline: Any = None) -> Figure:
    episodes = tables.frame("episodes")
    policies = _policies(episodes)
    baseline = baseline if baseline is None else fspath(baseline)
    if baseline is None:
        baseline = "static:best" if "static:best" in policies else policies[0]
    if baseline not in policies:
        raise unknown_name("policy of these records", baseline, policies)
    numbers = paired_numbers(episodes, baseline).dropna()
    others = [policy for policy in policies if policy != baseline]
    if not others:
        raise bad_value("records", str(tables.folder), "records of at least two policies")
    figure, (axis,) = _page(1, 0.9 + 0.42 * len(others))
    rng = np.random.default_rng(0)
    for i, policy in enumerate(others):
        ratio = numbers[numbers["policy"] == policy]["ratio"].to_numpy()
        heights = i + rng.uniform(-0.22, 0.22, ratio.size)
        axis.plot(ratio, heights, ls="", marker="o", ms=2, color="#9a9a9a", mew=0)
        mean, half = mean_interval(np.log(ratio))
        low, middle, high = np.exp([mean - half, mean, mean + half])
        axis.plot([low, high], [i, i], color=INK, lw=2.2, solid_capstyle="butt")
        axis.plot([middle, middle], [i - 0.3, i + 0.3], color=INK, lw=1.2)
        text = f"{middle:.2f} [{low:.2f}, {high:.2f}]" if half == half else f"{middle:.2f}"
        axis.annotate(text, (middle, i - 0.3), ha="center", va="bottom", size=6.2)
    axis.axvline(1.0, color=INK, lw=0.7, ls=":")
    axis.set_yticks(range(len(others)), [labels.get(x, x) for x in others])
    axis.set(ylim=(len(others) - 0.45, -0.75), xscale="log")
    left, right = axis.get_xlim()
    ticks = [x for x in RATIOS if left <= x <= right]
    axis.set_xticks(ticks, [f"{x:g}" for x in ticks])
    axis.set_xticks([], minor=True)
    axis.set_xlabel(f"J relative to {labels.get(baseline, baseline)} in the same episode")
    axis.set_title("dots: episodes; bar: 95 % interval of the mean", loc="left", color=INK)
    return figure


RATIOS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.2, 1.4, 1.7, 2.0, 3.0, 5.0, 10.0)
"""Ticks at a log axis of ratios."""


def phases_numbers(flows: pd.DataFrame, ports: pd.DataFrame) -> pd.DataFrame:
    """Slowdown of the flows that begin in each phase: index policy and phase.

    A flow's phase is that of the last port on its way in the interval in which it begins. Flows
    that may take several paths at once have none and are left out.

    Args:
        flows: rows of the table `flows`.
        ports: rows of the table `ports`.

    Returns:
        Columns `flows`, `geomean` and `p99` of the slowdown.
    """
    where = ["policy", "seed", "episode", "interval"]
    numbered = ports.assign(number=ports.groupby(where, sort=False).cumcount())
    length = ports.groupby("policy")["start_us"].agg(lambda x: np.diff(np.unique(x)).min())
    with_path = flows[flows["path"] != ""]
    begun = with_path.assign(
        interval=(with_path["start_us"] // with_path["policy"].map(length)).astype(int),
        number=with_path["path"].str.rpartition("-")[2].astype(int),
        log=np.log(with_path["slowdown"]),
    )
    joined = begun.merge(numbered[[*where, "number", "phase"]], on=[*where, "number"])
    groups = joined.groupby(["policy", "phase"], sort=False)
    return groups.agg(flows=("log", "size"), log=("log", "mean")).assign(
        geomean=lambda x: np.exp(x["log"]), p99=groups["slowdown"].quantile(0.99)
    )[["flows", "geomean", "p99"]]


def _phases(tables: Tables, labels: dict[str, str]) -> Figure:
    flows, ports = measured(tables), tables.frame("ports")
    numbers = phases_numbers(flows, ports)
    names = list(dict.fromkeys(ports["phase"]))
    figure, axes = _page(2, 3.6)
    policies = _policies(flows)
    width = 0.8 / len(policies)
    hatches = ("", "///", "...", "xxx", "\\\\\\", "+++")
    for axis, column in zip(axes, ("geomean", "p99"), strict=True):
        for i, policy in enumerate(policies):
            values = [numbers[column].get((policy, name), np.nan) for name in names]
            x = np.arange(len(names)) + (i - 0.5 * (len(policies) - 1)) * width
            style = {"color": "white", "edgecolor": _line(i)["color"], "hatch": hatches[i % 6]}
            axis.bar(x, values, width, label=labels.get(policy, policy), lw=0.8, **style)
        names_of = {"geomean": "geometric mean\nof slowdowns", "p99": "p99 of\nslowdowns"}
        axis.set_ylabel(names_of[column])
        axis.grid(False, axis="x")
    axes[-1].set_xticks(range(len(names)), names)
    axes[-1].set_xlabel("phase in which a flow begins")
    _legend(figure, axes[0])
    return figure


KINDS: dict[str, Callable[..., Figure]] = {
    "slowdown": _slowdown,
    "classes": _classes,
    "queues": _queues,
    "thresholds": _thresholds,
    "paired": _paired,
    "phases": _phases,
}
"""Figures by name."""


class Printed(Figure):
    """A figure that notebooks show, whether pyplot is loaded or not."""

    def _repr_png_(self) -> bytes:
        return png(self)


def _page(rows: int, height: float, sharex: bool = True) -> tuple[Figure, list[Axes]]:
    # Not by pyplot, which would keep the figure and change the user's current one.
    figure = Printed(figsize=(WIDTH_IN, height), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    axes = list(figure.subplots(rows, 1, squeeze=False, sharex=sharex).ravel())
    for axis in axes:
        style_axis(axis, label_size=7)
    return figure, axes


def _policies(frame: pd.DataFrame) -> list[str]:
    """Names of the policies in the order of the records."""
    return list(dict.fromkeys(frame["policy"]))


def _line(number: int) -> dict[str, Any]:
    return {**STYLES[number % len(STYLES)], "linewidth": 1.1, "markersize": 3.0}


def _legend(figure: Figure, axis: Axes) -> None:
    handles, names = axis.get_legend_handles_labels()
    columns = min(len(names), 2 if max(map(len, names)) > 16 else 3)
    figure.legend(handles, names, loc="outside upper left", ncols=columns, frameon=False)


def _thousands(value: float, position: object = None) -> str:
    return f"{value:,.0f}" if value >= 1.0 else f"{value:g}"


def _plain_numbers(axis: Axes, which: str = "both") -> None:
    """Numbers such as 2, 5, 10 at a log axis in place of powers."""
    for name, side in (("x", axis.xaxis), ("y", axis.yaxis)):
        if which in (name, "both"):
            low, high = side.get_view_interval()
            decades = np.log10(max(high, 1e-12) / max(low, 1e-12))
            subs = [1.0] if decades >= 2.5 else [1.0, 2.0, 5.0]
            subs += [3.0, 7.0] if decades < 1.0 else []
            side.set_major_locator(LogLocator(subs=sorted(subs), numticks=12))
            side.set_major_formatter(FuncFormatter(_thousands))
            side.set_minor_formatter(NullFormatter())

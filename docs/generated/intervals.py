"""What adaptive thresholds gain if they are set less often."""

from __future__ import annotations

import json

import numpy as np

from ecn_marl.baselines.evaluation.statistics import mean_interval
from generated.markdown import markdown
from generated.performance import GREY
from generated.recorded import RESULTS, ROOT

PICTURE = ROOT / "docs" / "pictures" / "intervals.png"

BASE, SHOWN = "static:best", ("oracle", "rule")


def intervals() -> str:
    """J of the oracle and the rule relative to that of `static:best`, by the interval."""
    found = _measured()
    times = list(next(iter(found.values())))
    rows = [
        [f"`{scenario}`", f"`{name}`", *(f"{np.exp(_ratio(by[us], name)[0]):.2f}" for us in times)]
        for scenario, by in found.items()
        for name in SHOWN
    ]
    return markdown(["scenario", "policy", *(_time(us) for us in times)], rows)


def plot() -> bytes:
    """The same as a picture, with intervals of 95 %, as PNG."""
    from ecn_marl.render.plots import COLOURS, Page

    found = _measured()
    page = Page(1, (9.0, 2.6), columns=len(found))
    page.figure.patch.set_alpha(0.0)
    for axis, (scenario, by) in zip(page.axes, found.items(), strict=True):
        axis.patch.set_alpha(0.0)
        axis.grid(True, axis="y", color=GREY, alpha=0.25, linewidth=0.7)
        axis.spines[["left", "bottom"]].set_color(GREY)
        axis.tick_params(which="both", colors=GREY, labelsize=8)
        for name, colour in zip(SHOWN, (COLOURS[0], GREY), strict=True):
            mean, half = np.array([_ratio(x, name) for x in by.values()]).T
            times = [float(us) / 1e3 for us in by]
            axis.plot(times, np.exp(mean), color=colour, marker="o", ms=3, lw=1.2, label=name)
            ends = np.exp(mean - half), np.exp(mean + half)
            axis.fill_between(times, *ends, color=colour, alpha=0.15, lw=0)
        axis.axhline(1.0, color=GREY, linewidth=1.0)
        axis.set_xscale("log")
        axis.set_xticks([0.1, 1.0], ["0.1", "1"])
        axis.set_ylim(0.55, 2.1)
        axis.set_title(scenario.removesuffix("-v0"), fontsize=9, color=GREY)
        if axis is not page.axes[0]:
            axis.set_yticklabels([])
    page.axes[0].legend(fontsize=8, frameon=False, labelcolor=GREY)
    page.axes[2].set_xlabel("ms between decisions", fontsize=9, color=GREY)
    page.axes[0].set_ylabel("J to best static", fontsize=9, color=GREY)
    return page.png()


def _measured() -> dict[str, dict[str, dict[str, list[float]]]]:
    """J of every episode by scenario, interval in µs and policy."""
    measured: dict[str, dict[str, dict[str, list[float]]]]
    measured = json.loads((RESULTS / "intervals.json").read_text())["J"]
    return measured


def _ratio(scores: dict[str, list[float]], name: str) -> tuple[float, float]:
    """Mean log ratio to the best static setting, and half of its interval."""
    return mean_interval(np.log(scores[name]) - np.log(scores[BASE]))


def _time(us: str) -> str:
    """An interval as the head of a column."""
    return f"{float(us) / 1e3:g} ms" if float(us) >= 1e3 else f"{us} µs"

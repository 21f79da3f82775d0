"""Tables of learners: sealed results, ablations, arms, and what scenarios ask of a policy."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import stats

from ecn_marl.baselines.evaluation.completion import PARTS
from ecn_marl.baselines.evaluation.statistics import crossed_interval
from ecn_marl.experiments.recipes import STEPS
from generated.markdown import markdown
from generated.performance import GREY
from generated.recorded import DASH, RESULTS, ROOT

PICTURE = ROOT / "docs" / "pictures" / "learners.png"

GENERALIST = "pretrained:generalist"

SPECIALIST = "pretrained:{}-mappo"
"""The policy that ships for a scenario alone, by the scenario's name without its version."""

LEARNERS = (GENERALIST, "ippo", "mappo", "ddqn-fct")

SHOWN = ("oracle", *LEARNERS, "rule", "static:secn1", "random")
"""Rows of the README's table."""


def results() -> str:
    """The table of the README: J relative to that of the best static setting, sealed episodes."""
    scenarios = _shown()
    rows = [
        [f"`{name}`", *(_ratio(x) if (x := _to_static(s, name)) else DASH for s in scenarios)]
        for name in SHOWN
    ]
    names = [f"{s['scenario'].removesuffix('-v0')}" for s in scenarios]
    return markdown(["policy", *names], rows)


def _to_static(scenario: Mapping[str, Any], name: str) -> tuple[float, float] | None:
    """Mean difference of log J to `static:best`, and half of its interval; None if not scored."""
    scores = scenario["of_generalist" if name == GENERALIST else "scores"]
    found = scores.get(scenario["oracle"] if name == "oracle" else name)
    if found is None:
        return None
    return crossed_interval(np.log(np.array(found)) - np.log(np.array(scores["static:best"])))


def _shown() -> list[dict[str, Any]]:
    """Rows of the benchmark, with the scores of the generalist, which are of another set."""
    generalist = {row["scenario"]: row["scores"] for row in _read("generalist.json")["scenarios"]}
    return [row | {"of_generalist": generalist.get(row["scenario"], {})} for row in _sealed()]


def plot() -> bytes:
    """The learners, the rule and the oracle beside the best static setting, as PNG."""
    from ecn_marl.render.plots import COLOURS, Page

    scenarios = _shown()
    page = Page(1, (9.0, 2.6), columns=len(scenarios))
    page.figure.patch.set_alpha(0.0)
    names = SHOWN[: SHOWN.index("random")]
    for axis, scenario in zip(page.axes, scenarios, strict=True):
        axis.patch.set_alpha(0.0)
        axis.grid(True, axis="x", color=GREY, alpha=0.25, linewidth=0.7)
        axis.spines[["left", "bottom"]].set_color(GREY)
        axis.tick_params(which="both", colors=GREY, labelsize=8)
        for place, name in enumerate(reversed(names)):
            found = _to_static(scenario, name)
            if found is None:
                continue
            mean, half = found
            colour = COLOURS[0] if name in LEARNERS else GREY
            ends = [[np.exp(mean) - np.exp(mean - half)], [np.exp(mean + half) - np.exp(mean)]]
            axis.errorbar([np.exp(mean)], [place], xerr=ends, fmt="o", ms=3.5, color=colour)
        axis.set_xlim(0.6, 1.27)
        axis.axvline(1.0, color=GREY, linewidth=1.0)
        labels = [_label(n) for n in reversed(names)]
        axis.set_yticks(range(len(names)), labels if axis is page.axes[0] else [])
        axis.set_title(scenario["scenario"].removesuffix("-v0"), fontsize=9, color=GREY)
    label = "J relative to the best static setting"
    page.figure.supxlabel(label, fontsize=9, color=GREY)
    return page.png()


def _label(name: str) -> str:
    kind, _, rest = name.rpartition(":")
    return rest.upper() if kind == "static" else rest


def learners_sealed() -> str:
    """Learners beside the rule and the oracle on sealed episodes; the range of their seeds."""
    return _beside_the_rule(_sealed())


def learners_packets() -> str:
    """Their best seeds, policies that ship and the references on packets, beside the fluid."""
    rows = []
    for scenario in _sealed():
        on_packets = scenario.get("packets")
        if on_packets is None:
            continue
        for name, j in on_packets["J"].items():
            found = [on_packets[key].get(name) for key in ("to_rule", "fluid_to_rule")]
            relative = ["{:.3f} [{:.3f}, {:.3f}]".format(*x) if x else DASH for x in found]
            rows.append((f"`{scenario['scenario']}`", f"`{name}`", f"{j:.2f}", *relative))
    head = (
        "scenario",
        "policy",
        "J on packets",
        "to the rule on packets",
        "to the rule in the fluid",
    )
    return markdown(head, rows)


def learners_of_jobs() -> str:
    """The same in scenarios where steps of jobs count, with all policies, best first."""
    return _beside_the_rule(_sealed(jobs=True))


ELSEWHERE = (
    *("oracle", "ippo", "mappo", "ddqn-fct", GENERALIST, "rule"),
    *("static:secn1", "static:secn2", "dynamic:climb", "dynamic:relative"),
)
"""Columns of the table of AI fabrics in which no policy is far from the best static setting."""


def learners_on_fabrics() -> str:
    """J relative to that of the best static setting, sealed episodes of the other AI fabrics."""
    rows = []
    for scenario in _read("ai-fabrics/learners.json")["scenarios"]:
        scores = scenario["scores"]
        base = np.log(np.array(scores["static:best"]))
        ratios = [
            _ratio(crossed_interval(np.log(np.array(scores[name])) - base))
            if name in scores
            else DASH
            for name in ELSEWHERE
        ]
        rows.append((f"`{scenario['scenario']}`", f"{scenario['J']['static:best']:.2f}", *ratios))
    names = [f"`{name}`" for name in ELSEWHERE]
    return markdown(("scenario", "J of `static:best`", *names), sorted(rows))


def learners_imitating() -> str:
    """`dagger` on sealed episodes of scenarios whose other learners were scored on older ones."""
    return _beside_the_rule(_read("dagger.json")["scenarios"])


def generalist_sealed() -> str:
    """The generalist beside the policies that ship for one scenario, on sealed episodes."""
    return _beside_the_rule(_read("generalist.json")["scenarios"])


def _sealed(jobs: bool = False) -> list[dict[str, Any]]:
    """Rows of the sealed results, in the order of the recipes.

    Args:
        jobs: those of scenarios with parts of J of their own; else those of the benchmark.
    """
    found: list[dict[str, Any]] = _read("sealed.json")["scenarios"]
    rows = [row for row in found if jobs == _has_own_parts(row)]
    order = [*STEPS, *(row["scenario"] for row in rows)]
    return sorted(rows, key=lambda row: order.index(row["scenario"]))


def _has_own_parts(row: Mapping[str, Any]) -> bool:
    """Whether a scenario declares its parts of J; rows of older files do not say."""
    return tuple(row.get("parts", PARTS)) != PARTS


def _beside_the_rule(scenarios: Sequence[Mapping[str, Any]]) -> str:
    rows = []
    for scenario in scenarios:
        own = SPECIALIST.format(scenario["scenario"].removesuffix("-v0"))
        known = (*scenario["seeds"], GENERALIST, own, "rule", scenario["oracle"], "static:best")
        best_first = sorted(scenario["J"], key=scenario["J"].__getitem__)
        policies = best_first if _has_own_parts(scenario) else known
        for name in (policy for policy in policies if policy in scenario["J"]):
            found = [scenario[key].get(name) for key in ("to_rule", "to_oracle")]
            relative = ["{:.3f} [{:.3f}, {:.3f}]".format(*x) if x else DASH for x in found]
            seeds = sorted(scenario["seeds"].get(name, ()))
            rows.append(
                (
                    f"`{scenario['scenario']}`",
                    f"`{name}`",
                    f"{scenario['J'][name]:.2f}",
                    f"{len(seeds)}: {seeds[0]:.2f} to {seeds[-1]:.2f}" if seeds else DASH,
                    *relative,
                    f"{100 * scenario['share'][name]:.0f} %",
                    _slower(scenario["classes_to_static"][name]),
                )
            )
    head = ("scenario", "policy", "J", "seeds", "to the rule", "to the oracle", "share of its gain")
    return markdown((*head, "over 5 % slower than static:best"), rows)


def generalists() -> str:
    """J of policies for many networks, to that of the best static setting of each."""
    found, rows = _read("generalists.json"), []
    for scenario, scores in found["J"].items():
        base = np.log(np.array(scores["static"]))
        cells = []
        for name in (GENERALIST, "before", "static:secn1"):
            if name not in scores:
                cells.append(DASH)
                continue
            j = np.log(np.array(scores[name]))
            cells.append(
                _ratio(crossed_interval((j - base)[None]))
                if j.ndim
                else f"{np.exp(j - base.mean()):.2f}"
            )
        learnt = "yes" if scenario in found["learnt"] else "no"
        rows.append((f"`{scenario}`", learnt, *cells, f"{np.exp(base.mean()):.2f}"))
    head = ("scenario", "learnt", "`pretrained:generalist`", "PPO in seven scenarios", "SECN1")
    return markdown((*head, "J of the static setting"), rows)


def splits() -> str:
    """The generalist and the rule in variants of a scenario that nothing was trained in."""
    rows = []
    for name, found in _read("generalist-splits.json")["variants"].items():
        cells = []
        for policy in (GENERALIST, "rule", "oracle"):
            low, value, high = found["score"][policy]
            cells.append(f"{value:.3f} [{low:.3f}, {high:.3f}]")
        shares = [
            f"{100 * found['share'][policy]:.0f} %" if found["share"] else DASH
            for policy in (GENERALIST, "rule")
        ]
        rows.append((f"`{name}`", f"{found['J']:.2f}", *cells, *shares))
    head = (
        "split and variant",
        "J of `static:best`",
        "`pretrained:generalist`",
        "`rule`",
        "`oracle`",
    )
    return markdown((*head, "generalist's share of the gain", "the rule's"), rows)


def _slower(classes: dict[str, float]) -> str:
    found = [(name, x) for name, x in classes.items() if x > 1.05]
    return ", ".join(f"{n.replace('_', ' ')} +{100 * (x - 1):.0f} %" for n, x in found) or "nothing"


def arms_of_learners() -> str:
    """What was compared of `mappo`, `ippo` and the Q-learners: J by seed."""
    rows = [
        (
            f"`{arm['learner']}`",
            f"`{arm['scenario']}`",
            arm["arm"],
            f"{arm['J']:.2f}",
            ", ".join(f"{x:.2f}" for x in arm["seeds"]),
            f"{100 * (arm['J'] / arm['rule'] - 1):+.1f} %",
        )
        for arm in _read("learners.json")["arms"]
    ]
    return markdown(("learner", "scenario", "with", "J", "seeds", "to the rule"), rows)


def rewards_of_ippo() -> str:
    """What `ippo` learns from which reward: J by seed, and what it earned beside the rule."""
    arms = _read("objective.json")["arms"]
    rows = []
    for arm in arms:
        seeds, rule = arm["seeds"], arm.get("rule_reward_per_ms")
        earned = arm.get("reward_per_ms", ())
        more = DASH if rule is None else f"{sum(x > rule for x in earned)} of {len(earned)}"
        rows.append(
            (
                f"`{arm['scenario']}`",
                arm["arm"],
                f"{arm['steps'] // 1000} k",
                f"{arm['J']:.2f}",
                ", ".join(f"{x:.2f}" for x in seeds),
                f"{100 * (arm['J'] / arm['rule'] - 1):+.1f} %",
                more,
            )
        )
    head = ("scenario", "`ippo` with", "steps", "J", "seeds", "to the rule", "earn more than it")
    return markdown(head, rows)


def ablations() -> str:
    """`ippo` with single settings changed: J of ten seeds, and the ratio to the recipe's."""
    rows = []
    for arm in _ablations():
        seeds, scenario = sorted(arm["seeds"]), arm["scenario"]
        relative = _ratio(_difference(arm, _base(scenario))) if arm["arm"] else DASH
        rows.append(
            (
                f"`{scenario}`",
                arm["arm"] or "`ippo`, its recipe",
                f"{arm['J']:.2f}",
                f"{seeds[0]:.2f}",
                f"{seeds[-1]:.2f}",
                relative,
                f"{100 * (arm['J'] / arm['rule'] - 1):+.1f} %",
            )
        )
    head = ("scenario", "with", "J", "best of ten", "worst", "to the recipe", "to the rule")
    return markdown(head, rows)


BUDGETS = ("20000", "40000", "80000", "160000")
"""Steps at which the table of budgets shows J."""


def budgets() -> str:
    """J during a training, mean and worst of its seeds."""
    rows = []
    for row in _read("ablations.json")["budgets"]:
        found = [row["J"].get(steps) for steps in BUDGETS]
        ends = [f"{np.exp(np.log(j).mean()):.2f}, {max(j):.2f}" if j else DASH for j in found]
        rows.append((f"`{row['scenario']}`", f"`{row['learner']}`", *ends))
    steps = [f"{int(n) // 1000} k" for n in BUDGETS]
    return markdown(("scenario", "learner: mean, worst of ten", *steps), rows)


def needs() -> str:
    """J without memory, and with a critic that sees all, to that of `ippo`."""
    rows = []
    for scenario, found in needed().items():
        cells = [_ratio(found[name]) if name in found else DASH for name in ("memory", JOINT)]
        rows.append((f"`{scenario}`", *cells, label(scenario)))
    head = ("scenario", "without memory", "`mappo`, a critic of all ports", "label")
    return markdown(head, rows)


JOINT = "mappo"
"""The learner whose critic sees all ports; else its settings are `ippo`'s, but for persistence."""

WORTH = 0.01
"""Share of J below which an effect does not count, certain or not."""


def needed() -> dict[str, dict[str, tuple[float, float]]]:
    """By scenario: differences of log J to that of `ippo`, each with half of its interval.

    `memory`: without moving averages, last policies of ten paired seeds in the same episodes.
    `mappo`: sealed, over seeds and episodes.
    """
    found: dict[str, dict[str, tuple[float, float]]] = {}
    for scenario in _sealed():
        scores = scenario["scores"]
        if not {JOINT, "ippo"} <= set(scores):
            continue
        joint, own = (np.log(np.array(scores[name])) for name in (JOINT, "ippo"))
        found[scenario["scenario"]] = {JOINT: crossed_interval(joint - own)}
    for arm in _ablations():
        if arm.get("probe") == "memory":
            of_scenario = found.setdefault(arm["scenario"], {})
            of_scenario["memory"] = _difference(arm, _base(arm["scenario"]))
    return found


def label(scenario: str) -> str:
    """What a scenario asks of a policy: `memory`, `coordination`, both, or `reactive`; or a dash.

    A policy that sees three intervals is called reactive here. An effect that has not been measured
    is named with a question mark. Coordination is what `mappo` gains.
    """
    found = needed().get(scenario, {})
    if not found:
        return DASH
    mean, half = found.get(JOINT, (None, 0.0))
    joint = None if mean is None else _certain(-mean, half)
    memory = _certain(*found["memory"]) if "memory" in found else None
    names = [
        name if yes else f"{name}?"
        for name, yes in (("memory", memory), ("coordination", joint))
        if yes is not False
    ]
    return ", ".join(names) or "reactive"


def _certain(mean: float, half: float) -> bool:
    """Whether a gain is above nothing for certain, and worth it."""
    return mean - half > 0.0 and mean > WORTH


def _ratio(difference: tuple[float, float]) -> str:
    mean, half = difference
    return "{:.3f} [{:.3f}, {:.3f}]".format(*np.exp([mean, mean - half, mean + half]))


def _difference(arm: Mapping[str, Any], base: Mapping[str, Any]) -> tuple[float, float]:
    """Mean difference of log J of paired seeds, and half of its interval (Student's t)."""
    each = np.log(arm["seeds"]) - np.log(base["seeds"])
    half = stats.t.ppf(0.975, len(each) - 1) * each.std(ddof=1) / len(each) ** 0.5
    return float(each.mean()), float(half)


def _base(scenario: str) -> dict[str, Any]:
    return next(x for x in _ablations() if x["scenario"] == scenario and not x["arm"])


def _ablations() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = _read("ablations.json")["arms"]
    return found


def _read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / name).read_text())
    return found

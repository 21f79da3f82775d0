"""The objective J from completion times of an episode, and when a result is invalid.

Slowdown is a flow's completion time over the time it would take alone. Flows are measured if they
begin after the warm-up and before the last millisecond. One that is unfinished at the end enters
with its age, which is a lower bound.

    J = (mean short · p99 short)^(1/4) · (geometric mean long)^(1/2)     of an episode
    score = geometric mean over episodes of J(policy) / J(static:best)   lower is better, both

A scenario may declare other parts, see `envs.objectives`; J is their weighted geometric mean then.

Over episodes and seeds slowdowns are averaged geometrically, so that the ratios of the three parts
multiply to the score. Nothing here needs JAX.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from ecn_marl import _flags as flags
from ecn_marl import _parts
from ecn_marl.baselines.evaluation.statistics import crossed_interval

SIZES = ("short", "medium", "long")
"""Size classes by payload, in the order of every `[3]`: up to 100 KB, up to 1 MB, above."""

PARTS = ("short_mean", "short_p99", "long_geomean")
"""The parts of J."""

SLOWDOWNS = (
    *("short_mean", "short_p99", "short_geomean"),
    *("medium_mean", "medium_p99", "medium_geomean"),
    *("long_mean", "long_p99", "long_geomean"),
)
"""Slowdowns per size class; all lower is better, averaged geometrically."""

COUNTS = ("offered", "started", "finished", "unfinished", "deferred", "waiting")
"""Flows of the whole episode. Offered: started or still waiting. Deferred: waited for a slot."""

COUNTERS = {
    "deferred_us": "deferred_us",
    "dropped": "bytes_dropped",
    "late_feedback": "feedback_cut",
    **{name: name for name in ("flowlets", "flowlets_kept")},
}
"""Further counters of flows, and their columns: total waiting time of the deferred flows, µs; bytes
dropped; ticks of flows whose feedback was cut; with flowlets, new paths and ticks of flows that
kept one."""

COSTS = ("inferences_per_decision", "flops_per_decision", "activation_frequency")
"""Costs that a controller with a method `costs` reports, per port and interval."""

TOLERANCE = 1e-3
"""Share of flows, bytes or flow-ticks above which a result is invalid, see `invalid_reasons`."""


def objective(
    short_mean: Float[np.ndarray, "*b"],
    short_p99: Float[np.ndarray, "*b"],
    long_geomean: Float[np.ndarray, "*b"],
) -> Float[np.ndarray, "*b"]:
    """J from its parts, NaN where a part is."""
    return np.asarray((short_mean * short_p99) ** 0.25 * long_geomean**0.5)


SPILLED = "bytes_spilled"
"""Column of the bytes dropped with bytes that PFC protects, see `sim.state.Totals`."""


class Share(NamedTuple):
    """A share of an episode that a structure of fixed size affects.

    Attributes:
        label: what it is a share of, in words.
        affected: columns that are added up.
        base: column that they are a share of.
        flags: names of the flags that are raised with it, see `sim.core.flags`.
    """

    label: str
    affected: tuple[str, ...]
    base: str
    flags: tuple[str, ...]


SHARES = (
    Share("of flows deferred or waiting", ("deferred", "waiting"), "offered", ("slots", "width")),
    Share("of bytes dropped", (SPILLED,), "bytes_offered", ("buffers",)),
    Share("of flow-ticks with feedback cut", ("feedback_cut",), "flow_ticks", ("memory", "marks")),
    Share("of flow-ticks on a path kept", ("flowlets_kept",), "flow_ticks", ("ways",)),
)
"""Shares that are compared with `TOLERANCE`. Flags that are not among them count at once."""


CHECKED = (flags.FLAGGED, *{x: None for row in SHARES for x in (*row.affected, row.base)})
"""Columns that `invalid_reasons` reads; those that an environment lacks are not checked."""


def invalid_reasons(columns: Mapping[str, np.ndarray]) -> list[str]:
    """Why a result does not count; empty if it does.

    The rule, over all episodes of a result together: more than 0.1 % (`TOLERANCE`) of what a
    structure of fixed size holds was affected: of the flows by too few slots or too small a width,
    of the bytes by full buffers, of the flow-ticks by too short a history or too few ways. Other
    flags (`sim.core.flags`), which have no such share, count if they are raised in any episode.

    Other drops than those that PFC should have kept from happening are no reason: they are a signal
    of congestion.

    Args:
        columns: per-episode numbers of any shape: `flags`, `offered`, `deferred`, `waiting`
            (flows), `bytes_offered`, `bytes_spilled`, `flow_ticks`, `feedback_cut` and
            `flowlets_kept` (flow-ticks). Records of old versions have no `flags`, and for
            `bytes_spilled` they have `bytes_dropped`, and `lossy_classes` above 0 where drops are
            no reason.

    Returns:
        A reason each, with the option that cures it.
    """
    raised = flags.names(columns[flags.FLAGGED]) if flags.FLAGGED in columns else None
    if "bytes_dropped" in columns and SPILLED not in columns:
        lossy = np.any(columns.get("lossy_classes", 0))
        columns = columns if lossy else {**columns, SPILLED: columns["bytes_dropped"]}
    reasons = []
    for label, affected, base, names in SHARES:
        if base not in columns or not set(affected) <= set(columns):
            continue
        amount, total = (sum(float(np.sum(columns[x])) for x in y) for y in (affected, (base,)))
        share = amount / total if total > 0 else float(amount > 0)
        if share > TOLERANCE:
            allowed = f"allowed: {100 * TOLERANCE:g} %; cure: {_cure(names, raised)}"
            reasons.append(f"{100 * share:.2g} % {label} ({allowed})")
    shared = {name for row in SHARES for name in row.flags}
    for name in raised or ():
        if name not in shared:
            count = int(np.sum((columns[flags.FLAGGED].astype(np.int64) & flags.BITS[name]) > 0))
            episodes = f"in {count} of {columns[flags.FLAGGED].size} episodes"
            reasons.append(f"{flags.flag(name).event} {episodes} (cure: {flags.flag(name).cure})")
    return reasons


def _cure(names: Sequence[str], raised: Sequence[str] | None) -> str:
    """Options that cure the raised ones of some flags, of all of them if none is known."""
    known = [name for name in names if raised is not None and name in raised]
    return ", or ".join(flags.flag(name).cure for name in known or names)


def refused(reasons: Sequence[str], allow_flagged: bool) -> bool:
    """Whether scores of a result are withheld: it does not count, and nobody allowed it to."""
    return bool(reasons) and not allow_flagged


def verdict(row: Mapping[str, Any]) -> str:
    """The reasons why a row of results does not count, and whether it is scored all the same.

    Args:
        row: has `invalid`, reasons, and `refused`; rows of old versions have no `refused`.
    """
    text = "; ".join(row["invalid"])
    return f"{text}; not scored (--allow-flagged does)" if row.get("refused") else text


def accounts(columns: Mapping[str, object]) -> dict[str, Any]:
    """Counters of flows among `columns`, by the names of `EcnEnv.accounts`.

    Columns may hold episodes or totals. Records of old versions lack `deferred_us`.
    """
    names = {name: name for name in COUNTS} | COUNTERS
    return {name: columns[key] for name, key in names.items() if key in columns}


def summarise(
    name: str,
    columns: Mapping[str, Float[np.ndarray, "seeds episodes"]],
    allow_flagged: bool = False,
) -> dict[str, Any]:
    """JSON-able summary of a policy; intervals are of 95 % (`statistics.crossed_interval`).

    Args:
        name: the policy.
        columns: per-episode numbers, see `Evaluation.columns`.
        allow_flagged: whether a result that does not count has a J all the same.

    Returns:
        `name`, `episodes` (of each seed), `seeds`; `weights` of J where the scenario declares them;
        `J` (without a value if it is refused) and its `parts`, each with `value`, `low`, `high` and
        `missing`, the number of episodes that have no such flow and are left out; `slowdown` of
        each size class: `mean`, `p99`, `geomean`, flows `measured`, `unfinished`, `finished` and
        `lower_bound`, whether unfinished flows entered with their age; `flows` (totals, see
        `accounts`), shares `dropped` and `cut`; `invalid` (see `invalid_reasons`), `refused`,
        whether J is withheld for that, names of the `flags` that are raised; `reward`, queue
        (bytes), utilisation, pauses, `costs`, and `sources`: means of the counters of each traffic
        source, by number and name (None if no episode has it).
    """
    total = {key: float(column.sum()) for key, column in columns.items()}
    classes = {
        size: {
            **{x: slowdown(columns[f"{size}_{x}"])["value"] for x in ("mean", "p99", "geomean")},
            **{x: int(total[f"{size}_{x}"]) for x in ("measured", "unfinished", "finished")},
            "lower_bound": total[f"{size}_unfinished"] > 0,
        }
        for size in SIZES
    }
    reward, half = crossed_interval(columns["reward"])
    queue = float(columns["queue_mean"].mean())
    square = float((columns["queue_std"] ** 2 + columns["queue_mean"] ** 2).mean())
    costs = {key: float(columns[key].mean()) for key in COSTS if key in columns}
    seeds, episodes = columns["J"].shape
    reasons = invalid_reasons(columns)
    withheld = refused(reasons, allow_flagged)
    return {
        "name": name,
        "episodes": episodes,
        "seeds": seeds,
        "J": slowdown(np.full_like(columns["J"], np.nan) if withheld else columns["J"]),
        **({"weights": weights} if (weights := _parts.exponents(columns)) else {}),
        "parts": {part: slowdown(values) for part, values in parts_of(columns).items()},
        "slowdown": classes,
        "flows": {key: int(value) for key, value in accounts(total).items()},
        "dropped": _share(total["bytes_dropped"], total["bytes_offered"]),
        "cut": _share(total["feedback_cut"], total["flow_ticks"]),
        "invalid": reasons,
        "refused": withheld,
        "flags": list(flags.names(columns.get(flags.FLAGGED, np.zeros(1)))),
        "reward": {"mean": reward, "ci95": half},
        "queue_mean": queue,
        # Rounding can make the difference negative where queues are constant.
        "queue_std": max(square - queue**2, 0.0) ** 0.5,
        "utilisation": float(columns["utilisation"].mean()),
        "pauses": int(total["pauses"]),
        "paused": float(columns["paused"].mean()),
        **({"costs": costs} if costs else {}),
        **({"sources": sources} if (sources := _of_sources(columns)) else {}),
    }


def parts_of(columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The parts of J: those that the scenario declares, else `PARTS`."""
    names = _parts.exponents(columns) or PARTS
    return {x: columns[x if x in columns else _parts.PART + x] for x in names}


def _of_sources(columns: Mapping[str, np.ndarray]) -> dict[str, dict[str, float | None]]:
    """Means of the columns `source:i:name`, by number and name."""
    means: dict[str, dict[str, float | None]] = {}
    for key, values in columns.items():
        if key.startswith("source:"):
            _, number, name = key.split(":")
            finite = values[np.isfinite(values)]
            means.setdefault(number, {})[name] = float(finite.mean()) if finite.size else None
    return means


def slowdown(values: Float[np.ndarray, "seeds episodes"]) -> dict[str, Any]:
    """Geometric mean with its 95 % interval, JSON-able.

    Returns:
        `value`, `low`, `high` (None where there is none) and `missing`, how many are NaN, which are
        left out.
    """
    missing = int(np.isnan(values).sum())
    estimate: dict[str, Any] = {"value": None, "low": None, "high": None, "missing": missing}
    if missing < values.size:
        mean, half = crossed_interval(np.log(values))
        estimate["value"] = float(np.exp(mean))
        # NaN, which a single value has, is no JSON; it stays None.
        if half == half:
            estimate |= {"low": float(np.exp(mean - half)), "high": float(np.exp(mean + half))}
    return estimate


def _share(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0

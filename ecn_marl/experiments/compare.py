"""Policies of one scenario side by side: every figure paired with the best static setting.

All policies meet the same episodes. Figures are compared within an episode, so that its difficulty
cancels. Intervals are of a bootstrap over episodes and seeds (see
`baselines/evaluation/statistics.py`). Slowdowns and J are averaged geometrically over seeds and
episodes, so that the score is the product of its parts' ratios. Reward, queue and utilisation are
averaged arithmetically. Intervals of what cannot be negative are made in logarithms. Everything is
computed from records alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ecn_marl import _parts
from ecn_marl._errors import bad_value
from ecn_marl.baselines.evaluation.completion import (
    COSTS,
    SIZES,
    SLOWDOWNS,
    accounts,
    invalid_reasons,
    refused,
)
from ecn_marl.baselines.evaluation.statistics import (
    RESAMPLES,
    Draws,
    estimate,
    mean_estimate,
    over_seeds,
    resampled_mean,
)
from ecn_marl.experiments.own_reward import own_reward
from ecn_marl.experiments.records import Record

BASELINE, ORACLES = "static:best", ("oracle:ports", "oracle")
"""The policy that scores are relative to, and those whose gain counts as 100 %. Where ports differ,
the oracle with a setting for each group of ports comes first."""

GEOMETRIC = ("J", *SLOWDOWNS)
"""Figures that are averaged geometrically; lower is better."""


ARITHMETIC = ("reward", "queue_mean", "utilisation")
"""Figures that are averaged arithmetically."""

SIGNED = ("reward",)
"""Figures that may be negative."""

MUCH_WORSE = 1.05
"""Ratio to the baseline above which a size class counts as worse."""

THRESHOLDS = np.round(np.linspace(0.4, 1.4, 101), 2)
"""Scores at which performance profiles are evaluated; rounded, as `results.json` holds them."""

NO_ESTIMATE = {"value": np.nan, "low": np.nan, "high": np.nan}
"""An estimate of what is not known, or withheld."""

SAME = ("scenario", "eval_seed", "stream")
"""Facts in `meta` that records of the same episodes share. A record may lack them."""


def is_geometric(name: str) -> bool:
    """Whether a figure is averaged geometrically: `GEOMETRIC`, and declared parts of J."""
    return name in GEOMETRIC or name.startswith(_parts.PART)


def compare(
    records: Mapping[str, Record],
    baseline: str = BASELINE,
    oracle: str | None = None,
    resamples: int = RESAMPLES,
    seed: int = 0,
    allow_flagged: bool = False,
) -> dict[str, Any]:
    """Compare policies that were scored on the same episodes.

    Args:
        records: records by the policy's name.
        baseline: the policy that scores are relative to.
        oracle: the policy whose gain counts as 100 %. None: the first of `ORACLES` that has a
            record, if any.
        resamples: resamples of the bootstrap.
        seed: seed of the bootstrap.
        allow_flagged: whether results that do not count are scored all the same.

    Returns:
        `baseline`, `oracle`, `episodes`, `resamples`, `seed` and `policies`, a list of rows in the
        order of `records`. An estimate is `{value, low, high}` with a 95 % interval, NaN where
        there is none. Each row has

        `name`, `seeds`, `meta`; `invalid`, the reasons why it does not count (empty if it does),
        and `refused`, whether J, score and all that follows from them are withheld for that;
        `score`, an estimate, and `gain`, 1 - score;
        `weights`: exponents of J by part, if the scenario declares them;
        `figures`: for J, each slowdown, each declared part of steps (`part:NAME`), reward,
        queue_mean and utilisation its `value` and its `ratio` to the baseline (estimates),
        `lower_bound` (unfinished flows entered with their age) and `missing` (pairs of a seed and
        an episode without it, which are left out); of the last three also `difference`;
        `improvement`: probability that it has a lower J than the baseline in the same episode (ties
        count half), an estimate; `over`: the same over every other policy, by name;
        `share` of the oracle's gain in log J, an estimate, None without an oracle that gains;
        `over_seeds`: statistics of the seeds' scores, see `statistics.over_seeds`;
        `worse`: for each slowdown that is over 5 % worse than the baseline's `figure`, `size`,
        `ratio` and `certain`, whether the interval excludes 5 %;
        `flows`: means per episode of `completion.accounts`; shares `dropped` and `cut`; `costs`.

    Raises:
        ValueError: no baseline, or records of different episodes.
    """
    _check(records, baseline)
    draws = Draws(records[baseline].episodes, resamples, seed)
    policies = {name: _Policy(name, record, draws) for name, record in records.items()}
    if oracle is None:
        oracle = next((name for name in ORACLES if name in policies), None)
    base, oracle_policy = policies[baseline], policies.get(oracle or "")
    rows = [_row(policy, base, oracle_policy) for policy in policies.values()]
    for row, policy in zip(rows, policies.values(), strict=True):
        others = (other for other in policies.values() if other is not policy)
        row["over"] = {other.name: improvement(policy, other) for other in others}
        if base.invalid and policy is not base:
            row["invalid"] = [*row["invalid"], f"the baseline {baseline} is invalid"]
        row["refused"] = refused(row["invalid"], allow_flagged)
        if row["refused"]:
            _withhold(row)
    return {
        "baseline": baseline,
        "oracle": oracle if oracle_policy is not None else None,
        "episodes": base.record.episodes,
        "resamples": resamples,
        "seed": seed,
        "policies": rows,
    }


@dataclass(frozen=True)
class _Policy:
    """A policy in a comparison, with the draws of the bootstrap."""

    name: str
    record: Record
    draws: Draws

    def column(self, name: str) -> np.ndarray:
        """A column, `[seeds, episodes]`; its logarithm if it is averaged geometrically."""
        values = self.record.columns[name]
        return np.log(values) if is_geometric(name) else values

    @property
    def counts(self) -> tuple[np.ndarray, np.ndarray]:
        """How often each seed and each episode was drawn."""
        return self.draws.seeds(self.name, self.record.seeds), self.draws.episodes

    @property
    def invalid(self) -> list[str]:
        """The reasons why it does not count."""
        return invalid_reasons(self.record.columns)


def _check(records: Mapping[str, Record], baseline: str) -> None:
    """Raise a ValueError unless all records are of the same episodes and the baseline is there."""
    if baseline not in records:
        raise bad_value("records", sorted(records), f"policies with {baseline!r} among them")
    first = records[baseline]
    if first.seeds != 1:
        raise bad_value("seeds", first.seeds, f"1 of the baseline {baseline!r}, which is a rule")
    for name, record in records.items():
        for fact in ("episodes", *SAME):
            value, expected = (
                getattr(of, fact) if fact == "episodes" else of.meta.get(fact)
                for of in (record, first)
            )
            if value != expected and None not in (value, expected):
                allowed = f"{expected!r} as of {baseline!r}: records of the same episodes"
                raise bad_value(f"{fact} of {name}", value, allowed)


def _row(policy: _Policy, base: _Policy, oracle: _Policy | None) -> dict[str, Any]:
    """The row of one policy, without the comparison with all others."""
    record = policy.record
    columns = record.columns
    names = (*GEOMETRIC, *_parts.of_steps(columns), *ARITHMETIC)
    figures = {name: _figure(policy, base, name) for name in names}
    score = figures["J"]["ratio"]
    total = {name: float(columns[name].sum()) for name in _SHARED}
    with np.errstate(all="ignore"):  # a J of 0 gives an infinite logarithm, left out below
        log_ratios = policy.column("J") - base.column("J")
    finite = np.isfinite(log_ratios)
    # A seed without any J would divide by 0; then `over_seeds` below is None.
    seed_logs = np.where(finite, log_ratios, 0.0).sum(1) / np.maximum(finite.sum(1), 1)
    return {
        "name": policy.name,
        "seeds": record.seeds,
        "meta": record.meta,
        "invalid": policy.invalid,
        "own": own_reward(record),
        "score": score,
        "gain": {
            "value": 1.0 - score["value"],
            "low": 1.0 - score["high"],
            "high": 1.0 - score["low"],
        },
        "figures": figures,
        **({"weights": weights} if (weights := _parts.exponents(columns)) else {}),
        "improvement": improvement(policy, base),
        "share": share_of_gain(policy, base, oracle),
        "over_seeds": over_seeds(np.exp(seed_logs)[:, None], THRESHOLDS)
        if finite.all(0).any()
        else None,
        "worse": _worse(figures),
        "flows": {name: float(x.mean()) for name, x in accounts(columns).items()},
        "dropped": total["bytes_dropped"] / max(total["bytes_offered"], 1.0),
        "cut": total["feedback_cut"] / max(total["flow_ticks"], 1.0),
        "costs": {name: float(columns[name].mean()) for name in COSTS if name in columns},
    }


_SHARED = ("bytes_offered", "bytes_dropped", "flow_ticks", "feedback_cut")


def _figure(policy: _Policy, base: _Policy, name: str) -> dict[str, Any]:
    """A figure and its ratio to the baseline."""
    values, base_values = policy.column(name), base.column(name)
    paired = values - base_values
    facts: dict[str, Any] = {
        "lower_bound": _unfinished(policy, name),
        "missing": int(np.sum(~np.isfinite(paired))),
    }
    if is_geometric(name):
        value, ratio = mean_estimate(values, policy.counts), mean_estimate(paired, policy.counts)
        return {"value": _exp(value), "ratio": _exp(ratio), **facts}
    return {
        "value": mean_estimate(values, policy.counts, positive=name not in SIGNED),
        "ratio": ratio_of_means(values, base_values, policy.counts, base.counts),
        "difference": mean_estimate(paired, policy.counts),
        **facts,
    }


def _exp(logs: Mapping[str, float]) -> dict[str, float]:
    return {name: float(np.exp(x)) for name, x in logs.items()}


Counts = tuple[np.ndarray, np.ndarray]
"""How often each seed and each episode was drawn, `[resamples, seeds]`, `[resamples, episodes]`."""


class Ratio(NamedTuple):
    """A ratio of two means, the same of every resample, and its linear part for `stretch`."""

    value: float
    resamples: np.ndarray
    linear_part: np.ndarray


def ratio_of_means(
    values: np.ndarray, reference: np.ndarray, counts: Counts, reference_counts: Counts
) -> dict[str, float]:
    """`ratio`, as an estimate (`statistics.estimate`); NaN where there is none."""
    found = ratio(values, reference, counts, reference_counts)
    return dict(NO_ESTIMATE) if found is None else estimate(*found, positive=True)


def ratio(
    values: np.ndarray, reference: np.ndarray, counts: Counts, reference_counts: Counts
) -> Ratio | None:
    """Ratio of two means, paired by episode; None unless both have one sign in every resample.

    Args:
        values: numbers of one policy, `[seeds, episodes]`, all finite.
        reference: numbers of another policy in the same episodes, `[1 or seeds, episodes]`.
        counts: draws of the bootstrap.
        reference_counts: draws for the other policy; the counts of episodes are the same.

    """
    denominators = resampled_mean(reference, reference_counts)
    numerators = resampled_mean(values, counts)
    mean, reference_mean = float(values.mean()), float(reference.mean())
    wrong_sign = (denominators * reference_mean <= 0.0) | (numerators * reference_mean < 0.0)
    if reference_mean == 0.0 or mean * reference_mean < 0.0 or wrong_sign.any():
        return None
    value, ratios = mean / reference_mean, numerators / denominators
    # A ratio of means is no mean of values; its linear part stands for them in `estimate`.
    if len(reference) > 1:  # two learners: their seeds are resampled independently, in all pairs
        linear_part = (values[:, None] - value * reference[None]) / reference_mean
    else:
        linear_part = (values - value * reference) / reference_mean
    return Ratio(value, ratios, linear_part)


def _unfinished(policy: _Policy, name: str) -> bool:
    """Whether a figure includes unfinished flows, which makes it a lower bound."""
    sizes = ("short", "long") if name == "J" else (name.partition("_")[0],)
    columns = policy.record.columns
    return any(bool(columns[f"{size}_unfinished"].any()) for size in sizes if size in SIZES)


def improvement(policy: _Policy, other: _Policy) -> dict[str, float]:
    """Probability that one policy has a lower J than another in the same episode.

    Over all pairs of their seeds and all episodes; ties count half.
    """
    log_j, other_log_j = policy.column("J")[:, None], other.column("J")[None]
    wins = (log_j < other_log_j) + 0.5 * (log_j == other_log_j)
    # A comparison with NaN is False: without this, an episode without a J would count as a loss.
    wins = np.where(np.isfinite(log_j - other_log_j), wins, np.nan)
    counts = (policy.counts[0], other.counts[0], policy.draws.episodes)
    probability = mean_estimate(wins, counts)
    # Intervals are stretched about the value and may reach beyond [0, 1]; NaN stays.
    return {name: min(max(x, 0.0), 1.0) if x == x else x for name, x in probability.items()}


def share_of_gain(
    policy: _Policy, base: _Policy, oracle: _Policy | None
) -> dict[str, float] | None:
    """Share of the oracle's gain that a policy reaches, on the scale of log J.

    (log J(base) - log J(policy)) / (log J(base) - log J(oracle)), each a mean over the same seeds
    and episodes.

    Returns:
        An estimate. It has no interval if that of the oracle's gain includes 0. None without an
        oracle, or if the oracle gains nothing.
    """
    if oracle is None:
        return None
    log_j, base_log_j, oracle_log_j = (x.column("J") for x in (policy, base, oracle))
    gained, headroom = base_log_j - log_j, base_log_j - oracle_log_j
    # An episode counts in both means or in neither.
    finite = np.isfinite(gained) & np.isfinite(headroom)
    gained, headroom = np.where(finite, gained, np.nan), np.where(finite, headroom, np.nan)
    if not finite.any() or np.nanmean(headroom) <= 0.0:
        return None
    mean_headroom = float(np.nanmean(headroom))
    share = float(np.nanmean(gained) / np.nanmean(headroom))
    resampled_headroom = resampled_mean(headroom, policy.counts)
    if np.percentile(resampled_headroom, 2.5) <= 0.0:
        return {"value": share, "low": float("nan"), "high": float("nan")}
    shares = resampled_mean(gained, policy.counts) / resampled_headroom
    return estimate(share, shares, (gained - share * headroom) / mean_headroom)


def _worse(figures: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The slowdowns that are over 5 % worse than the baseline's."""
    rows = []
    for name in (*SLOWDOWNS, *_parts.of_steps(figures)):
        ratio = figures[name]["ratio"]
        if ratio["value"] > MUCH_WORSE:
            certain = bool(ratio["low"] > MUCH_WORSE)
            size = name.removeprefix(_parts.PART).partition("_")[0]
            rows.append({"figure": name, "size": size, "ratio": ratio, "certain": certain})
    return rows


def _withhold(row: dict[str, Any]) -> None:
    """Remove J, the score and what follows from them from a row."""
    row |= {"score": dict(NO_ESTIMATE), "gain": dict(NO_ESTIMATE), "improvement": dict(NO_ESTIMATE)}
    row |= {"over": {name: dict(NO_ESTIMATE) for name in row["over"]}}
    row |= {"share": None, "over_seeds": None, "worse": []}
    row["figures"]["J"] |= {"value": dict(NO_ESTIMATE), "ratio": dict(NO_ESTIMATE)}


def overall(scenarios: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Statistics over scenarios of the policies that have a score in all of them.

    Args:
        scenarios: what `compare` returned, by scenario.

    Returns:
        `policies`: by name, statistics of the scores `[seeds, scenarios]` (see
        `statistics.over_seeds`; the interquartile mean comes first); `left_out`: by name, why a
        policy is not among them.
    """
    rows: dict[str, dict[str, Any]] = {}
    for scenario, comparison in scenarios.items():
        for row in comparison["policies"]:
            rows.setdefault(row["name"], {})[scenario] = row
    policies: dict[str, Any] = {}
    left_out: dict[str, str] = {}
    for name, by_scenario in rows.items():
        invalid = [scenario for scenario, row in by_scenario.items() if row["refused"]]
        unknown = [scenario for scenario, row in by_scenario.items() if row["over_seeds"] is None]
        seeds = sorted({row["seeds"] for row in by_scenario.values()})
        if len(by_scenario) < len(scenarios):
            missing = [scenario for scenario in scenarios if scenario not in by_scenario]
            left_out[name] = f"not scored in {', '.join(missing)}"
        elif invalid:
            left_out[name] = f"invalid in {', '.join(invalid)}"
        elif unknown:
            left_out[name] = f"no score in {', '.join(unknown)}"
        elif len(seeds) > 1:
            left_out[name] = f"{' or '.join(map(str, seeds))} seeds, not the same number everywhere"
        else:
            scores = [np.array(row["over_seeds"]["scores"])[:, 0] for row in by_scenario.values()]
            policies[name] = over_seeds(np.stack(scores, 1), THRESHOLDS)
    return {"policies": policies, "left_out": left_out}

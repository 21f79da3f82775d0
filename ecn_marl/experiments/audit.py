"""What a policy makes of a scenario: does it use memory, does it use what other ports know?

A policy is run, and the dependence of its actions on what it saw is measured by the diagnostics of
Tessera et al., "Probing Dec-POMDP Reasoning in Cooperative MARL" (AAMAS 2026), from their package
(extra `audit`):

    OAR   actions on the newest observation
    HAR   actions on earlier observations, given the newest one: memory
    PIF   a port's actions on what another port saw, given its own past
    AA    actions of two ports in one interval on each other, given what both see
    DAI   a port's actions on another one's past, given its own past

Each is a share of the entropy of actions, in [0, 1], beside what it is if actions are shuffled. It
is above that if it is so by `MIN_EFFECT`. Dependence is no gain: whether memory pays is said by
policies with and without it, in the same episodes (`reactive`).
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ecn_marl._checks import Whole, check_value
from ecn_marl._errors import bad_value
from ecn_marl.baselines.evaluation.objective import geometric_means
from ecn_marl.envs.features import AVERAGE
from ecn_marl.experiments.datasets import record
from ecn_marl.experiments.evaluation import EPISODES, evaluate
from ecn_marl.experiments.workflow import Show

if TYPE_CHECKING:
    from dec_pomdp_diagnostics import UserData

PROBES = {
    "OAR": "oarR_max",
    "HAR": "harRcond_ohist_max",
    "PIF": "pifOARcond_ohist_max",
    "AA": "aaRcond_max",
    "DAI": "daiOARcond_ohist_max",
}
"""Columns of the package's rows: the largest value over ports or pairs of them."""

MIN_EFFECT = 0.01
"""By how much a probe has to be above that of shuffled actions; the package's default."""


def audit(
    policy: str,
    scenario: str | None = None,
    *,
    reactive: str | None = None,
    episodes: int = 4,
    seed: int = 0,
    ports: int = 4,
    history: int = 3,
    nulls: int = 5,
    checkpoint: str = "best",
    show: Show | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Measure what the actions of a policy depend on, for every seed of a run.

    Observations are those of the newest interval, without moving averages: what these add counts as
    memory, as earlier intervals do.

    Args:
        policy: a policy that chooses among actions, such as a run or `pretrained:NAME`.
        scenario: name of a scenario; None for the run's.
        reactive: a run without memory, to compare J with, seed by seed, in tuning episodes.
        episodes: training episodes that are recorded. The time of the estimators grows with their
            square.
        seed: which ones.
        ports: how many ports are looked at: those whose actions differ most.
        history: earlier intervals that count as history.
        nulls: how often actions are shuffled.
        checkpoint: which policy of a run: `best` (the latest if none was evaluated), `latest`.
        show: moves a progress bar, `show(episodes done, note)`; None for one in notebooks.
        **options: options of `ecn_marl.make`.

    Returns:
        `scenario`, `policy`, `ports`, `episodes`, `seeds`: a row for each with `seed`, and for each
        of `PROBES` `value`, `null` and `above`; `label`, see `label_of`; `gap`, what
        `memory_reactive_gap` of the package says of −ln J, None without `reactive`.

    Raises:
        ValueError: the extra `audit` is not installed; a value that is not allowed; a policy that
            sets fewer than two ports differently over time; runs of different numbers of seeds.
    """
    diagnostics = _package()
    for name, value, low in (("ports", ports, 2), ("history", history, 1), ("nulls", nulls, 1)):
        check_value(name, value, Whole(low=low))
    with tempfile.TemporaryDirectory(prefix="ecn-marl-") as folder:
        dataset = record(
            policy,
            scenario,
            out=Path(folder) / "steps",
            episodes=episodes,
            seed=seed,
            checkpoint=checkpoint,
            show=show,
            **options,
        )
        seeds = [int(row["seed"]) for row in dataset.facts["policies"]]
        arrays = [dataset.arrays(seed=number) for number in seeds]
        facts = dataset.facts
    common = {"checkpoint": checkpoint, **options}
    chosen = _ports([x["action"] for x in arrays], ports, policy)
    names = [facts["agents"][i] for i in chosen]
    rows = []
    for number, columns in zip(seeds, arrays, strict=True):
        data = _data(diagnostics, facts, columns, chosen, names, number)
        found = diagnostics.compute_diagnostics(
            data, history_k=history, null_reps=nulls, min_effect=MIN_EFFECT
        )
        rows.append({"seed": number} | _probes(found.metrics))
    return {
        "scenario": facts["scenario"],
        "policy": policy,
        "episodes": episodes,
        "ports": names,
        "seeds": rows,
        "label": label_of(rows),
        "gap": None if reactive is None else _gap(diagnostics, (policy, reactive), facts, common),
    }


def label_of(rows: Sequence[Mapping[str, Any]]) -> str:
    """What most seeds do: `reactive`, `memory`, `coordination`, or `memory and coordination`.

    Memory is HAR above its null; coordination is PIF, AA or DAI above theirs.
    """

    def most(*probes: str) -> bool:
        return 2 * sum(any(row[x]["above"] for x in probes) for row in rows) > len(rows)

    parts = [
        name
        for name, probes in (("memory", ("HAR",)), ("coordination", ("PIF", "AA", "DAI")))
        if most(*probes)
    ]
    return " and ".join(parts) or "reactive"


def _package() -> Any:
    try:
        import dec_pomdp_diagnostics
    except ImportError as error:
        allowed = "dec-pomdp-diagnostics to be installed: pip install 'ecn-marl[audit]'"
        raise bad_value("extra", "audit", allowed) from error
    return dec_pomdp_diagnostics


def _ports(actions: Sequence[np.ndarray], count: int, policy: str) -> list[int]:
    """The ports whose actions have the largest entropy, means over seeds."""
    if actions[0].ndim > 3 or actions[0].dtype.kind not in "iu":
        raise bad_value("policy", policy, "a policy that chooses one of several settings")
    entropy = np.mean([[_entropy(x[:, :, i]) for i in range(x.shape[2])] for x in actions], 0)
    varied = [int(i) for i in np.argsort(-entropy, kind="stable") if entropy[i] > 0.0]
    if len(varied) < 2:
        allowed = f"one that sets two ports or more differently over time ({len(varied)} here)"
        raise bad_value("policy", policy, allowed)
    return sorted(varied[:count])


def _entropy(actions: np.ndarray) -> float:
    share = np.unique(actions, return_counts=True)[1] / actions.size
    return float(-(share * np.log(share)).sum())


def _data(
    diagnostics: Any,
    facts: Mapping[str, Any],
    arrays: Mapping[str, np.ndarray],
    chosen: Sequence[int],
    names: Sequence[str],
    seed: int,
) -> UserData:
    """The package's arrays: rows are intervals of all episodes, by port."""
    newest = [
        i
        for i, name in enumerate(facts["observation"])
        if name.endswith("_0") and AVERAGE not in name
    ]
    obs, action = arrays["obs"][:, :-1], arrays["action"]
    count, intervals = action.shape[:2]
    steps = np.tile(np.arange(intervals), count)
    episodes = np.repeat(np.arange(count), intervals)
    ports = list(zip(names, chosen, strict=True))
    return diagnostics.UserData(
        observations={n: obs[:, :, i, newest].reshape(-1, len(newest)) for n, i in ports},
        actions={n: action[:, :, i].reshape(-1).astype(np.int64) for n, i in ports},
        timesteps=dict.fromkeys(names, steps),
        episode_ids=dict.fromkeys(names, episodes),
        env_name=facts["scenario"],
        alg_name="policy",
        seed=seed,
    )


def _probes(metrics: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Value, null and whether it is above, for each probe."""
    found = {}
    for name, column in PROBES.items():
        value, null = float(metrics[column]), float(metrics[f"{column}_null"])
        found[name] = {"value": value, "null": null, "above": value > null + MIN_EFFECT}
    return found


def _gap(
    diagnostics: Any,
    policies: tuple[str, str],
    facts: Mapping[str, Any],
    common: Mapping[str, Any],
) -> dict[str, Any]:
    """How much memory gains in −ln J over a run without, over pairs of seeds."""
    scores = []
    for name in policies:
        result = evaluate(name, facts["scenario"], episodes=EPISODES, records=False, **common)
        seeds = max(result.records.values(), key=lambda record: record.seeds)
        scores.append(-np.log(geometric_means(seeds.columns["J"])))
    if len(scores[0]) != len(scores[1]):
        allowed = f"a run of {len(scores[0])} seeds, as {policies[0]}"
        raise bad_value("reactive", f"{policies[1]} ({len(scores[1])} seeds)", allowed)
    found: dict[str, Any] = diagnostics.memory_reactive_gap(*scores)
    return found

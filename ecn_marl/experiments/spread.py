"""How much thresholds matter in a scenario: J and its parts under every static setting.

If J hardly differs between settings, no policy can gain much by choosing among them. If each
setting that is good for one part is bad for another, no static setting serves both. Policies in the
same episodes show whether one that adapts does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ecn_marl._checks import Whole, check_seed, check_value
from ecn_marl.baselines.evaluation.completion import PARTS, invalid_reasons, parts_of
from ecn_marl.baselines.evaluation.objective import geometric_means
from ecn_marl.baselines.evaluation.streams import tuning_keys
from ecn_marl.baselines.oracle import BEST, group_names, phase_names
from ecn_marl.baselines.search import Grid, Trials, builder, static_grid
from ecn_marl.envs.ecn import EcnEnv
from ecn_marl.experiments.evaluation import evaluate, shown
from ecn_marl.experiments.policies import Arena, resolve

NEAR = 0.03
"""Share of J within which settings count as near the best one."""


def spread(
    scenario: str,
    options: Mapping[str, object] | None = None,
    *,
    policies: Sequence[str] = (),
    episodes: int = 8,
    seed: int = 0,
    grid: Grid = (),
    progress: Callable[[int, str], None] | None = None,
) -> dict[str, Any]:
    """Run every static setting, and policies if any are named, in the same tuning episodes.

    Args:
        scenario: name of the scenario.
        options: options of `ecn_marl.make`.
        policies: policies to run beside the settings, names as `evaluate` takes them.
        episodes: episodes of each setting and policy.
        seed: which tuning episodes.
        grid: the settings; those of `search.static_grid` if empty.
        progress: called with the number of episodes run and the current task.

    Returns:
        `scenario`, `episodes`, `seed`; `parts`, the names of the parts of J; `settings`, a row for
        each, best first: `setting` (Kmin and Kmax in KB at 25 Gb/s, Pmax), `J` and its parts, means
        over episodes, and `invalid`, reasons why these do not count, which puts it last;
        `policies`, a row for each, with its `name` and `label` in place of the setting, all seeds
        of a run together; `worst`, the largest J over the smallest; `near`, the share of settings
        within `NEAR` of the smallest; `apart`, J if every part were as under its own best setting,
        over the smallest J: 1 if one setting is best for all parts. These three are of the settings
        that count, or of all if none does.

    Raises:
        ValueError: `episodes` below 1, J is not defined in any episode, or a policy that `evaluate`
            refuses.
    """
    check_value("episodes", episodes, Whole(low=1))
    check_seed(seed)
    arena = Arena(scenario, dict(options or {}))
    env = arena.env(BEST)
    keys = tuning_keys("report", seed, episodes)
    params = env.default_params
    trials = Trials(env, params, builder(BEST, env, params), keys, progress=progress)
    shape = (len(phase_names(env)), len(group_names(env)), 3)
    candidates = [np.broadcast_to(np.asarray(x, float), shape) for x in grid or static_grid()]
    adaptive = _rows(policies, scenario, episodes, seed, arena.options) if policies else []
    trials.measure(candidates, episodes)
    rows = []
    for candidate in candidates:
        row = trials.row(candidate)
        setting = row.pop("settings")[0][0]
        del row["episodes"]
        rows.append({"setting": setting, **row})
    rows.sort(key=lambda row: (bool(row["invalid"]), row["J"]))
    weights = _weights(env)
    return {
        "scenario": scenario,
        "episodes": episodes,
        "seed": seed,
        "parts": list(weights),
        "settings": rows,
        "policies": adaptive,
        **_figures(rows, weights),
    }


def _figures(rows: Sequence[Mapping[str, Any]], weights: Mapping[str, float]) -> dict[str, float]:
    """`worst`, `near` and `apart` of settings, best first; weights are exponents of J by part."""
    rows = [row for row in rows if not row["invalid"]] or rows
    best = rows[0]["J"]
    apart = np.prod([min(row[name] for row in rows) ** x for name, x in weights.items()])
    return {
        "worst": rows[-1]["J"] / best,
        "near": float(np.mean([row["J"] <= (1.0 + NEAR) * best for row in rows])),
        "apart": float(apart / best),
    }


def _rows(
    policies: Sequence[str], scenario: str, episodes: int, seed: int, options: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """J and its parts under policies, in the order given."""
    settings: dict[str, Any] = {"records": False, "allow_flagged": True, **options}
    records = evaluate(policies, scenario, episodes=episodes, seed=seed, **settings).records
    return [
        {
            "name": name,
            "label": shown(resolve(name)),
            "J": float(geometric_means(records[name].columns["J"]).mean()),
            **{
                part: float(geometric_means(values).mean())
                for part, values in parts_of(records[name].columns).items()
            },
            "invalid": invalid_reasons(records[name].columns),
        }
        for name in policies
    ]


def _weights(env: EcnEnv) -> dict[str, float]:
    """Exponents of J by part."""
    if not env.objective:
        return dict(zip(PARTS, (0.25, 0.25, 0.5), strict=True))
    total = sum(part.weight for part in env.objective)
    return {part.name: part.weight / total for part in env.objective}

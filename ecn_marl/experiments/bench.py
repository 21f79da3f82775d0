"""The comparison behind `ecn-marl bench`: everything trained and scored by one protocol.

* Learners are trained by `experiments/recipes.py`, several seeds of each; the policy
  that is scored is that of the best checkpoint, chosen on episodes kept for that.
* Everything meets the same evaluation episodes, whose seed no training has. What is compared is
  therefore the paired difference, episode by episode, to the best static setting.
* A learner's reward is also read on the headroom scale (0: `static:best`, 1: `oracle`): the
  interquartile mean over seeds with a stratified-bootstrap interval.

    OUT/SCENARIO/ALGORITHM/         the run (see `baselines/runs.py`)
    OUT/SCENARIO/scores/NAME.json   what was scored: the summary, and the reward of every episode
    OUT/results.json, OUT/table.md  everything together

A bench that was stopped goes on where it was: what is scored is not scored again, and a run that is
not finished is resumed.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from ecn_marl._errors import bad_value, unknown_name
from ecn_marl._files import Output, json_text, write_all
from ecn_marl.baselines.common.checkpoint import read_config
from ecn_marl.baselines.common.cost import decision_us
from ecn_marl.baselines.common.evaluation import Evaluation, episodes_runner, evaluate
from ecn_marl.baselines.common.logs import METRICS
from ecn_marl.baselines.common.scoring import greedy_controller
from ecn_marl.baselines.common.statistics import crossed_interval, over_seeds
from ecn_marl.baselines.oracle import BEST, ORACLE, RULES, found_settings
from ecn_marl.baselines.runs import ALGORITHMS, Session, resume_run, run_actors, train_run
from ecn_marl.baselines.static import PREFIX
from ecn_marl.envs.actions import STATIC_ECN
from ecn_marl.envs.registry import make
from ecn_marl.experiments.recipes import Recipe, recipe
from ecn_marl.experiments.workflow import Arena, Show, is_rule, label, learners

RESULTS, TABLE = "results.json", "table.md"

DEFAULT = ("ippo", "mappo", "ddqn", "haecn", "c-acc", "static:secn1", "static:secn2", "random")
"""What is compared if nothing is named; `static:best` and `oracle` always are."""

EVAL_SEED = 2000
"""Seed of the evaluation episodes."""

FLOAT_BYTES = 4

_EXAMPLES = ("static:secn1", "static:secn2", "static:5,200,0.01", "dynamic:pi")


@dataclass(frozen=True)
class Plan:
    """What to compare, and how.

    Attributes:
        scenarios: names of scenarios.
        policies: names of trainers and of rules (`static:…`, `dynamic:…`, `oracle`, `random`).
        out: folder of the bench.
        seeds: seeds of every learner.
        steps: environment steps per seed; those of the recipes if None.
        episodes: evaluation episodes of every policy and seed.
        eval_seed: seed of the evaluation episodes.
        options: options of `ecn_marl.make` for everything, e.g. `{"max_steps": 50}`.
        settings: settings of trainers that have them, over those of the recipes.
    """

    scenarios: tuple[str, ...]
    policies: tuple[str, ...]
    out: Path
    seeds: int = 5
    steps: int | None = None
    episodes: int = 128
    eval_seed: int = EVAL_SEED
    options: Mapping[str, Any] | None = None
    settings: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        """Check everything before anything is trained."""
        for name in ("seeds", "episodes"):
            if getattr(self, name) < 1:
                raise bad_value(name, getattr(self, name), "an integer >= 1")
        if self.steps is not None and self.steps < 1:
            raise bad_value("steps", self.steps, "an integer >= 1")
        if not self.seeds <= self.eval_seed < 2**32:
            allowed = f"{self.seeds} to 2^32 - 1, a seed that is not trained with"
            raise bad_value("eval_seed", self.eval_seed, allowed)
        for name in self.policies:
            if name not in ALGORITHMS and not is_rule(name):
                raise unknown_name("policy", name, (*ALGORITHMS, *RULES, *_EXAMPLES))
            if name not in ALGORITHMS:
                learners(name)  # reads the numbers of a setting
        for scenario in self.scenarios:
            make(scenario, **dict(self.options or {}))

    def recipe(self, scenario: str, algorithm: str) -> Recipe:
        """How an algorithm is trained."""
        found = recipe(scenario, algorithm)
        known = {name for name in asdict(ALGORITHMS[algorithm][1]())}
        more = {name: x for name, x in (self.settings or {}).items() if name in known}
        return Recipe(
            self.steps or found.steps,
            dict(found.options) | dict(self.options or {}),
            dict(found.settings) | more,
        )


def policy_name(text: str) -> str:
    """The name of a policy as users write it: `SECN1` is `static:secn1`."""
    short = text.strip()
    return PREFIX + short.lower() if short.lower() in STATIC_ECN else short


def bench(plan: Plan, show: Callable[[str], Show]) -> dict[str, Any]:
    """Train and score everything that is not there yet, and write the results.

    Args:
        plan: what to compare.
        show: `show(task)(done, note)` reports progress, `done` a share of the task.

    Returns:
        What `results.json` holds: `scenarios`, each with its `policies` and `headroom`, and, of
        several scenarios, `overall` with statistics over all of them for each learner.
    """
    policies = tuple(dict.fromkeys((BEST, ORACLE, *plan.policies)))
    found = {
        scenario: {name: _entry(plan, scenario, name, show) for name in policies}
        for scenario in plan.scenarios
    }
    result: dict[str, Any] = {
        "protocol": {
            "seeds": plan.seeds,
            "episodes": plan.episodes,
            "eval_seed": plan.eval_seed,
            "options": dict(plan.options or {}),
        },
        "scenarios": {name: _compared(entries) for name, entries in found.items()},
    }
    if len(found) > 1:
        result["overall"] = _overall(result["scenarios"])
    return result


def write_results(folder: Path, result: Mapping[str, Any], table: str) -> None:
    """Write `results.json` and `table.md`."""
    text = json_text(result) + "\n"
    write_all(
        {
            folder / RESULTS: Output("w", lambda file: file.write(text)),
            folder / TABLE: Output("w", lambda file: file.write(table)),
        }
    )


def _entry(plan: Plan, scenario: str, name: str, show: Callable[[str], Show]) -> dict[str, Any]:
    """A policy's scores, from its file if they are there, else measured now."""
    asked = _asked(plan, scenario, name)
    folder = plan.out / scenario / "scores"
    file = folder / f"{name.replace(':', '_').replace(',', '_').replace('/', '_')}.json"
    if file.is_file():
        known: dict[str, Any] = json.loads(file.read_text())
        if known["asked"] == asked:
            return known
    score = _score_learner if name in ALGORITHMS else _score_rule
    entry = {"asked": asked, **score(plan, scenario, name, show)}
    folder.mkdir(parents=True, exist_ok=True)
    text = json_text(entry) + "\n"
    write_all({file: Output("w", lambda out: out.write(text))})
    result: dict[str, Any] = json.loads(text)
    return result


def _asked(plan: Plan, scenario: str, name: str) -> dict[str, Any]:
    """What scores depend on, as JSON has it."""
    asked: dict[str, Any] = {"name": name, "scenario": scenario, "episodes": plan.episodes}
    asked |= {"eval_seed": plan.eval_seed, "options": dict(plan.options or {})}
    if name in ALGORITHMS:
        asked |= asdict(plan.recipe(scenario, name)) | {"seeds": plan.seeds}
    plain: dict[str, Any] = json.loads(json.dumps(asked))
    return plain


def _score_rule(
    plan: Plan, scenario: str, name: str, show: Callable[[str], Show]
) -> dict[str, Any]:
    """Score a rule on the evaluation episodes."""
    move = show(f"{scenario}: {name}")
    place = Arena(scenario, dict(plan.options or {}))
    env = place.env(name)
    began = time.perf_counter()
    controller = place.controller(name)
    fixed = getattr(controller, "ecn", None)
    found = evaluate(
        env,
        env.default_params,
        controller,
        name=name,
        episodes=plan.episodes,
        seed=plan.eval_seed,
        progress=lambda done: move(done / plan.episodes, "episodes"),
        run=None if fixed is None else partial(_fixed_runner(env), fixed),
    )
    entry = _summed([found]) | {"evaluation_seconds": time.perf_counter() - began}
    if name in (BEST, ORACLE):
        search = found_settings(env)
        used = search.by_phase if name == ORACLE else (search.static,)
        entry["settings"] = [list(setting) for setting in used]
    return entry


@cache
def _fixed_runner(env: Any) -> Callable[..., Any]:
    """Runs episodes under thresholds that stay; compiled once for all of a scenario."""
    return episodes_runner(env, env.default_params, lambda ecn: lambda key, obs: ecn)


def _score_learner(
    plan: Plan, scenario: str, name: str, show: Callable[[str], Show]
) -> dict[str, Any]:
    """Train an algorithm, or what is left of it, and score the policies of all its seeds."""
    run = plan.out / scenario / name
    _train(plan, scenario, name, run, show(f"{scenario}: train {name}"))
    move = show(f"{scenario}: score {name}")
    began = time.perf_counter()
    algorithm, actors = run_actors(run)
    env = make(scenario, **dict(plan.recipe(scenario, name).options))
    params = env.default_params
    compiled = episodes_runner(env, params, lambda x: greedy_controller(algorithm, x, env))
    found: list[Evaluation] = []
    for i, actor in enumerate(actors):
        found.append(
            evaluate(
                env,
                params,
                greedy_controller(algorithm, actor, env),
                name=name,
                episodes=plan.episodes,
                seed=plan.eval_seed,
                run=partial(compiled, actor),
            )
        )
        move((i + 1) / len(actors), "seeds")
    entry = _summed(found) | {"evaluation_seconds": time.perf_counter() - began}
    if "costs" in entry:
        entry["costs"]["us_per_decision"] = decision_us(algorithm, actors[0], entry["costs"])
        per_second = env.num_agents * 1e6 / env.interval_us
        entry["costs"]["inferences_per_second"] = (
            entry["costs"]["inferences_per_decision"] * per_second
        )
    rows = [json.loads(line) for line in (run / METRICS).read_text().splitlines()]
    return entry | {
        "steps": rows[-1]["steps"],
        "training_seconds": rows[-1]["seconds"],
        "exchanged_bytes_per_second": _exchanged(name, env, rows),
    }


def _train(plan: Plan, scenario: str, name: str, run: Path, move: Show) -> None:
    """Train, or go on training; a run of other settings in its place is an error."""
    how = plan.recipe(scenario, name)
    session = Session(
        save_seconds=60.0,
        progress=lambda row: move(
            row["steps"] / how.steps,
            f"reward {float(np.mean(row['reward'])):.4f}, {row['steps_per_second']:,.0f} steps/s",
        ),
    )
    if not (run / "config.json").is_file():
        train_run(
            name,
            scenario,
            steps=how.steps,
            options=dict(how.options),
            settings=dict(how.settings),
            seeds=plan.seeds,
            out=run,
            session=session,
        )
        return
    config = read_config(run)
    given = json.loads(json.dumps(asdict(how) | {"seeds": plan.seeds, "scenario": scenario}))
    held = {key: config[key] for key in ("steps", "options", "seeds", "scenario")}
    held["settings"] = {key: config["settings"].get(key) for key in given["settings"]}
    if held != given:
        raise bad_value("out", str(plan.out), f"a folder without another run of {name} ({run})")
    resume_run(run, session=session)


def _exchanged(name: str, env: Any, rows: list[dict[str, Any]]) -> float:
    """Bytes that agents exchange, or send to a centre, per second of a network's time.

    Learners that share parameters are trained in one place, which is not counted: DDQN's exchange
    of memories while training; what MAPPO's critic is shown while training; what C-ACC's centre is
    sent by the ports (features of an interval) and sends back (a setting), always.
    """
    intervals = 1e6 / env.interval_us
    if name == "ddqn":
        moved = [np.mean(row[f"exchanged_{way}_bytes"]) for row in rows for way in ("up", "down")]
        return float(np.sum(moved) / rows[-1]["steps"] * intervals)
    if name == "mappo":
        return float(env.state_dim * FLOAT_BYTES * intervals)
    if name == "c-acc":
        return float(env.num_agents * (env.feature.width + 3) * FLOAT_BYTES * intervals)
    return 0.0


def _summed(found: list[Evaluation]) -> dict[str, Any]:
    """Summary over the episodes of all seeds, and all rewards, `[seeds][episodes]`."""
    names = found[0].episodes
    joined = {name: np.concatenate([one.episodes[name] for one in found]) for name in names}
    rewards = np.stack([one.episodes["reward"] for one in found])
    mean, half = crossed_interval(rewards)
    summary = Evaluation(found[0].name, joined).summary()
    return summary | {
        "reward": {"mean": mean, "ci95": half},
        "episodes": rewards.shape[1],
        "rewards": rewards.astype(float).tolist(),
    }


def _compared(entries: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Paired differences to the best static setting, and places on the headroom scale."""
    rewards = {name: np.array(entry["rewards"], np.float64) for name, entry in entries.items()}
    best, oracle = rewards[BEST][0], rewards[ORACLE][0]
    room = crossed_interval((oracle - best)[None])
    rows = []
    for name, entry in entries.items():
        gain = rewards[name] - best
        mean, half = crossed_interval(gain)
        row = {key: x for key, x in entry.items() if key not in ("rewards", "asked")}
        row |= {"seeds": len(gain), "over_best": {"mean": mean, "ci95": half}}
        row |= {key: entry["asked"][key] for key in ("options", "settings") if name in ALGORITHMS}
        if room[0] > 0:
            places = gain.mean(1) / room[0]
            row["headroom"] = over_seeds(places[:, None], np.linspace(-1.0, 1.5, 51))
        rows.append(row)
    return {
        "headroom": {"mean": room[0], "ci95": room[1]},
        "policies": rows,
    }


def _overall(scenarios: Mapping[str, Any]) -> dict[str, Any]:
    """Statistics over scenarios of everything that has places in all of them."""
    places: dict[str, list[np.ndarray]] = {}
    for scenario in scenarios.values():
        for row in scenario["policies"]:
            if "headroom" in row:
                scores = np.array(row["headroom"]["scores"])[:, 0]
                places.setdefault(row["name"], []).append(scores)
    return {
        name: over_seeds(np.stack(each, 1), np.linspace(-1.0, 1.5, 51))
        for name, each in places.items()
        if len(each) == len(scenarios)
    }


def title(name: str) -> str:
    """How a policy is shown: a trainer by its name, a rule as in `ecn-marl eval`."""
    return label(name) if name in RULES or is_rule(name) else name

"""Searches for the settings of the reference policies of `baselines.oracle`.

Every candidate is run in whole episodes of the tuning stream, the same for all. The lowest
geometric mean of J (`completion`) over them wins.

* **Successive halving** (`halving`): all candidates run in the first 8 episodes. The best third,
  but at least `finalists`, goes on to three times as many episodes, and so on. The last ones have
  run in all episodes, 64 by default, and the winner is the best of these. The best setting of an
  earlier search is never dropped. Candidates whose episodes do not count
  (`completion.invalid_reasons`) come after all that do.
* `static:best`: a grid of more than 150 settings, broad and fixed in advance (`static_grid`).
* `oracle`: a setting for each phase, switched inside the run, so that queues and rates carry over.
  Candidates are all combinations over the phases of a shortlist (the eight best static settings,
  those best for short or long flows alone, the extremes of the grid); from the best of these,
  coordinate descent over phases with a wider list. Where the combinations are too many, coordinate
  descent starts from the best static setting.
* `static:ports`: coordinate descent over groups of ports from the best static setting;
  `oracle:ports` over phases and groups from the better of `oracle` and `static:ports`.
* `rule`: a small grid of deep and shallow settings and limits (`rule_grid`).
* `oracle:choices`: `oracle:ports` of a short list, the grid of the effort. Coordinate descent from
  the best of a few combinations, over phases until nothing changes, then over phases and groups of
  ports. Every candidate around the best one runs in all episodes, so that its table says what each
  choice costs in each phase at each group (`costs_in`).

Settings are arrays that the compiled episode takes as arguments: one program serves all candidates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jaxtyping import PyTree

from ecn_marl._checks import check_seed
from ecn_marl._errors import bad_value, unknown_name
from ecn_marl.baselines.evaluation.candidates import Build, Candidates
from ecn_marl.baselines.evaluation.completion import CHECKED, invalid_reasons
from ecn_marl.baselines.evaluation.episodes import Controller, StatefulController
from ecn_marl.baselines.evaluation.objective import episode_objective, geometric_means, is_needed
from ecn_marl.baselines.evaluation.streams import tuning_keys
from ecn_marl.baselines.oracle import (
    BEST,
    CHOICES,
    ORACLE,
    ORACLE_PORTS,
    PORTS,
    RULE,
    SEARCHED,
    Rule,
    RuleSettings,
    Settings,
    group_names,
    phase_names,
)
from ecn_marl.envs.actions import PUBLISHED, STATIC_ECN, EcnSetting, checked_setting
from ecn_marl.envs.interface import PortEnvironment

FIRST, FACTOR = 8, 3
"""Episodes of the first round of halving, and the factor by which each further round has more
episodes and fewer candidates."""

SHORTLIST = 8
"""Best static settings that the oracle combines, beside the extremes."""

Grid = tuple[EcnSetting, ...]

Place = int | tuple[int | slice, int]
"""A phase, or a phase (or all) and a group of ports, as an index into settings."""

Progress = Callable[[int, str], None]
"""`progress(episodes run so far, description)`."""


def static_grid() -> Grid:
    """The published settings; Kmin 2.5 to 640 KB by octaves, Kmax 2 to 64 times that, five Pmax.

    From two packets to half of a deep port's share of a shared buffer, at 25 Gb/s. 183 settings.
    """
    kmin = [2.5 * 2.0**n for n in range(9)]
    grid = product(kmin, (2.0, 4.0, 16.0, 64.0), (0.005, 0.02, 0.05, 0.2, 1.0))
    named = (STATIC_ECN[name] for name in PUBLISHED)
    return (*named, *(EcnSetting(k, k * ratio, p) for k, ratio, p in grid))


def thin_grid() -> Grid:
    """30 settings over the same range, for coordinate descent over phases and groups."""
    grid = product((2.5, 10.0, 40.0, 160.0, 640.0), (4.0, 64.0), (0.02, 0.2, 1.0))
    return tuple(EcnSetting(k, k * ratio, p) for k, ratio, p in grid)


def rule_grid() -> np.ndarray:
    """Deep setting, shallow setting and limit of the rule, `[48, 7]`; the first 3 never deep."""
    deep = [(k, 2.0 * k, 0.2) for k in (160.0, 320.0, 640.0)]
    shallow = [(k, 4.0 * k, 1.0) for k in (2.5, 5.0, 10.0)]
    limits = (0.5, 1.0, 2.0, 4.0, 8.0)
    always = [(*deep[0], *x, -1.0) for x in shallow]
    return np.asarray([*always, *((*d, *s, x) for d, s, x in product(deep, shallow, limits))])


@dataclass(frozen=True)
class Effort:
    """Size of a search.

    Attributes:
        episodes: tuning episodes that the last candidates run in.
        seed: which tuning episodes.
        grid: static settings tried; those of `static_grid` if empty.
        thin: settings that coordinate descent tries beside the shortlist; `thin_grid` if empty.
        rules: candidates of the rule, `(deep, shallow, limit)` flattened; `rule_grid` if empty.
        combinations: most combinations over phases that are all tried.
        sweeps: most sweeps of coordinate descent.
    """

    episodes: int = 64
    seed: int = 0
    grid: Grid = ()
    thin: Grid = ()
    rules: tuple[tuple[float, ...], ...] = ()
    combinations: int = 256
    sweeps: int = 2

    def __post_init__(self) -> None:
        """Check all values."""
        for name in ("episodes", "combinations", "sweeps"):
            if getattr(self, name) < 1:
                raise bad_value(name, getattr(self, name), "an integer >= 1")
        check_seed(self.seed)
        for name in ("grid", "thin"):
            for setting in getattr(self, name):
                checked_setting(tuple(setting), name)


@dataclass(frozen=True)
class SearchResult:
    """Result of a search.

    Attributes:
        name: the policy.
        settings: `[phases, groups, 3]` (Kmin, Kmax in KB at 25 Gb/s, Pmax), or for the rule its
            deep setting, shallow setting and limit, `[7]`.
        objective: geometric mean of J over the episodes searched on; as a minimum, optimistic.
        episodes: number of these episodes.
        runs: episodes simulated for this search, a measure of its cost.
        table: every candidate, best first: `settings`, `episodes` it ran in, `J` and its parts
            (geometric means over these), and `invalid`, reasons why they do not count.
    """

    name: str
    settings: np.ndarray
    objective: float
    episodes: int
    runs: int
    table: tuple[dict[str, Any], ...]

    def controller(self, env: PortEnvironment, params: PyTree) -> Controller | StatefulController:
        """The policy with these settings."""
        return builder(self.name, env, params)(jnp.asarray(self.settings, jnp.float32))

    def as_dict(self) -> dict[str, Any]:
        """The result for JSON."""
        return {
            "name": self.name,
            "settings": self.settings.tolist(),
            "objective": self.objective,
            "episodes": self.episodes,
            "runs": self.runs,
            "table": list(self.table),
        }

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> SearchResult:
        """The result from the content of `as_dict`."""
        settings, table = np.asarray(content["settings"], np.float64), tuple(content["table"])
        return cls(**{**content, "settings": settings, "table": table})


def builder(name: str, env: PortEnvironment, params: PyTree) -> Build:
    """`candidate array -> controller` of a kind of policy."""
    if name == RULE:
        return lambda x: Rule(env, params, RuleSettings(x[0:3], x[3:6], x[6]))
    return lambda x: Settings(env, params, x)


class Outcome(NamedTuple):
    """An episode under a candidate: J and its parts, and the columns `completion.CHECKED`."""

    parts: dict[str, float]
    checked: dict[str, np.ndarray]


class Trials:
    """Runs candidates of one kind in tuning episodes, each in each episode once at most."""

    def __init__(
        self,
        env: PortEnvironment,
        params: PyTree,
        build: Build,
        keys: jax.Array,
        *,
        batch: int = 96,
        progress: Progress | None = None,
    ) -> None:
        """Set up the compiled program.

        Args:
            env: functional environment (without auto-reset).
            params: its parameters; `max_steps` is the length of an episode.
            build: `candidate (traced array) -> controller`.
            keys: the episodes, `[episodes]`.
            batch: episodes run at once.
            progress: called after every batch.
        """
        self.keys, self.progress = keys, progress
        self._results: dict[bytes, list[Outcome]] = {}
        self._run = Candidates(
            env, params, build, batch=batch, keep=lambda x: is_needed(x) or x in CHECKED
        )

    @property
    def runs(self) -> int:
        """Episodes simulated so far."""
        return self._run.runs

    def measure(self, candidates: Sequence[np.ndarray], episodes: int) -> np.ndarray:
        """J of candidates in the first episodes, `[candidates, episodes]`."""
        ids = [_id(x) for x in candidates]
        rows: list[tuple[np.ndarray, bytes, int]] = []
        for key, candidate in dict(zip(ids, candidates, strict=True)).items():
            n_episodes = len(self._results.setdefault(key, []))
            rows += [(candidate, key, e) for e in range(n_episodes, episodes)]
        if rows:
            numbers = np.asarray([e for _, _, e in rows])
            chosen = np.stack([np.asarray(x, np.float32) for x, _, _ in rows])
            metrics = self._run(self.keys[numbers], chosen, self._show)
            objectives = episode_objective(metrics)
            checked = {name: values for name, values in metrics.items() if name in CHECKED}
            for i, (_, x, _) in enumerate(rows):
                parts = {name: float(values[i]) for name, values in objectives.items()}
                found = Outcome(parts, {name: values[i] for name, values in checked.items()})
                self._results[x].append(found)
        return np.array([[x.parts["J"] for x in self._results[key][:episodes]] for key in ids])

    def _show(self) -> None:
        if self.progress is not None:
            self.progress(self.runs, "searched")

    def invalid(self, candidate: np.ndarray) -> list[str]:
        """Why the episodes of a candidate so far do not count; empty if they do."""
        rows = [outcome.checked for outcome in self._results[_id(candidate)]]
        return invalid_reasons({name: np.stack([row[name] for row in rows]) for name in rows[0]})

    def row(self, candidate: np.ndarray) -> dict[str, Any]:
        """Results of a candidate, for JSON."""
        rows = [outcome.parts for outcome in self._results[_id(candidate)]]
        means = {name: np.array([row[name] for row in rows]) for name in rows[0]}
        return {
            "settings": np.asarray(candidate, float).tolist(),
            "episodes": len(rows),
            **{name: float(geometric_means(values)) for name, values in means.items()},
            "invalid": self.invalid(candidate),
        }


def _id(candidate: npt.ArrayLike) -> bytes:
    # Arrays have no hash; equal settings have equal bytes.
    return np.ascontiguousarray(candidate, np.float64).tobytes()


def halving(
    trials: Trials,
    candidates: Iterable[np.ndarray],
    episodes: int,
    finalists: int = SHORTLIST,
    keep: int = 0,
) -> list[np.ndarray]:
    """Candidates that ran in all episodes, best first.

    Args:
        trials: runs them.
        candidates: the candidates; doubles count once.
        episodes: episodes of the last round.
        finalists: candidates in the last round at least, if there are as many.
        keep: how many of the first candidates are in the last round in any case.

    Raises:
        ValueError: no candidates, or J is not defined in one of the episodes.
    """
    remaining = list({_id(x): x for x in candidates}.values())
    if not remaining:
        raise bad_value("candidates", remaining, "at least one setting")
    always = [_id(x) for x in remaining[:keep]]
    n = min(FIRST, episodes)
    while True:
        scores = geometric_means(trials.measure(remaining, n))
        invalid = np.array([bool(trials.invalid(x)) for x in remaining])
        # Stable: of equal candidates the earlier one wins, on every machine.
        remaining = [remaining[i] for i in np.lexsort((scores, invalid))]
        if n == episodes:
            return remaining
        size = max(finalists, -(-len(remaining) // FACTOR))
        remaining = remaining[:size] + [x for x in remaining[size:] if _id(x) in always]
        n = min(episodes, n * FACTOR)


class Search:
    """The searches of one environment; later ones reuse the episodes of earlier ones.

    Attributes:
        results: results so far, by name.
    """

    def __init__(
        self,
        env: PortEnvironment,
        params: PyTree,
        effort: Effort | None = None,
        *,
        batch: int = 96,
        progress: Progress | None = None,
    ) -> None:
        """Set up.

        Args:
            env: functional environment (without auto-reset).
            params: its parameters.
            effort: size of the searches.
            batch: episodes run at once.
            progress: called after every batch.
        """
        self.env, self.params, self.effort = env, params, effort or Effort()
        self.keys = tuning_keys("search", self.effort.seed, self.effort.episodes)
        self._batch, self._progress = batch, progress
        self._trials: dict[bool, Trials] = {}
        self.results: dict[str, SearchResult] = {}
        self.phases, self.groups = len(phase_names(env)), len(group_names(env))

    def find(self, name: str) -> SearchResult:
        """The settings of a policy.

        Args:
            name: one of `oracle.SEARCHED`, or `oracle.CHOICES`.

        Raises:
            ValueError: another name, or J is not defined in one of the episodes.
        """
        searches = {
            BEST: self._static,
            PORTS: self._ports,
            ORACLE: self._oracle,
            ORACLE_PORTS: self._oracle_ports,
            RULE: self._rule,
            CHOICES: self._choices,
        }
        if name not in searches:
            raise unknown_name("policy to search for", name, SEARCHED)
        if name not in self.results:
            self.results[name] = searches[name]()
        return self.results[name]

    def add(self, result: SearchResult) -> None:
        """Add the result of an earlier search, unless there is one of that name."""
        self.results.setdefault(result.name, result)

    def report_to(self, progress: Progress | None) -> None:
        """Report progress to another function from now on."""
        self._progress = progress
        for trials in self._trials.values():
            trials.progress = progress

    def trials(self, name: str) -> Trials:
        """Trials of the candidates of a policy."""
        rule = name == RULE
        if rule not in self._trials:
            build = builder(name, self.env, self.params)
            self._trials[rule] = Trials(
                self.env, self.params, build, self.keys, batch=self._batch, progress=self._progress
            )
        return self._trials[rule]

    def _settings(self, setting: Sequence[float]) -> np.ndarray:
        """The same setting in all phases and groups."""
        return np.broadcast_to(np.asarray(setting, float), (self.phases, self.groups, 3)).copy()

    def _halving(self, name: str, tried: list[np.ndarray], log: list[np.ndarray]) -> np.ndarray:
        """The best candidate by halving; the first one is never dropped."""
        log += tried
        return halving(self.trials(name), tried, self.effort.episodes, keep=1)[0]

    def _result(
        self, name: str, best: np.ndarray, log: list[np.ndarray], runs_before: int
    ) -> SearchResult:
        trials = self.trials(name)
        final = float(geometric_means(trials.measure([best], self.effort.episodes))[0])
        unique = {_id(x): x for x in (best, *log)}
        rows = [trials.row(x) for x in unique.values()]
        rows.sort(key=lambda row: (-row["episodes"], bool(row["invalid"]), row["J"]))
        runs = trials.runs - runs_before
        return SearchResult(name, best, final, self.effort.episodes, runs, tuple(rows))

    def _static(self) -> SearchResult:
        trials, runs_before = self.trials(BEST), self.trials(BEST).runs
        tried = [self._settings(s) for s in self.effort.grid or static_grid()]
        best = halving(trials, tried, self.effort.episodes, finalists=2 * SHORTLIST)[0]
        return self._result(BEST, best, tried, runs_before)

    def _rule(self) -> SearchResult:
        trials, runs_before = self.trials(RULE), self.trials(RULE).runs
        tried = [np.asarray(x, float) for x in self.effort.rules or rule_grid()]
        return self._result(
            RULE, halving(trials, tried, self.effort.episodes)[0], tried, runs_before
        )

    def shortlist(self) -> list[tuple[float, ...]]:
        """Static settings to combine: the best by J, by short and by long flows, the extremes."""
        if not self.find(BEST).table:  # a shipped search has no table of candidates
            self.results[BEST] = replace(self.results[BEST], table=self._static().table)
        table = self.results[BEST].table
        complete = [row for row in table if row["episodes"] == self.effort.episodes]
        named = [row["settings"][0][0] for row in complete[:SHORTLIST]]
        other = ("settings", "episodes", "J", "invalid")
        for metric in (name for name in table[0] if name not in other):
            named += [row["settings"][0][0] for row in sorted(table, key=lambda r: r[metric])[:2]]
        by_depth = sorted((row["settings"][0][0] for row in table), key=lambda s: (s[0], s[1]))
        named += [by_depth[0], by_depth[-1]]
        return list(dict.fromkeys(tuple(s) for s in named))

    def _options(self) -> list[tuple[float, ...]]:
        thin = self.effort.thin or thin_grid()
        return list(dict.fromkeys((*self.shortlist(), *(tuple(s) for s in thin))))

    def _ports(self) -> SearchResult:
        best, log = self.find(BEST).settings, list[np.ndarray]()
        runs_before = self.trials(PORTS).runs
        places = [(slice(None), group) for group in range(self.groups)]
        if self.groups > 1:
            best = self._descend(PORTS, best, places, log)
        return self._result(PORTS, best, log, runs_before)

    def _oracle(self) -> SearchResult:
        best, log = self.find(BEST).settings, list[np.ndarray]()
        runs_before = self.trials(ORACLE).runs
        if self.phases > 1:
            tried, short = [best], self.shortlist()
            if len(short) ** self.phases <= self.effort.combinations:
                for combination in product(short, repeat=self.phases):
                    phased = np.asarray(combination, float)[:, None]
                    tried.append(np.repeat(phased, self.groups, axis=1))
            best = self._halving(ORACLE, tried, log)
            best = self._descend(ORACLE, best, range(self.phases), log)
        return self._result(ORACLE, best, log, runs_before)

    def _oracle_ports(self) -> SearchResult:
        log: list[np.ndarray] = []
        starts = [self.find(ORACLE).settings, self.find(PORTS).settings]
        runs_before = self.trials(ORACLE_PORTS).runs
        best = self._halving(ORACLE_PORTS, starts, log)
        if self.phases > 1 and self.groups > 1:
            best = self._descend(ORACLE_PORTS, best, _places(best), log)
        return self._result(ORACLE_PORTS, best, log, runs_before)

    def _choices(self) -> SearchResult:
        choices = [np.asarray(setting, float) for setting in self.effort.grid or static_grid()]
        trials, runs_before = self.trials(CHOICES), self.trials(CHOICES).runs
        third = -(-len(choices) // 3)
        combinations = product(choices[third // 2 :: third], repeat=self.phases)
        log: list[np.ndarray] = []
        tried = [np.repeat(np.stack(c)[:, None], self.groups, axis=1) for c in combinations]
        best = self._halving(CHOICES, tried, log)
        for places in (range(self.phases), _places(best)):
            previous = b""
            while _id(best) != previous:
                previous = _id(best)
                for place in places:
                    tried = [_with(best, place, choice) for choice in choices]
                    log += tried
                    scores = geometric_means(trials.measure(tried, self.effort.episodes))
                    invalid = np.array([bool(trials.invalid(x)) for x in tried])
                    best = tried[int(np.lexsort((scores, invalid))[0])]
        return self._result(CHOICES, best, log, runs_before)

    def _descend(
        self, name: str, best: np.ndarray, places: Sequence[Place], log: list[np.ndarray]
    ) -> np.ndarray:
        """Coordinate descent: at each place in turn the best option, all others fixed."""
        options = self._options()
        for _ in range(self.effort.sweeps):
            previous = _id(best)
            for place in places:
                tried = [best]
                tried += [_with(best, place, option) for option in options]
                best = self._halving(name, tried, log)
            if _id(best) == previous:
                break
        return best


def costs_in(found: SearchResult, choices: Sequence[Sequence[float]]) -> np.ndarray:
    """What each choice costs in each phase at each group of ports: log J over that of the best.

    Args:
        found: a search of `oracle.CHOICES`.
        choices: the list that was searched.

    Returns:
        `[phases, groups, choices]`; 0 for the best choice of a place, with the best ones in all
        others. One whose episodes do not count costs as much as the worst of its place.
    """
    rows = [row for row in found.table if row["episodes"] == found.episodes]
    known = {_id(x["settings"]): np.nan if x["invalid"] else x["J"] for x in rows}
    best = found.settings
    changed = [[_with(best, place, choice) for choice in choices] for place in _places(best)]
    scores = np.array([[known[_id(x)] for x in at_place] for at_place in changed])
    costs = np.log(scores / found.objective)
    costs = np.where(np.isnan(costs), np.nanmax(costs, 1, keepdims=True), costs)
    return np.asarray(costs.reshape(*best.shape[:2], -1))


def _places(settings: np.ndarray) -> list[tuple[int, int]]:
    """Every phase and group of ports."""
    phases, groups, _ = settings.shape
    return list(product(range(phases), range(groups)))


def _with(settings: np.ndarray, place: Place, setting: Sequence[float] | np.ndarray) -> np.ndarray:
    """Settings with another one in a place."""
    changed = settings.copy()
    changed[place] = setting
    return changed

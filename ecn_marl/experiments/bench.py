"""The comparison behind `ecn-marl bench`: everything trained and scored by one protocol.

* Learners are trained by `experiments/recipes.py` for the same number of steps, several seeds of
  each. The checkpoint with the best J on tuning episodes is scored.
* `static:best`, `static:ports`, `oracle` and `rule` are searched on tuning episodes.
* All policies are scored on the same episodes: tuning episodes that nothing was chosen on or, with
  `sealed`, the sealed test episodes (`experiments/sealed.py`), which need a clean checkout.
* With a split (`envs.splits`), policies trained in the unchanged scenario are scored in
  its variants. The reference policies are searched anew in each variant.

    OUT/SCENARIO/LEARNER/                        the run (see `baselines/runs.py`)
    OUT/SCENARIO/searches/NAME.json              result of a search, with all candidates
    OUT/SCENARIO/scores/NAME.json                the record of a policy (see `records.py`)
    OUT/SCENARIO/sealed/scores/NAME.json         the same on sealed episodes
    OUT/SCENARIO/splits/SPLIT/VARIANT/…          searches and scores of a variant

With `plan.records`, tables of every flow, interval and episode go to a folder for each place.

A stopped bench goes on where it was. `trainings.py` trains, `engine.py` scores.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import jax

from ecn_marl._lock import locked
from ecn_marl.baselines.oracle import BEST, ORACLE
from ecn_marl.envs.splits import SPLITS_VERSION
from ecn_marl.experiments.engine import begin_recording, report_keys, score_all, scored
from ecn_marl.experiments.executors import executor
from ecn_marl.experiments.plan import Comparison, Place, Plan
from ecn_marl.experiments.recipes import budgets
from ecn_marl.experiments.recording import close
from ecn_marl.experiments.records import Record
from ecn_marl.experiments.sources import Checkout, checkout, code, settings_hash
from ecn_marl.experiments.trainings import find_teachers, train_all
from ecn_marl.experiments.workflow import Show


def bench(plan: Plan, show: Callable[[str], Show]) -> dict[str, dict[str, Record]]:
    """Train and score everything that has no record yet.

    Args:
        plan: what to compare.
        show: `show(task)(done, note)` reports progress, `done` a share of the task.

    Returns:
        Records by scenario and policy, for `publish.publish`.

    Raises:
        ValueError: the folder holds results of another plan, or `sealed` outside of a clean git
            checkout.
        FolderInUse: another process works in the folder.
    """
    repository = checkout() if plan.sealed else None
    if repository is not None:
        repository.check_clean()
    policies = tuple(dict.fromkeys((BEST, ORACLE, *plan.policies)))
    with locked(plan.out, "bench"):
        return _bench(plan, policies, repository, show)


def _bench(
    plan: Plan, policies: Sequence[str], repository: Checkout | None, show: Callable[[str], Show]
) -> dict[str, dict[str, Record]]:
    """Run `bench` in a locked folder."""
    records: dict[str, dict[str, Record]] = {}
    # Before all work: a folder that holds other records is an error now, not after a training.
    tables = {p.name: begin_recording(plan, p, policies) for p in plan.places()}
    commit = {} if repository is None else {"commit": repository.commit}
    # A site may have several places.
    sites = {place.site.folder: place.site for place in plan.places()}.values()
    with executor(plan.workers) as pool:
        jobs = [(x, n) for x in sites for n in policies if plan.recipe(x.scenario, n) is not None]
        find_teachers(plan, jobs, show)
        train_all(plan, jobs, show, pool)
        score_all(plan, [(place, policies) for place in plan.places()], show, pool)
        for place in plan.places():
            keys, table = partial(_keys, repository=repository), tables[place.name]
            found = scored(plan, place, policies, show, keys, table, pool, commit)
            records[place.name] = found
            close(table)
    return records


def protocol(plan: Plan) -> dict[str, Any]:
    """How the results were made, for `results.json`."""
    names = {place.scenario for place in plan.places()}
    return {
        "stream": plan.stream,
        "episodes": plan.episodes,
        "eval_seed": None if plan.sealed else plan.eval_seed,
        "seeds": plan.seeds,
        "steps": {name: plan.steps_in(name) for name in sorted(names)},
        "tuning": {name: [asdict(b) for b in budgets(name)] for name in sorted(names)},
        "search_episodes": plan.effort.episodes,
        "split": None if plan.split is None else f"{plan.split} (version {SPLITS_VERSION})",
        "options": dict(plan.options),
        "code": code(),
    }


def _keys(
    plan: Comparison,
    place: Place,
    missing: Sequence[str],
    requests: Mapping[str, object],
    repository: Checkout | None,
) -> jax.Array:
    """Keys of the episodes; those of sealed episodes only after their use is noted on disk."""
    if repository is None:
        return report_keys(plan, place, missing, requests)
    # Here only: a test checks that nothing else can reach the sealed episodes.
    from ecn_marl.experiments.sealed import Use, sealed_keys

    settings = settings_hash([requests[name] for name in missing])
    use = Use(place.name, missing, place.site.steps, plan.seeds, plan.episodes, settings)
    return sealed_keys(use, repository)

"""Interaction: does the best setting of some ports depend on the settings of others?

Two groups of ports play every combination of some settings in the same episodes; all other ports
keep one setting. If the first group's best setting does not depend on the second group's, each can
be tuned alone. If it does, playing the best response to one setting against another has a cost.
This module measures that cost, with an interval.

Best responses are picked on even episodes and their cost is measured on odd ones, so that chance in
the picking does not count as interaction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import jax
import numpy as np
from jaxtyping import Bool, Float, Int

from ecn_marl._checks import Whole, check_seed, check_value
from ecn_marl._errors import bad_value
from ecn_marl.baselines.evaluation.candidates import Candidates
from ecn_marl.baselines.evaluation.completion import invalid_reasons
from ecn_marl.baselines.evaluation.episodes import Controller, evaluation_keys
from ecn_marl.baselines.evaluation.objective import episode_objective
from ecn_marl.baselines.oracle import group_names, port_groups
from ecn_marl.envs.actions import EcnSetting
from ecn_marl.envs.episode import PhaseEcn
from ecn_marl.envs.interface import PortEnvironment
from ecn_marl.sim.network.topology import KB

RESAMPLES = 2000
"""Bootstrap samples of an interval."""


@dataclass(frozen=True)
class BestResponses:
    """J of all combinations of two groups' settings, with best responses and regrets.

    Attributes:
        groups: names of the two groups.
        settings: the settings, S of them.
        J: the objective (lower is better), `[first's setting, second's setting, episodes]`.
        invalid: why the runs do not count, all together; see `completion.invalid_reasons`.
    """

    groups: tuple[str, str]
    settings: tuple[EcnSetting, ...]
    J: Float[np.ndarray, "first second episodes"]
    invalid: tuple[str, ...] = ()

    def best(self, group: int = 0, episodes: slice = slice(None)) -> Int[np.ndarray, " settings"]:
        """Index of a group's best setting against each setting of the other."""
        log = np.nanmean(np.log(self.J[..., episodes]), -1)
        return np.asarray(log.argmin(group))

    def regrets(self, group: int = 0, seed: int = 0) -> list[dict[str, Any]]:
        """Cost for a group of playing its best response to another setting than the other group's.

        Args:
            group: 0 or 1.
            seed: of the bootstrap.

        Returns:
            One entry for every two settings of the other group (indices `here` and `there`) that
            have different best responses (`answer` and `other`, picked on even episodes). `cost` is
            the ratio of J under `other` to J under `answer`, less one, both against `here`: a
            geometric mean over odd episodes. `low` and `high` are its 95 % interval (paired
            bootstrap).
        """
        if group not in (0, 1):
            raise bad_value("group", group, "0 or 1")
        log = np.log(self.J if group == 0 else self.J.swapaxes(0, 1))[..., 1::2]
        check_seed(seed)
        best, rng = self.best(group, slice(0, None, 2)), np.random.default_rng(seed)
        n = log.shape[-1]
        draws = rng.integers(0, n, (RESAMPLES, n))
        rows = []
        for here in range(len(best)):
            for there in range(len(best)):
                answer, other = int(best[here]), int(best[there])
                if answer == other:
                    continue
                log_ratio = log[other, here] - log[answer, here]
                low, high = np.nanquantile(np.nanmean(log_ratio[draws], -1), (0.025, 0.975))
                # expm1, not exp less 1: costs are small, and their digits would cancel.
                cost, low, high = (float(np.expm1(x)) for x in (np.nanmean(log_ratio), low, high))
                row = {"here": here, "there": there, "answer": answer, "other": other}
                rows.append(row | {"cost": cost, "low": low, "high": high})
        return rows

    def _mutual(self, group: int) -> list[dict[str, Any]]:
        """Entries of `regrets` that are costs for certain, in both directions."""
        costly = {(r["here"], r["there"]): r for r in self.regrets(group) if r["low"] > 0.0}
        return [row for (here, there), row in costly.items() if (there, here) in costly]

    def as_dict(self) -> dict[str, Any]:
        """For JSON: best responses of each group to each setting of the other one, and costs.

        Returns:
            `groups`; `best`, `[2, S]` indices of settings; `interacts` and `cost`, one for each
            group: the larger cost of the two settings of the other group that make most of a
            difference, with its interval, None if the group does not interact; `invalid`.
        """
        costs = []
        for group in (0, 1):
            mutual = self._mutual(group)
            worst = max(mutual, key=lambda row: row["cost"], default=None)
            costs.append(worst and {name: worst[name] for name in ("cost", "low", "high")})
        return {
            "groups": list(self.groups),
            "best": [self.best(group).tolist() for group in (0, 1)],
            "interacts": [cost is not None for cost in costs],
            "cost": costs,
            "invalid": list(self.invalid),
        }


def between_groups(
    env: PortEnvironment,
    settings: Sequence[EcnSetting | tuple[float, float, float]],
    episodes: int = 16,
    *,
    base: Float[np.ndarray, "phases groups 3"],
    seed: int = 0,
    batch: int = 32,
    progress: Callable[[int], None] | None = None,
) -> list[dict[str, Any]]:
    """Best responses of every two groups of ports to each other, in every phase of the traffic.

    Args:
        env: functional environment with several groups of ports.
        settings: the settings that are tried, KB at 25 Gb/s.
        episodes: episodes of every combination, at least 4.
        base: settings of all groups elsewhere and at other times.
        seed: which episodes of the evaluation stream.
        batch: episodes run at once.
        progress: called with the number of episodes run.

    Returns:
        `BestResponses.as_dict` of every phase and pair of groups, with the `phase`.

    Raises:
        ValueError: a single group, fewer than two settings, or fewer than 4 episodes.
    """
    check_value("episodes", episodes, Whole(low=4))
    if len(settings) < 2:
        raise bad_value("settings", tuple(settings), "at least two settings")
    names, of_port = group_names(env), np.asarray(port_groups(env))
    if len(names) < 2:
        raise bad_value("interaction", env.name, "a scenario with several groups of ports")
    by_port = np.asarray(base)[:, [names.index(name) for name in of_port]]
    pairs = [(phase, *pair) for phase in env.phase_names for pair in combinations(names, 2)]
    tables = []
    for phase, *pair in pairs:
        now = np.asarray(env.phase_names)[:, None] == phase
        first, second = (now & (of_port == name) for name in pair)
        tables.append(_combined(first, second, settings, by_port))
    # All in one program: another set of tables would be compiled anew.
    stacked = np.concatenate(tables)
    metrics = play(env, stacked, episodes, seed=seed, batch=batch, progress=progress)
    each, rows = len(settings) ** 2, []
    for i, (phase, *pair) in enumerate(pairs):
        part = {name: x[i * each : (i + 1) * each] for name, x in metrics.items()}
        found = _responses(tuple(pair), settings, part)
        rows.append({"phase": phase, **found.as_dict()})
    return rows


def _combined(
    first: Bool[np.ndarray, "phases agents"],
    second: Bool[np.ndarray, "phases agents"],
    settings: Sequence[EcnSetting | tuple[float, float, float]],
    base: Float[np.ndarray, "phases agents 3"],
) -> Float[np.ndarray, "combinations phases agents 3"]:
    """Thresholds of all combinations of two groups' settings, the second group's fastest."""
    tables = []
    for a in settings:
        for b in settings:
            with_first = np.where(first[..., None], np.asarray(a, np.float32), base)
            tables.append(np.where(second[..., None], np.asarray(b, np.float32), with_first))
    return np.stack(tables)


def _responses(
    names: tuple[str, ...],
    settings: Sequence[EcnSetting | tuple[float, float, float]],
    metrics: Mapping[str, np.ndarray],
) -> BestResponses:
    """Best responses from the metrics of all combinations, `[combinations, episodes, ...]`."""
    J = episode_objective(metrics)["J"].reshape(len(settings), len(settings), -1)
    tried = tuple(EcnSetting(*map(float, s)) for s in settings)
    return BestResponses((names[0], names[1]), tried, J, tuple(invalid_reasons(metrics)))


def play(
    env: PortEnvironment,
    tables: Float[np.ndarray, "tables phases agents 3"],
    episodes: int,
    *,
    seed: int = 0,
    batch: int = 32,
    progress: Callable[[int], None] | None = None,
) -> dict[str, np.ndarray]:
    """Metrics of episodes under thresholds given by phase and port.

    Args:
        env: functional environment (without auto-reset).
        tables: thresholds, KB at 25 Gb/s, and Pmax.
        episodes: episodes of every table, the same for all.
        seed: which episodes of the evaluation stream.
        batch: episodes run at once.
        progress: called with the number of episodes run.

    Returns:
        Those of `EcnEnv.episode_metrics`, each `[tables, episodes, ...]`.
    """
    params = env.default_params
    scale = np.asarray(env.port_scale(params.sim))
    bytes_ = np.stack([scale * KB, scale * KB, np.ones_like(scale)], -1)
    scaled = (np.asarray(tables) * bytes_).astype(np.float32)

    def build(table: jax.Array) -> Controller:
        ecn = PhaseEcn(kmin=table[..., 0], kmax=table[..., 1], pmax=table[..., 2])
        return lambda key, obs: ecn

    run = Candidates(env, params, build, batch=batch)
    keys = evaluation_keys(seed, episodes)
    table, episode = np.divmod(np.arange(len(scaled) * episodes), episodes)
    show = None if progress is None else lambda: progress(run.runs)
    metrics = run(keys[episode], scaled[table], show)
    return {k: v.reshape(len(scaled), episodes, *v.shape[1:]) for k, v in metrics.items()}

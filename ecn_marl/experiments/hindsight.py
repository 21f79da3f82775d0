"""Hindsight: what thresholds that change over time could have gained in episodes that are known.

`oracle` has one setting per phase of the traffic, found in other episodes. A policy could do better
by changing its setting within a phase. This search asks whether that would gain more: in each
episode it looks for the best sequence of settings, one per window (1 ms), the same for all ports.
No policy can know the episode, so this is a reference and no rival. It is no bound, either: the
search is coordinate descent, and windows do not end where phases do. In a closed loop the times of
phases move with the thresholds, and a sequence by the clock may then be worse than one setting.

Two things in it would not be adaptation. Episodes differ: so `static`, the best single setting of
each episode, is shown beside it. And a search picks what happened to go well: so it judges a
sequence by J under thresholds 2 % lower and 2 % higher (`NUDGES`), and what counts is J under the
sequence as it is, which the search has not seen. What is a matter of depth stays, luck goes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Float, Int

from ecn_marl._checks import Whole, check_value
from ecn_marl.baselines.evaluation.candidates import Candidates
from ecn_marl.baselines.evaluation.completion import CHECKED, invalid_reasons
from ecn_marl.baselines.evaluation.episodes import evaluation_keys
from ecn_marl.baselines.evaluation.objective import episode_objective, is_needed
from ecn_marl.baselines.evaluation.statistics import crossed_interval
from ecn_marl.envs.actions import EcnSetting
from ecn_marl.envs.interface import PortEnvironment
from ecn_marl.sim.core.queues import Ecn
from ecn_marl.sim.network.topology import KB

WINDOW_US = 1000.0
"""Length of the shortest stretch that gets a setting of its own, µs."""

HALVINGS = 3
"""Sweeps change 8, 4, 2 windows at once, then single ones: a setting that must last for several
windows before it pays would not be found one window at a time."""

TYPICAL_RUNS = 1200
"""Episodes simulated for each that is searched, about: 32 windows and ten settings."""

BATCH = 96
"""Episodes run at once."""

NUDGES = (0.98, 1.02)
"""Factors of the thresholds under which the search judges a sequence."""


@struct.dataclass
class Schedule:
    """A controller that sets one setting after the other, each for some intervals, at all ports.

    Attributes:
        ecn: thresholds of every window and port, bytes, `[W, P]` each.
        intervals: intervals per window.
    """

    ecn: Ecn
    intervals: int = struct.field(pytree_node=False)

    def init(self) -> Int[Array, ""]:
        """No interval is over."""
        return jnp.int32(0)

    def __call__(self, key: jax.Array, obs: jax.Array, memory: Int[Array, ""]) -> Ecn:
        """The thresholds of the current window; the last one stays until the end."""
        window = jnp.minimum(memory // self.intervals, self.ecn.kmin.shape[0] - 1)
        chosen: Ecn = jax.tree.map(lambda x: x[window], self.ecn)
        return chosen

    def observe(self, memory: Int[Array, ""], info: dict[str, jax.Array]) -> Int[Array, ""]:
        """One more interval is over."""
        return memory + 1


@dataclass(frozen=True)
class Hindsight:
    """The best sequences that were found, and J under them.

    Attributes:
        window_us: length of a window, µs.
        settings: the settings that were tried.
        sequences: index of the setting of each window, `[episodes, W]`.
        base: J under the first setting, `[episodes]`.
        static: J under each episode's best single setting.
        best: J under the sequences.
        searched: J as the search saw it under the best single settings and under the sequences, the
            geometric mean over `NUDGES`, `[2, episodes]`; as a minimum, optimistic.
        runs: episodes simulated.
        invalid: why the runs that J is of do not count, see `completion.invalid_reasons`.
    """

    window_us: float
    settings: tuple[EcnSetting, ...]
    sequences: Int[np.ndarray, "episodes W"]
    base: Float[np.ndarray, " episodes"]
    static: Float[np.ndarray, " episodes"]
    best: Float[np.ndarray, " episodes"]
    searched: Float[np.ndarray, "2 episodes"]
    runs: int
    invalid: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """For JSON: gains over the first setting, paired, with 95 % intervals."""
        return {
            "window_us": self.window_us,
            "episodes": len(self.base),
            "runs": self.runs,
            "settings": [list(x) for x in self.settings],
            "changes": float((np.diff(self.sequences) != 0).sum(1).mean()),
            "static": self.gain(self.static),
            "best": self.gain(self.best),
            "searched": [self.gain(J) for J in self.searched],
            "invalid": list(self.invalid),
        }

    def gain(
        self, J: Float[np.ndarray, " episodes"], over: Float[np.ndarray, " episodes"] | None = None
    ) -> dict[str, float]:
        """1 - J / J of the first setting (or of another policy), geometric over episodes.

        Args:
            J: J in the same episodes.
            over: J of the other policy.

        Returns:
            `value`, and its 95 % interval, paired: `low`, `high`.
        """
        base = self.base if over is None else over
        mean, half = crossed_interval(np.log(J)[None] - np.log(base)[None])
        ends = (mean, mean + half, mean - half)
        return dict(zip(("value", "low", "high"), (float(-np.expm1(x)) for x in ends), strict=True))


def hindsight(
    env: PortEnvironment,
    settings: Sequence[EcnSetting],
    *,
    episodes: int,
    seed: int = 0,
    window_us: float = WINDOW_US,
    progress: Callable[[int, str], None] | None = None,
) -> Hindsight:
    """Find the best sequence of settings for each episode, given the episode.

    Coordinate descent over windows, from the episode's best single setting: all settings are tried
    in a stretch of windows, the best one stays. Stretches get shorter from sweep to sweep.

    Args:
        env: functional environment (without auto-reset).
        settings: settings to choose from, KB at 25 Gb/s; gains are over the first.
        episodes: number of episodes, of the tuning stream that `eval` shows.
        seed: which episodes.
        window_us: length of a window, rounded to intervals.
        progress: called with the number of episodes run and what they are for.

    Raises:
        ValueError: `episodes` below 2, a window that is longer than an episode, or an episode in
            which J is not defined.
    """
    check_value("episodes", episodes, Whole(low=2))
    per = max(round(window_us / env.interval_us), 1)
    windows = int(env.default_params.max_steps) // per
    check_value("windows in an episode", windows, Whole(low=1))
    table = np.asarray([tuple(x) for x in settings], np.float32)
    runner = _Runner(env, per, evaluation_keys(seed, episodes), progress)
    J = runner.judge(_singles(table, episodes, windows), "single settings")
    sequences = np.repeat(J.argmin(1)[:, None], windows, axis=1)
    single, lowest = table[sequences], J.min(1)
    searched = [lowest]
    for length in (2**n for n in range(HALVINGS, -1, -1)):
        for start in range(0, windows, length):
            tried = np.repeat(sequences[:, None], len(table), axis=1)
            tried[:, :, start : start + length] = np.arange(len(table))[:, None]
            J = runner.judge(table[tried], f"stretches of {length} windows")
            # A stretch that holds several settings is not among those tried: it may stay the best.
            better = J.min(1) < lowest
            chosen = tried[np.arange(episodes), J.argmin(1)]
            sequences = np.where(better[:, None], chosen, sequences)
            lowest = np.minimum(lowest, J.min(1))
    first = np.broadcast_to(table[0], single.shape)
    metrics = runner.play(np.stack([first, single, table[sequences]], 1), "scores")
    scored = episode_objective(metrics)["J"].reshape(episodes, -1)
    return Hindsight(
        window_us=per * env.interval_us,
        settings=tuple(EcnSetting(*map(float, x)) for x in table),
        sequences=sequences,
        base=scored[:, 0],
        static=scored[:, 1],
        best=scored[:, 2],
        searched=np.stack([*searched, lowest]),
        runs=runner.run.runs,
        invalid=tuple(invalid_reasons(metrics)),
    )


def _singles(table: np.ndarray, episodes: int, windows: int) -> np.ndarray:
    """Every setting for a whole episode, `[episodes, settings, windows, 3]`."""
    shape = (episodes, len(table), windows, 3)
    return np.broadcast_to(table[:, None], shape)


def _is_kept(metric: str) -> bool:
    """Whether J or the check of the runs needs a metric."""
    return is_needed(metric) or metric in CHECKED


class _Runner:
    """Runs sequences of settings, each in the episode that it is for."""

    def __init__(
        self,
        env: PortEnvironment,
        intervals: int,
        keys: jax.Array,
        progress: Callable[[int, str], None] | None,
    ) -> None:
        self.keys, self.progress = keys, progress
        params = env.default_params
        scale = env.port_scale(params.sim)

        def build(sequence: jax.Array) -> Schedule:
            kmin, kmax = (sequence[:, i, None] * KB * scale for i in (0, 1))
            ecn = Ecn(kmin=kmin, kmax=kmax, pmax=sequence[:, 2, None] * jnp.ones_like(scale))
            return Schedule(ecn, intervals)

        self.run = Candidates(env, params, build, batch=BATCH, keep=_is_kept)

    def judge(
        self, candidates: Float[np.ndarray, "episodes candidates W 3"], note: str
    ) -> Float[np.ndarray, "episodes candidates"]:
        """Geometric mean of J over `NUDGES`."""
        shifted = [candidates * np.array([x, x, 1.0], np.float32) for x in NUDGES]
        J = episode_objective(self.play(np.concatenate(shifted, axis=1), note))["J"]
        return np.asarray(np.exp(np.log(J).reshape(len(candidates), len(NUDGES), -1).mean(1)))

    def play(
        self, candidates: Float[np.ndarray, "episodes candidates W 3"], note: str
    ) -> dict[str, np.ndarray]:
        """Metrics of sequences, each in the episode that it is for, `[episodes * candidates]`."""
        episodes, count = candidates.shape[:2]
        of_row = np.repeat(np.arange(episodes), count)
        rows = candidates.reshape(-1, *candidates.shape[2:])
        metrics = self.run(self.keys[of_row], rows)
        J = episode_objective(metrics)["J"].reshape(episodes, count)
        check_value("episodes without J", int(np.isnan(J).any(1).sum()), Whole(low=0, high=0))
        if self.progress is not None:
            self.progress(self.run.runs, note)
        return metrics

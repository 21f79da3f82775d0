"""Feature sets: which columns an agent sees of its port, over how many intervals.

A set is a tuple of names of `FEATURES`. Width, columns, help and what the simulator counts follow
from it. The sets of the papers:

    acc            ACC, section 4.1: queue, tx rate, marked tx rate, current setting
    pet            PET, section 4.2.1, eq. 2: ACC's, incast degree, mice against elephants
    pet-no-incast, pet-no-mice    ablations of PET's section 5.5.7; without both it is `acc`
    haecn          HAECN, section 3.3: queue level, utilisation, current setting

and of this project:

    ports          what every switch counts per port, without a table of flows
    flows          ACC's, and what a table of flows adds: flows begun, flows in progress, senders,
                   the share of bytes of small flows
    flows-memory   `flows` and moving averages of it over .5 to 5 ms; with `history=1` it needs
                   fewer numbers than `flows` with 3 intervals
    flows-switch   `flows-memory`, and its means over the ports of the switch

The history k is 3 in ACC. PET and HAECN do not give theirs: 3.

`NAME~US` is the exponential moving average of a feature, or of each of a set, with a time constant
in µs: `flows,flows_begun~500`. It is memory of a fixed form. An average starts at the value of an
idle port; what is new enters with the share 1 − exp(−Δ / US), Δ the time between observations.

`NAME@switch` is the mean of a feature, or of each of a set, over all ports of the port's switch,
which a switch knows as well as the port's own: `flows,flows_begun@switch,flows_begun@switch~5000`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ecn_marl._checks import Whole, check
from ecn_marl._errors import bad_value
from ecn_marl._registry import Registry
from ecn_marl.envs.agents import SWITCH, Agents
from ecn_marl.envs.columns import (
    FEATURES,
    Feature,
    FeatureRule,
    FeatureScale,
    log_size,
)
from ecn_marl.sim.config import SimConfig, counters
from ecn_marl.sim.core.queues import Ecn
from ecn_marl.sim.core.stats import shapes
from ecn_marl.sim.state import PortStats

__all__ = [
    "COLUMNS",
    "FEATURES",
    "FEATURE_SETS",
    "HISTORY",
    "Feature",
    "FeatureRule",
    "FeatureScale",
    "FeatureSet",
    "check_features",
    "feature_set",
    "fill",
    "flatten",
    "log_size",
    "push",
    "register_features",
]

HISTORY = 3
"""Default number of intervals in an observation."""

AVERAGE = "~"
"""Between the name of a feature and the time constant of its moving average."""

OF_SWITCH = "@switch"
"""Behind the name of a feature whose mean over the ports of the switch is seen."""

MOST_HISTORY = 10_000
"""Largest number of intervals in an observation."""

_SETTING = ("kmin", "kmax", "pmax")
_ACC = ("queue", "tx_rate", "marked_rate", *_SETTING)

_FLOWS = (*_ACC, "flows_begun", "flows_seen", "incast_degree", "small_bytes")

_MEMORY = (
    *_FLOWS,
    *("flows_begun~500", "flows_begun~1500", "flows_begun~5000"),
    *("tx_rate~500", "tx_rate~5000", "marked_rate~500", "marked_rate~5000"),
    *("queue~500", "queue~5000", "small_bytes~1500", "small_bytes~5000"),
)


def _at_switch(column: str) -> str:
    """The name of a column whose mean over the ports of the switch is seen."""
    name, mark, over = column.partition(AVERAGE)
    return f"{name}{OF_SWITCH}{mark}{over}"


FEATURE_SETS: dict[str, tuple[str, ...]] = {
    "acc": _ACC,
    "pet": (*_ACC, "incast_degree", "mice_fraction"),
    "pet-no-incast": (*_ACC, "mice_fraction"),
    "pet-no-mice": (*_ACC, "incast_degree"),
    "haecn": ("queue_level", "tx_rate", *_SETTING),
    "ports": (
        *("queue", "queue_mean", "queue_max", "tx_rate", "marked_packets", "paused"),
        *_SETTING,
    ),
    "flows": _FLOWS,
    "flows-memory": _MEMORY,
    "flows-switch": (*_MEMORY, *map(_at_switch, _MEMORY)),
}
"""Columns of the sets known by name, in their order."""

Columns = str | Iterable[str | tuple[str, Feature]]
"""Names of features and sets, or pairs of a name and a custom feature."""


@dataclass(frozen=True)
class FeatureSet:
    """Columns of an observation; hashable, so it can be a static part of an environment.

    Attributes:
        name: key of `FEATURE_SETS`, or the names of its columns.
        columns: name and feature of each column.
        history: k, the number of intervals in an observation.
    """

    name: str
    columns: tuple[tuple[str, Feature], ...]
    history: Annotated[int, Whole(low=1, high=MOST_HISTORY)] = HISTORY

    def __post_init__(self) -> None:
        """Checks columns and history."""
        if not self.columns:
            raise bad_value("features", self.name, "at least one feature")
        if len(set(self.names)) < len(self.names):
            raise bad_value("features", self.names, "each feature once")
        check(self)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns, length `width`."""
        return tuple(name for name, _ in self.columns)

    @property
    def width(self) -> int:
        """Number of features of one interval."""
        return len(self.columns)

    @property
    def obs_dim(self) -> int:
        """Length of an agent's observation, `history * width`."""
        return self.history * self.width

    @property
    def needs(self) -> tuple[str, ...]:
        """Counters of the simulator that any of the features reads."""
        return counters("needs", [name for _, feature in self.columns for name in feature.needs])

    @property
    def normalised(self) -> bool:
        """Whether all columns lie in [0, 1]: those of `FEATURES` do, a user's own may not."""
        plain = ((_base(n), replace(f, over_us=None, of_switch=False)) for n, f in self.columns)
        return all(FEATURES.get(name) == feature for name, feature in plain)

    def share(self, time_us: float, copies: int = 1) -> np.ndarray | None:
        """Share of the newest value in what agents see of each column; None if it is 1 in all.

        Args:
            time_us: time between observations, µs.
            copies: how often the columns stand side by side.
        """
        if all(feature.over_us is None for _, feature in self.columns):
            return None
        constants = [feature.over_us or 0.0 for _, feature in self.columns]
        shares = [-np.expm1(-time_us / x) if x else 1.0 for x in constants]
        return np.tile(np.asarray(shares, np.float32), copies)

    def compute(
        self, stats: PortStats, ecn: Ecn, scale: FeatureScale, switches: Agents | None = None
    ) -> Float[Array, "ports width"]:
        """The features of one interval, those of averages not averaged.

        Args:
            stats: statistics of the interval.
            ecn: thresholds in force.
            scale: units of the features.
            switches: the ports of every switch, `agents_of("switch", topology)`; None for one.
        """
        values = jnp.stack([f.compute(stats, ecn, scale) for _, f in self.columns], axis=-1)
        shared = np.array([f.of_switch for _, f in self.columns])
        if not shared.any():
            return values
        switches = switches or Agents(SWITCH, (0,) * values.shape[0])
        return jnp.where(shared, switches.spread(switches.mean(values)), values)


def feature_set(features: FeatureSet | Columns, history: int | None = None) -> FeatureSet:
    """Looks features up by name.

    Args:
        features: names of `COLUMNS`, sets or features, with commas between them, such as `"acc"` or
            `"acc,flows_begun"`, with `~US` behind them for moving averages; a tuple of such names,
            or of pairs `(name, Feature)` for custom features; or a `FeatureSet`.
        history: number of intervals in an observation; else that of the set, 3.

    Raises:
        ValueError: a name is unknown (the message has the nearest ones), a feature is there twice
            or none is, the history is below 1, or a time constant is no number above 0.
    """
    if isinstance(features, FeatureSet):
        return features if history is None else replace(features, history=history)
    if not isinstance(features, str | tuple | list):
        raise bad_value("features", features, "names with commas between, a tuple, or a FeatureSet")
    columns: list[tuple[str, Feature]] = []
    words: list[str] = []
    for item in features.split(",") if isinstance(features, str) else features:
        if isinstance(item, str):
            name = item.strip()
            words.append(name)
            columns += _named(name)
        else:
            columns.append(_custom_feature(item))
            words.append(item[0])
    return FeatureSet(",".join(words), tuple(columns), HISTORY if history is None else history)


def _named(text: str) -> tuple[tuple[str, Feature], ...]:
    """The columns of a name; those of the switch with `@switch`, their averages with `~US`."""
    words, mark, over = text.partition(AVERAGE)
    name, at, where = words.partition(OF_SWITCH)
    if where or (not at and "@" in words):
        raise bad_value("features", text, f"NAME{OF_SWITCH}, or NAME{OF_SWITCH}{AVERAGE}US")
    columns = COLUMNS[name]
    if at:
        if any(feature.of_switch for _, feature in columns):
            raise bad_value("features", text, "a feature or set without those of switches")
        columns = tuple((_at_switch(n), replace(f, of_switch=True)) for n, f in columns)
    if not mark:
        return columns
    if any(feature.over_us is not None for _, feature in columns):
        raise bad_value("features", text, "a feature or set without averages of its own")
    return tuple((f"{n}{AVERAGE}{over}", _over(f, text)) for n, f in columns)


def _base(column: str) -> str:
    """The name of a column's feature, without `@switch` and `~US`."""
    return column.partition(AVERAGE)[0].removesuffix(OF_SWITCH)


def _known(column: str) -> Feature:
    """The feature of a built-in column, of the switch or averaged if its name says so."""
    feature = replace(FEATURES[_base(column)], of_switch=OF_SWITCH in column)
    return _over(feature, column) if AVERAGE in column else feature


def _over(feature: Feature, text: str) -> Feature:
    """The moving average of a feature, over the time constant at the end of a text."""
    name, _, over = text.partition(AVERAGE)
    try:
        over_us = float(over)
    except ValueError:
        over_us = math.nan
    if not 0.0 < over_us < math.inf:
        raise bad_value("features", text, f"{name}{AVERAGE}US, the time constant a number > 0")
    return replace(feature, over_us=over_us)


def _custom_feature(item: object) -> tuple[str, Feature]:
    """Check a pair of a name and a custom feature."""
    if isinstance(item, tuple) and len(item) == 2:
        name, feature = item
        if isinstance(name, str) and isinstance(feature, Feature):
            return name, feature
    raise bad_value("features", item, "a name, or a pair of a name and a `Feature`")


def _as_columns(name: str, features: Any) -> tuple[tuple[str, Feature], ...]:
    """The columns of a registered object: one column of this name, or those of a set."""
    if isinstance(features, FeatureSet):
        allowed = "its columns, `features.columns`: `history` is an option of `make`"
        raise bad_value(f"features of {name}", features, allowed)
    if callable(features):
        features = Feature(features)
    if isinstance(features, Feature):
        return ((name, features),)
    return feature_set(features).columns


COLUMNS = Registry(
    "feature set or feature",
    {
        name: tuple((column, _known(column)) for column in columns)
        for name, columns in FEATURE_SETS.items()
    }
    | {name: ((name, feature),) for name, feature in FEATURES.items()},
    _as_columns,
)
"""Columns by name: those of a set, or the one of a feature."""


def register_features(
    name: str, features: Feature | FeatureRule | Columns, replace: bool = False
) -> None:
    """Register a feature, or a set of features, to be named wherever features are.

    Args:
        name: e.g. `queue_growth`; no other feature or set has it.
        features: a `Feature` or its function `(stats, ecn, scale) -> float32 [ports]`; for a set
            what `feature_set` takes: names, or a tuple of names and of pairs `(name, Feature)`.
        replace: whether to replace another object registered under this name.

    Raises:
        ValueError: the name is no name or taken, or a feature of the set is unknown. What a
            function returns is checked by `make`.
    """
    COLUMNS.register(name, features, replace)


def check_features(features: FeatureSet, cfg: SimConfig) -> None:
    """Check that every feature gives one float32 per port from the counters that it needs.

    Nothing is computed: features are traced with shapes only.

    Args:
        features: the set.
        cfg: the simulator whose ports are seen.

    Raises:
        ValueError: a feature of another shape or type, or one that cannot be computed.
    """
    for name, feature in features.columns:
        # With its own counters alone, so that a feature that reads another one fails here: it is
        # None.
        _check_feature(name, feature, shapes(cfg, feature.needs))


@lru_cache(maxsize=1024)
def _check_feature(name: str, feature: Feature, stats: PortStats) -> None:
    """The check of one feature. `stats` are shapes: once for each number of ports."""
    ports = stats.queue
    scalar = jax.ShapeDtypeStruct((), jnp.float32)
    names = FeatureScale.__dataclass_fields__
    scale = FeatureScale(**(dict.fromkeys(names, scalar) | {"port_scale": ports}))
    allowed = f"one float32 per port, [{ports.shape[0]}]"
    try:
        traced = jax.eval_shape(feature.compute, stats, Ecn(ports, ports, ports), scale)
    except Exception as error:  # whatever a function of the user's own may raise
        counted = ", ".join(feature.needs) or "nothing beyond the statistics of every port"
        cause = f"{type(error).__name__}: {error}"
        raise bad_value(
            f"feature {name!r}", cause, f"{allowed}, from what it needs ({counted})"
        ) from error
    shape, kind = getattr(traced, "shape", None), getattr(traced, "dtype", None)
    if shape != ports.shape or kind != jnp.float32:
        received = f"{kind} {list(shape)}" if shape is not None else type(traced).__name__
        raise bad_value(f"result of feature {name!r}", received, allowed)


def fill(features: Float[Array, "ports w"], history: int) -> Float[Array, "ports {history} w"]:
    """The history at the start of an episode: the first interval, repeated."""
    return jnp.repeat(features[:, None, :], history, axis=1)


def push(
    history: Float[Array, "ports k w"],
    newest: Float[Array, "ports w"],
    share: np.ndarray | None = None,
) -> Float[Array, "ports k w"]:
    """Drop the oldest interval and append the newest.

    Args:
        history: the last intervals.
        newest: features of the newest.
        share: what `FeatureSet.share` returns: the newest interval's share in averages.
    """
    if share is not None:
        last = history[:, -1]
        newest = jnp.where(share < 1.0, last + share * (newest - last), newest)
    return jnp.concatenate((history[:, 1:], newest[:, None, :]), axis=1)


def flatten(history: Float[Array, "ports k w"]) -> Float[Array, "ports kw"]:
    """Observations from histories: k blocks of w features per port, oldest block first."""
    return history.reshape(history.shape[0], -1)

"""Actions: how an agent's choice becomes the ECN setting (Kmin, Kmax, Pmax) of its port.

Four codecs, one interface (`ActionCodec`):

    multidiscrete   [3] indices   Kmin = E(n), Kmax = E(n + 1 + gap), Pmax from a list
    discrete        []  index     one entry of a list of whole settings
    box             [3] reals     log-scaled Kmin, Kmax / Kmin and Pmax
    thresholds      [3] reals     Kmin and Kmax of the port itself in bytes, and Pmax, as they are

with E(n) = alpha 2^n KB (PET, section 4.2.2, eq. 5, after ACC). Thresholds are given in KB
(1000 B) for a 25 Gb/s port and grow with the port's rate, as SECN2 does (ACC, section 5.1).
Kmin < Kmax holds for every action, but for entries of a list that are steps, Kmin = Kmax.

Where the papers are silent or contradict each other, this module does the following:

* ACC and PET set alpha to 20. Their smallest Kmin is then four times that of the DCQCN setting
  SECN1. The default is 5 KB; pass `alpha_kb=20` for theirs.
* PET does not state how Kmin stays below Kmax. Here Kmax is chosen by its distance from Kmin, cut
  at the largest E(n): every index is valid and needs no mask (81 pairs of indices for 45 settings).
* ACC's Pmax list is {1 %, 5 %, ..., 100 %}, PET's has steps of 5 %. The default is 0.01 and the
  twenty steps of 5 %: all of PET's list, and the 1 % of SECN1, five times below PET's smallest.
* ACC's Kmax are "1 MB, 2 MB, ..." and its template of settings is not published. The list of
  `discrete` is ours: the named static settings, then a grid.

`decode` is traced and clips indices and reals into range. A NaN of `box` counts as 0, the middle of
its range, so that no action makes an observation NaN. `check` is for values from outside and raises
instead.
"""

from __future__ import annotations

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from ecn_marl._checks import Each, Kind, Real, Whole, check, check_value
from ecn_marl._errors import bad_value, unknown_name
from ecn_marl.envs.settings import LARGEST_KB as LARGEST_KB
from ecn_marl.envs.settings import PUBLISHED as PUBLISHED
from ecn_marl.envs.settings import STATIC_ECN as STATIC_ECN
from ecn_marl.envs.settings import EcnSetting as EcnSetting
from ecn_marl.envs.settings import checked_setting as checked_setting
from ecn_marl.envs.settings import parse_ecn as parse_ecn
from ecn_marl.sim.core.queues import Ecn
from ecn_marl.sim.network.topology import KB

if TYPE_CHECKING:
    import gymnasium


class ActionCodec(ABC):
    """Interface of action codecs. Codecs are frozen dataclasses: hashable, static under jit."""

    name: ClassVar[str]
    components: ClassVar[tuple[str, ...]]
    """Names of the entries of one agent's action; empty for a scalar."""
    dtype: ClassVar[type[np.generic]]
    """numpy dtype of actions: int32 or float32."""

    @classmethod
    def options(cls) -> tuple[str, ...]:
        """Names of the settings."""
        return tuple(inspect.signature(cls).parameters)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one agent's action: actions are arrays [agents, *shape]."""
        return (len(self.components),) if self.components else ()

    @abstractmethod
    def decode(self, action: Array, port_scale: Float[Array, " agents"]) -> Ecn:
        """ECN settings of all ports, bytes, [agents]; values out of range are clipped."""

    @abstractmethod
    def sample(self, key: PRNGKeyArray, num_agents: int) -> Array:
        """Uniformly random actions of all agents, [agents, *shape]."""

    @abstractmethod
    def encode(self, kmin_kb: float, kmax_kb: float, pmax: float) -> np.ndarray:
        """One agent's action whose setting is nearest (log distance) to a 25 Gb/s setting."""

    @abstractmethod
    def gymnasium_space(self) -> gymnasium.Space[Any]:
        """A new gymnasium space of one agent's actions."""

    @abstractmethod
    def _limits(self) -> tuple[np.ndarray, np.ndarray]:
        """Smallest and largest allowed entries, each of one agent's shape."""

    def check(
        self, action: object, num_agents: int, names: Sequence[str] | None = None
    ) -> np.ndarray:
        """Checks the actions of all agents that come from outside.

        Args:
            action: array-like [agents, *shape], of any integer dtype for discrete codecs, of any
                floating dtype for `box`.
            num_agents: number of agents.
            names: their names; None for those of all agents of a network.

        Returns:
            The actions as a numpy array of the codec's dtype.

        Raises:
            ValueError: naming the entry, its value and what is allowed, if the shape, the dtype or
                a value is wrong.
        """
        try:
            array = np.asarray(action)
        except ValueError:
            array = np.empty((), dtype=object)
        expected = (num_agents, *self.shape)
        kinds, allowed = ("iu", "an integer") if self.dtype is np.int32 else ("f", "a float")
        if array.dtype.kind not in kinds:
            received = "ragged or not numeric" if array.dtype.kind == "O" else str(array.dtype)
            of = f" of {names[0]}" if names and num_agents == 1 else ""
            raise bad_value(
                f"action dtype{of}", received, f"{allowed} dtype for {self.name} actions"
            )
        if array.shape != expected:
            raise bad_value("action shape", array.shape, f"{expected} for {self.name} actions")
        low, high = self._limits()
        # Negated, so that NaN is outside, too.
        outside = ~((array >= low) & (array <= high))
        if outside.any():
            entry = tuple(int(i) for i in np.argwhere(outside)[0])
            component = f", {self.components[entry[1]]}" if self.components else ""
            limits = f"[{low[entry[1:]].item()}, {high[entry[1:]].item()}]"
            agent = names[entry[0]] if names else f"port_{entry[0]}"
            raise bad_value(f"action of {agent}{component}", array[entry].item(), limits)
        checked: np.ndarray = array.astype(self.dtype)
        return checked

    def describe(self, action: object) -> EcnSetting:
        """The setting that one agent's action means on a 25 Gb/s port, to six digits.

        Returns:
            Kmin and Kmax in KB, Pmax.

        Raises:
            ValueError: if the action is not one of the codec's.
        """
        batch = self.check([action], 1)
        ecn = self.decode(jnp.asarray(batch), jnp.ones(1, jnp.float32))
        values = (float(ecn.kmin[0]) / KB, float(ecn.kmax[0]) / KB, float(ecn.pmax[0]))
        return EcnSetting(*(float(f"{value:.6g}") for value in values))


def _log_distance(settings: np.ndarray, setting: tuple[float, ...]) -> np.ndarray:
    """Squared distance of the logarithms of rows of values to one row of values."""
    gap = np.log(settings) - np.log(np.asarray(setting))
    return np.asarray(np.sum(gap**2, axis=-1))


PMAX_LEVELS = (0.01, *(round(0.05 * i, 2) for i in range(1, 21)))
"""ACC's marking probabilities: 1 %, then steps of 5 % up to 100 %."""


@dataclass(frozen=True)
class MultiDiscreteAction(ActionCodec):
    """Three indices per agent, int32 [3]: n, gap and an entry of the Pmax list.

    Kmin = E(n) and Kmax = E(min(n + 1 + gap, levels - 1)), E(n) = alpha_kb 2^n KB.

    Attributes:
        alpha_kb: E(0), KB. 5 as in SECN1; 20 is PET's and ACC's; 6.25 has SECN2 exactly.
        levels: number of thresholds E(0) .. E(levels - 1), 2 to 24; PET recommends n in [0, 9].
        pmax: allowed marking probabilities, increasing.
    """

    name: ClassVar[str] = "multidiscrete"
    components: ClassVar[tuple[str, ...]] = ("kmin", "gap", "pmax")
    dtype: ClassVar[type[np.generic]] = np.int32

    alpha_kb: Annotated[float, Real(above=0.0, high=LARGEST_KB, unit="KB")] = 5.0
    levels: Annotated[int, Whole(low=2, high=24)] = 10
    pmax: Annotated[tuple[float, ...], Each(Real(above=0.0, high=1.0), least=1)] = PMAX_LEVELS

    def __post_init__(self) -> None:
        """Checks the options."""
        check(self)
        pmax = tuple(float(p) for p in self.pmax)
        rising = all(a < b for a, b in pairwise((0.0, *pmax)))
        if not pmax or not rising or not pmax[-1] <= 1.0:
            raise bad_value("pmax", self.pmax, "increasing probabilities in (0, 1]")
        object.__setattr__(self, "pmax", pmax)

    @property
    def nvec(self) -> tuple[int, int, int]:
        """Number of choices of n, gap and Pmax."""
        return (self.levels - 1, self.levels - 1, len(self.pmax))

    def _thresholds(self) -> np.ndarray:
        """E(0) .. E(levels - 1), KB."""
        return self.alpha_kb * 2.0 ** np.arange(self.levels)

    def decode(self, action: Int[Array, "agents 3"], port_scale: Float[Array, " agents"]) -> Ecn:
        """ECN settings of all ports, bytes; indices out of range are clipped."""
        index = jnp.clip(action, 0, np.asarray(self.nvec, np.int32) - 1)
        low = index[:, 0]
        high = jnp.minimum(low + 1 + index[:, 1], self.levels - 1)
        table = jnp.asarray(self._thresholds() * KB, jnp.float32)
        pmax = jnp.asarray(self.pmax, jnp.float32)[index[:, 2]]
        return Ecn(kmin=table[low] * port_scale, kmax=table[high] * port_scale, pmax=pmax)

    def sample(self, key: PRNGKeyArray, num_agents: int) -> Int[Array, "agents 3"]:
        """Uniformly random indices."""
        nvec = np.asarray(self.nvec, np.int32)
        return jax.random.randint(key, (num_agents, 3), 0, nvec, jnp.int32)

    def encode(self, kmin_kb: float, kmax_kb: float, pmax: float) -> np.ndarray:
        """Indices of the nearest setting, int32 [3]; of several, those with the smallest gap."""
        kmin_kb, kmax_kb, pmax = checked_setting((kmin_kb, kmax_kb, pmax), "setting")
        table = self._thresholds()
        pairs = [(n, m) for n in range(self.levels - 1) for m in range(n + 1, self.levels)]
        far = _log_distance(table[np.asarray(pairs)], (kmin_kb, kmax_kb))
        n, m = pairs[int(np.argmin(far))]
        level = int(np.argmin(_log_distance(np.asarray(self.pmax)[:, None], (pmax,))))
        return np.asarray((n, m - n - 1, level), np.int32)

    def gymnasium_space(self) -> gymnasium.spaces.MultiDiscrete:
        """A new `MultiDiscrete` of one agent's actions."""
        from gymnasium import spaces

        return spaces.MultiDiscrete(np.asarray(self.nvec))

    def _limits(self) -> tuple[np.ndarray, np.ndarray]:
        return np.zeros(3, np.int64), np.asarray(self.nvec) - 1


def _default_template() -> tuple[EcnSetting, ...]:
    """The published settings, then Kmin of 5 .. 320 KB, Kmax = 4 Kmin, each with three Pmax."""
    published = (STATIC_ECN[name] for name in PUBLISHED)
    grid = product((5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0), (0.05, 0.2, 1.0))
    return (*published, *(EcnSetting(k, 4.0 * k, p) for k, p in grid))


@dataclass(frozen=True)
class DiscreteAction(ActionCodec):
    """One index per agent, int32 scalar: an entry of a list of settings.

    Attributes:
        template: settings (Kmin KB, Kmax KB, Pmax) of a 25 Gb/s port. The default has 24:
            `secn1` (0), `secn2` (1), `dctcp` (2), then Kmin 5, 10, .. 320 KB with Kmax = 4 Kmin
            (the ratio of SECN2) and Pmax 0.05, 0.2, 1.
    """

    name: ClassVar[str] = "discrete"
    components: ClassVar[tuple[str, ...]] = ()
    dtype: ClassVar[type[np.generic]] = np.int32

    template: tuple[tuple[float, float, float], ...] = _default_template()

    def __post_init__(self) -> None:
        """Checks the settings."""
        if not self.template:
            raise bad_value("template", self.template, "at least one setting")
        row_rule = Kind((tuple, list, np.ndarray), "a setting (Kmin KB, Kmax KB, Pmax)")
        check_value("template", self.template, Each(row_rule))
        rows = enumerate(self.template)
        checked = tuple(checked_setting(tuple(row), f"template[{i}]") for i, row in rows)
        object.__setattr__(self, "template", checked)

    @property
    def n(self) -> int:
        """Number of settings."""
        return len(self.template)

    def decode(self, action: Int[Array, " agents"], port_scale: Float[Array, " agents"]) -> Ecn:
        """ECN settings of all ports, bytes; indices out of range are clipped."""
        table = np.asarray(self.template) * np.asarray((KB, KB, 1.0))
        row = jnp.asarray(table, jnp.float32)[jnp.clip(action, 0, self.n - 1)]
        return Ecn(kmin=row[:, 0] * port_scale, kmax=row[:, 1] * port_scale, pmax=row[:, 2])

    def sample(self, key: PRNGKeyArray, num_agents: int) -> Int[Array, " agents"]:
        """Uniformly random indices."""
        return jax.random.randint(key, (num_agents,), 0, self.n, jnp.int32)

    def encode(self, kmin_kb: float, kmax_kb: float, pmax: float) -> np.ndarray:
        """Index of the nearest setting, int32 scalar."""
        setting = checked_setting((kmin_kb, kmax_kb, pmax), "setting")
        return np.asarray(np.argmin(_log_distance(np.asarray(self.template), setting)), np.int32)

    def gymnasium_space(self) -> gymnasium.spaces.Discrete:
        """A new `Discrete` of one agent's actions."""
        from gymnasium import spaces

        return spaces.Discrete(self.n)

    def _limits(self) -> tuple[np.ndarray, np.ndarray]:
        return np.asarray(0), np.asarray(self.n - 1)


@dataclass(frozen=True)
class BoxAction(ActionCodec):
    """Three reals in [-1, 1] per agent, float32 [3]; -1 is the smallest value, 1 the largest.

    Kmin runs on a log scale from `kmin_kb[0]` to `kmin_kb[1]`. Kmax / Kmin runs on a log scale from
    `min_ratio` to the ratio at which Kmax is `kmax_kb`, so that no part of the box is flat. Pmax
    runs on a log scale over `pmax`. The default box spans the thresholds of `multidiscrete`.

    Attributes:
        kmin_kb: range of Kmin, KB.
        kmax_kb: largest Kmax, KB; at least `min_ratio` times the largest Kmin.
        min_ratio: smallest Kmax / Kmin, at least 1.01.
        pmax: range of Pmax.
    """

    name: ClassVar[str] = "box"
    components: ClassVar[tuple[str, ...]] = ("kmin", "ratio", "pmax")
    dtype: ClassVar[type[np.generic]] = np.float32

    kmin_kb: tuple[float, float] = (5.0, 1280.0)
    kmax_kb: float = 2560.0
    min_ratio: float = 1.25
    pmax: tuple[float, float] = (0.01, 1.0)

    def __post_init__(self) -> None:
        """Checks the ranges."""
        for name, high in {"kmin_kb": LARGEST_KB, "pmax": 1.0}.items():
            check_value(name, getattr(self, name), Each(Real(above=0.0, high=high), 2))
        for name in ("min_ratio", "kmax_kb"):
            check_value(name, getattr(self, name), Real(above=0.0, high=LARGEST_KB))
        kmin = tuple(float(k) for k in self.kmin_kb)
        if len(kmin) != 2 or not 0.0 < kmin[0] < kmin[1] < math.inf:
            raise bad_value("kmin_kb", self.kmin_kb, "two rising numbers of KB above 0")
        if not 1.01 <= self.min_ratio < math.inf:
            raise bad_value("min_ratio", self.min_ratio, "a number of at least 1.01")
        if not kmin[1] * self.min_ratio <= self.kmax_kb < math.inf:
            least = kmin[1] * self.min_ratio
            raise bad_value("kmax_kb", self.kmax_kb, f"at least min_ratio * kmin_kb[1] = {least:g}")
        pmax = tuple(float(p) for p in self.pmax)
        if len(pmax) != 2 or not 0.0 < pmax[0] < pmax[1] <= 1.0:
            raise bad_value("pmax", self.pmax, "two rising probabilities in (0, 1]")
        object.__setattr__(self, "kmin_kb", kmin)
        object.__setattr__(self, "pmax", pmax)

    def decode(self, action: Float[Array, "agents 3"], port_scale: Float[Array, " agents"]) -> Ecn:
        """ECN settings of all ports, bytes; values out of range are clipped, NaN counts as 0."""
        valid = jnp.where(jnp.isnan(action), 0.0, action)
        position = (jnp.clip(valid, -1.0, 1.0) + 1.0) / 2.0
        (low, high), (rare, sure) = self.kmin_kb, self.pmax
        kmin = low * jnp.exp(position[:, 0] * math.log(high / low))
        widest = jnp.log(self.kmax_kb / (kmin * self.min_ratio))
        # At the largest Kmin, rounding can leave nothing between the narrowest and the widest
        # ratio.
        ratio = self.min_ratio * jnp.exp(position[:, 1] * jnp.maximum(widest, 0.0))
        pmax = rare * jnp.exp(position[:, 2] * math.log(sure / rare))
        return Ecn(
            kmin=kmin * KB * port_scale,
            kmax=kmin * ratio * KB * port_scale,
            # exp of a log rounds, and a Pmax above 1 is no probability.
            pmax=jnp.clip(pmax, rare, sure),
        )

    def sample(self, key: PRNGKeyArray, num_agents: int) -> Float[Array, "agents 3"]:
        """Uniformly random points of the box."""
        return jax.random.uniform(key, (num_agents, 3), jnp.float32, -1.0, 1.0)

    def encode(self, kmin_kb: float, kmax_kb: float, pmax: float) -> np.ndarray:
        """The action of a setting, float32 [3]; settings outside the box are moved to its edge."""
        kmin_kb, kmax_kb, pmax = checked_setting((kmin_kb, kmax_kb, pmax), "setting")
        (low, high), (rare, sure) = self.kmin_kb, self.pmax
        kmin = min(max(kmin_kb, low), high)
        narrow = kmin * self.min_ratio
        kmax = min(max(kmax_kb, narrow), self.kmax_kb)
        widest = math.log(self.kmax_kb / narrow)
        fractions = (
            math.log(kmin / low) / math.log(high / low),
            math.log(kmax / narrow) / widest if widest > 0.0 else 0.0,
            math.log(min(max(pmax, rare), sure) / rare) / math.log(sure / rare),
        )
        return np.clip(2.0 * np.asarray(fractions) - 1.0, -1.0, 1.0).astype(np.float32)

    def gymnasium_space(self) -> gymnasium.spaces.Box:
        """A new `Box` of one agent's actions."""
        from gymnasium import spaces

        return spaces.Box(-1.0, 1.0, (3,), np.float32)

    def _limits(self) -> tuple[np.ndarray, np.ndarray]:
        return np.full(3, -1.0), np.full(3, 1.0)


@dataclass(frozen=True)
class ThresholdsAction(ActionCodec):
    """The thresholds themselves, float32 [3]: Kmin and Kmax of the port in bytes, and Pmax.

    For rules, which know what they want to set: nothing is scaled or rounded, so a rule that acts
    through an environment sets the bits that it sets in an evaluation. It is no action space to
    learn in.
    """

    name: ClassVar[str] = "thresholds"
    components: ClassVar[tuple[str, ...]] = ("kmin", "kmax", "pmax")
    dtype: ClassVar[type[np.generic]] = np.float32

    def decode(self, action: Float[Array, "agents 3"], port_scale: Float[Array, " agents"]) -> Ecn:
        """ECN settings of all ports, bytes; values out of range are clipped, NaN counts as 0."""
        low, high = (jnp.asarray(limit, jnp.float32) for limit in self._limits())
        kmin, kmax, pmax = jnp.clip(jnp.where(jnp.isnan(action), 0.0, action), low, high).T
        return Ecn(kmin=kmin, kmax=jnp.maximum(kmin, kmax), pmax=pmax)

    def sample(self, key: PRNGKeyArray, num_agents: int) -> Float[Array, "agents 3"]:
        """Random settings of the default `box`, for ports of 25 Gb/s."""
        box = BoxAction()
        return self.actions(box.decode(box.sample(key, num_agents), jnp.ones(num_agents)))

    @staticmethod
    def actions(ecn: Ecn) -> Float[Array, "agents 3"]:
        """The actions that set these thresholds, bytes, `[agents]` each."""
        return jnp.stack([ecn.kmin, ecn.kmax, ecn.pmax], -1).astype(jnp.float32)

    def encode(self, kmin_kb: float, kmax_kb: float, pmax: float) -> np.ndarray:
        """The action of a setting of a 25 Gb/s port, float32 [3]."""
        kmin_kb, kmax_kb, pmax = checked_setting((kmin_kb, kmax_kb, pmax), "setting")
        return np.asarray((kmin_kb * KB, kmax_kb * KB, pmax), np.float32)

    def gymnasium_space(self) -> gymnasium.spaces.Box:
        """A new `Box` of one agent's actions."""
        from gymnasium import spaces

        low, high = (limit.astype(np.float32) for limit in self._limits())
        return spaces.Box(low, high, (3,), np.float32)

    def _limits(self) -> tuple[np.ndarray, np.ndarray]:
        return np.zeros(3), np.asarray((LARGEST_KB * KB, LARGEST_KB * KB, 1.0))


ACTIONS: dict[str, type[ActionCodec]] = {
    codec.name: codec
    for codec in (MultiDiscreteAction, DiscreteAction, BoxAction, ThresholdsAction)
}
"""The action codecs known by name."""


def action_codec(name: str | ActionCodec, **overrides: object) -> ActionCodec:
    """Build an action codec by name; return a codec as it is.

    Args:
        name: a key of `ACTIONS`, or a codec (then without overrides).
        overrides: fields of the codec, e.g. `alpha_kb=20`.

    Raises:
        ValueError: if the name or an override is unknown (with the nearest names), or an override
            is not allowed.
    """
    if isinstance(name, ActionCodec):
        if overrides:
            raise bad_value("actions", name, f"a name, to go with {', '.join(overrides)}")
        return name
    if not isinstance(name, str):
        raise bad_value("actions", name, f"{', '.join(ACTIONS)}, or an ActionCodec")
    if name not in ACTIONS:
        raise unknown_name("actions", name, tuple(ACTIONS))
    kind = ACTIONS[name]
    option_names = kind.options()
    for option in overrides:
        if option not in option_names:
            raise unknown_name(f"option of {name} actions", option, option_names)
    return kind(**{option: _frozen(value) for option, value in overrides.items()})


def _frozen(value: object) -> Any:
    """Lists as tuples: options that were kept as JSON, which has no tuples."""
    return tuple(map(_frozen, value)) if isinstance(value, list | tuple) else value

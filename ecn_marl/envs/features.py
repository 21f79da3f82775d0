"""Observation features: what an agent sees of its port in one tuning interval.

The papers feed raw counters through an unpublished normalisation. Here every feature is float32 in
[0, 1], finite for finite input, and says what it means:

    feature        from                           normalisation
    queue          queue at the end, bytes        log(1 + q/u) / log(1 + top/u), u = 1 KB and
                                                  top = 10.24 MB for a 25 Gb/s port
    queue_level    time mean of the queue, bytes  steps of E(n) = 5 KB 2^n: n / 10, or 1 - D(L)
    tx_rate        bytes sent                     share of the link rate
    marked_rate    ECN-marked bytes sent          share of the link rate
    kmin, kmax     thresholds in force, bytes     as `queue`, so that they compare with it
    pmax           marking probability in force   1 + log10(pmax) / 3: 0.001 -> 0, 1 -> 1
    incast_degree  sources of the port's flows    log(1 + n) / log(1 + 64)
    mice_fraction  flows <= 1 MB, flows > 1 MB    mice / (mice + elephants); 1/2 without flows

On the log scale an octave of queue is an equal step anywhere, as on the scale E(n) of the
thresholds. Sizes of queues and thresholds are divided by `port_scale`, so that ports of different
rates show the same numbers for the same delay.

Where the papers are silent, and what is chosen:

* ACC and PET write the current setting as one symbol, ECN^(c). An agent needs all of it: three
  features. HAECN spells the triple out.
* "Current queue length": the queue at the end of the interval (ACC, PET). HAECN averages over the
  interval and maps to steps without giving them: the steps of the reward's D(L), as `queue_level`.
* PET's incast degree counts senders per receiver; a port may serve many receivers. Here it is the
  number of distinct hosts that send through the port, which on a host's port is PET's number.
* PET's ratio of mice to elephants has no bound; the fraction of mice, M / (M + E), holds the same.
* PET's ablation without both of its own features is `acc`, whose columns are the rest.
* The history k is 3 in ACC. PET and HAECN do not give theirs: 3.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float

from ecn_marl._errors import bad_value, unknown_name
from ecn_marl._types import Leaf
from ecn_marl.envs.rewards import queue_level
from ecn_marl.sim.queues import Ecn
from ecn_marl.sim.simulator import PortStats
from ecn_marl.sim.topology import KB

PMAX_DECADES = 3.0
"""Marking probabilities are shown from 10^-3 to 1."""


@struct.dataclass
class FeatureScale:
    """What the features are measured against. Build it with `create`.

    Attributes:
        port_scale: [P] port rate / 25 Gb/s.
        queue_unit: where the log scale of queues bends from linear to logarithmic, bytes.
        queue_top: the queue that is shown as 1, bytes.
        step_scale: E(0) of `queue_level`, bytes.
        steps: number of steps of `queue_level`.
        senders: the incast degree that is shown as 1.
    """

    port_scale: Leaf
    queue_unit: Leaf
    queue_top: Leaf
    step_scale: Leaf
    steps: Leaf
    senders: Leaf

    @classmethod
    def create(
        cls,
        port_scale: Float[Array, " ports"],
        queue_unit_kb: float = 1.0,
        queue_top_kb: float = 10240.0,
        step_kb: float = 5.0,
        steps: int | float = 10,
        senders: int | float = 64,
    ) -> FeatureScale:
        """Makes a scale; sizes in KB are for a 25 Gb/s port.

        Args:
            port_scale: port rate / 25 Gb/s.
            queue_unit_kb: about one packet.
            queue_top_kb: PET's largest threshold, 20 KB 2^9.
            step_kb: first step of `queue_level`, as in `RewardParams`.
            steps: number of its steps, as in `RewardParams`.
            senders: the widest incast that ACC trains on (section 4.3).

        Raises:
            ValueError: if a constant is outside its range.
        """
        if not 0.0 < queue_unit_kb < float("inf"):
            raise bad_value("queue_unit_kb", queue_unit_kb, "a number of KB above 0")
        if not queue_unit_kb < queue_top_kb < float("inf"):
            raise bad_value("queue_top_kb", queue_top_kb, f"KB above queue_unit_kb {queue_unit_kb}")
        if not 0.0 < step_kb < float("inf"):
            raise bad_value("step_kb", step_kb, "a number of KB above 0")
        if steps < 1:
            raise bad_value("steps", steps, "a whole number of at least 1")
        if senders < 1:
            raise bad_value("senders", senders, "a whole number of at least 1")
        return cls(
            port_scale=port_scale,
            queue_unit=jnp.float32(queue_unit_kb * KB),
            queue_top=jnp.float32(queue_top_kb * KB),
            step_scale=jnp.float32(step_kb * KB),
            steps=jnp.float32(steps),
            senders=jnp.float32(senders),
        )


def log_size(size: Float[Array, " ports"], scale: FeatureScale) -> Float[Array, " ports"]:
    """Bytes on the log scale: 0 for 0, 1 for `queue_top` (and above), scaled by port rate."""
    unit = scale.queue_unit * scale.port_scale
    height = jnp.log1p(size / unit) / jnp.log1p(scale.queue_top / scale.queue_unit)
    return jnp.clip(height, 0.0, 1.0)


def log_probability(p: Float[Array, " ports"]) -> Float[Array, " ports"]:
    """A marking probability on a log scale of three decades: 0.001 -> 0, 1 -> 1."""
    floor = 10.0**-PMAX_DECADES
    return jnp.clip(1.0 + jnp.log10(jnp.maximum(p, floor)) / PMAX_DECADES, 0.0, 1.0)


def _rates(stats: PortStats) -> tuple[Float[Array, " ports"], Float[Array, " ports"]]:
    """Sent and ECN-marked bytes of the interval as shares of what the link could send."""
    sent = jnp.clip(stats.utilisation, 0.0, 1.0)
    marked = jnp.clip(stats.marked_bytes / jnp.maximum(stats.tx_bytes, 1.0), 0.0, 1.0)
    return sent, sent * marked


def _setting(ecn: Ecn, scale: FeatureScale) -> tuple[Float[Array, " ports"], ...]:
    """The thresholds in force: kmin, kmax, pmax."""
    return log_size(ecn.kmin, scale), log_size(ecn.kmax, scale), log_probability(ecn.pmax)


def acc_features(stats: PortStats, ecn: Ecn, scale: FeatureScale) -> Float[Array, "ports 6"]:
    """ACC's state (section 4.1): queue, tx rate, marked tx rate, current setting."""
    return jnp.stack((log_size(stats.queue, scale), *_rates(stats), *_setting(ecn, scale)), axis=-1)


def pet_features(stats: PortStats, ecn: Ecn, scale: FeatureScale) -> Float[Array, "ports 8"]:
    """PET's state (section 4.2.1, eq. 2): ACC's, incast degree and mice against elephants."""
    senders = jnp.log1p(stats.n_senders) / jnp.log1p(scale.senders)
    flows = stats.n_mice + stats.n_elephants
    mice = jnp.where(flows > 0.0, stats.n_mice / jnp.maximum(flows, 1.0), 0.5)
    traffic = jnp.clip(jnp.stack((senders, mice), axis=-1), 0.0, 1.0)
    return jnp.concatenate((acc_features(stats, ecn, scale), traffic), axis=-1)


def pet_without_incast(stats: PortStats, ecn: Ecn, scale: FeatureScale) -> Float[Array, "ports 7"]:
    """PET's state without the incast degree, an ablation of its section 5.5.7."""
    whole = pet_features(stats, ecn, scale)
    return jnp.concatenate((whole[:, :6], whole[:, 7:]), axis=-1)


def pet_without_mice(stats: PortStats, ecn: Ecn, scale: FeatureScale) -> Float[Array, "ports 7"]:
    """PET's state without mice against elephants, an ablation of its section 5.5.7."""
    return pet_features(stats, ecn, scale)[:, :7]


def haecn_features(stats: PortStats, ecn: Ecn, scale: FeatureScale) -> Float[Array, "ports 5"]:
    """HAECN's sub-state (section 3.3): queue level, utilisation, current setting."""
    level = queue_level(stats.queue_mean, scale.step_scale * scale.port_scale, scale.steps)
    sent, _ = _rates(stats)
    return jnp.stack((level, sent, *_setting(ecn, scale)), axis=-1)


FeatureRule = Callable[[PortStats, Ecn, FeatureScale], Array]
"""(stats, ecn, scale) -> features of one interval, float32 [P, width]."""


@dataclass(frozen=True)
class FeatureSet:
    """A named set of features; hashable, so that it can be a static part of an environment.

    Attributes:
        name: its name in `FEATURE_SETS`.
        history: k, the number of intervals in an observation.
        names: what each column means, length `width`.
        compute: the pure function that gives the features of one interval, float32 [P, width].
    """

    name: str
    history: int
    names: tuple[str, ...]
    compute: FeatureRule

    def __post_init__(self) -> None:
        """Checks the history."""
        if self.history < 1:
            raise bad_value("history", self.history, "a whole number of at least 1")

    @property
    def width(self) -> int:
        """Number of features of one interval."""
        return len(self.names)

    @property
    def obs_dim(self) -> int:
        """Length of an agent's observation, `history * width`."""
        return self.history * self.width


def fill(first: Float[Array, "ports w"], history: int) -> Float[Array, "ports {history} w"]:
    """A history that starts: the first interval, repeated, so that no change is shown."""
    return jnp.repeat(first[:, None, :], history, axis=1)


def push(
    history: Float[Array, "ports k w"], new: Float[Array, "ports w"]
) -> Float[Array, "ports k w"]:
    """Drops the oldest interval and appends the newest."""
    return jnp.concatenate((history[:, 1:], new[:, None, :]), axis=1)


def flatten(history: Float[Array, "ports k w"]) -> Float[Array, "ports kw"]:
    """Observations from histories: k blocks of w features per port, oldest block first."""
    return history.reshape(history.shape[0], -1)


_SETTING = ("kmin", "kmax", "pmax")
_ACC = ("queue", "tx_rate", "marked_rate", *_SETTING)

FEATURE_SETS: dict[str, FeatureSet] = {
    "acc": FeatureSet("acc", 3, _ACC, acc_features),
    "pet": FeatureSet("pet", 3, (*_ACC, "incast_degree", "mice_fraction"), pet_features),
    "pet-no-incast": FeatureSet("pet-no-incast", 3, (*_ACC, "mice_fraction"), pet_without_incast),
    "pet-no-mice": FeatureSet("pet-no-mice", 3, (*_ACC, "incast_degree"), pet_without_mice),
    "haecn": FeatureSet("haecn", 3, ("queue_level", "tx_rate", *_SETTING), haecn_features),
}
"""The feature sets known by name."""


def feature_set(name: str | FeatureSet, history: int | None = None) -> FeatureSet:
    """Looks a feature set up by name; a `FeatureSet` of the caller's own is handed through.

    Args:
        name: a key of `FEATURE_SETS`, or a feature set.
        history: another number of intervals than the set's own.

    Raises:
        ValueError: if the name is unknown (the message has the nearest names) or the history is
            below 1.
    """
    if isinstance(name, FeatureSet):
        found = name
    elif name in FEATURE_SETS:
        found = FEATURE_SETS[name]
    else:
        raise unknown_name("feature set", name, tuple(FEATURE_SETS))
    return found if history is None else replace(found, history=history)

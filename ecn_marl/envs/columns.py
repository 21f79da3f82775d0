"""Features one by one: what a column of an observation means, and what it is computed from.

The papers feed raw counters through an unpublished normalisation. Here every feature is float32 in
[0, 1], finite for finite input. `FEATURES` has each one's definition, with these symbols:

    s    port rate / 25 Gb/s, so that equal delays give equal features on ports of any rate
    w    time over which the counters were collected / 100 µs
    clip to [0, 1]

On the log scale of queues, twice the queue is one step further, as on the scale E(n) of the
thresholds.

Where the papers are silent, this module does the following:

* ACC and PET write the current setting as one symbol, ECN^(c). Here it is three features, as in
  HAECN.
* "Current queue length": the queue at the end of the interval (ACC, PET). HAECN averages over the
  interval and maps to steps without giving them: the steps of the reward's D(L), as `queue_level`.
* PET's incast degree counts senders per receiver; a port may serve many receivers. Here it is the
  number of distinct hosts that sent through the port in the interval, which on a host's port is
  PET's number.
* PET's ratio of mice to elephants has no bound; the fraction of mice, M / (M + E), holds the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float

from ecn_marl._checks import POSITIVE, Real, check_value
from ecn_marl._errors import bad_value
from ecn_marl._types import Leaf
from ecn_marl.envs.rewards import queue_level
from ecn_marl.sim.config import counters
from ecn_marl.sim.core.queues import Ecn
from ecn_marl.sim.network.topology import KB
from ecn_marl.sim.state import PortStats

PMAX_DECADES = 3.0
"""Marking probabilities are shown from 10^-3 to 1."""

WINDOW_US = 100.0
"""Time that counts of events are scaled to, µs."""


@struct.dataclass
class FeatureScale:
    """Units of the features. Build it with `create`.

    Attributes:
        port_scale: [P] port rate / 25 Gb/s.
        queue_unit: where the log scale of queues bends from linear to logarithmic, bytes.
        queue_top: the queue that is shown as 1, bytes.
        step_scale: E(0) of `queue_level`, bytes.
        steps: number of steps of `queue_level`.
        senders: the incast degree that is shown as 1.
        flows: the number of flows (of flows begun: per 100 µs) that is shown as 1.
        packets: the number of marked packets per 100 µs of a 25 Gb/s port that is shown as 1.
        windows: time over which the counters were collected / 100 µs.
    """

    port_scale: Annotated[Leaf, POSITIVE]
    queue_unit: Annotated[Leaf, POSITIVE]
    queue_top: Annotated[Leaf, POSITIVE]
    step_scale: Annotated[Leaf, POSITIVE]
    steps: Annotated[Leaf, Real(low=1.0)]
    senders: Annotated[Leaf, Real(low=1.0)]
    flows: Annotated[Leaf, Real(low=1.0)]
    packets: Annotated[Leaf, Real(low=1.0)]
    windows: Annotated[Leaf, POSITIVE]

    @classmethod
    def create(
        cls,
        port_scale: Float[Array, " ports"],
        queue_unit_kb: float = 1.0,
        queue_top_kb: float = 10240.0,
        step_kb: float = 5.0,
        steps: int | float = 10,
        senders: int | float = 64,
        flows: int | float = 256,
        packets: int | float = 300,
        collected_us: float = WINDOW_US,
    ) -> FeatureScale:
        """Makes a scale; sizes in KB are for a 25 Gb/s port.

        Args:
            port_scale: port rate / 25 Gb/s.
            queue_unit_kb: about one packet.
            queue_top_kb: PET's largest threshold, 20 KB 2^9.
            step_kb: first step of `queue_level`, as in `RewardParams`.
            steps: number of its steps, as in `RewardParams`.
            senders: the widest incast that ACC trains on (section 4.3).
            flows: four times `senders`.
            packets: approximate number that a 25 Gb/s port sends in 100 µs.
            collected_us: time over which the counters are collected, µs.

        Raises:
            ValueError: if a constant is outside its range.
        """
        if not 0.0 < queue_unit_kb < float("inf"):
            raise bad_value("queue_unit_kb", queue_unit_kb, "a number of KB above 0")
        if not queue_unit_kb < queue_top_kb < float("inf"):
            raise bad_value("queue_top_kb", queue_top_kb, f"KB above queue_unit_kb {queue_unit_kb}")
        if not 0.0 < step_kb < float("inf"):
            raise bad_value("step_kb", step_kb, "a number of KB above 0")
        counts = {"steps": steps, "senders": senders, "flows": flows, "packets": packets}
        for name, value in counts.items():
            if value < 1:
                raise bad_value(name, value, "a whole number of at least 1")
        if not 0.0 < collected_us < float("inf"):
            raise bad_value("collected_us", collected_us, "a number of µs above 0")
        return cls(
            port_scale=port_scale,
            queue_unit=jnp.float32(queue_unit_kb * KB),
            queue_top=jnp.float32(queue_top_kb * KB),
            step_scale=jnp.float32(step_kb * KB),
            windows=jnp.float32(collected_us / WINDOW_US),
            **{name: jnp.float32(value) for name, value in counts.items()},
        )


def log_size(size: Float[Array, " ports"], scale: FeatureScale) -> Float[Array, " ports"]:
    """Bytes on the log scale: 0 for 0, 1 for `queue_top` (and above), scaled by port rate."""
    unit = scale.queue_unit * scale.port_scale
    height = jnp.log1p(size / unit) / jnp.log1p(scale.queue_top / scale.queue_unit)
    return jnp.clip(height, 0.0, 1.0)


def log_count(count: Float[Array, " ports"], top: Leaf) -> Float[Array, " ports"]:
    """A count on a log scale: 0 for 0, 1 for `top` (and above)."""
    return jnp.clip(jnp.log1p(count) / jnp.log1p(top), 0.0, 1.0)


def log_probability(p: Float[Array, " ports"]) -> Float[Array, " ports"]:
    """A marking probability on a log scale of three decades: 0.001 -> 0, 1 -> 1."""
    floor = 10.0**-PMAX_DECADES
    # log10(0) is -inf, and its derivative behind the clip would be NaN.
    return jnp.clip(1.0 + jnp.log10(jnp.maximum(p, floor)) / PMAX_DECADES, 0.0, 1.0)


FeatureRule = Callable[[PortStats, Ecn, FeatureScale], Array]
"""(stats, ecn, scale) -> one feature of every port, float32 [P]."""


OVER_US = Real(above=0.0, none=True, unit="µs")
"""Time constants of moving averages."""


@dataclass(frozen=True)
class Feature:
    """One number per port that an agent sees.

    Attributes:
        compute: pure function of the statistics of an interval, the thresholds in force and the
            scale; float32 `[P]`. Those of `FEATURES` lie in [0, 1].
        needs: counters of the simulator that it reads (`sim.state.COUNTS`); others are None.
        help: definition, one line.
        source: where it comes from.
        over_us: time constant of a moving average of it, µs; None for the interval's own value.
        of_switch: whether a port sees the mean over all ports of its switch, its own among them.
    """

    compute: FeatureRule
    needs: tuple[str, ...] = ()
    help: str = ""
    source: str = ""
    over_us: float | None = None
    of_switch: bool = False

    def __post_init__(self) -> None:
        """Checks the counters and the time constant."""
        object.__setattr__(self, "needs", counters("needs", self.needs))
        check_value("over_us", self.over_us, OVER_US)


def _queue(stats: PortStats, ecn: Ecn, scale: FeatureScale) -> Array:
    return log_size(stats.queue, scale)


def _queue_mean(stats: PortStats, ecn: Ecn, scale: FeatureScale) -> Array:
    return log_size(stats.queue_mean, scale)


def _queue_max(stats: PortStats, ecn: Ecn, scale: FeatureScale) -> Array:
    return log_size(stats.queue_max, scale)


def _queue_level(stats: PortStats, ecn: Ecn, scale: FeatureScale) -> Array:
    return queue_level(stats.queue_mean, scale.step_scale * scale.port_scale, scale.steps)


def _tx_rate(stats: PortStats, ecn: Ecn, scale: FeatureScale) -> Array:
    return jnp.clip(stats.utilisation, 0.0, 1.0)


def _marked_rate(stats: PortStats, ecn: Ecn, scale: FeatureScale) -> Array:
    # A port that sent nothing shows 0, not 0 / 0.
    marked = jnp.clip(stats.marked_bytes / jnp.maximum(stats.tx_bytes, 1.0), 0.0, 1.0)
    return _tx_rate(stats, ecn, scale) * marked


def _marked_packets(stats: PortStats, ecn: Ecn, scale: FeatureScale) -> Array:
    return log_count(stats.marked_packets / (scale.port_scale * scale.windows), scale.packets)


def _paused(stats: PortStats, ecn: Ecn, scale: FeatureScale) -> Array:
    return jnp.clip(stats.paused, 0.0, 1.0)


def _kmin(stats: PortStats, ecn: Ecn, scale: FeatureScale) -> Array:
    return log_size(ecn.kmin, scale)


def _kmax(stats: PortStats, ecn: Ecn, scale: FeatureScale) -> Array:
    return log_size(ecn.kmax, scale)


def _pmax(stats: PortStats, ecn: Ecn, scale: FeatureScale) -> Array:
    return log_probability(ecn.pmax)


def _flows_begun(stats: PortStats, ecn: Ecn, scale: FeatureScale) -> Array:
    return log_count(stats.flows_begun / scale.windows, scale.flows)


def _flows_seen(stats: PortStats, ecn: Ecn, scale: FeatureScale) -> Array:
    return log_count(stats.flows_seen, scale.flows)


def _incast_degree(stats: PortStats, ecn: Ecn, scale: FeatureScale) -> Array:
    return log_count(stats.n_senders, scale.senders)


def _mice_fraction(stats: PortStats, ecn: Ecn, scale: FeatureScale) -> Array:
    flows = stats.n_mice + stats.n_elephants
    # `where` computes both sides: 0 / 0 on the unused one would make the derivative NaN.
    mice = jnp.where(flows > 0.0, stats.n_mice / jnp.maximum(flows, 1.0), 0.5)
    return jnp.clip(mice, 0.0, 1.0)


def _byte_share(stats: PortStats, size: int) -> Array:
    # At least one byte: shares of a silent port are 0, not NaN.
    data = jnp.maximum(stats.class_bytes.sum(-1), 1.0)
    return jnp.clip(stats.class_bytes[..., size] / data, 0.0, 1.0)


def _small_bytes(stats: PortStats, ecn: Ecn, scale: FeatureScale) -> Array:
    return _byte_share(stats, 0)


def _medium_bytes(stats: PortStats, ecn: Ecn, scale: FeatureScale) -> Array:
    return _byte_share(stats, 1)


FEATURES: dict[str, Feature] = {
    "queue": Feature(
        _queue,
        help="clip(ln(1 + q / (s · 1 KB)) / ln(1 + 10240)), q the queue at the **end** of the "
        "interval",
        source='[ACC] §4.1, [PET] Eq. 2: "queue length"; scale ours',
    ),
    "queue_mean": Feature(
        _queue_mean,
        help="the same of the **time mean** of the queue",
    ),
    "queue_max": Feature(
        _queue_max,
        help="the same of the **largest** queue of the interval",
    ),
    "queue_level": Feature(
        _queue_level,
        help="level of the **time mean** of the queue: 1 − D(L), see below",
        source='[HAECN] §3.3: "averaging values …", steps not given',
    ),
    "tx_rate": Feature(
        _tx_rate,
        help="bytes sent in the interval, ACKs included, over what the link could send",
        source="[ACC], [PET], [HAECN]",
    ),
    "marked_rate": Feature(
        _marked_rate,
        help="`tx_rate` times the share of these bytes that left with an ECN mark",
        source="[ACC], [PET]",
    ),
    "marked_packets": Feature(
        _marked_packets,
        ("marked_packets",),
        "clip(ln(1 + n / (s · w)) / ln(1 + 300)), n packets sent with an ECN mark, a whole number "
        "drawn as a counter shows it",
    ),
    "paused": Feature(
        _paused,
        help="share of the interval in which PFC stopped the port",
    ),
    "kmin": Feature(
        _kmin,
        help="Kmin in force at the end of the interval, on the scale of `queue`",
        source="[ACC], [PET]: one symbol ECN⁽ᶜ⁾, here three features as in [HAECN]",
    ),
    "kmax": Feature(
        _kmax,
        help="Kmax in force, on the same scale",
        source="the same",
    ),
    "pmax": Feature(
        _pmax,
        help="clip(1 + log₁₀(Pmax) / 3): 0.001 → 0, 1 → 1",
        source="the same",
    ),
    "flows_begun": Feature(
        _flows_begun,
        ("flows_begun",),
        "clip(ln(1 + n / w) / ln(1 + 256)), n flows that began in the interval",
    ),
    "flows_seen": Feature(
        _flows_seen,
        ("flows_seen",),
        "clip(ln(1 + n) / ln(1 + 256)), n flows in progress at any time in the interval",
    ),
    "incast_degree": Feature(
        _incast_degree,
        ("n_senders",),
        "clip(ln(1 + n) / ln(1 + 64)), n distinct source hosts of the flows seen",
        "[PET] counts senders per receiver; equal on a host's port",
    ),
    "mice_fraction": Feature(
        _mice_fraction,
        ("n_mice", "n_elephants"),
        "flows seen that had sent ≤ 1 MB, over all flows seen; 1/2 without flows",
        "[PET]: the ratio mice/elephants, which has no bound",
    ),
    "small_bytes": Feature(
        _small_bytes,
        ("class_bytes",),
        "share of the data bytes sent that are of flows which had sent ≤ 100 KB by then; 0 where "
        "nothing was sent",
    ),
    "medium_bytes": Feature(
        _medium_bytes, ("class_bytes",), "the same of flows which had sent 100 KB to 1 MB"
    ),
}
"""The features known by name."""

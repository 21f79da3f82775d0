"""Sizes of flows: measured tables, packets and bytes on the wire, counters of bytes."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Annotated

import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Float, Int

from ecn_marl._checks import FRACTION, NOT_NEGATIVE, POSITIVE
from ecn_marl._errors import bad_value, unknown_name
from ecn_marl._types import Leaf

CHUNK = float(2**18)
"""Bytes per unit of the high part of a byte count."""

PAYLOAD = 1000.0
"""Payload of a full data packet, bytes."""

HEADER = 48.0
"""Header of a data packet, bytes."""

TABLES = (
    "WebSearch",
    "DataMining",
    "FbHdp",
    "AliStorage2019",
    "GoogleRPC2008",
    "DataMining_ABM",
    "DataMining_ConWeave",
    "FacebookKV_TrafficGenerator",
    "Hadoop_ABM",
    "Solar2022",
    "WebSearch_ABM",
    "WebSearch_TrafficGenerator",
)
"""Names of the flow-size tables that ship with the package."""

SIZE_CLASSES = (100e3, 1e6)
"""Upper bounds of the size classes: mice, medium; elephants are larger. Payload bytes."""


@struct.dataclass
class SizeTable:
    """A distribution of flow sizes, linear between its points.

    Attributes:
        size: payload bytes at each point, `[R]`.
        cdf: cumulative probability at each point, from 0 to 1, `[R]`.
        mean: mean payload, bytes.
    """

    size: Annotated[Leaf, NOT_NEGATIVE]
    cdf: Annotated[Leaf, FRACTION]
    mean: Annotated[Leaf, POSITIVE]


@cache
def size_table(name: str) -> SizeTable:
    """Load a flow-size table that ships with the package.

    Args:
        name: one of `TABLES`; each file's first line names its source.

    Raises:
        ValueError: unknown table.
    """
    if name not in TABLES:
        raise unknown_name("flow-size table", name, TABLES)
    text = resources.files("ecn_marl.sim").joinpath("data", f"{name}.csv").read_text()
    rows = np.loadtxt(text.splitlines(), delimiter=",", comments="#", skiprows=2)
    return make_table(rows[:, 0], rows[:, 1])


def make_table(size: np.ndarray, cdf: np.ndarray) -> SizeTable:
    """Build a size table from points.

    Args:
        size: payload bytes, non-decreasing, `[R]`.
        cdf: cumulative probabilities, non-decreasing, ending in 1, `[R]`.

    Raises:
        ValueError: not increasing, or not a distribution.
    """
    size, cdf = np.asarray(size, np.float64), np.asarray(cdf, np.float64)
    if size.ndim != 1 or size.shape != cdf.shape or size.size < 2:
        raise bad_value("size table", size.shape, "two equally long columns of at least 2 rows")
    if np.any(np.diff(size) < 0) or np.any(np.diff(cdf) < 0) or size[0] < 0:
        raise bad_value("size table", "columns", "non-decreasing sizes >= 0 and probabilities")
    if abs(cdf[-1] - 1.0) > 1e-9 or cdf[0] < 0:
        raise bad_value("cdf", (cdf[0], cdf[-1]), "a first value >= 0 and a last value of 1")
    step = np.diff(cdf, prepend=0.0)
    middle = np.concatenate([[size[0]], 0.5 * (size[1:] + size[:-1])])
    return SizeTable(
        size.astype(np.float32), cdf.astype(np.float32), np.float32((step * middle).sum())
    )


def sample_size(table: SizeTable, u: Float[Array, " m"]) -> Float[Array, " m"]:
    """Payload bytes (whole, at least 1) at quantiles `u`, `[M]`."""
    return jnp.maximum(jnp.floor(jnp.interp(u, table.cdf, table.size)), 1.0)


def packet_count(payload: Float[Array, "*m"]) -> Float[Array, "*m"]:
    """Packets of a payload, `[*M]`.

    Not `ceil(payload / 1000)`: XLA multiplies by 0.001 instead, which is a packet too many for most
    whole thousands.
    """
    n = jnp.round(payload / PAYLOAD)
    return n + (n * PAYLOAD < payload)


def wire_bytes(
    payload: Float[Array, "*m"], header: float | Float[Array, ""] = HEADER
) -> Float[Array, "*m"]:
    """Bytes on the wire: payload and one header per packet, `[*M]`."""
    return payload + header * packet_count(payload)


def exact_add(
    high: Int[Array, ...], low: Float[Array, ...], more: Float[Array, ...], unit: float
) -> tuple[Int[Array, ...], Float[Array, ...]]:
    """Add to a counter kept as `high * unit + low`, so that float32 never loses small increments.

    Args:
        high: whole units.
        low: rest, below `unit`.
        more: what to add, >= 0.
        unit: bytes per unit of `high`.
    """
    low = low + more
    carry = jnp.floor(low / unit)
    return high + carry.astype(high.dtype), low - carry * unit


def size_class(payload: Float[Array, "*n"]) -> Int[Array, "*n"]:
    """0 for mice, 1 for medium flows, 2 for elephants, by `SIZE_CLASSES`."""
    large = (payload > SIZE_CLASSES[0]).astype(jnp.int32)
    return large + (payload > SIZE_CLASSES[1]).astype(jnp.int32)

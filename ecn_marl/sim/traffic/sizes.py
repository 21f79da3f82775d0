"""Sizes of flows: measured tables, packets and bytes on the wire, counters of bytes."""

from __future__ import annotations

from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated, Any

import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Float, Float64, Int
from numpy.typing import ArrayLike

from ecn_marl._checks import FRACTION, NOT_NEGATIVE, POSITIVE
from ecn_marl._errors import bad_value
from ecn_marl._registry import Registry
from ecn_marl._types import Leaf
from ecn_marl.errors import InvalidInput
from ecn_marl.sim.formats.cdf import read_points

CHUNK = float(2**18)
"""Bytes per unit of the high part of a byte count."""

SLOWDOWN_UNIT = 16.0
"""Unit of the high part of a sum of slowdowns or of their logarithms: float32 holds the rest, and
so every slowdown that is added, to 1e-6."""

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
    "AccMessages",
    "DataMining_10MB",
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


Points = tuple[tuple[float, ...], tuple[float, ...]]
"""Sizes in bytes, and their cumulative probabilities."""


def _as_table(name: str, table: Any) -> Path | Points:
    """A file, or the points of a distribution; read once, so that errors show at once."""
    if isinstance(table, str | Path):
        path = Path(table).absolute()
        read_table(path)
        return path
    try:
        size, cdf = (tuple(float(x) for x in column) for column in table)
    except (TypeError, ValueError):
        allowed = "a file of bytes,cdf, or a pair of columns: sizes in bytes, and their cdf"
        raise bad_value(f"size table {name}", table, allowed) from None
    make_table(np.array(size), np.array(cdf))
    return size, cdf


_DATA = resources.files("ecn_marl.sim.traffic").joinpath("data")

SIZE_TABLES: Registry[Traversable | Points] = Registry(
    "flow-size table",
    {name: _DATA.joinpath(f"{name}.csv") for name in TABLES},
    _as_table,
)
"""Flow-size tables by name: their files or points."""


def register_size_table(name: str, table: str | Path | Any, replace: bool = False) -> None:
    """Register a flow-size table, to be named wherever one of `TABLES` is.

    Args:
        name: e.g. `my-cluster`.
        table: a file, see `read_table`; or a pair of columns, sizes in bytes and cumulative
            probabilities, see `make_table`.
        replace: whether to replace what is registered under this name.

    Raises:
        ValueError: the name is no name or taken, or this is no distribution of sizes.
    """
    SIZE_TABLES.register(name, table, replace)


def size_table(name: str) -> SizeTable:
    """A flow-size table.

    Args:
        name: one of `TABLES` (each file's first line names its source), a registered name, or the
            path of a file, which has an ending or a folder; see `read_table`.

    Raises:
        ValueError: unknown table, or no such file, or not a distribution.
    """
    path = Path(name)
    if name not in SIZE_TABLES and (path.suffix or len(path.parts) > 1):
        return read_table(path)
    table = SIZE_TABLES[name]
    if isinstance(table, tuple):
        return make_table(*(np.array(column) for column in table))
    return read_table(table)


def read_table(path: str | Path | Traversable) -> SizeTable:
    """A flow-size table from a file; it is read again when it has changed.

    Args:
        path: rows `BYTES,CDF` or `BYTES CDF`, from the smallest size to that with CDF 1 or 100, see
            `formats.cdf`.

    Raises:
        ValueError: no such file, a row that is not two numbers, or not a distribution; names the
            file and the line.
    """
    if isinstance(path, str | Path):
        path = Path(path)
        if not path.is_file():
            raise bad_value("flow-size table", str(path), "a file of rows BYTES,CDF")
        return _read_table(path, path.stat().st_mtime_ns)
    archived: Any = path  # in a package that is an archive; without a time of change
    return _read_table(archived, 0)


@cache
def _read_table(path: Traversable, changed: int) -> SizeTable:
    # Part of the cache's key alone: a changed file is read again.
    del changed
    try:
        # Spreadsheets write a byte order mark, which would make names of the first line's numbers.
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{path}: not readable as text: {error}") from None
    return make_table(*read_points(lines, Path(str(path))))


def make_table(size: np.ndarray, cdf: np.ndarray) -> SizeTable:
    """Build a size table from points.

    Args:
        size: payload bytes, non-decreasing, `[R]`.
        cdf: cumulative probabilities, non-decreasing, ending in 1, `[R]`; a first one above 0 is
            the share of flows that have the first size, and gets a point at 0 before it.

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
    if cdf[0] > 0:
        size, cdf = np.append(size[0], size), np.append(0.0, cdf)
    step = np.diff(cdf, prepend=0.0)
    middle = np.concatenate([[size[0]], 0.5 * (size[1:] + size[:-1])])
    return SizeTable(
        size.astype(np.float32), cdf.astype(np.float32), np.float32((step * middle).sum())
    )


def sample_size(table: SizeTable, u: Float[Array, " m"]) -> Float[Array, " m"]:
    """Payload bytes (whole, at least 1) at quantiles `u`, `[M]`."""
    return jnp.maximum(jnp.floor(jnp.interp(u, table.cdf, table.size)), 1.0)


def sample_in_progress(
    table: SizeTable, u: Float[Array, " m"], v: Float[Array, " m"]
) -> Float[Array, " m"]:
    """Bytes left (whole, at least 1) of flows that are in progress at a random time, `[M]`.

    Under processor sharing a flow is met with a chance in proportion to its size, and what is left
    of it is uniform (Kleinrock, "Queueing Systems" 2, 4.4). Between two points of the table the
    square of a size grows linearly with the bytes of all smaller flows.

    Args:
        table: flow sizes.
        u: quantiles of the size, by bytes, `[M]`.
        v: share that is left, `[M]`.
    """
    size = jnp.asarray(table.size)
    parts = 0.5 * (size[1:] + size[:-1]) * jnp.diff(jnp.asarray(table.cdf))
    smaller = jnp.concatenate([jnp.zeros((1,), parts.dtype), jnp.cumsum(parts)])
    whole = jnp.sqrt(jnp.interp(u * smaller[-1], smaller, size * size))
    return jnp.maximum(jnp.floor(v * whole), 1.0)


def packet_count(payload: Float[Array, "*m"]) -> Float[Array, "*m"]:
    """Packets of a payload, `[*M]`.

    Not `ceil(payload / 1000)`: XLA multiplies by 0.001 instead, which gives a packet too many for
    most multiples of 1000.
    """
    n = jnp.round(payload / PAYLOAD)
    return n + (n * PAYLOAD < payload)


def wire_bytes(
    payload: Float[Array, "*m"], header: float | Float[Array, ""] = HEADER
) -> Float[Array, "*m"]:
    """Bytes on the wire: payload and one header per packet, `[*M]`."""
    return payload + header * packet_count(payload)


def wire_size(payload: ArrayLike, header: float = HEADER) -> Float64[np.ndarray, "*m"]:
    """The same in numpy, where float64 is exact to 10^15 bytes, `[*M]`.

    Args:
        payload: payloads, bytes, `[*M]`; a payload below a byte has a packet, too.
        header: of every packet, bytes: `HEADER` and what the senders add, `Transport.header`.
    """
    size = np.asarray(payload, np.float64)
    return np.asarray(size + header * np.maximum(np.ceil(size / PAYLOAD), 1.0))


def exact_add(
    high: Int[Array, "..."], low: Float[Array, "..."], amount: Float[Array, "..."], unit: float
) -> tuple[Int[Array, "..."], Float[Array, "..."]]:
    """Add to a counter kept as `high * unit + low`, so that float32 never loses small increments.

    Args:
        high: whole units.
        low: rest, below `unit`.
        amount: what to add, >= 0.
        unit: size of a unit of `high`.
    """
    low = low + amount
    carry = jnp.floor(low / unit)
    return high + carry.astype(high.dtype), low - carry * unit


def counter_value(counter: tuple[Leaf, Leaf], unit: float = CHUNK) -> Float[Array, "..."]:
    """Value of a counter of whole units and a rest as a float, good to seven digits."""
    high, low = (jnp.asarray(part) for part in counter)
    return high.astype(low.dtype) * unit + low


def size_class(payload: Float[Array, "*n"]) -> Int[Array, "*n"]:
    """0 for mice, 1 for medium flows, 2 for elephants, by `SIZE_CLASSES`."""
    large = (payload > SIZE_CLASSES[0]).astype(jnp.int32)
    return large + (payload > SIZE_CLASSES[1]).astype(jnp.int32)


_BITS = 18
"""`CHUNK` is 2^18 bytes."""


def wire_chunks(payload: Float[Array, "*m"]) -> tuple[Int[Array, "*m"], Float[Array, "*m"]]:
    """Wire bytes of payloads, exact at any size: whole units of `CHUNK` and the rest, `[*M]` each.

    A chunk stays in the rest if there is one: NICs send from it, and it would limit their rates.
    """
    high = jnp.floor(payload / CHUNK)
    return add_headers(high.astype(jnp.int32), payload - high * CHUNK, HEADER, PAYLOAD)


def add_headers(
    high: Int[Array, "*m"],
    low: Float[Array, "*m"],
    header: float,
    packet: float = PAYLOAD + HEADER,
) -> tuple[Int[Array, "*m"], Float[Array, "*m"]]:
    """Bytes with a header more per packet, exact at any size; chunks and rest as of `wire_chunks`.

    Integers of 32 bits throughout, since float32 has whole numbers up to 16.8 MB only.

    Args:
        high: bytes without these headers, whole units of `CHUNK`.
        low: the rest of them.
        header: bytes of a header, a whole number up to 1000.
        packet: bytes of a full packet without it, a whole number.
    """
    size, more = int(packet), int(header)
    per_chunk, beyond = divmod(int(CHUNK), size)
    # Packets beyond `per_chunk` of every chunk; divided in two steps, so that nothing overflows.
    whole, part = high // size, high % size
    last = (beyond * part + jnp.ceil(low).astype(jnp.int32) + (size - 1)) // size
    for count, bytes_each in ((high, per_chunk * more), (beyond * whole + last, more)):
        chunks, rest = _times(count, bytes_each)
        high, low = exact_add(high + chunks, low, rest.astype(low.dtype), CHUNK)
    kept = jnp.minimum(high, 1)
    return high - kept, low + kept.astype(low.dtype) * CHUNK


def _times(count: Int[Array, "*m"], factor: int) -> tuple[Int[Array, "*m"], Int[Array, "*m"]]:
    """`count * factor` in chunks and a rest below two chunks, for factors below 2^18."""
    top, low = count >> _BITS, count & (2**_BITS - 1)
    # Two halves of nine bits each, so that no product has more than 31.
    half, mask = _BITS // 2, 2 ** (_BITS // 2) - 1
    upper, lower = (low >> half) * factor, (low & mask) * factor
    chunks = top * factor + (upper >> half) + (lower >> _BITS)
    return chunks, ((upper & mask) << half) + (lower & (2**_BITS - 1))


def sum_exactly(
    counter: tuple[Int[Array, ""], Float[Array, ""]], amounts: Float[Array, " m"]
) -> tuple[Int[Array, ""], Float[Array, ""]]:
    """Add up to 2^20 amounts below 2^20 bytes to a counter in chunks; no whole byte is rounded."""
    floor = jnp.floor(amounts)
    whole, (high, low) = floor.astype(jnp.int32), counter
    half, mask = _BITS // 2, 2 ** (_BITS // 2) - 1
    upper, lower = (x.sum().astype(high.dtype) for x in (whole >> half, whole & mask))
    rest = (lower & (2**_BITS - 1)).astype(low.dtype) + (amounts - floor).sum()
    high, low = exact_add(high + (upper >> half) + (lower >> _BITS), low, rest, CHUNK)
    return exact_add(high, low, ((upper & mask) << half).astype(low.dtype), CHUNK)

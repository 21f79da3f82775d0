"""Counter-based random numbers for the inner loop.

Threefry keys cost more than the physics of a substep. Traffic draws from an integer hash of
`(seed, counter, stream)`, and every flow slot carries a 32-bit xorshift state (Marsaglia, "Xorshift
RNGs", J. Stat. Soft. 8(14), 2003) for its marking coins. Both are plain integer arithmetic: the
same seed gives the same bits on every backend, alone or inside a batch.
"""

from __future__ import annotations

import math
from enum import IntEnum, unique

import jax
import jax.numpy as jnp
import numpy as np


@unique
class Stream(IntEnum):
    """Streams of the seed of an episode: one for each use, so that no two draws are the same.

    Traffic sources have seeds of their own; the classes below list their streams.
    """

    PATH = 17
    """Equal-cost paths of flows."""
    COIN = 18
    """First state of each flow's marking coins."""
    REROUTE = 19
    """Paths around links that failed."""
    JITTER = 20
    """NIC processing."""
    MARKED_OF = 21
    """Fraction of a packet in the count of marked ones."""
    MARKED = 22
    """Count of marked packets."""
    FLOWLET = 23
    """Paths of flowlets."""
    PLACE = 24
    """Places of hosts."""
    PHASE_LENGTH = 40
    """Lengths of a timeline's phases."""


@unique
class PoissonStream(IntEnum):
    """Streams of the seed of `poisson.Poisson`."""

    GAP, SENDER, RECEIVER, SIZE, STANDING, LEFT = range(6)


@unique
class IncastStream(IntEnum):
    """Streams of the seed of `incast.Incast`."""

    SENDERS, RECEIVER, ORDER, START, GAP, SENDER_NIC, RECEIVER_NIC = range(7)


@unique
class RequestStream(IntEnum):
    """Streams of the seed of `jobs.Requests`."""

    GAP, RECEIVER, SENDER, SIZE = range(4)


@unique
class FlowSetStream(IntEnum):
    """Streams of the seed of `jobs.FlowSets`."""

    START, ORDER, SIZE = range(3)


@unique
class LoopStream(IntEnum):
    """Streams of the seed of `loops.ClosedLoop`."""

    SERVER, KIND, REQUEST, RESPONSE, THINK = range(5)


@unique
class GraphStream(IntEnum):
    """Streams of the seed of `graphs.Graph`."""

    START, PAUSE, SIZE = range(3)


@unique
class StreamsStream(IntEnum):
    """Streams of the seed of `streams.Streams`."""

    SENDERS, FLOWS, ORDER, START = range(4)


@unique
class GroupStream(IntEnum):
    """Streams of the seed of `flow_groups.FlowGroup`."""

    START = 0


def hash_bits(seed: jax.Array, counter: jax.Array, stream: int | jax.Array) -> jax.Array:
    """Scramble `(seed, counter, stream)` into 32 bits (two multiply-xorshift rounds each).

    Args:
        seed: uint32, scalar or broadcastable.
        counter: integer index of the draw.
        stream: small integer that separates the draws made at one counter.

    Returns:
        uint32 of the broadcast shape.
    """
    # Odd multipliers (2^32 over the golden ratio, MurmurHash3's) are one to one modulo 2^32:
    # no two counters of a stream collide.
    stream_bits = jnp.asarray(stream).astype(jnp.uint32)
    x = counter.astype(jnp.uint32) * jnp.uint32(0x9E3779B9) + stream_bits * jnp.uint32(0x85EBCA6B)
    x = _scramble(x ^ seed)
    # `_scramble` maps 0 to 0: the constant keeps an all-zero input from giving 0.
    return _scramble(x + seed * jnp.uint32(0xC2B2AE35) + jnp.uint32(0x27D4EB2F))


ROW_BITS, STREAMS = 12, 8
"""In `member_bits`, 2^12 members of a group share a stream; the distance of such streams, which is
above every stream of a source with groups."""


def member_bits(seed: jax.Array, group: jax.Array, number: jax.Array, stream: int) -> jax.Array:
    """Bits of the members of a group, e.g. of the flows of a burst.

    Every 4096 members have a stream of their own. Within 52,000 groups in a row no two members of
    up to 65,536 have the same bits.

    Args:
        seed: uint32, scalar or broadcastable.
        group: number of the group, int32.
        number: number of each member in its group, int32.
        stream: static integer below `STREAMS`.

    Returns:
        uint32 of the broadcast shape.
    """
    row, place = number >> ROW_BITS, number & (2**ROW_BITS - 1)
    return hash_bits(seed, (group << ROW_BITS) + place, stream + STREAMS * row)


def _scramble(x: jax.Array) -> jax.Array:
    """Avalanche 32 bits: alternate xorshifts and odd multiplications."""
    # Shifts and multipliers of Wellons's `lowbias32`, found by search for the least bias.
    x = x ^ (x >> 16)
    x = x * jnp.uint32(0x7FEB352D)
    x = x ^ (x >> 15)
    x = x * jnp.uint32(0x846CA68B)
    return x ^ (x >> 16)


def to_unit(bits: jax.Array) -> jax.Array:
    """Map uint32 bits to float32 strictly inside (0, 1), 23 bits fine (24 would round up to 1)."""
    return ((bits >> 9).astype(jnp.float32) + 0.5) * jnp.float32(2.0**-23)


def uniform(seed: jax.Array, counter: jax.Array, stream: int) -> jax.Array:
    """Uniform float32 in (0, 1) for `(seed, counter, stream)`."""
    return to_unit(hash_bits(seed, counter, stream))


def shuffled(bits: jax.Array, position: jax.Array, n: int) -> jax.Array:
    """Elements of a random cyclic order of `0..n-1`: a random start and a random coprime stride.

    Args:
        bits: two uint32 that choose the order, `[2]`.
        position: places in it, from 0 on, int32; beyond n it begins again.
        n: number of elements.
    """
    strides = jnp.asarray(np.array([k for k in range(1, n + 1) if math.gcd(k, n) == 1]))
    stride = strides[bits[0] % jnp.uint32(len(strides))].astype(jnp.int32)
    return ((bits[1] % jnp.uint32(n)).astype(jnp.int32) + position * stride) % n


def normal_quantile(u: jax.Array) -> jax.Array:
    """Quantiles of the standard normal distribution, `u` in (0, 1), to 4.5e-4.

    Abramowitz and Stegun, "Handbook of Mathematical Functions", 26.2.23: made of operations that
    every backend has, `ecn_marl.lanes` included. Odd about 1/2, so its mean is exact.
    """
    t = jnp.sqrt(-2.0 * jnp.log(jnp.minimum(u, 1.0 - u)))
    numerator = 2.515517 + t * (0.802853 + t * 0.010328)
    denominator = 1.0 + t * (1.432788 + t * (0.189269 + t * 0.001308))
    return jnp.where(u < 0.5, -1.0, 1.0) * (t - numerator / denominator)


FEW = 10.0
"""Up to this mean, binomial numbers are drawn by their distribution function."""

TERMS = 32
"""Terms of that function: seven standard deviations above the largest such mean."""


def binomial(
    seed: jax.Array, counter: jax.Array, streams: tuple[int, int], n: jax.Array, p: jax.Array
) -> jax.Array:
    """Whole numbers with the mean `n p` and the variance `n p (1 - p)` of a binomial distribution.

    `n` need not be whole: it is rounded up with the probability of its fraction, which keeps the
    mean and adds at most `p^2 / 4` to the variance. Small means are drawn by inversion, others from
    the normal distribution with the variance of rounding taken off. Without loops, so that it
    compiles for every backend.

    Args:
        seed: uint32, scalar or broadcastable.
        counter: integer index of each draw.
        streams: two static small integers that separate these draws from others.
        n: number of trials, at least 0, float32.
        p: chance of each, in [0, 1].

    Returns:
        Whole numbers in [0, n + 1], float32 of the broadcast shape.
    """
    low = jnp.floor(n)
    trials = low + (uniform(seed, counter, streams[0]) < n - low)
    u = uniform(seed, counter, streams[1])
    # The rarer outcome is counted: at most 1/2, so its odds and logarithm stay finite.
    rare = jnp.minimum(p, 1.0 - p)
    mean = trials * rare
    odds = rare / (1.0 - rare)
    # Underflows for large means, which are not drawn by inversion.
    chance = jnp.exp(trials * jnp.log1p(-rare))
    cumulative, inverted = chance, jnp.zeros_like(chance)
    for k in range(TERMS):
        inverted = inverted + (u >= cumulative)
        chance = chance * (odds * (trials - k) / (k + 1.0))
        cumulative = cumulative + chance
    deviation = jnp.sqrt(jnp.maximum(mean * (1.0 - rare) - 1.0 / 12.0, 0.0))
    rounded = jnp.round(mean + deviation * normal_quantile(u))
    number = jnp.clip(jnp.where(mean < FEW, inverted, rounded), 0.0, trials)
    return jnp.where(p > 0.5, trials - number, number)


def xorshift(state: jax.Array) -> jax.Array:
    """Next state of a xorshift32 generator; `state` must not be 0."""
    state = state ^ (state << 13)
    state = state ^ (state >> 17)
    return state ^ (state << 5)

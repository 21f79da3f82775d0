"""Servers with several NICs: which host of the network belongs to which server.

A *host* of the simulator is a NIC with a link of its own. A server with two of them (a bond whose
flows are spread by their addresses and ports, layer 3 ECMP) is two hosts that share a number in
`Topology.server`. A flow between two servers takes one NIC of each, by hash, and keeps them; NICs
of one server never send to each other over the network.

`server` below is a tuple with the number of each host's server, counted from 0.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from ecn_marl._errors import bad_value
from ecn_marl._types import Leaf
from ecn_marl.sim.random import IncastStream, hash_bits, member_bits, shuffled

Server = tuple[int, ...]
"""Number of each host's server; empty for a server to each host."""


class Nics(NamedTuple):
    """Tables of a network with S servers, at most K NICs each.

    Attributes:
        of: NICs of each server, the last ones filled up with its first, `[S, K]`.
        n_of: number of NICs of each server, `[S]`.
        others: for every host those of other servers, filled up with host 0, `[H, M]`.
        n_others: how many these are, `[H]`.
    """

    of: np.ndarray
    n_of: np.ndarray
    others: np.ndarray
    n_others: np.ndarray

    def pick(self, servers: Int[Array, "*n"], bits: Array) -> Int[Array, "*n"]:
        """One NIC of each server, at random.

        Args:
            servers: numbers of the servers, `[*n]`.
            bits: 32 random bits for each, uint32.
        """
        k = bits % jnp.asarray(self.n_of.astype(np.uint32))[servers]
        return jnp.asarray(self.of)[servers, k.astype(jnp.int32)]


@cache
def nics(server: Server) -> Nics:
    """Tables for hosts that belong to these servers."""
    number = np.array(server)
    members = [np.flatnonzero(number == s) for s in range(number.max() + 1)]
    max_nics = max(len(m) for m in members)
    others = [np.flatnonzero(number != s) for s in server]
    widest = max(len(a) for a in others)
    return Nics(
        of=np.array([np.resize(m, max_nics) for m in members], np.int32),
        n_of=np.array([len(m) for m in members], np.int32),
        others=np.array([np.pad(a, (0, widest - len(a))) for a in others], np.int32),
        n_others=np.array([len(a) for a in others], np.int32),
    )


def apart(server: Server) -> np.ndarray:
    """Whether two hosts belong to different servers, bool `[H, H]`."""
    number = np.array(server)
    return number[:, None] != number[None, :]


def burst(
    server: Server, receiver: Leaf, seed: Array, number: Int[Array, ""], flow: Int[Array, " n"]
) -> tuple[Int[Array, " n"], Int[Array, " n"]]:
    """NICs that the flows of a burst from many servers to one go from and to, `[n]` each.

    Args:
        server: server of each host.
        receiver: a host of the server that receives, -1 for any server.
        seed: uint32 of the source.
        number: number of the burst.
        flow: numbers of its flows; every server sends before one sends again.
    """
    tables = nics(server)
    n = len(tables.n_of)
    random_server = (hash_bits(seed, number, IncastStream.RECEIVER) % jnp.uint32(n)).astype(
        jnp.int32
    )
    host = jnp.asarray(receiver).astype(jnp.int32)  # traced parameters are reals
    chosen = jnp.asarray(np.array(server, np.int32))[jnp.maximum(host, 0)]
    target = jnp.where(host < 0, random_server, chosen)
    # Two words of bits: `-1 - number` is the counter of no other burst.
    order = hash_bits(seed, jnp.stack([number, -1 - number]), IncastStream.ORDER)
    sender = (target + 1 + shuffled(order, flow, n - 1)) % n
    coin = member_bits(seed, number, flow, IncastStream.RECEIVER_NIC)
    dst = tables.pick(jnp.broadcast_to(target, flow.shape), coin)
    return tables.pick(sender, member_bits(seed, number, flow, IncastStream.SENDER_NIC)), dst


def burst_links(server: Server, receiver: Leaf) -> Array:
    """Number of links that bursts to a server (-1 for any) arrive by."""
    number = np.array(server)
    host = jnp.asarray(receiver).astype(jnp.int32)
    n_nics = jnp.asarray(np.bincount(number)[number])[jnp.maximum(host, 0)]
    return jnp.where(host < 0, len(number), n_nics)


def burst_pairs(server: Server, receiver: int) -> np.ndarray:
    """Share of the flows of such bursts from host i to host j, `[H, H]`."""
    number = np.array(server)
    per_nic = 1.0 / np.bincount(number)[number]
    receiving = per_nic * ((receiver < 0) | (number == number[receiver]))
    pairs = np.outer(per_nic, receiving) * apart(server)
    shares: np.ndarray = pairs / pairs.sum()
    return shares


def check_servers(server: Server, hosts: int) -> None:
    """Check the servers of a network.

    Raises:
        ValueError: not one number for each host, a number that no host has below the largest, or
            several NICs on a single server.
    """
    numbers = set(server)
    if len(server) != hosts or numbers != set(range(len(numbers))):
        raise bad_value(
            "server", server, f"a number for each of {hosts} hosts, from 0, none unused"
        )
    if len(numbers) < min(hosts, 2):
        raise bad_value("server", server, "two servers at least")

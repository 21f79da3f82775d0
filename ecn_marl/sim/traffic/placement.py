"""Placement: hosts of a group change places in every episode.

A scheduler puts jobs on the machines that are free, so the host that reads today is another one
tomorrow. Sources still name hosts by number; where each of them stands is drawn when an episode
begins, and the flows that are offered are between those places. So rings cross other links, and
no port has a role that a policy could learn by heart.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from ecn_marl._errors import bad_value
from ecn_marl.sim.network.topology import Topology
from ecn_marl.sim.random import Stream, hash_bits
from ecn_marl.sim.traffic.base import Source
from ecn_marl.sim.traffic.flow_checks import host_group
from ecn_marl.sim.traffic.schedules import Schedule

Groups = tuple[tuple[int, ...], ...]
"""Numbers of the hosts that change places with each other, group by group."""


def check_placement(
    placement: Sequence[Sequence[int]], topology: Topology, traffic: Sequence[Source]
) -> Groups:
    """Groups of hosts as numbers.

    Args:
        placement: the groups.
        topology: the network.
        traffic: the sources.

    Raises:
        InvalidValue: a group of fewer than 2 hosts, a host that the network does not have or that
            is in two groups, hosts of a group with links of different rates, servers with several
            NICs, which would be torn apart, or a source that is a list of flows, whose hosts and
            paths are meant as they are.
    """
    if not isinstance(placement, list | tuple):
        raise bad_value("placement", placement, "a tuple of groups of hosts")
    groups = tuple(host_group("placement", group, 2) for group in placement)
    hosts = [host for group in groups for host in group]
    if len(set(hosts)) != len(hosts):
        raise bad_value("placement", placement, "every host in one group at most")
    if hosts and max(hosts) >= topology.n_hosts:
        allowed = f"hosts 0 to {topology.n_hosts - 1} of {topology.name}"
        raise bad_value("placement", placement, allowed)
    for group in groups:
        rates = sorted({topology.nic_gbps[host] for host in group})
        if len(rates) > 1:
            allowed = f"hosts with links of one rate in a group, not of {rates} Gb/s"
            raise bad_value("placement", placement, allowed)
    if groups and topology.bonds:
        raise bad_value("placement", placement, "() with servers that have several NICs")
    if groups and any(isinstance(source, Schedule) for source in traffic):
        raise bad_value("placement", placement, "() with a list of flows, whose hosts are fixed")
    return groups


def draw_places(seed: Array, groups: Groups, hosts: int) -> Int[Array, " hosts"]:
    """Where every host stands in an episode.

    Args:
        seed: seed of the episode, uint32.
        groups: hosts that change places with each other; all orders are equally likely.
        hosts: number of hosts.

    Returns:
        Number of the place of every host; hosts in no group stay.
    """
    places = jnp.arange(hosts, dtype=jnp.int32)
    # No two counters of a stream have the same bits, so ranks have no ties.
    bits = hash_bits(seed, places, Stream.PLACE)
    for group in groups:
        members = np.array(group, np.int32)
        drawn = bits[members]
        rank = (drawn[None, :] < drawn[:, None]).sum(1)
        places = places.at[members].set(jnp.asarray(members)[rank])
    return places

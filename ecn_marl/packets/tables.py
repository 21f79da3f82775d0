"""The tables of a network at its start, from a simulator's settings and parameters."""

from __future__ import annotations

import numpy as np

from ecn_marl.packets.records import (
    CLASS,
    CLOCK,
    EVENT,
    FLOW,
    LANE,
    LINK,
    NEVER,
    NONE,
    PORT,
    PS_PER_US,
    RULES,
    SWITCH,
    Network,
    pool,
)
from ecn_marl.packets.senders import SENDER, constants_of
from ecn_marl.sim.config import SimConfig
from ecn_marl.sim.state import SimParams
from ecn_marl.sim.traffic.sizes import PAYLOAD

PACKETS, EVENTS = 2**13, 2**10
"""Sizes of the pool and the heap at the start; both grow."""


def network(cfg: SimConfig, params: SimParams, seed: int, whole_ns: bool) -> Network:
    """An empty network.

    Args:
        cfg: settings.
        params: parameters.
        seed: of the marking coins.
        whole_ns: whether times of packets are cut to whole ns.
    """
    t, c = cfg.topology, cfg.n_classes
    links = _links(cfg, params)
    clock = np.zeros(1, CLOCK)
    # The first numbers of SplitMix64 with small seeds are as good as any.
    clock["seed"], clock["n_free"] = seed, PACKETS
    lanes = np.zeros(len(links) * (c + 1), LANE)
    lanes["head"] = lanes["tail"] = NONE
    flows = np.zeros(cfg.slots, FLOW)
    flows["lost"] = NONE
    base_rtt = float(params.net.base_rtt)
    constants = constants_of(cfg.transport, params.transport, c, base_rtt)
    told = constants["telemetry"].any()
    return Network(
        clock=clock,
        rules=_rules(cfg, params, whole_ns),
        links=links,
        lanes=lanes,
        classes=_classes(cfg, params),
        switches=_switches(cfg, params),
        ports=np.zeros(t.n_ports, PORT),
        flows=flows,
        senders=np.zeros(cfg.slots, SENDER),
        constants=constants,
        way=np.full((cfg.slots, 2, t.n_levels + 1), NONE, np.int32),
        hop=np.zeros((cfg.slots, t.n_levels), np.int32),
        bounds=np.array(cfg.queue_bounds, np.int32),
        of_nic=np.zeros((t.n_hosts, cfg.slots), np.int32),
        has_sent=np.zeros((t.n_ports, t.n_hosts), bool),
        packets=pool(PACKETS),
        heap=np.zeros(EVENTS, EVENT),
        ecn=np.zeros((t.n_ports, c, 3)),
        readings=np.zeros((PACKETS if told else 1, t.n_levels, 3), np.int64),
        last_readings=np.zeros((cfg.slots if told else 1, t.n_levels, 3), np.int64),
    )


def _rules(cfg: SimConfig, params: SimParams, whole_ns: bool) -> np.ndarray:
    """What does not change."""
    net, rules = params.net, np.zeros(1, RULES)
    rules["hosts"], rules["classes"] = cfg.topology.n_hosts, cfg.n_classes
    rules["ack_bytes"] = round(float(net.ack_bytes))
    rules["packet"] = packet = round(float(net.packet_bytes))
    rules["payload"] = round(PAYLOAD)
    rules["header"] = packet - round(PAYLOAD)
    rules["reserve"], rules["resume_gap"] = float(net.reserve), float(net.resume_gap)
    rules["ack_priority"], rules["whole_ns"] = cfg.ack_priority, whole_ns
    rules["mark_quantum"] = cfg.mark_quantum
    return rules


def _links(cfg: SimConfig, params: SimParams) -> np.ndarray:
    """All links, idle."""
    t, net = cfg.topology, params.net
    links = np.zeros(t.n_hosts + t.n_ports, LINK)
    rate = np.concatenate([np.asarray(net.nic_rate), np.asarray(net.port_rate)]).astype(np.float64)
    delay = np.concatenate([np.asarray(net.nic_delay), np.asarray(net.port_delay)])
    links["ps_per_byte"] = PS_PER_US / rate
    links["delay"] = np.rint(delay.astype(np.float64) * PS_PER_US)
    links["wake"] = NEVER
    links["head"] = links["tail"] = NONE
    links["from_switch"] = np.concatenate([np.full(t.n_hosts, NONE), t.port_switch()])
    to_switch = t.link_switch()
    links["to_switch"] = np.where(to_switch == t.n_switches, NONE, to_switch)
    links["reverse"] = _reverse(cfg)
    links["alpha"] = np.asarray(net.pfc_alpha)
    links["headroom"] = np.rint(np.asarray(net.headroom, np.float64))
    return links


def _reverse(cfg: SimConfig) -> np.ndarray:
    """The link in the other direction of every link."""
    t = cfg.topology
    number = {(p.switch, p.peer, p.link): t.n_hosts + i for i, p in enumerate(t.ports)}
    nics = {name: h for h, name in enumerate(t.hosts)}
    of_ports = [nics.get(p.peer, number.get((p.peer, p.switch, p.link), NONE)) for p in t.ports]
    return np.array([*(t.n_hosts + t.last), *of_ports], np.int32)


def _switches(cfg: SimConfig, params: SimParams) -> np.ndarray:
    """Empty buffers, less what headroom and reserves set aside."""
    t, net = cfg.topology, params.net
    switches = np.zeros(t.n_switches, SWITCH)
    set_aside = (np.asarray(net.headroom, np.float64) + float(net.reserve)) * sum(cfg.lossless)
    per_switch = np.bincount(t.link_switch(), set_aside, t.n_switches + 1)[: t.n_switches]
    buffer = np.asarray(net.buffer, np.float64)
    switches["buffer"], switches["shared"] = buffer, np.maximum(buffer - per_switch, 0.0)
    return switches


def _classes(cfg: SimConfig, params: SimParams) -> np.ndarray:
    """Traffic classes; the quanta of round robin are a packet for the least weight."""
    classes = np.zeros(cfg.n_classes, CLASS)
    weights = np.array(cfg.weights)
    classes["lossless"] = cfg.lossless
    classes["alpha"] = np.minimum(cfg.lossy_alpha, 1e9)
    classes["quantum"] = float(params.net.packet_bytes) * weights / weights.min()
    return classes

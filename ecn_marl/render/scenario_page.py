"""A scenario as a picture: its network, and a sample of its traffic."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection

from ecn_marl.envs.ecn import EcnEnv
from ecn_marl.render.layout import node_places, port_lines
from ecn_marl.render.plots import COLOURS, INK, Page
from ecn_marl.sim.network.topology import GBPS
from ecn_marl.sim.traffic.sizes import HEADER, SIZE_CLASSES, wire_size
from ecn_marl.sim.traffic.tickets import tickets_of

CLASSES = ("up to 100 KB", "up to 1 MB", "above 1 MB")

BINS = 60
"""Bins of the time axis in which offered bytes are added up."""

MOST_TICKS = 20_000
"""Maximum number of ticks whose traffic is drawn."""


class Sample(NamedTuple):
    """Flows that begin in an episode.

    Attributes:
        start_us: start times, µs, `[flows]`.
        payload: bytes, `[flows]`.
        span_us: sampled time, µs.
    """

    start_us: np.ndarray
    payload: np.ndarray
    span_us: float


def sample_traffic(env: EcnEnv, seed: int) -> Sample | None:
    """Flows of the traffic sources, sampled without simulating the network.

    Args:
        env: the environment.
        seed: seed of the episode.

    Returns:
        The flows of an episode, or of its first `MOST_TICKS` ticks. None if flows begin when others
        have finished, which needs the network.
    """
    sources, params, tick = env.sim.traffic, env.default_params.sim, env.sim.tick_us
    if any(tickets_of(source) for source in sources):
        return None
    ticks = min(round(env.horizon * env.interval_us / tick), MOST_TICKS)
    nic = jnp.asarray(params.net.nic_rate)

    @jax.jit
    def run(key: jax.Array) -> PyTree:
        episode = jax.random.bits(key, (), jnp.uint32)
        keys = jax.random.split(key, len(sources))
        inputs = zip(sources, keys, params.traffic, strict=True)
        states = tuple(source.init(k, p, nic, episode) for source, k, p in inputs)

        def step(states: PyTree, _: None) -> PyTree:
            after, rows = [], []
            for source, state, p in zip(sources, states, params.traffic, strict=True):
                offer = source.offer(state, p, nic)
                # `advance` takes flows from the front: none begins behind one that does not.
                begins = jnp.cumprod((offer.valid & (offer.start < tick)).astype(jnp.int32))
                after.append(source.advance(state, p, nic, begins.sum(), tick))
                rows.append((begins > 0, offer.start, offer.payload))
            return tuple(after), tuple(rows)

        return jax.lax.scan(step, states, None, length=ticks)[1]

    starts, payloads = [], []
    for begins, start, payload in jax.device_get(run(jax.random.key(seed))):
        start_us = np.maximum(start, 0.0) + tick * np.arange(ticks)[:, None]
        starts.append(start_us[begins])
        payloads.append(payload[begins])
    return Sample(np.concatenate(starts), np.concatenate(payloads), ticks * tick)


def scenario_png(env: EcnEnv, sample: Sample | None, about: str) -> bytes:
    """Network, offered load over time, and the flows that begin, as PNG.

    Args:
        env: the environment.
        sample: its traffic, None for none.
        about: a line below the title, e.g. the first of the scenario's docstring.
    """
    page = Page(2, (12.0, 6.6), columns=2, width_ratios=(5, 7))
    network, load, text, sizes = page.axes
    _network(network, env)
    _facts(text, env)
    if sample is None:
        load.set_axis_off()
        sizes.set_axis_off()
        load.text(0.0, 0.9, "Its traffic depends on the network: see ecn-marl play.", fontsize=9)
    else:
        _traffic(load, sizes, env, sample)
    page.figure.suptitle(f"{env.name}: {about}", x=0.01, ha="left", fontsize=11, color=INK)
    return page.png()


def _traffic(load: Axes, sizes: Axes, env: EcnEnv, sample: Sample) -> None:
    """Offered load over time by size class, and every flow as it begins."""
    span_ms, begin = sample.span_us / 1e3, sample.start_us / 1e3
    wire = wire_size(sample.payload, HEADER + env.sim.transport.header)
    size_class = np.searchsorted(SIZE_CLASSES, sample.payload, side="left")
    edges = np.linspace(0.0, span_ms, BINS + 1)
    capacity = sum(env.sim.topology.nic_gbps) * GBPS * sample.span_us / BINS
    shares = [
        100.0
        * np.histogram(begin[size_class == i], edges, weights=wire[size_class == i])[0]
        / capacity
        for i in range(len(CLASSES))
    ]
    # A step plot needs a value at the end of its last bin.
    closed = [np.append(share, share[-1]) for share in shares]
    load.stackplot(edges, closed, labels=CLASSES, colors=COLOURS[:3], step="post", alpha=0.8)
    load.set_title("offered, % of what the hosts can send", loc="left", fontsize=10, color=INK)
    for i, (label, colour) in enumerate(zip(CLASSES, COLOURS, strict=False)):
        of_class = size_class == i
        sizes.scatter(
            begin[of_class], sample.payload[of_class] / 1e3, s=6, color=colour, label=label
        )
    sizes.set_yscale("log")
    title = f"{len(begin):,} flows as they begin: payload, KB"
    sizes.set_title(title, loc="left", fontsize=10, color=INK)
    for axis in (load, sizes):
        axis.set_xlim(0.0, span_ms)
        axis.set_xlabel("time, ms")
    load.legend(frameon=False, fontsize=8, ncols=3, loc="upper right")


def _network(axis: Axes, env: EcnEnv) -> None:
    """Hosts, switches, and links by their rate."""
    net = env.sim.topology
    places = node_places(net)
    rates = sorted({port.gbps for port in net.ports})
    for rate, colour in zip(rates, COLOURS, strict=False):
        of_rate = np.array([port.gbps == rate for port in net.ports])
        lines = port_lines(net)[of_rate]
        width = 0.4 if net.n_ports > 64 else 1.2
        axis.add_collection(LineCollection(list(lines), colors=colour, linewidths=width))
        axis.plot([], [], color=colour, label=f"{rate:g} Gb/s")
    spots = np.array(list(places.values()))
    host = np.array([name in net.hosts for name in places])
    small = net.n_hosts > 40
    axis.scatter(spots[host, 0], spots[host, 1], s=3 if small else 24, color="#5a6672", zorder=3)
    size = 30 if small else 90
    axis.scatter(spots[~host, 0], spots[~host, 1], s=size, marker="s", color=INK, zorder=3)
    axis.set(xlim=(-0.02, 1.02), ylim=(-0.04, 1.12))
    axis.set_axis_off()
    axis.legend(frameon=False, fontsize=8, ncols=len(rates), loc="upper left")


def _facts(axis: Axes, env: EcnEnv) -> None:
    """Facts of the scenario as text."""
    net, sim = env.sim.topology, env.sim
    lines = [
        f"network: {net.name}, {net.n_hosts} hosts, {net.n_ports} ports",
        f"senders: {sim.transport.kind}:{sim.transport.name}, {sim.slots} flow slots",
        f"substep {sim.dt_us:g} µs, tick {sim.tick_us:g} µs, interval {env.interval_us:g} µs",
        f"agents see {env.feature.name}, earn {env.reward.name}",
    ]
    if env.failing:
        lines.append("links fail: " + ", ".join(f"{name} {value:g}" for name, value in env.failing))
    sources = Counter(f"{type(source).__name__}{_source_fields(source)}" for source in sim.traffic)
    # In their order; a cluster may have dozens that read the same.
    lines += [
        f"source: {text}" if n == 1 else f"{n} sources: {text}" for text, n in sources.items()
    ]
    axis.set_axis_off()
    axis.text(0.0, 1.0, "\n".join(lines), va="top", fontsize=9, color=INK, wrap=True)


def _source_fields(source: object) -> str:
    """The fields of a source that describe its traffic."""
    names = ("load", "table", "n_min", "n_max", "flow_kb", "fill")
    texts = [f"{n} {getattr(source, n)}" for n in names if getattr(source, n, "") not in ("", None)]
    return f" ({', '.join(texts)})" if texts else ""

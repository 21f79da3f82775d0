"""Flows that begin in an interval: drawn by the sources of `sim`, with the paths of its hash.

Sources whose flows do not depend on earlier ones are asked for all ticks at once, others tick by
tick. All flows that are due are taken: a flow that finds no slot waits in a line of our own.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from ecn_marl._types import Leaf
from ecn_marl.packets.records import ARRIVAL, NONE, PS_PER_US
from ecn_marl.sim.config import SimConfig
from ecn_marl.sim.core import arrivals as fluid
from ecn_marl.sim.core import flags
from ecn_marl.sim.core.paths import Paths, find_paths, queue_numbers
from ecn_marl.sim.random import Stream, hash_bits
from ecn_marl.sim.state import SimParams, Totals
from ecn_marl.sim.traffic import tickets
from ecn_marl.sim.traffic.base import Offer
from ecn_marl.sim.traffic.sizes import CHUNK, PAYLOAD
from ecn_marl.sim.traffic.tickets import Finished


class Drawn(NamedTuple):
    """What the sources offer in some ticks; leaves `[ticks, M, ...]`.

    Attributes:
        due: which offers begin in the tick.
        offer: the offers.
        kind: their traffic class.
        paths: their ways.
        hop: queues at each level, `[ticks, M, L]`.
    """

    due: Array
    offer: Offer
    kind: Array
    paths: Paths
    hop: Array


class Sources(NamedTuple):
    """What of a state draws flows; see `sim.state.SimState`. `totals.started` numbers them."""

    step: Leaf
    seed: Leaf
    traffic: tuple[PyTree, ...]
    totals: Totals
    flags: Leaf
    places: Leaf


@partial(jax.jit, static_argnums=(0, 1))
def draw(cfg: SimConfig, ticks: int, state: Sources, params: SimParams) -> tuple[Sources, Drawn]:
    """Ask the sources for the flows of some ticks.

    Args:
        cfg: the simulator.
        ticks: number of ticks.
        state: sources at the start of the first.
        params: parameters.
    """
    net = jax.tree.map(jnp.asarray, params.net)
    params = replace(params, net=net)

    def tick(state: Any, _: None) -> tuple[Any, Drawn]:
        offers = fluid.next_offers(cfg, state.traffic, params, net.nic_rate)
        sizes = [o.src.shape[0] for o in offers]
        of_source = np.array(cfg.class_of or [0] * len(sizes), np.int32)
        kind = jnp.asarray(np.repeat(of_source, sizes))
        offer = fluid.joined(cfg, offers, params, state.places)
        due = offer.valid & (offer.start < cfg.tick_us)
        number = state.totals.started + jnp.cumsum(due) - 1
        bits = hash_bits(state.seed, number.astype(jnp.int32), Stream.PATH)
        paths = find_paths(net, offer, bits, ideal=cfg.ideal)
        hop, _ways_back = queue_numbers(paths, kind, cfg.queue_bounds, cfg.n_classes)
        per_source = jnp.split(due, np.cumsum(sizes)[:-1])
        traffic = tuple(
            source.advance(s, p, net.nic_rate, taken.sum(), cfg.tick_us)
            for source, s, p, taken in zip(
                cfg.traffic, state.traffic, params.traffic, per_source, strict=True
            )
        )
        totals = fluid.counted(cfg, state.totals, state.step, offer, due, params.window)
        # Those that begin are counted as they get their slots, see `view.completed`.
        totals = replace(totals, begun=state.totals.begun)
        # All that were offered in the last tick were taken, and still there are some from then.
        late = (due & (offer.start < -fluid.LATE_US)).any()
        return state._replace(
            step=state.step + cfg.tick_steps,
            traffic=traffic,
            totals=totals,
            flags=flags.raised(state.flags, flags.WIDTH, late),
        ), Drawn(due, offer, kind, paths, hop.T)

    drawn: tuple[Sources, Drawn] = jax.lax.scan(tick, state, None, length=ticks)
    return drawn


@partial(jax.jit, static_argnums=0)
def reported(cfg: SimConfig, state: Sources, params: SimParams, ends: Finished) -> Sources:
    """State after the sources learnt which flows have finished in a tick, see `tickets`."""
    nic_rate = jnp.asarray(params.net.nic_rate)
    traffic = tickets.report_finished(
        cfg.traffic, state.traffic, params.traffic, nic_rate, ends, cfg.tick_us
    )
    return state._replace(traffic=traffic)


class Arrivals(NamedTuple):
    """Flows in the order in which they get slots.

    Attributes:
        rows: `ARRIVAL`, `[M]`.
        ways: their links there and back, int32 `[M, 2, L + 1]`.
        hops: their queues, int32 `[M, L]`.
    """

    rows: np.ndarray
    ways: np.ndarray
    hops: np.ndarray

    @staticmethod
    def none(levels: int) -> Arrivals:
        """No flows, in a network of so many levels."""
        return Arrivals(
            np.zeros(0, ARRIVAL),
            np.zeros((0, 2, levels + 1), np.int32),
            np.zeros((0, levels), np.int32),
        )

    def then(self, later: Arrivals) -> Arrivals:
        """These flows, and later ones."""
        return Arrivals(*(np.concatenate(pair) for pair in zip(self, later, strict=True)))

    def since(self, at: int) -> Arrivals:
        """Those from number `at` on, which have to wait: they may begin in any tick."""
        rest = Arrivals(*(table[at:].copy() for table in self))
        rest.rows["tick"] = -1
        return rest


def arrivals_of(cfg: SimConfig, drawn: Drawn, first_step: int, header: int) -> Arrivals:
    """The flows that begin, as records.

    Args:
        cfg: the simulator.
        drawn: what the sources offered.
        first_step: substep at which the first of its ticks begins.
        header: bytes of a packet's header.
    """
    due = np.asarray(drawn.due)
    tick, column = np.nonzero(due)
    offer = {name: np.asarray(getattr(drawn.offer, name))[tick, column] for name in _COLUMNS}
    paths = {name: np.asarray(x)[tick, column] for name, x in drawn.paths._asdict().items()}
    rows = np.zeros(len(tick), ARRIVAL)
    rows["tick"] = tick
    for name in ("src", "dst", "flow_id"):
        rows[name] = offer[name]
    if drawn.offer.ticket is not None:
        rows["ticket"] = np.asarray(drawn.offer.ticket)[tick, column]
    else:
        rows["ticket"] = -1
    rows["kind"] = np.asarray(drawn.kind)[tick, column]
    wire = offer["wire_high"].astype(np.int64) * int(CHUNK) + np.rint(offer["wire_low"]).astype(
        np.int64
    )
    rows["wire"] = wire
    rows["payload"] = wire - header * np.maximum(-(-wire // (int(PAYLOAD) + header)), 1)
    step = first_step + tick * cfg.tick_steps
    rows["start_step"], rows["start_rest"] = step, offer["start"]
    # Ticks are whole ps. Substeps need not be, and would drift apart from them.
    begin = step // cfg.tick_steps * round(cfg.tick_us * PS_PER_US)
    rows["start"] = begin + np.rint(offer["start"].astype(np.float64) * PS_PER_US)
    for name in ("ideal", "rtt", "line"):
        rows[name] = paths[name]
    ways = np.stack(
        [
            _links(cfg, paths["forward"], offer["src"]),
            _links(cfg, paths["back"], offer["dst"]),
        ],
        1,
    )
    return Arrivals(rows, ways, np.asarray(drawn.hop)[tick, column].astype(np.int32))


_COLUMNS = ("src", "dst", "flow_id", "start", "wire_high", "wire_low")


def _links(cfg: SimConfig, ports: np.ndarray, host: np.ndarray) -> np.ndarray:
    """Links of ways, int32 `[M, L + 1]`: the NIC, then the ports, and NONE behind the last."""
    t = cfg.topology
    used = ports < t.n_ports
    # Levels that a way passes by are moved behind its ports.
    order = np.argsort(~used, axis=1, kind="stable")
    links = np.where(used, ports + t.n_hosts, NONE)
    return np.concatenate([host[:, None], np.take_along_axis(links, order, 1)], 1).astype(np.int32)

"""Arrivals: flows that the sources offer in a tick get slots, and their senders start.

Which offer gets which slot is decided by `lifecycle.admit`. Here the offers of all sources are
joined, and everything else that belongs to a flow begins with it: its sender, its feedback, the
state of its recovery and of its flowlets.
"""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, PyTree

from ecn_marl._types import Leaf
from ecn_marl.sim import feedback as fb
from ecn_marl.sim.config import SimConfig
from ecn_marl.sim.core import flags, flowlets, recovery
from ecn_marl.sim.core import lifecycle as life
from ecn_marl.sim.core.failures import links_up
from ecn_marl.sim.state import SimParams, SimState, Totals
from ecn_marl.sim.traffic import tickets
from ecn_marl.sim.traffic.base import Offer
from ecn_marl.sim.traffic.schedules import ScheduleParams
from ecn_marl.sim.traffic.sizes import add_headers, exact_add, size_class, sum_exactly
from ecn_marl.sim.transports import Mixed

LATE_US = 1e-3
"""A flow that starts this long before its tick has waited; less is rounding of its start, µs."""


def admit(
    cfg: SimConfig, state: SimState, params: SimParams
) -> tuple[SimState, Bool[Array, " flows"], Bool[Array, " flows"]]:
    """Move the arrivals of a tick into slots.

    Args:
        cfg: shapes, senders and sources.
        state: state at the start of the tick.
        params: parameters.

    Returns:
        State with the new flows in their slots; which slots got one, and which are in use then,
        `[F]` each.
    """
    net = params.net
    offers = next_offers(cfg, state.traffic, params, net.nic_rate)
    sizes = [o.src.shape[0] for o in offers]
    offer = joined(cfg, offers, params, state.places)
    # numpy: the source, and so the class, of every offer is known while tracing.
    kind = np.repeat(np.array(cfg.class_of or [0] * len(sizes), np.int32), sizes)
    flows, new, busy, line, taken = life.admit(
        state.flows,
        net,
        offer,
        state.step,
        state.totals.started,
        state.seed,
        cfg.tick_us,
        cfg.queue_bounds,
        jnp.asarray(kind),
        cfg.n_classes,
        links_up(net, state.step) if cfg.failures else None,
        fb.ACKS not in cfg.transport.needs,
        (cfg.n_ways, cfg.n_ways_back),
        cfg.ideal,
    )
    due = offer.valid & (offer.start < cfg.tick_us)
    crowded = (due & ~taken).any()
    # All that were offered in the last tick found a slot, and still there are some from then.
    unoffered = (offer.valid & (offer.start < -LATE_US)).any() & ~state.crowded
    raised = flags.raised(state.flags, flags.SLOTS, crowded)
    raised = flags.raised(raised, flags.WIDTH, unoffered)
    per_source = jnp.split(taken, np.cumsum(sizes)[:-1])
    traffic = tuple(
        source.advance(s, p, net.nic_rate, t.sum(), cfg.tick_us)
        for source, s, p, t in zip(
            cfg.traffic, state.traffic, params.traffic, per_source, strict=True
        )
    )
    if flows.gaps is not None:
        flows = replace(flows, gaps=recovery.restart(flows.gaps, new))
    if flows.flowlets is not None:
        restarted = flowlets.restart(flows.flowlets, new, flows.coin)
        flows = replace(flows, flowlets=restarted)
    senders: PyTree = flows.transport
    if isinstance(cfg.transport, Mixed):
        senders = cfg.transport.assign(senders, flows.kind)
    senders = cfg.transport.start(senders, params.transport, new, line, net.base_rtt)
    admitted = replace(
        state,
        flows=replace(flows, transport=senders),
        echo=fb.restart(state.echo, new, net.packet_bytes),
        traffic=traffic,
        totals=counted(cfg, state.totals, state.step, offer, taken, params.window),
        flags=raised,
        crowded=crowded,
    )
    return admitted, new, busy


def waiting(cfg: SimConfig, state: SimState, params: SimParams) -> Int[Array, ""]:
    """Flows that have arrived and wait at their hosts for a slot.

    Only the next `width` flows of every source are known: a lower bound if all of them wait.
    """
    offers = next_offers(cfg, state.traffic, params, jnp.asarray(params.net.nic_rate))
    return sum(
        ((o.valid & (o.start < -LATE_US)).sum().astype(jnp.int32) for o in offers),
        jnp.zeros((), jnp.int32),
    )


def next_offers(
    cfg: SimConfig, states: tuple[PyTree, ...], params: SimParams, nic_rate: Array
) -> list[Offer]:
    """The next flows of each source."""
    return [
        source.offer(s, p, nic_rate)
        for source, s, p in zip(cfg.traffic, states, params.traffic, strict=True)
    ]


def joined(
    cfg: SimConfig, offers: list[Offer], params: SimParams, places: Int[Array, " hosts"] | None
) -> Offer:
    """One offer of all sources, with the hosts, numbers, tickets and headers that flows have here.

    `places` is where hosts stand, see `SimState`.
    """
    offers = _numbered(offers, params)
    offers = tickets.with_tickets(offers, tickets.ticket_bounds(cfg.traffic))
    offer: Offer = jax.tree.map(lambda *x: jnp.concatenate(x), *offers)
    if places is not None:
        offer = replace(offer, src=places[offer.src], dst=places[offer.dst])
    if not cfg.transport.header:
        return offer
    high, low = add_headers(offer.wire_high, offer.wire_low, cfg.transport.header)
    return replace(offer, wire_high=high, wire_low=low)


def _numbered(offers: list[Offer], params: SimParams) -> list[Offer]:
    """Number the flows of several schedules one list after the other."""
    offset, numbered = 0, []
    for offer, p in zip(offers, params.traffic, strict=True):
        has_number = offer.flow_id >= 0
        flow_id = jnp.where(has_number, offer.flow_id + offset, offer.flow_id)
        numbered.append(replace(offer, flow_id=flow_id) if offset else offer)
        offset += p.src.shape[0] if isinstance(p, ScheduleParams) else 0
    return numbered


def counted(
    cfg: SimConfig,
    totals: Totals,
    step: Int[Array, ""],
    offer: Offer,
    taken: Bool[Array, " m"],
    window: tuple[Leaf, Leaf],
) -> Totals:
    """Counters with the flows admitted in a tick, and those of them that had to wait."""
    deferred = taken & (offer.start < -LATE_US)
    high, low = totals.offered
    # Under x64 sums of integers are int64, but a loop's carry has to keep its type.
    high = high + jnp.where(taken, offer.wire_high, 0).sum().astype(high.dtype)
    measured = taken & life.in_window(step, offer.start, cfg.dt_us, window)
    begun = measured & (size_class(offer.payload) == jnp.arange(3)[:, None])
    return replace(
        totals,
        offered=sum_exactly((high, low), jnp.where(taken, offer.wire_low, 0.0)),
        started=totals.started + taken.sum().astype(jnp.int32),
        begun=totals.begun + begun.sum(1).astype(jnp.int32),
        deferred=totals.deferred + deferred.sum().astype(jnp.int32),
        deferred_us=exact_add(
            *totals.deferred_us, -jnp.where(deferred, offer.start, 0.0).sum(), tickets.TIME_UNIT
        ),
    )

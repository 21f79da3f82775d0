"""Flows without a simulated network: each takes a given time."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from roundoff import U

from ecn_marl.sim.traffic.tickets import Finished

TICK = 8.0
NIC = np.full(16, 3125.0, np.float32)


@dataclass
class Event:
    """A flow: ticket, source, destination, payload, start and end (µs), tick of its admission."""

    ticket: int
    src: int
    dst: int
    payload: float
    start: float
    end: float
    tick: int


@cache
def programs(source: Any) -> tuple[Any, ...]:
    """A source's compiled start, its first offer, and a tick: what is taken, what has finished."""
    nic = jnp.asarray(NIC)

    def settle(s, p, w):
        s = source.finished(s, p, nic, w, TICK)
        return s, source.offer(s, p, nic)

    def turn(s, p, n, w):
        return settle(source.advance(s, p, nic, n, TICK), p, w)

    return (
        jax.jit(lambda key, p: source.init(key, p, nic, jnp.uint32(0))),
        jax.jit(settle),
        jax.jit(turn),
    )


def drive(source, params, ticks, times, room=1000, seed=0, begin=lambda state: state):
    """Run a source against flows that take `times(flow)` µs each, at most `room` at once.

    `begin` changes the first state.

    Returns:
        Flows in the order of their admission (those in progress have no end: infinity), the state,
        and the number of flows that had to wait for room.
    """
    init, settle, turn = programs(source)
    n, events, waited = source.n_tickets, [], 0
    state = begin(init(jax.random.key(seed), params))
    nothing = Finished(np.zeros(n, bool), np.zeros(n, np.float32))
    state, offer = settle(state, params, nothing)
    flying: dict[int, Event] = {}
    for tick in range(ticks):
        now, offered = tick * TICK, jax.device_get(offer)
        due = [i for i in range(len(offered.src)) if offered.valid[i] and offered.start[i] < TICK]
        taken = due[: max(room - len(flying), 0)]
        for i in taken:
            ticket, start = int(offered.ticket[i]), now + float(offered.start[i])
            assert ticket not in flying, "no two flows in progress have one ticket"
            waited += offered.start[i] < -1e-3
            row = offered.src[i], offered.dst[i], offered.payload[i]
            event = Event(ticket, *(x.item() for x in row), start, np.inf, tick)
            event.end = max(start, now) + times(event)
            flying[ticket] = event
            events.append(event)
        done, ago = np.zeros(n, bool), np.zeros(n, np.float32)
        for ticket, event in list(flying.items()):
            if event.end <= now + TICK:
                done[ticket], ago[ticket] = True, now + TICK - event.end
                del flying[ticket]
        state, offer = turn(state, params, np.int32(len(taken)), Finished(done, ago))
    for event in flying.values():
        event.end = np.inf
    return events, state, waited


def after(end: float, delay: float) -> float:
    """Start of a flow `delay` after the end of another: at the end of that tick at the earliest."""
    return max(end + delay, np.ceil(end / TICK) * TICK)


def near(delay: float) -> float:
    """Largest difference between a start and `after`, µs.

    A delay is counted down tick by tick in float32, each time rounded by u of it.
    """
    return (delay / TICK + 4) * (delay + 2 * TICK) * U

"""Loss recovery: go-back-N against packets, IRN's window, and no byte too many or too few."""

from __future__ import annotations

import heapq
from dataclasses import replace
from itertools import count

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from netcases import imbalance
from tiers import tiers

import ecn_marl
from ecn_marl.sim import Dcqcn, Poisson, Simulator, scaled_ecn, star
from ecn_marl.sim.config import TrafficClass
from ecn_marl.sim.metrics import counter_bytes
from ecn_marl.sim.traffic.schedules import Schedule, schedule
from ecn_marl.sim.transports import DcqcnFluid, Dctcp, Hpcc, RateAgent, Reno, Timely

LINE = 3125.0  # bytes/us
PACKET, ACK, DELAY = 1048.0, 60.0, 1.0
LENGTH_US = 10_000.0


def go_back_n(senders, share, buffer, seed=0):
    """Share of a link that senders at a constant rate get, packet by packet.

    They share a drop-tail queue. A receiver sends one NACK per gap and round of the sender, and the
    sender then starts over from the missing packet. Packets are up to half a spacing early or late.
    """
    rng = np.random.default_rng(seed)
    spacing, order = PACKET / (LINE * share), count()
    following, expected, last = [0] * senders, [0] * senders, [-1] * senders
    nacked, delivered, free, events = [False] * senders, 0.0, 0.0, []

    def push(time, kind, *details):
        heapq.heappush(events, (time, next(order), kind, details))

    for sender in range(senders):
        push(rng.random() * spacing, "send", sender)
    while events[0][0] < LENGTH_US:
        now, _, kind, (sender, *number) = heapq.heappop(events)
        if kind == "send":
            push(now + PACKET / LINE + DELAY, "queue", sender, following[sender])
            following[sender] += 1
            push(now + spacing * (0.5 + rng.random()), "send", sender)
        elif kind == "queue" and max(free - now, 0.0) * LINE + PACKET <= buffer:
            free = max(free, now) + PACKET / LINE
            push(free + DELAY, "arrive", sender, *number)
        elif kind == "arrive":
            nacked[sender] &= number[0] > last[sender]
            last[sender] = number[0]
            if number[0] == expected[sender]:
                delivered, nacked[sender] = delivered + PACKET, False
                expected[sender] += 1
            elif number[0] > expected[sender] and not nacked[sender]:
                nacked[sender] = True
                push(now + 2 * (DELAY + ACK / LINE), "nack", sender, expected[sender])
        elif kind == "nack":
            following[sender] = number[0]
    return delivered / (LINE * LENGTH_US)


def endless(n, recovery):
    """Senders at a constant rate to one host, without pauses and without ACKs in the queues."""
    sim = Simulator(
        star(n + 1, gbps=25.0),
        (Schedule(1.0, n),),
        RateAgent(),
        interval_steps=2000,
        slots=n,
        scheduled=n,
        bins=0,
        pfc=False,
        loss_recovery=recovery,
        ack_priority=True,
    )
    rows = {
        "src": np.arange(1, n + 1),
        "dst": np.zeros(n, int),
        "size_B": np.full(n, 4_000_000_000),
        "start_ns": np.zeros(n, int),
    }
    return sim, sim.default_params(traffic=(schedule(rows, 1.0),))


CASES = ((0.55, 50e3), (0.55, 200e3), (1.0, 50e3))


@pytest.mark.parametrize("recovery", tiers(("selective", "go-back-n"), "go-back-n"))
def test_goodput_is_that_of_packets(recovery):
    sim, params = endless(2, recovery)

    def run(share, buffer):
        net = replace(params.net, buffer=jnp.full_like(params.net.buffer, buffer))
        case_params = replace(params, net=net, transport=replace(params.transport, share=share))
        ecn = scaled_ecn(net, 1e6, 2e6, 1.0)
        state = sim.init(jax.random.key(0), case_params)

        def step(state, _):
            return sim.interval(state, case_params, ecn)[0], None

        return jax.lax.scan(step, state, None, length=round(LENGTH_US / 2000))[0]

    shares, buffers = jnp.array(CASES).T
    state = jax.device_get(jax.jit(jax.vmap(run))(shares, buffers))
    goodput = counter_bytes(state.totals.delivered) / (LINE * LENGTH_US)
    if recovery == "selective":
        np.testing.assert_allclose(goodput, 1.0, atol=0.01)
        return
    packets = [np.mean([go_back_n(2, *case, seed) for seed in range(2)]) for case in CASES]
    np.testing.assert_allclose(goodput, packets, rtol=0.1)
    assert packets[0] < 0.3 < 10 * packets[2], "go-back-N costs most of the link"
    for i in range(len(CASES)):
        error, offered = imbalance(jax.tree.map(lambda x, i=i: x[i], state))
        assert abs(error) < 1e-6 * offered


def test_every_flow_gets_all_its_bytes_once():
    """Four flows collide, lose, start over, and finish; exactly their bytes are delivered."""
    sim, _ = endless(4, "go-back-n")
    sim = replace(sim, transport=Dcqcn.of("hpcc-paper"), interval_steps=5000)
    size = np.array([300_000, 500_000, 40_000, 1_000_000])
    rows = {"src": np.arange(1, 5), "dst": np.zeros(4, int), "size_B": size}
    rows["start_ns"] = np.zeros(4, int)
    params = sim.default_params(traffic=(schedule(rows, 1.0),))
    net = replace(params.net, buffer=jnp.full_like(params.net.buffer, 60e3))
    params = replace(params, net=net)
    run = jax.jit(
        lambda key: sim.interval(sim.init(key, params), params, scaled_ecn(net, 5, 50, 1))
    )
    state = jax.device_get(run(jax.random.key(1))[0])
    assert np.isfinite(state.fct_log).all() and int(state.totals.finished.sum()) == 4
    wire = (size + 48 * np.ceil(size / 1000)).sum()
    assert float(counter_bytes(state.totals.delivered)) == pytest.approx(wire, rel=1e-5)
    assert float(counter_bytes(state.totals.dropped)) > 0.2 * wire
    assert np.asarray(state.flows.gaps.void).max() < 1e4


def test_irn_bounds_the_packets_on_the_way():
    assert not Dcqcn().windowed

    def senders(transport, **options):
        sim = Simulator(star(3), (Poisson(),), transport, loss_recovery="irn", **options)
        return sim.transport

    assert senders(Dcqcn()) == replace(Dcqcn(), windowed=True)
    for transport in (Reno(), Dctcp(), Hpcc()):
        assert senders(transport) == transport
    classes = (TrafficClass("a", Dcqcn()), TrafficClass("b", Reno()))
    assert [m.needs for m in senders(Dcqcn(), classes=classes).members] == [
        replace(Dcqcn(), windowed=True).needs,
        Reno().needs,
    ]
    for transport in (Timely(), DcqcnFluid(), RateAgent()):
        with pytest.raises(ValueError, match=f"loss_recovery = 'irn'.*{transport.kind}"):
            senders(transport)


def test_make_accepts_recovery_and_refuses_unknown_names():
    env = ecn_marl.make("websearch-v0", pfc=False, loss_recovery="go-back-n")
    assert env.sim.loss_recovery == "go-back-n"
    with pytest.raises(ValueError, match="go-back-n"):
        ecn_marl.make("websearch-v0", loss_recovery="gobackn")

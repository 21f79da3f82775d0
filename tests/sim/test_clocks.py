"""The longest substep that senders tolerate: longer ones are refused, a clock is chosen."""

import math

import pytest

import ecn_marl
from ecn_marl.sim import Incast, Simulator, star
from ecn_marl.sim.clocks import CERTIFIED_US, MAX_TICK, choose_clock, longest_dt_us
from ecn_marl.sim.config import TrafficClass
from ecn_marl.sim.transports import parse_transport, transports

LONGEST = {
    # (transport, Gb/s): half of the decrease interval, a tenth of the byte counter, …
    ("dcqcn:hpcc-run", 25.0): 2.0,
    ("dcqcn:hpcc-config", 100.0): 2.0,
    ("dcqcn:hpcc-paper", 25.0): 25.0,
    ("dcqcn:mellanox", 25.0): 32767 / 3125 / 10,
    ("dcqcn:mellanox", 100.0): 32767 / 12500 / 10,
    ("dcqcn:mellanox", 1.0): 2.0,
    ("dcqcn:hpcc-run,decrease_us=1", 25.0): 0.5,
    ("dcqcn:hpcc-paper,cnp_interval_us=10", 25.0): 5.0,
    ("dcqcn:sigcomm15-np50us", 25.0): 2.0,
    ("dcqcn:hpcc-paper,increase_us=0.5", 25.0): 0.5,
    ("dcqcn:hpcc-paper,alpha_us=0.1,g=0.5", 25.0): 0.2,
    ("dcqcn:hpcc-paper,alpha_us=0.1,g=0.01", 25.0): 1.0,
    ("dctcp:hpcc", 25.0): math.inf,
}


@pytest.mark.parametrize(("text", "gbps"), LONGEST)
def test_longest_substep(text, gbps):
    bound = longest_dt_us(parse_transport(text), star(3, gbps=gbps))
    assert bound.dt_us == pytest.approx(LONGEST[text, gbps])


def test_a_substep_that_is_too_long_is_refused():
    message = r"dt_us = 5.0 .* at most 1.05 us with dcqcn:mellanox .*byte counter"
    with pytest.raises(ValueError, match=message):
        ecn_marl.make("websearch-v0", transport="dcqcn:mellanox", dt_us=5.0)
    senders = parse_transport("dcqcn:hpcc-run")
    with pytest.raises(ValueError, match=r"at most 2 us .*half of decrease_us"):
        Simulator(star(3), (Incast(),), senders, dt_us=2.5)
    classes = (TrafficClass("a", senders), TrafficClass("b", parse_transport("dctcp:hpcc")))
    with pytest.raises(ValueError, match=r"dt_us = 2.5 .* at most 2 us"):
        Simulator(star(3), (Incast(),), dt_us=2.5, classes=classes)


@pytest.mark.parametrize("text", transports())
@pytest.mark.parametrize("gbps", [25.0, 400.0])
@pytest.mark.parametrize("interval", [100.0, 70.0, 3.0])
def test_the_chosen_clock_fits(text, gbps, interval):
    senders, network = parse_transport(text), star(3, gbps=gbps)
    dt, steps = choose_clock(senders, network, interval)
    assert dt <= min(CERTIFIED_US, longest_dt_us(senders, network).dt_us) * (1 + 1e-5)
    assert 1 <= steps <= MAX_TICK
    ticks = interval / (dt * steps)
    assert ticks == pytest.approx(round(ticks))
    interval_steps = round(interval / dt)
    Simulator(
        network, (Incast(),), senders, dt_us=dt, tick_steps=steps, interval_steps=interval_steps
    )


def test_make_chooses():
    """Another preset gets the clock it needs; a given number is kept or refused."""
    expected = {
        ("websearch-v0", "dcqcn:hpcc-paper"): (2.0, 10.0),
        ("websearch-v0", "dcqcn:mellanox"): (1.0, 10.0),
        ("incast-v0", "dcqcn:hpcc-paper"): (5.0, 20.0),  # what the scenario says
        ("incast-v0", "dcqcn:hpcc-run"): (2.0, 10.0),
    }
    for (name, text), clock in expected.items():
        sim = ecn_marl.make(name, transport=text).sim
        assert (sim.dt_us, sim.tick_us) == clock, (name, text)
    assert ecn_marl.make("websearch-v0", dt_us="auto").sim.dt_us == CERTIFIED_US
    assert ecn_marl.make("websearch-v0", dt_us=1.0).sim.dt_us == 1.0
    with pytest.raises(ValueError, match=r"dt_us = 'fast' .* or auto"):
        ecn_marl.make("websearch-v0", dt_us="fast")

"""Flags: each bit is set when its structure is too small, with its cure it is not; nowhere else."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from netcases import RANDOM, STAR, Run, network, simulate, start, with_net
from tiers import tiers

from ecn_marl import lanes
from ecn_marl.sim import Dcqcn, Poisson, Schedule, Simulator, leaf_spine, scaled_ecn, star
from ecn_marl.sim.config import TrafficClass
from ecn_marl.sim.core import flags
from ecn_marl.sim.metrics import counted
from ecn_marl.sim.traffic.sizes import CHUNK
from ecn_marl.sim.transports import parse_transport

MARK_ALL = (1e-3, 2e-3, 1.0)


def names(run):
    """Names of the flags of a run."""
    return flags.names(np.asarray(run.state.flags))


def generated(sim, intervals, seed=0, ecn=(20.0, 80.0, 0.5), **net):
    """A run of a simulator whose sources draw their flows."""
    params = with_net(sim.default_params(), **net)
    thresholds = scaled_ecn(params.net, *ecn)
    return Run(sim, start(sim)(jax.random.key(seed), params), params, thresholds).on(intervals)


# --- the table ------------------------------------------------------------------------------------


def test_the_table_has_a_row_for_every_bit():
    numbers = (
        *(flags.SLOTS, flags.WIDTH, flags.MEMORY, flags.MARKS, flags.WAYS),
        *(flags.BUFFERS, flags.COUNTERS, flags.NUMBERS),
    )
    assert numbers == tuple(range(len(flags.FLAGS)))
    assert [flags.BITS[row.name] for row in flags.FLAGS] == [1 << i for i in numbers]
    assert len({row.name for row in flags.FLAGS}) == len(flags.FLAGS)
    assert all(row.event and row.cure for row in flags.FLAGS)
    # Faces make floats of infos: the largest value has to be exact in float32.
    assert sum(flags.BITS.values()) < 2**24
    assert flags.flag("slots").cure == "more `slots`"


def test_names_of_one_value_and_of_many():
    assert flags.names(0) == ()
    assert flags.names(np.array([])) == ()
    assert flags.names(5) == ("slots", "memory")
    assert flags.names(np.array([[1.0, 0.0], [64.0, 1.0]])) == ("slots", "counters")


def test_a_bit_stays_set_and_leaves_the_others_alone():
    word = flags.none()
    for number in (flags.WAYS, flags.SLOTS):
        word = flags.raised(word, number, jnp.array(True))
        word = flags.raised(word, number, jnp.array(False))
    assert flags.names(np.asarray(word)) == ("slots", "ways")
    assert word.dtype == jnp.uint32


# --- each structure -------------------------------------------------------------------------------


def test_slots():
    """Twenty flows at once, sixteen slots; sixteen of them fit."""
    assert names(simulate(STAR, [(1, 0, 50_000, 2.0)] * 20, 10)) == ("slots",)
    assert names(simulate(STAR, [(1, 0, 50_000, 2.0)] * 16, 10)) == ()


FOUR_WIDE = replace(STAR, traffic=(Schedule(1.0, 4),))


@pytest.mark.parametrize(("flows", "expected"), [(5, ("width",)), (4, ())])
def test_width(flows, expected):
    """Flows at the end of a tick, slots enough: with a width of four, one of five waits."""
    run = simulate(FOUR_WIDE, [(1, 0, 5_000, 4.0)] * flows, 10)
    assert names(run) == expected
    assert int(run.totals.deferred) == (1 if expected else 0)


def test_a_burst_that_exactly_fits_is_no_overflow():
    """Four flows in every tick, a width of four: every offer is taken whole, and nothing waits."""
    rows = [(s, 0, 1_000, start_us) for start_us in (1.0, 7.0, 12.0, 99.9) for s in (1, 2, 3, 4)]
    run = simulate(FOUR_WIDE, rows, 10)
    assert int(run.totals.finished.sum()) == 16
    assert names(run) == ()


def test_slots_that_are_short_are_not_blamed_on_the_width():
    """Offers that did not fit are offered again, overdue, but they had been offered before."""
    sim = Simulator(star(4), (Poisson(load=0.9, width=30),), Dcqcn(), slots=2)
    run = generated(sim, 20)
    assert int(run.totals.deferred) > 0
    assert names(run) == ("slots",)


SLOW = {"nic_delay": 66.0, "port_delay": 66.0}
"""Delays beyond 256 µs there and back."""


REMEMBER = ("dctcp:hpcc", "hpcc:hpcc", "dcqcn:paper,source=mean_field")


LONG = [(1, 0, 10**7, 0.0), (2, 0, 10**7, 100.0)]


@pytest.mark.parametrize("transport", tiers(REMEMBER, "dctcp:hpcc"))
def test_memory(transport):
    sim = replace(STAR, transport=parse_transport(transport))
    assert names(simulate(sim, LONG, 10, **SLOW)) == ("memory",)
    assert names(simulate(sim, LONG, 10)) == ()


@pytest.mark.thorough
@pytest.mark.parametrize("transport", REMEMBER)
def test_more_memory_is_the_cure(transport):
    sim = replace(STAR, transport=parse_transport(transport), memory_us=512.0)
    assert names(simulate(sim, LONG, 10, **SLOW)) == ()


LOSSY = replace(STAR, transport=parse_transport("reno:rfc5681"), pfc=False, memory_us=64.0)


def lossy(sim, buffer):
    """Three flows that share a port whose full buffer drops; drops without PFC are no overflow."""
    run = simulate(sim, [(s, 0, 10**7, 0.0) for s in (1, 2, 3)], 40, buffer=buffer)
    assert run.dropped() > 0
    assert float(run.totals.spilled) == 0.0
    return run


@pytest.mark.parametrize(("buffer", "expected"), [(3e5, ("memory",)), (6e4, ())])
def test_memory_of_losses(buffer, expected):
    """A loss behind a deep queue is heard of after it: its notice is cut before other ACKs are."""
    run = lossy(LOSSY, buffer)
    assert names(run) == expected
    assert (counted(run.totals.late_feedback, CHUNK) > 0) == bool(expected)


@pytest.mark.thorough
def test_more_memory_of_losses_is_the_cure():
    """Also in a lossy class."""
    tcp = (TrafficClass("tcp", LOSSY.transport, lossless=False),)
    in_a_class = replace(LOSSY, pfc=True, transport=Dcqcn(), classes=tcp)
    # A lossy class shares the buffer with headroom for the lossless one.
    for sim, buffer in ((LOSSY, 3e5), (in_a_class, 6e5)):
        assert names(lossy(sim, buffer)) == ("memory",)
        assert names(lossy(replace(sim, memory_us=2048.0), buffer)) == ()


FAR = {"jitter_us": 900.0}


def test_marks():
    """Feedback beyond the 640 substeps of the CNPs' delay line: jitter, and a long way."""
    sim, rows = replace(STAR, jitter_us=500.0), [(s, 0, 10**7, 0.0) for s in (1, 2, 3)]
    assert names(simulate(sim, rows, 10, ecn=MARK_ALL, **SLOW)) == ("marks",)
    assert names(simulate(sim, rows, 10, ecn=MARK_ALL)) == ()


@pytest.mark.thorough
@pytest.mark.parametrize(
    "cure",
    [network(star(9), 5.0, **FAR), replace(STAR, jitter_us=400.0)],
    ids=["longer substeps", "less jitter"],
)
def test_cures_of_marks(cure):
    """Jitter beyond the 640 substeps of the CNPs' delay line; longer substeps reach further."""
    rows = [(s, 0, 10**7, 0.0) for s in (1, 2, 3)]
    assert names(simulate(replace(STAR, **FAR), rows, 10, ecn=MARK_ALL)) == ("marks",)
    assert names(simulate(cure, rows, 10, ecn=MARK_ALL)) == ()


@pytest.mark.thorough
def test_marks_of_senders_that_hear_none():
    """A sender without CNPs has no use for their delay line."""
    sim = replace(STAR, jitter_us=900.0, transport=parse_transport("swift:htsim"), memory_us=2e3)
    assert names(simulate(sim, [(1, 0, 10**6, 0.0)], 10)) == ()


def test_ways():
    """Four spines and a pause between any two packets: a third path while two have bytes."""
    sim = Simulator(
        leaf_spine(2, 4, 4),
        (Poisson(load=0.9, table="FbHdp", width=8),),
        Dcqcn(),
        slots=64,
        load_balancing="flowlet",
        flowlet_gap_us=0.5,
    )
    run = generated(sim, 20, port_rate=300.0)
    kept = int(run.totals.flowlets[1])
    assert kept > 0
    assert "ways" in names(run)
    calm = generated(sim, 20, port_rate=1e5)
    assert int(calm.totals.flowlets[0]) > 0
    assert int(calm.totals.flowlets[1]) == 0
    assert "ways" not in names(calm)


INCAST = [(s, 0, 10**6, 12.0 * s) for s in range(1, 9)]


def test_buffers():
    """Nothing pauses before the buffer is full: then bytes of hosts that come later drop."""
    small = {"buffer": 1.5e5, "headroom": 0.0, "pfc_alpha": 1e6}
    run = simulate(STAR, INCAST, 10, **small)
    assert run.dropped() > 0
    assert names(run) == ("buffers",)
    assert float(run.totals.spilled) == pytest.approx(run.dropped(), rel=1e-5)
    ample = simulate(STAR, INCAST, 10)
    assert names(ample) == ()
    assert float(ample.totals.spilled) == ample.dropped() == 0.0


def test_counters():
    """A counter passes 2^31 - 1: int32 goes on below 0."""
    run = simulate(STAR, [(1, 0, 10**8, 0.0)], 10)
    assert names(run) == ()
    at_the_top = jnp.int32(2**31 - 100)
    totals = replace(run.state.totals, pauses=at_the_top, histogram=run.totals.histogram + 1)
    full = replace(run, state=replace(run.state, totals=totals))
    assert names(full.on(10)) == ()
    for change in (
        {"totals": replace(run.state.totals, finished=jnp.full(3, -5, jnp.int32))},
        {"totals": replace(run.state.totals, offered=(jnp.int32(-1), jnp.float32(0.0)))},
        {"step": jnp.int32(2**31 - 100)},
    ):
        assert names(replace(run, state=replace(run.state, **change)).on(10)) == ("counters",)


def with_load(params, load):
    """Parameters whose only source has this load."""
    (source,) = params.traffic
    return replace(params, traffic=(replace(source, load=jnp.asarray(load, jnp.float32)),))


SMALL = Simulator(star(4), (Poisson(load=0.5, width=8),), Dcqcn(), slots=32)


def test_numbers():
    """While a function is compiled its parameters are not known: the result says what they were."""
    params = SMALL.default_params()
    loads = with_load(params, [0.3, np.nan, 0.5])
    axes = with_load(jax.tree.map(lambda _: None, params), 0)
    axes = replace(axes, traffic=(replace(axes.traffic[0], load=0),))
    keys = jax.random.split(jax.random.key(0), 3)
    states = jax.jit(jax.vmap(SMALL.init, (0, axes)))(keys, loads)
    assert [flags.names(x) for x in np.asarray(states.flags)] == [(), ("numbers",), ()]


def leaves_with_nan(tree):
    """The tree with NaN in one of its arrays of reals, for each of them."""
    if isinstance(tree, tuple):
        for i, part in enumerate(tree):
            for changed in leaves_with_nan(part):
                yield (*tree[:i], changed, *tree[i + 1 :])
    elif is_dataclass(tree):
        for field in fields(tree):
            for changed in leaves_with_nan(getattr(tree, field.name)):
                yield replace(tree, **{field.name: changed})
    elif tree is not None and np.asarray(tree).dtype.kind == "f":
        leaf = np.array(tree)
        leaf[(-1,) * leaf.ndim] = np.nan
        yield leaf


def test_nan_anywhere_is_found():
    params = SMALL.default_params()
    found = jax.jit(flags.has_nan)
    assert not found(params)
    wrong = list(leaves_with_nan(params))
    assert len(wrong) > 20
    assert all(found(tree) for tree in wrong)


# --- all together ---------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", tiers(RANDOM, "star, drops"))
def test_lanes_set_the_same_flags(name):
    """Networks with few slots and small buffers, through XLA and through lanes."""
    sim = replace(RANDOM[name], slots=16, counts=(), accrue=False)
    params = with_net(sim.default_params(), buffer=1e5, headroom=0.0, pfc_alpha=1e6)
    ecn = scaled_ecn(params.net, 5.0, 200.0, 0.5)

    def episode(key):
        state = sim.init(key, params)
        return jax.lax.scan(
            lambda s, _: (sim.interval(s, params, ecn)[0], None), state, None, length=3
        )[0].flags

    keys = jax.random.split(jax.random.key(3), 24)
    expected = np.asarray(jax.jit(jax.vmap(episode))(keys))
    found = np.asarray(jax.jit(lanes.vmap(episode, (0,)))(keys))
    np.testing.assert_array_equal(found, expected)
    assert len(set(expected.tolist())) > 1, "some episodes are flagged, others are not"

"""Replaying flow lists: completion times, series, byte balance, written files."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import numpy as np
import pytest
from netcases import alone_us, standalone_us
from tiers import tiers

from ecn_marl.sim.network.topology import leaf_spine, star
from ecn_marl.sim.replay import Settings, replay, write_fct, write_queues
from ecn_marl.sim.traffic.trace import FlowList

STAR = star(5)
SPINE = leaf_spine(2, 2, 2)
# Substeps of 5 µs and one size of everything, so that few programs are compiled.
COARSE = Settings(dt_us=5.0, duration_ms=1.5, slots=4, ecn=(5.0, 2000.0, 0.05))

TIGHT = replace(COARSE, slots=8, buffer_mib=0.7)


def flow_list(src, dst, size, start_us, **spines) -> FlowList:
    n = len(src)
    unset = np.full(n, -1)
    return FlowList(
        flow_id=np.arange(n) + 100,
        src=np.array(src),
        dst=np.array(dst),
        size=np.broadcast_to(size, n).astype(np.int64),
        start_ns=np.broadcast_to(np.array(start_us) * 1e3, n).astype(float),
        spine_data=np.array(spines.get("data", unset)),
        spine_ack=np.array(spines.get("ack", unset)),
    )


@pytest.fixture(scope="module")
def incast():
    """Four senders of 300 KB to host 0, started 10 µs apart, listed out of order."""
    return flow_list([3, 1, 4, 2], [0] * 4, 300_000, [20.0, 0.0, 30.0, 10.0])


@pytest.fixture(scope="module")
def result(incast):
    return replay(incast, STAR, COARSE)


def test_incast_shares_the_link(incast, result):
    """4 x 300 KB take 4 x 314.4 KB / 3125 B/µs = 402 µs on the wire, and then an ACK's return."""
    end_us = (incast.start_ns + result.fct_ns) / 1e3
    assert 402 < end_us.max() < 440
    assert (result.slowdown > 2).all()
    host0 = [p.peer for p in STAR.ports].index("host0")
    busy = result.tx_bytes[2:40, host0].sum() / (38 * 10 * 25 * 125)
    assert busy == pytest.approx(1.0, abs=0.01)


def test_series_are_sampled_every_10_us(result):
    np.testing.assert_array_equal(result.time_us, np.arange(10, 1501, 10))
    assert result.queue_bytes.shape == result.tx_bytes.shape == (150, 5)
    payload_and_headers = 4 * 300 * 1048
    acks = result.tx_bytes.sum() - payload_and_headers
    assert acks == pytest.approx(4 * 300 * 60, rel=0.1)
    assert result.queue_bytes[10].max() > 50e3, "four line-rate senders pile up"
    assert (result.queue_bytes[-1] == 0).all()


def test_statistics_agree_with_the_series(result):
    row = result.ports["host"]
    assert row["ports"] == 5
    sent = result.tx_bytes.sum(dtype=float) / (5 * 1500 * 25 * 125)
    assert row["utilisation"] == pytest.approx(sent, rel=1e-6)
    assert row["queue_bytes"]["p99"] == pytest.approx(np.percentile(result.queue_bytes, 99))
    assert row["queue_bytes"]["mean"] == pytest.approx(result.queue_bytes.mean(), rel=0.02)
    assert row["queue_bytes"]["std"] == pytest.approx(result.queue_bytes.std(), rel=0.02)
    assert row["queue_bytes"]["max"] >= result.queue_bytes.max()
    assert 0 < row["marks"] < 4 * 300


def test_order_of_the_list_does_not_matter(incast, result):
    order = np.argsort(incast.start_ns)
    columns = {name: getattr(incast, name)[order] for name in incast.__dataclass_fields__}
    again = replay(FlowList(**columns), STAR, COARSE)
    np.testing.assert_array_equal(again.fct_ns, result.fct_ns[order])
    np.testing.assert_array_equal(again.queue_bytes, result.queue_bytes)


def test_seed_fixes_everything(incast):
    long = replace(incast, size=3 * incast.size)
    first, again, other = (replay(long, STAR, replace(COARSE, seed=seed)) for seed in (0, 0, 1))
    np.testing.assert_array_equal(again.fct_ns, first.fct_ns)
    np.testing.assert_array_equal(again.queue_bytes, first.queue_bytes)
    assert again.summary() == first.summary()
    assert (first.queue_bytes != other.queue_bytes).any(), "coins fall differently"


@pytest.fixture(scope="module")
def step(incast):
    """All is marked above 30 KB."""
    return replay(incast, STAR, replace(COARSE, ecn=(30.0, 30.0, 1.0)))


def test_thresholds_count(incast, result, step):
    assert step.ports["host"]["queue_bytes"]["mean"] < result.ports["host"]["queue_bytes"]["mean"]
    # Thresholds for a port of 5 Gb/s are five times as large on one of 25 Gb/s.
    scaled = replay(incast, STAR, replace(COARSE, ecn=(6.0, 6.0, 1.0), ecn_gbps=5.0))
    np.testing.assert_array_equal(scaled.queue_bytes, step.queue_bytes)


def test_a_step_marks_like_a_ramp_of_one_byte(incast, step):
    """Kmin = Kmax, as DCTCP's own configuration has it."""
    ramp, off = (
        replay(incast, STAR, replace(COARSE, ecn=ecn))
        for ecn in ((30.0, 30.001, 1.0), (30.0, 1e6, 1e-3))
    )
    assert step.summary()["marks"] == pytest.approx(ramp.summary()["marks"], rel=0.01)
    assert step.summary()["marks"] > 20 * off.summary()["marks"] > 0
    np.testing.assert_allclose(step.queue_bytes, ramp.queue_bytes, atol=2e3)


def test_a_flow_alone_takes_its_ideal_time():
    """Four flows that never meet; or by the HPCC simulator's formula."""
    lonely = flow_list([1, 2, 3, 4], [2, 3, 4, 1], 100_000, [0.0, 100.0, 200.0, 300.0])
    alone = replay(lonely, STAR, COARSE)
    np.testing.assert_allclose(alone.fct_ns, alone_us(100_000, [25]) * 1e3, rtol=1e-5)
    np.testing.assert_allclose(alone.slowdown, 1.0, rtol=1e-5)
    recorded = replay(lonely, STAR, replace(COARSE, ideal="standalone"))
    ideal_ns = standalone_us(100_000, [25]) * 1e3
    np.testing.assert_allclose(recorded.fct_ns / recorded.slowdown, ideal_ns, rtol=1e-5)
    np.testing.assert_array_equal(recorded.fct_ns, alone.fct_ns)


def test_unfinished_flows_and_flows_after_the_end():
    size = np.array([300_000, 300_000, 300_000, 30_000_000, 300_000])
    late = flow_list([3, 1, 4, 2, 1], [0] * 5, size, [20.0, 0.0, 2000.0, 10.0, 30.0])
    cut = replay(late, STAR, COARSE)
    np.testing.assert_array_equal(np.isfinite(cut.fct_ns), [True, True, False, False, True])
    np.testing.assert_array_equal(np.isfinite(cut.slowdown), np.isfinite(cut.fct_ns))
    flows = cut.summary()["flows"]
    assert (flows["total"], flows["offered"], flows["started"]) == (5, 4, 4)
    assert (flows["finished"], flows["unfinished"], flows["waiting"]) == (3, 1, 0)
    text = io.StringIO()
    write_fct(cut, text)
    lines = text.getvalue().splitlines()
    assert lines[0] == "flow_id,size_B,start_ns,fct_ns,slowdown"
    assert lines[3] == "102,300000,2000000,,"
    assert lines[4] == "103,30000000,10000,,"
    number, size_b, start, fct, slowdown = lines[2].split(",")
    assert (number, size_b, start) == ("101", "300000", "0")
    assert float(fct) == pytest.approx(cut.fct_ns[1], abs=0.5)
    assert float(slowdown) == pytest.approx(cut.slowdown[1], abs=1e-5)


def test_flows_wait_for_a_slot(incast, result):
    tight = replay(incast, STAR, replace(COARSE, slots=1))
    assert tight.summary()["flows"]["deferred"] == 3
    assert tight.summary()["flows"]["deferred_mean_us"] > 100
    assert np.isfinite(tight.fct_ns).all()
    # One after the other; the wait is part of the completion time.
    order = np.argsort(incast.start_ns)
    ends = (incast.start_ns + tight.fct_ns)[order]
    assert (np.diff(ends) > 100e3).all()
    assert result.summary()["flows"]["deferred"] == 0
    # Cut short, flows without a slot are among what waits, and their wait so far counts.
    cut = replay(incast, STAR, replace(COARSE, slots=1, duration_ms=0.1))
    assert cut.summary()["flows"]["deferred"] == 3
    assert cut.summary()["flows"]["deferred_mean_us"] == pytest.approx((90 + 80 + 70) / 3)
    assert cut.summary()["flows"]["deferred_us"] == pytest.approx(90 + 80 + 70)
    assert cut.summary()["flows"]["waiting"] == 3
    assert (cut.summary()["flows"]["offered"], cut.summary()["flows"]["started"]) == (4, 1)
    assert cut.bytes["waiting"] > 3 * 300 * 1048
    assert abs(cut.bytes["error"]) <= 1e-6 * cut.bytes["offered"]


@pytest.fixture(scope="module")
def crossing():
    """Eight flows across a leaf-spine network, each direction on a spine of its own."""
    return flow_list(
        [0, 1, 0, 1, 2, 3, 2, 3],
        [2, 2, 2, 3, 0, 0, 0, 1],
        1_000_000,
        np.arange(8) * 7.0,
        data=[1, 1, 1, 1, 0, 0, 0, 0],
        ack=[1, 1, 1, 1, 0, 0, 0, 0],
    )


@pytest.mark.parametrize(
    "change",
    [{}, {"pfc": False, "buffer_mib": 0.05}],
    ids=["pauses", "drops"],
)
def test_bytes_balance(crossing, change):
    run = replay(crossing, SPINE, replace(TIGHT, duration_ms=0.3, **change))
    b = run.bytes
    wire = (crossing.size + 48 * -(-crossing.size // 1000)).sum()
    assert b["offered"] == pytest.approx(wire + b["dropped"])
    assert abs(b["error"]) <= 1e-6 * b["offered"]
    parts = b["delivered"] + b["queued"] + b["waiting"] + b["dropped"]
    assert b["offered"] == pytest.approx(parts + b["error"], rel=1e-12)
    assert min(b["delivered"], b["queued"], b["waiting"]) > 0
    assert (b["dropped"] > 0) == ("pfc" in change)
    assert (run.summary()["drops"] > 0) == ("pfc" in change)
    assert (run.summary()["pauses"] > 0) == ("pfc" not in change)


@pytest.mark.parametrize(
    ("transport", "header"), tiers((("hpcc:hpcc", 42), ("timely:hpcc", 8)), ("timely:hpcc", 8))
)
def test_bytes_balance_with_longer_headers(incast, transport, header):
    """HPCC's packets carry 42 B of telemetry, TIMELY's a time stamp of 8 B."""
    size = np.array([300_000, 299_001, 1, 300_000])
    wire = (size + (48 + header) * np.array([300, 300, 1, 300])).sum()
    settings = replace(COARSE, transport=transport, dt_us=1.0, slots=3)
    for duration_ms in (0.1, 1.5):
        run = replay(replace(incast, size=size), STAR, replace(settings, duration_ms=duration_ms))
        assert run.bytes["offered"] == wire and run.bytes["dropped"] == 0
        assert abs(run.bytes["error"]) <= 1e-6 * wire
        ended = duration_ms == 1.5
        assert (run.bytes["waiting"] + run.bytes["queued"] == 0) == ended
        assert (run.bytes["delivered"] == pytest.approx(wire, rel=1e-6)) == ended


def test_named_spine_is_used_and_progress_reaches_the_end(crossing):
    reported: list[float] = []
    run = replay(crossing, SPINE, TIGHT, reported.append)
    assert reported == [1000.0, 1500.0]
    sent = dict(zip(SPINE.port_names, run.tx_bytes.sum(0), strict=True))
    assert sent["leaf0->spine1"] > 1e6
    assert sent["leaf1->spine0"] > 1e6
    # The ACKs of the flows that leaf 1 sends come back over spine 0, and the others over spine 1.
    assert 0 < sent["leaf0->spine0"] < 0.07 * sent["leaf1->spine0"]
    assert 0 < sent["leaf1->spine1"] < 0.07 * sent["leaf0->spine1"]
    assert list(run.ports) == ["host", "leaf-up", "spine-down"]
    assert [row["ports"] for row in run.ports.values()] == [4, 4, 4]


def test_time_after_the_last_flow_is_filled_in(incast, result):
    """The network is empty after 1 ms, so 5 s end at once, with the same completion times."""
    reported: list[float] = []
    long = replay(incast, STAR, replace(COARSE, duration_ms=5e3), reported.append)
    np.testing.assert_array_equal(long.fct_ns, result.fct_ns)
    assert reported[-1] == 5e6
    assert len(reported) < 5
    assert long.queue_bytes.shape == (500_000, 5)
    np.testing.assert_array_equal(long.queue_bytes[:150], result.queue_bytes)


def test_written_queues(result):
    file = io.BytesIO()
    write_queues(result, file)
    file.seek(0)
    with np.load(file) as arrays:
        assert set(arrays) == {"time_us", "queue_bytes", "tx_bytes", "port"}
        assert arrays["queue_bytes"].shape == arrays["tx_bytes"].shape == (150, 5)
        np.testing.assert_array_equal(arrays["time_us"], result.time_us)
        assert arrays["port"].tolist() == [f"switch0->host{i}" for i in range(5)]


def test_summary_is_json(incast, result):
    tree = json.loads(json.dumps(result.summary(), allow_nan=False))
    assert list(tree["slowdown"]) == ["all", "(0,100KB]", "(100KB,1MB]", ">1MB"]
    assert tree["slowdown"]["all"]["flows"] == tree["slowdown"]["(100KB,1MB]"]["flows"] == 4
    assert tree["slowdown"]["all"]["mean"] == pytest.approx(result.slowdown.mean())
    assert tree["slowdown"]["(0,100KB]"] == {
        **{"flows": 0, "mean": None, "p50": None},
        **{"p95": None, "p99": None},
    }


@pytest.mark.parametrize(
    ("dt_us", "tick"), [(0.1, 25), (0.5, 10), (1.0, 5), (2.0, 5), (2.5, 4), (5.0, 2), (10.0, 1)]
)
def test_ticks_divide_samples(dt_us, tick):
    sim = replace(COARSE, dt_us=dt_us).simulator(STAR, np.zeros(1))
    assert sim.tick_steps == tick
    assert sim.interval_us == pytest.approx(10.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dt_us": 3.0}, "dt_us = 3.0 is not allowed: expected a substep that divides 10 µs"),
        ({"dt_us": 0.0}, "dt_us = 0.0 is not allowed"),
        ({"dt_us": 20.0}, "dt_us = 20.0 is not allowed"),
        ({"duration_ms": 0.0}, "duration_ms = 0.0 is not allowed: expected a positive multiple"),
        ({"duration_ms": 0.015}, "duration_ms = 0.015 is not allowed: expected a positive mult"),
        ({"duration_ms": float("nan")}, "duration_ms = nan is not allowed"),
        ({"duration_ms": 1e8}, "duration_ms = 100000000.0 is not allowed: expected less than 2^31"),
        ({"slots": 0}, "slots = 0 is not allowed: expected an integer >= 1"),
        ({"buffer_mib": 0.0}, "buffer_mib = 0.0 is not allowed"),
        ({"ecn": (50.0, 5.0, 0.1)}, "ecn: Kmin, Kmax = (50.0, 5.0) is not allowed"),
        ({"transport": "dcqcn:hpcc-papr"}, "unknown DCQCN preset 'hpcc-papr': did you mean"),
    ],
)
def test_settings_are_checked(incast, change, message):
    with pytest.raises(ValueError) as error:
        replay(incast, STAR, replace(COARSE, **{"dt_us": 1.0} | change))
    assert message in str(error.value)


def test_nothing_starts_in_time(incast):
    later = replace(incast, start_ns=incast.start_ns + 9e6)
    with pytest.raises(ValueError, match=r"duration_ms = 1.5 .* more than the first start, 9 ms"):
        replay(later, STAR, COARSE)

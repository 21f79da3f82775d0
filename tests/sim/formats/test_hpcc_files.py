"""Files of the HPCC simulator: written and read again, refused lines, a replay of them."""

from __future__ import annotations

import io
from dataclasses import replace
from decimal import Decimal
from itertools import pairwise

import numpy as np
import pytest
from commands import failure, run
from hypothesis import given
from hypothesis import strategies as st

from ecn_marl.sim.formats import hpcc_fct
from ecn_marl.sim.formats.case import read_case
from ecn_marl.sim.formats.hpcc_config import HpccConfig, read_config, write_config
from ecn_marl.sim.formats.hpcc_flows import HpccFlows, read_flows, write_flows
from ecn_marl.sim.formats.hpcc_senders import senders
from ecn_marl.sim.formats.hpcc_topology import (
    HpccTopology,
    Row,
    node_ids,
    read_topology,
    write_topology,
)
from ecn_marl.sim.network.topology import Link, dumbbell, fat_tree, from_links, leaf_spine, star
from ecn_marl.sim.replay import FlowList, Settings, replay
from ecn_marl.sim.transports import parse_transport

STAR = """\
4 1 3
0
0 1 25Gbps 0.001ms 0
0 2 25Gbps 1000ns 0.000000
3 0 25000Mbps 1us 0
0 5 25Gbps 0.001ms 0

First line: total node #, switch node #, link #
"""
FLOWS = """\
3
2 1 3 100 300000 2.000000
3 1 3 200 300000 2.00001
2 1 3 100 20000 2.000123456
2 1 3 100 20000 3

First line: # of flows
"""
CONFIG = """\
ENABLE_QCN 1
USE_DYNAMIC_PFC_THRESHOLD 1 {0: disable, 1: enable}

FLOW_FILE mix/flow.txt
SIMULATOR_STOP_TIME 2.001
CC_MODE 1
ALPHA_RESUME_INTERVAL 50
RATE_DECREASE_INTERVAL 50
CLAMP_TARGET_RATE 0
RP_TIMER 55
EWMA_GAIN 0.00390625
FAST_RECOVERY_TIMES 1
RATE_AI 5.0Mb/s
RATE_HAI 50Mb/s
MIN_RATE 1000Mb/s
HAS_WIN 0
VAR_WIN 0
ACK_HIGH_PRIO 1
LINK_DOWN 0 0 0
KMAX_MAP 2 25000000000 400 100000000000 1600
KMIN_MAP 2 25000000000 100 100000000000 400
PMAX_MAP 2 25000000000 0.2 100000000000 0.20
BUFFER_SIZE 8
"""


DT = 5.0


@pytest.fixture
def folder(tmp_path):
    for name, text in (("topology", STAR), ("flow", FLOWS), ("config", CONFIG)):
        (tmp_path / f"{name}.txt").write_text(text)
    return tmp_path


@pytest.fixture
def files(folder):
    return [folder / f"{name}.txt" for name in ("flow", "topology", "config")]


def again(write, read, folder, *values):
    """What is read from what was written."""
    path = folder / "written.txt"
    with path.open("w") as file:
        write(*values, file)
    return read(path)


# -- reading


def test_topology_as_that_simulator_reads_it(folder):
    file = read_topology(folder / "topology.txt")
    rows = (Row(0, 1, 25.0, 1.0), Row(0, 2, 25.0, 1.0), Row(3, 0, 25.0, 1.0))
    assert file == HpccTopology(4, (0,), rows)
    assert file.unread == 2
    net = file.topology()
    assert net.hosts == ("host1", "host2", "host3")
    assert node_ids(net) == (1, 2, 3)
    assert net.nic_gbps == (25.0,) * 3


def test_flows_as_that_simulator_reads_them(folder):
    net = read_topology(folder / "topology.txt").topology()
    rows = read_flows(folder / "flow.txt", net)
    assert rows.origin_ns == 2_000_000_000
    np.testing.assert_array_equal(rows.flows.src, [1, 2, 1])
    np.testing.assert_array_equal(rows.flows.dst, [0, 0, 0])
    np.testing.assert_array_equal(rows.flows.size, [300_000, 300_000, 20_000])
    np.testing.assert_array_equal(rows.flows.start_ns, [0.0, 10_000.0, 123_456.0])
    np.testing.assert_array_equal(rows.port, [100, 200, 100])
    assert rows.unread == 2


def test_flows_of_conweave_have_no_port(folder):
    path = folder / "conweave.txt"
    path.write_text("2 \n0 1 3 4000 2.500001000\n1 0 3 70 2.501000250\n")
    rows = read_flows(path, star(2))
    assert rows.origin_ns == 2_500_000_000
    np.testing.assert_array_equal(rows.flows.start_ns, [1000.0, 1_000_250.0])
    np.testing.assert_array_equal(rows.port, 100)


def test_320_hosts():
    """HPCC's own three-tier network: racks of 16, pods of 4 racks, 16 cores."""
    racks, links = range(320, 340), []
    links += [Row(h, 320 + h // 16, 100.0, 1.0) for h in range(320)]
    links += [Row(r, 340 + (r - 320) // 4 * 4 + i, 400.0, 1.0) for r in racks for i in range(4)]
    links += [Row(a, 360 + a % 4 * 4 + i, 400.0, 1.0) for a in range(340, 360) for i in range(4)]
    net = HpccTopology(376, tuple(range(320, 376)), tuple(links)).topology()
    assert (net.n_hosts, net.n_switches, net.n_ports) == (320, 56, 320 + 2 * 160)
    assert len(net.paths(0, 319)) == 16


def test_addresses_beyond_256_nodes():
    assert [f"{hpcc_fct.address(node):08x}" for node in (0, 255, 256)] == [
        *("0b000001", "0b00ff01", "0b010001"),
    ]


# -- presets


@pytest.mark.parametrize(
    ("changes", "gbps", "expected"),
    [
        ({"MIN_RATE": 100.0}, 25.0, "dcqcn:hpcc-paper"),
        ({}, 25.0, "dcqcn:hpcc-paper,min_rate=125.0"),
        ({"MIN_RATE": 100.0, "HAS_WIN": 1.0, "VAR_WIN": 1.0}, 25.0, "dcqcn:hpcc-paper,windowed=1"),
        # `run.py --bw 100 --cc dcqcn`
        (
            {
                **{"RP_TIMER": 300.0, "ALPHA_RESUME_INTERVAL": 1.0, "RATE_DECREASE_INTERVAL": 4.0},
                **{"RATE_AI": 20.0, "RATE_HAI": 200.0, "MIN_RATE": 100.0},
            },
            100.0,
            "dcqcn:hpcc-run,gbps=100",
        ),
        # ConWeave's at 100 Gb/s
        (
            {
                **{"RP_TIMER": 300.0, "ALPHA_RESUME_INTERVAL": 1.0, "RATE_DECREASE_INTERVAL": 4.0},
                **{"RATE_AI": 40.0, "RATE_HAI": 100.0, "MIN_RATE": 100.0},
            },
            100.0,
            "dcqcn:hpcc-run,gbps=100,ai=5.0,hai=12.5",
        ),
        (
            {"CC_MODE": 3.0, "U_TARGET": 0.95, "MI_THRESH": 5.0, "RATE_AI": 10.0, "MIN_RATE": 100},
            25.0,
            "hpcc:sigcomm19",
        ),
        (
            {"CC_MODE": 7.0, "RATE_AI": 25.0, "RATE_HAI": 125.0, "MIN_RATE": 100},
            25.0,
            "timely:hpcc",
        ),
        (
            {"CC_MODE": 8.0, "EWMA_GAIN": 0.0625, "DCTCP_RATE_AI": 1000.0, "MIN_RATE": 100.0},
            25.0,
            "dctcp:hpcc,ai_rate=125.0",
        ),
    ],
)
def test_nearest_preset(folder, changes, gbps, expected):
    values = dict(read_config(folder / "config.txt").values)
    values |= {key: float(value) for key, value in changes.items()}
    found = senders(HpccConfig(values), gbps)
    assert found.transport == expected
    assert (
        expected.split(",ai=")[0].split(",min")[0].split(",win")[0].split(",ai_")[0] in found.note
    )


def test_constants_are_those_of_the_file(folder):
    """Whatever the nearest preset, the senders have the constants of the file."""
    values = dict(read_config(folder / "config.txt").values)
    values |= {"RP_TIMER": 77.0, "EWMA_GAIN": 0.01, "RATE_AI": 8.0, "CLAMP_TARGET_RATE": 1.0}
    constants = parse_transport(senders(HpccConfig(values), 100.0).transport).default_params()
    expected = {
        **{"increase_us": 77.0, "g": 0.01, "ai": 1.0, "hai": 6.25, "min_rate": 125.0},
        **{"clamp_target": 1.0, "decrease_us": 50.0, "alpha_us": 50.0, "recovery_steps": 1.0},
        **{"byte_counter": np.inf, "alpha_init": 1.0, "cut_at_first_cnp": 0.0},
    }
    assert {name: float(getattr(constants, name)) for name in expected} == pytest.approx(expected)


def test_what_is_not_simulated_is_named(files):
    flow, topology, config = files
    topology.write_text(STAR.replace("1000ns 0.000000", "1000ns 0.001"))
    flow.write_text(FLOWS.replace("3 1 3 200", "3 1 4 200"))
    text = CONFIG.replace("LINK_DOWN 0 0 0", "LINK_DOWN 2000000 0 1").replace(
        "HAS_WIN 0", "HAS_WIN 1"
    )
    config.write_text(text + "MY_KEY 7\nLB_MODE 9\nMULTI_RATE 1\n")
    notes = "\n".join(read_case(*files).notes)
    for words in (
        "random loss (ERROR_RATE up to 0.001, links with it 1)",
        "priority groups (PG 3, 4)",
        "a link that fails (LINK_DOWN 2000000 0 1)",
        "load balancing other than ECMP (LB_MODE 9)",
        "a window of fixed size",
        "keys that are not known: MY_KEY",
        "2 lines beyond the last flow are not read",
    ):
        assert words in notes
    assert "MULTI_RATE" not in notes, "which only HPCC's senders read"


def test_no_marking_without_qcn(folder):
    values = dict(read_config(folder / "config.txt").values) | {"ENABLE_QCN": 0.0}
    kmin, _, _ = HpccConfig(values).ecn(star(3))[25.0]
    assert kmin * 1e3 >= 1e12, "beyond any buffer"


def test_duration_is_counted_from_the_first_flow(folder):
    values = dict(read_config(folder / "config.txt").values)
    assert HpccConfig(values).settings(star(3), 2_000_000_000)["duration_ms"] == 1.0
    del values["SIMULATOR_STOP_TIME"]
    values["FLOWGEN_STOP_TIME"] = 2.1
    assert HpccConfig(values).settings(star(3), 2_000_000_000)["duration_ms"] == 160.0


def test_thresholds_by_rate_hold_for_every_port():
    with pytest.raises(ValueError, match=r"ecn\[25.0\]: Kmin, Kmax = \(400.0, 100.0\)"):
        Settings(ecn={25.0: (400.0, 100.0, 0.2)})
    missing = Settings(ecn={100.0: (100.0, 400.0, 0.2)}, dt_us=DT, duration_ms=1.0)
    with pytest.raises(
        ValueError, match=r"thresholds for 25 Gb/s, the rate of switch0->host0, too"
    ):
        replay(_one_flow(), star(2), missing)


def _one_flow() -> FlowList:
    zero, one, unset = np.zeros(1, int), np.ones(1, int), -np.ones(1, int)
    return FlowList(zero, zero, one, 1000 * one, np.zeros(1), unset, unset)


# -- written and read again

SPEEDS = st.sampled_from([0.1, 1.0, 12.5, 25.0, 40.0, 100.0 / 3, 400.0])
TIMES = st.sampled_from([0.0, 0.001, 0.1, 1.0, 1.5, 0.9525, 1e3 / 7])
LOSS = st.sampled_from([0.0, 1e-9, 0.001, 1 / 3, 1.0])


@given(data=st.data(), switches=st.integers(1, 4), hosts=st.integers(2, 6))
def test_topologies_written_and_read_again(tmp_path_factory, data, switches, hosts):
    folder = tmp_path_factory.mktemp("topology")
    nodes = data.draw(st.permutations(range(switches + hosts)))
    sw, leaves = nodes[:switches], nodes[switches:]

    def row(a: int, b: int) -> Row:
        return Row(a, b, data.draw(SPEEDS), data.draw(TIMES), data.draw(LOSS))

    links = [row(h, data.draw(st.sampled_from(sw))) for h in leaves]
    links += [row(a, b) for a, b in pairwise(sw)]
    net = HpccTopology(len(nodes), tuple(sw), tuple(data.draw(st.permutations(links))))
    assert again(write_topology, read_topology, folder, net) == net


@pytest.mark.parametrize(
    "net",
    [star(3), dumbbell(2, 1, uplink_gbps=40.0), leaf_spine(2, 2, 2, parallel=2), fat_tree(4)],
    ids=lambda net: net.name,
)
def test_networks_of_this_package_written_and_read_again(net, tmp_path):
    got = again(write_topology, read_topology, tmp_path, net).topology()
    assert got.hosts == net.hosts
    assert (got.nic_gbps, got.nic_delay_us, got.edge) == (net.nic_gbps, net.nic_delay_us, net.edge)
    np.testing.assert_array_equal(got.n_paths, net.n_paths)
    numbers = {name: f"switch{net.n_hosts + i}" for i, name in enumerate(net.switches)}
    ends = sorted((numbers[p.switch], numbers.get(p.peer, p.peer), *p[2:4]) for p in _rows(net))
    assert sorted((p.switch, p.peer, *p[2:4]) for p in _rows(got)) == ends
    assert again(write_topology, read_topology, tmp_path, got).topology() == got


class _Port(tuple):
    switch = property(lambda self: self[0])
    peer = property(lambda self: self[1])


def _rows(net):
    return [_Port((p.switch, p.peer, p.gbps, p.delay_us)) for p in net.ports]


@given(
    rows=st.lists(
        st.tuples(
            st.permutations(range(5)),
            st.integers(1, 10**12),
            st.integers(0, 10**12).map(float) | st.floats(0, 1e9).map(lambda x: round(x, 3)),
            st.integers(0, 7),
            st.integers(0, 65535),
        ),
        min_size=1,
        max_size=5,
    ),
    origin=st.sampled_from([0, 2_000_000_000, 123_456_789]),
)
def test_flows_written_and_read_again(tmp_path_factory, rows, origin):
    n, net = len(rows), star(5)
    ends, size, start, group, port = zip(*rows, strict=True)
    flows = FlowList(
        flow_id=np.arange(n),
        src=np.array([x[0] for x in ends]),
        dst=np.array([x[1] for x in ends]),
        size=np.array(size),
        start_ns=np.array(start),
        spine_data=np.full(n, -1),
        spine_ack=np.full(n, -1),
    )
    given_rows = HpccFlows(flows, origin, np.array(group), np.array(port))
    folder = tmp_path_factory.mktemp("flows")
    got = again(write_flows, lambda path: read_flows(path, net, origin), folder, given_rows, net)
    for name in vars(flows):
        np.testing.assert_array_equal(getattr(got.flows, name), getattr(flows, name), name)
    np.testing.assert_array_equal(got.group, group)
    np.testing.assert_array_equal(got.port, port)
    assert got.origin_ns == origin


NUMBERS = st.floats(0, 1e6) | st.integers(0, 1000).map(float)
MAPS = st.lists(st.tuples(st.integers(1, 4 * 10**12), NUMBERS), max_size=3).map(
    lambda pairs: tuple((float(Decimal(bps) / 10**9), value) for bps, value in pairs)
)


@given(
    values=st.fixed_dictionaries(
        {},
        optional={
            "CC_MODE": st.sampled_from([1.0, 3.0, 7.0]),
            "EWMA_GAIN": NUMBERS,
            "ENABLE_QCN": st.sampled_from([0.0, 1.0]),
            "RATE_AI": st.floats(1e-3, 1e6),
            "KMAX_MAP": MAPS,
            "LINK_DOWN": st.tuples(NUMBERS, NUMBERS, NUMBERS),
            "FLOW_FILE": st.sampled_from(["mix/flow.txt", "a b"]),
            "MY_KEY": st.just("7"),
        },
    ).filter(bool)
)
def test_configurations_written_and_read_again(tmp_path_factory, values):
    config = HpccConfig(values)
    assert again(write_config, read_config, tmp_path_factory.mktemp("config"), config) == config


# -- refusals


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        ("flow", "3\n2", "9\n2", "flow.txt, line 7: flow = 'First line:'"),
        ("flow", "3 1 3 200", "3 1 3", "line 3: flow = '3 1 3 300000 2.00001'"),
        ("flow", "3 1 3 200", "0 1 3 200", "line 3: SRC = '0' is not allowed: expected a host"),
        ("flow", "3 1 3 200", "0 1 3 200", "1 to 3; 0 is a switch"),
        ("flow", "3 1 3 200", "1 1 3 200", "line 3: DST = '1' is not allowed: expected a host oth"),
        ("flow", "300000 2.00001", "0 2.00001", "line 3: SIZE = '0'"),
        ("flow", "300000 2.00001", "1.5 2.00001", "line 3: SIZE = '1.5'"),
        ("flow", "300000 2.00001", "9999999999999 2.00001", "line 3: SIZE = 9999999999999"),
        ("flow", "2.00001\n", "nan\n", "line 3: START = 'nan' is not allowed: expected seconds"),
        ("flow", "2.00001\n", "-1\n", "line 3: START = '-1'"),
        ("flow", FLOWS, STAR, "line 1: first line = '4 1 3' is not allowed: expected"),
        ("flow", FLOWS, STAR, "this is a topology of the HPCC simulator"),
        ("flow", FLOWS, "5\n2 1 3 100 2000 2\n", "line 1: number of flows = 5"),
        ("topology", STAR, FLOWS, "line 1: first line = '3'"),
        ("topology", STAR, '{"a": 1}', "and this is a JSON file"),
        ("topology", "0 1 25Gbps", "0 1", "topology.txt, line 3: link = '0 1 0.001ms 0'"),
        ("topology", "0 1 25Gbps 0.001ms", "0 1 25Gbs 0.001ms", "line 3: RATE = '25Gbs'"),
        ("topology", "0 1 25Gbps 0.001ms", "0 1 25Gbps 1m", "line 3: DELAY = '1m'"),
        ("topology", "1000ns 0.000000", "1000ns 2", "line 4: ERROR_RATE = '2'"),
        ("topology", "0 2 25", "1 2 25", "line 4: link = '1 2' is not allowed: expected a switch"),
        ("topology", "0 2 25", "0 1 25", "one link per host; host 1 has one in line 3"),
        ("topology", "0 2 25", "0 7 25", "line 4: DST = '7' is not allowed: expected the number"),
        ("topology", "\n0\n0 1", "\n0 0\n0 1", "line 2: switches = '0 0'"),
        ("topology", "4 1 3", "4 1 9", "line 6: DST = '5'"),
        ("topology", "4 1 3", "5 1 3", "host 4 has no link"),
        ("config", "CC_MODE 1", "CC_MODE 10", "config.txt, line 6: CC_MODE = 10"),
        ("config", "RP_TIMER 55\n", "", "config.txt: no RP_TIMER"),
        ("config", "RP_TIMER 55", "RP_TIMER soon", "line 10: RP_TIMER = 'soon'"),
        ("config", "RP_TIMER 55", "RP_TIMER 0", "line 10: RP_TIMER = 0"),
        ("config", "MIN_RATE 1000Mb/s", "MIN_RATE fast", "line 15: MIN_RATE = 'fast'"),
        (
            "config",
            "ENABLE_QCN 1",
            "ENABLE_QCN 2",
            "line 1: ENABLE_QCN = '2' is not allowed: expec",
        ),
        ("config", "KMIN_MAP 2", "KMIN_MAP 3", "line 21: KMIN_MAP = '3 25000000000"),
        ("config", "25000000000 400", "50000000000 400", "line 20: KMAX_MAP = ['50000000000'"),
        ("config", "25000000000 0.2", "25000000000 0", "lines 21, 20, 22: Kmin, Kmax and Pmax"),
        ("config", "TIME 2.001", "TIME 1", "line 5: SIMULATOR_STOP_TIME = 1.0"),
        ("config", CONFIG, FLOWS, "and this is a flow list"),
    ],
)
def test_refused_lines(folder, files, name, old, new, message):
    path = folder / f"{name}.txt"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(ValueError) as error:
        read_case(*files)
    assert message in str(error.value)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_command_refuses_in_one_line(files):
    flow, topology, config = files
    arguments = ["replay", flow, "--topology", topology]
    assert "--link-gbps = 100.0 is not allowed" in failure(*arguments, "--link-gbps", 100)
    assert "csv, or hpcc with --out FILE" in failure(*arguments, "--format", "hpcc")
    assert "No such file" in failure("replay", flow, "--topology", "none/topology.txt")
    flow.write_bytes(b"\xff\xfe\x00")
    assert str(flow) in failure(*arguments, "--config", config)


def test_a_link_with_two_rates_is_not_written():
    net = star(2)
    ports = (replace(net.ports[0], gbps=10.0), *net.ports[1:])
    with pytest.raises(ValueError, match="one rate and delay both ways"):
        write_topology(replace(net, ports=ports), io.StringIO())


# -- a replay


def test_replay_is_that_of_the_case_in_python(files, tmp_path):
    """Files, options and Python give the same bits; `fct.txt` has them in that form."""
    case = read_case(*files)
    settings = Settings(**case.settings, dt_us=DT, ideal="standalone")
    got = replay(case.flows, case.topology, settings)

    hosts = ["host1", "host2", "host3"]
    links = [Link("switch0", host, 25.0, 1.0) for host in hosts]
    net = from_links("topology.txt", hosts, ["switch0"], links)
    assert case.topology == net
    flows = FlowList(
        flow_id=np.arange(3),
        src=np.array([1, 2, 1]),
        dst=np.zeros(3, int),
        size=np.array([300_000, 300_000, 20_000]),
        start_ns=np.array([0.0, 10_000.0, 123_456.0]),
        spine_data=np.full(3, -1),
        spine_ack=np.full(3, -1),
    )
    own = Settings(
        transport="dcqcn:hpcc-paper,min_rate=125.0",
        ecn=(100.0, 400.0, 0.2),
        duration_ms=1.0,
        buffer_mib=8.0,
        dt_us=DT,
        ideal="standalone",
    )
    expected = replay(flows, net, own)
    assert np.isfinite(expected.fct_ns).all()
    np.testing.assert_array_equal(got.fct_ns, expected.fct_ns)
    np.testing.assert_array_equal(got.queue_bytes, expected.queue_bytes)
    assert got.summary() == expected.summary()

    flow, topology, config = files
    out = tmp_path / "fct.txt"
    options = ["--topology", topology, "--config", config, "--dt-us", DT]
    result = run("replay", flow, *options, "--out", out, "--format", "hpcc", "--json")
    assert result.exit_code == 0, result.output
    assert "nearest preset dcqcn:hpcc-paper, but for MIN_RATE 1000, there 100" in result.stderr
    rows = [line.split() for line in out.read_text().splitlines()]
    order = np.argsort(flows.start_ns + expected.fct_ns)
    # Two hops of 1000 B, 2 x 2 µs, and 1048 B a packet, at 3.125 B/ns.
    alone = 2 * 1000 / 3.125 + 4000 + np.ceil(flows.size / 1000) * 48 / 3.125 + flows.size / 3.125
    for row, i in zip(rows, order, strict=True):
        assert row[:2] == [["0b000201", "0b000301", "0b000201"][i], "0b000101"]
        assert row[2:6] == [
            ["10000", "10000", "10001"][i],
            str([100, 200, 100][i]),
            str(flows.size[i]),
            str(2_000_000_000 + int(flows.start_ns[i])),
        ]
        assert int(row[6]) == round(expected.fct_ns[i])
        assert int(row[7]) == pytest.approx(alone[i], abs=1)


def test_options_go_before_the_configuration(files):
    flow, topology, config = files
    options = ["--topology", topology, "--config", config, "--dt-us", DT, "--json"]
    marked = run("replay", flow, *options, "--ideal", "standalone")
    unmarked = run("replay", flow, *options, "--ideal", "standalone", "--ecn", "1e8,1e8,1")
    assert '"marks": 0.0' in unmarked.stdout
    assert '"marks": 0.0' not in marked.stdout

"""Flows given in Python: the rules of files, one line that names the column and the row."""

from __future__ import annotations

import numpy as np
import pytest

from ecn_marl.sim import Schedule, Simulator, leaf_spine, schedule
from ecn_marl.sim.replay import Settings, replay
from ecn_marl.sim.traffic.flow_checks import MAX_TOTAL
from ecn_marl.sim.traffic.trace import FlowList, read_flows

SPINE = leaf_spine(2, 2, 2)
DUAL = leaf_spine(4, 1, 2, nics_per_server=2)
"""Hosts 0 and 1 are NICs of one server, 2 and 3 of the other."""

GOOD = {
    "flow_id": np.array([7, 3, 5]),
    "src": np.array([0, 1, 2]),
    "dst": np.array([2, 3, 0]),
    "size_B": np.array([1000, 2500, 1]),
    "start_ns": np.array([0.0, 1000.5, 1000.5]),
    "spine_data": np.array([-1, 1, 0]),
    "spine_ack": np.array([0, -1, 1]),
}


def flow_list(columns) -> FlowList:
    return FlowList(size=columns["size_B"], **{k: v for k, v in columns.items() if k != "size_B"})


def with_fault(column, value):
    """`GOOD` with another value in row 1."""
    old = GOOD[column]
    kind = old.dtype if isinstance(value, int) and abs(value) < 2**63 else np.result_type(value)
    new = old.astype(kind)
    new[1] = value
    return GOOD | {column: new}


HOST, NETWORK = "the number of a host, 0 to 2147483647", "a host of leaf-spine:2,2,2, 0 to 3"
SIZE, START = "an integer from 1 to 1000000000000", "a time >= 0 in ns, at most 1e+15"
NAN, INF = float("nan"), float("inf")

FAULTS = [
    *[("src", value, NETWORK) for value in (-1, 4, 1.5, NAN, INF, 2**40, True)],
    *[("dst", value, f"{NETWORK}, other than src") for value in (1, -1, 4, 0.5, NAN)],
    *[("size_B", value, SIZE) for value in (0, -5, 10**12 + 1, 10**18, 1.5, NAN, INF)],
    *[("start_ns", value, START) for value in (NAN, INF, -INF, -1.0, 2e15)],
    *[("spine_data", v, "one of the 2 equal-cost path(s), from 0") for v in (2, -2, 0.5, NAN)],
    *[("spine_ack", v, "one of the 2 equal-cost path(s), from 0") for v in (2, -2, 1.5)],
    *[("flow_id", value, "an integer from 0 to 2^63 - 1") for value in (-1, 0.5, NAN, 1e19)],
    ("flow_id", 7, "an identifier of its own (row 0 has it already)"),
]


@pytest.mark.parametrize(("column", "value", "allowed"), FAULTS)
def test_faults_of_lists_are_named(column, value, allowed):
    if value is True:
        columns = GOOD | {column: np.array([False, True, True])}
        row, value = 0, False
    else:
        columns, row = with_fault(column, value), 1
    with pytest.raises(ValueError) as error:
        flow_list(columns).checked(SPINE)
    name = {"size_B": "size"}.get(column, column)
    message = str(error.value)
    assert message.startswith(f"flows.{name}[{row}] = {value} is not allowed: expected ")
    assert message.endswith(allowed)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        *[(column, value) for column, value, _ in FAULTS[:-1] if value not in (4, True, 2)],
        ("src", 2**31),
    ],
)
def test_faults_of_schedules_are_named(column, value):
    """All but those that only a network shows; identifiers are rows there."""
    if column == "flow_id":
        return
    with pytest.raises(ValueError) as error:
        schedule(with_fault(column, value), 1.0)
    assert str(error.value).startswith(f"{column}[1] = {value} is not allowed: expected ")


@pytest.mark.parametrize(
    ("column", "value"), [("dst", 4), ("src", 9), ("spine_data", 2), ("spine_ack", 2)]
)
def test_a_schedule_has_to_fit_its_network(column, value):
    sim = Simulator(SPINE, (Schedule(1.0, 3),), slots=4, scheduled=3)
    sim.default_params(traffic=(schedule(GOOD, 1.0),))
    faulty = schedule(with_fault(column, value), 1.0)
    with pytest.raises(ValueError, match=rf"^schedule\.{column}\[1\] = {value} is not allowed"):
        sim.default_params(traffic=(faulty,))
    with pytest.raises(ValueError, match=r"traffic = '2 parameters' .* 1: one of each source"):
        sim.default_params(traffic=(faulty, faulty))


def test_nics_of_one_server_send_nothing_to_each_other():
    one_server = GOOD | {"src": np.array([0, 1, 3]), "dst": np.array([2, 3, 2])}
    one_server |= {name: np.full(3, -1) for name in ("spine_data", "spine_ack")}
    message = r"dst\[2\] = 2 is not allowed: .* 0 to 3, of another server than src"
    with pytest.raises(ValueError, match=rf"^flows\.{message}"):
        flow_list(one_server).checked(DUAL)
    sim = Simulator(DUAL, (Schedule(1.0, 3),), slots=4, scheduled=3)
    with pytest.raises(ValueError, match=rf"^schedule\.{message}"):
        sim.default_params(traffic=(schedule(one_server, 1.0),))


def test_the_first_row_is_reported():
    columns = with_fault("size_B", -5)
    columns["dst"] = np.array([2, 3, 9])
    columns["start_ns"] = np.array([0.0, NAN, 0.0])
    with pytest.raises(ValueError, match=r"^flows\.size\[1\] = -5 "):
        flow_list(columns).checked(SPINE)


@pytest.mark.parametrize(
    "make", [lambda c: flow_list(c).checked(SPINE), lambda c: schedule(c, 1.0)]
)
def test_columns_have_one_length(make):
    short = GOOD | {"dst": GOOD["dst"][:2]}
    with pytest.raises(ValueError, match=r"number of rows of .*dst = 2 .* 3, as many as .* has"):
        make(short)
    with pytest.raises(ValueError, match=r"number of rows of .* = 0 .* at least one flow"):
        make({name: column[:0] for name, column in GOOD.items()})
    with pytest.raises(ValueError, match=r"shape of .*size.* = \(3, 1\) .* a column"):
        make(GOOD | {"size_B": GOOD["size_B"][:, None]})


def test_columns_are_named():
    missing = {name: column for name, column in GOOD.items() if name != "size_B"}
    with pytest.raises(ValueError, match=r"flows = .* a column size_B; the columns are src, dst"):
        schedule(missing, 1.0)


def test_all_flows_together_are_bounded():
    n = MAX_TOTAL // 10**12
    many = {"src": np.zeros(n + 1, int), "dst": np.ones(n + 1, int), "start_ns": np.zeros(n + 1)}
    size = np.full(n + 1, 10**12)
    with pytest.raises(ValueError, match=rf"^size_B\[{n}\] = .* bytes in all flows"):
        schedule(many | {"size_B": size}, 1.0)
    schedule({name: column[:n] for name, column in (many | {"size_B": size}).items()}, 1.0)


def test_replays_check_their_list():
    with pytest.raises(ValueError, match=r"^flows\.dst\[1\] = 1 "):
        replay(flow_list(with_fault("dst", 1)), SPINE, Settings(duration_ms=0.01))


def test_whole_numbers_of_any_type(tmp_path):
    """Floats of arrays, small integers, lists: all become what a file gives."""
    path = tmp_path / "flows.csv"
    rows = zip(*(GOOD[name].tolist() for name in GOOD), strict=True)
    lines = [",".join(GOOD), *(",".join(map(str, row)) for row in rows)]
    path.write_text("\n".join(lines))
    expected = read_flows(path, SPINE)
    for kind in (np.float64, np.int16, np.uint16, object):
        columns = {name: column.astype(kind) for name, column in GOOD.items()}
        columns |= {name: GOOD[name] for name in ("start_ns", "spine_data", "spine_ack")}
        checked = flow_list(columns).checked(SPINE)
        for name in checked.__dataclass_fields__:
            column = getattr(checked, name)
            np.testing.assert_array_equal(column, getattr(expected, name))
            assert column.dtype == (np.float64 if name == "start_ns" else np.int64)
    plan = schedule({name: column.tolist() for name, column in GOOD.items()}, 1.0)
    np.testing.assert_array_equal(plan.payload, GOOD["size_B"])
    np.testing.assert_array_equal(plan.path_back, GOOD["spine_ack"])
    with pytest.raises(ValueError, match=r"^src\[0\] = False "):
        schedule(GOOD | {"src": [False, 1, 2]}, 1.0)
    with pytest.raises(ValueError, match=r"^dst\[2\] = '0' "):
        schedule(GOOD | {"dst": [2, 3, "0"]}, 1.0)

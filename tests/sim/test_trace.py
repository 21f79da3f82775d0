"""Reading flow lists: accepted forms, and one error for each malformed one."""

from __future__ import annotations

import gzip

import numpy as np
import pytest

from ecn_marl.sim.network.topology import leaf_spine, star
from ecn_marl.sim.traffic.flow_checks import MAX_TOTAL
from ecn_marl.sim.traffic.trace import read_flows

HEADER = "flow_id,src,dst,size_B,start_ns"
GOOD = f"{HEADER}\n7,1,0,1000,0\n3,2,0,2000,1500.5\n"


@pytest.fixture
def write(tmp_path):
    def write(text: str | bytes):
        path = tmp_path / "flows.csv"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def test_reads_columns_in_file_order(write):
    flows = read_flows(write(GOOD), star(3))
    assert len(flows) == 2
    np.testing.assert_array_equal(flows.flow_id, [7, 3])
    np.testing.assert_array_equal(flows.src, [1, 2])
    np.testing.assert_array_equal(flows.dst, [0, 0])
    np.testing.assert_array_equal(flows.size, [1000, 2000])
    np.testing.assert_array_equal(flows.start_ns, [0, 1500.5])
    np.testing.assert_array_equal(flows.spine_data, [-1, -1])
    np.testing.assert_array_equal(flows.spine_ack, [-1, -1])


def test_columns_in_any_order_others_ignored(write):
    text = "spine_data,size_B,sport,dst,src,start_ns,flow_id\n1,500,10000,2,0,9,4\n,500,x,1,0,9,5\n"
    flows = read_flows(write(text), leaf_spine(2, 2, 2))
    np.testing.assert_array_equal(flows.spine_data, [1, -1])
    np.testing.assert_array_equal(flows.spine_ack, [-1, -1])
    np.testing.assert_array_equal(flows.src, [0, 0])
    np.testing.assert_array_equal(flows.dst, [2, 1])


@pytest.mark.parametrize(
    "text",
    [
        gzip.compress(GOOD.encode()),
        b"\xef\xbb\xbf" + GOOD.encode(),
        GOOD.replace("\n", "\r\n").encode(),
        ("# made by hand\n\n" + GOOD.replace(",", " , ") + "\n\n").encode(),
    ],
    ids=["gzip", "byte-order mark", "CRLF", "comments, blanks, spaces"],
)
def test_same_list_in_other_encodings(write, text):
    flows = read_flows(write(text), star(3))
    np.testing.assert_array_equal(flows.flow_id, [7, 3])
    np.testing.assert_array_equal(flows.start_ns, [0, 1500.5])


HOST = "expected a host of star:3, 0 to 2"
BAD_LINES = [
    ("1,3,0,1000,0", f"src = 3 is not allowed: {HOST}"),
    ("1,-1,0,1000,0", f"src = -1 is not allowed: {HOST}"),
    ("1,one,0,1000,0", f"src = 'one' is not allowed: {HOST}"),
    ("1,1,9,1000,0", f"dst = 9 is not allowed: {HOST}, other than src"),
    ("1,1,1,1000,0", f"dst = 1 is not allowed: {HOST}, other than src"),
    ("1,1,0,0,0", "size_B = 0 is not allowed: expected an integer from 1 to"),
    ("1,1,0,-5,0", "size_B = -5 is not allowed: expected an integer from 1 to"),
    ("1,1,0,10.5,0", "size_B = '10.5' is not allowed: expected an integer from 1 to"),
    ("1,1,0,,0", "size_B = '' is not allowed: expected an integer from 1 to"),
    ("1,1,0,2000000000000,0", "size_B = 2000000000000 is not allowed: expected an integer"),
    ("1,1,0,1000,-1", "start_ns = -1.0 is not allowed: expected a time >= 0 in ns"),
    ("1,1,0,1000,nan", "start_ns = nan is not allowed: expected a time >= 0 in ns"),
    ("1,1,0,1000,soon", "start_ns = 'soon' is not allowed: expected a time >= 0 in ns"),
    ("x,1,0,1000,0", "flow_id = 'x' is not allowed: expected an integer from 0"),
    ("7,1,0,1000,0", "flow_id = 7 is not allowed: expected an identifier of its own (line 2 has"),
    ("1,1,0,1000", "number of fields = 4 is not allowed: expected 5"),
    ("1,1,0,1000,0,0", "number of fields = 6 is not allowed: expected 5"),
    (",,,,", "flow_id = '' is not allowed: expected an integer from 0"),
    ('1,1,0,1000,"0', "not readable as CSV: unexpected end of data"),
]


@pytest.mark.parametrize(("line", "message"), BAD_LINES, ids=[line for line, _ in BAD_LINES])
def test_malformed_line_is_named(write, line, message):
    path = write(GOOD + line + "\n")
    with pytest.raises(ValueError) as error:
        read_flows(path, star(3))
    assert str(error.value).startswith(f"{path}, line 4: {message}")


@pytest.mark.parametrize("name", HEADER.split(","))
def test_missing_column_is_named(write, name):
    path = write(GOOD.replace(name, "other"))
    with pytest.raises(ValueError, match=f"line 1: header = .* expected a column {name}; the col"):
        read_flows(path, star(3))


def test_column_twice(write):
    with pytest.raises(ValueError, match=r"line 1: header = .* expected column src only once"):
        read_flows(write(GOOD.replace("dst", "src")), star(3))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "line 1: header = '' is not allowed: expected a column flow_id"),
        (HEADER.encode() + b"\n", "no flows, only a header"),
        (GOOD.encode() + b"\xff\xfe,1,0,1,0\n", "not readable as CSV"),
        (gzip.compress(GOOD.encode())[:-9], "not readable as CSV"),
    ],
    ids=["empty", "header only", "not UTF-8", "truncated gzip"],
)
def test_unreadable_file(write, text, message):
    path = write(text)
    with pytest.raises(ValueError) as error:
        read_flows(path, star(3))
    assert str(error.value).startswith(str(path))
    assert message in str(error.value)


def test_spine_must_exist_on_the_way(write):
    def read(line: str):
        return read_flows(write(f"{HEADER},spine_data,spine_ack\n{line}\n"), leaf_spine(2, 2, 2))

    assert read("0,0,2,1000,0,1,0").spine_data[0] == 1
    assert read("0,0,1,1000,0,-1,-1").spine_data[0] == -1
    with pytest.raises(ValueError, match=r"spine_ack = 2 is not allowed: .* 2 equal-cost path"):
        read("0,0,2,1000,0,1,2")
    with pytest.raises(ValueError, match=r"spine_data = 1 is not allowed: .* 1 equal-cost path"):
        read("0,0,1,1000,0,1,-1")  # both hosts on one leaf


def test_sum_of_sizes_is_bounded(write):
    n = MAX_TOTAL // 10**12
    lines = "".join(f"{i},1,0,{10**12},0\n" for i in range(n + 1))
    with pytest.raises(ValueError, match=rf"line {n + 2}: size_B = .* bytes in all flows"):
        read_flows(write(f"{HEADER}\n{lines}"), star(2))

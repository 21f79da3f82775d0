"""Flow-size tables as traffic generators write them."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ecn_marl.errors import InvalidInput
from ecn_marl.sim.formats.cdf import read_points, write_points
from ecn_marl.sim.traffic.poisson import Poisson
from ecn_marl.sim.traffic.sizes import TABLES, size_table

PERCENT = """\
# flow sizes of storage
0 0
4000 22.93   # a comment
8000\t69.21

2000000 100
"""


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("sizes.txt", PERCENT),
        ("sizes.csv", PERCENT.replace(" ", ",").replace("\t", ", ")),
        ("fractions.cdf", "0 0\n4000 .2293\n8000 0.6921\n2000000 1.0\n"),
        ("named.csv", "bytes,cdf\n0,0\n4000,0.2293\n8000,0.6921\n2000000,1\n"),
    ],
)
def test_both_scales_and_separators(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text)
    table = size_table(str(path))
    np.testing.assert_array_equal(table.size, [0, 4000, 8000, 2_000_000])
    np.testing.assert_allclose(table.cdf, [0, 0.2293, 0.6921, 1.0], rtol=1e-7)
    mean = 0.2293 * 2000 + (0.6921 - 0.2293) * 6000 + (1 - 0.6921) * 1_004_000
    assert float(table.mean) == pytest.approx(mean)
    assert float(Poisson(load=0.3, table=str(path)).default_params().table.mean) == table.mean


def test_a_byte_order_mark_takes_no_point_away(tmp_path):
    """Spreadsheets write one; the first point is the share of flows of the smallest size."""
    path = tmp_path / "sizes.csv"
    path.write_text("100,0.5\n1000,0.8\n10000,1\n", encoding="utf-8-sig")
    table = size_table(str(path))
    np.testing.assert_array_equal(table.size, [100, 100, 1000, 10_000])
    # Half are of 100 B, the others evenly between their points.
    assert table.mean == pytest.approx(0.5 * 100 + 0.3 * 550 + 0.2 * 5500)


def test_a_table_that_is_no_text_is_named(tmp_path):
    path = tmp_path / "sizes.xlsx"
    path.write_bytes(b"PK\x03\x04\xff\xfe")
    with pytest.raises(InvalidInput, match=r"sizes\.xlsx: not readable as text"):
        size_table(str(path))


@pytest.mark.parametrize("name", TABLES)
def test_tables_of_the_package_in_percent(tmp_path, name):
    """A table is the same one in percent."""
    own, path = size_table(name), tmp_path / "percent.txt"
    lines = (
        resources.files("ecn_marl.sim.traffic")
        .joinpath("data", f"{name}.csv")
        .read_text()
        .splitlines()
    )
    size, cdf = read_points(lines, Path(name))
    path.write_text("".join(f"{x:.17g} {y * 100:.17g}\n" for x, y in zip(size, cdf, strict=True)))
    table = size_table(str(path))
    np.testing.assert_array_equal(table.size, own.size)
    np.testing.assert_allclose(table.cdf, own.cdf, rtol=1e-7)


@given(
    points=st.lists(st.tuples(st.floats(0, 1e9), st.floats(0, 1)), min_size=1, max_size=6).map(
        lambda points: [*zip(*map(sorted, zip(*points, strict=True)), strict=True), (1e12, 1.0)]
    )
)
def test_points_written_and_read_again(tmp_path_factory, points):
    path = tmp_path_factory.mktemp("cdf") / "sizes.txt"
    size, cdf = (np.array(column) for column in zip(*points, strict=True))
    with path.open("w") as file:
        write_points(size, cdf, file)
    got = read_points(path.read_text().splitlines(), path)
    np.testing.assert_array_equal(got[0], size)
    np.testing.assert_array_equal(got[1], cdf)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0 0\n5 half\n9 1\n", "line 2: line = '5 half' is not allowed: expected two numbers"),
        ("0 0\n5 1 2\n9 1\n", "line 2: line = '5 1 2'"),
        ("0 0\n\n5 40\n3 100\n", "line 4: BYTES = 3.0 is not allowed: expected a number >= 5"),
        ("0 0\n5 40\n9 30\n", "line 3: CDF = 30.0"),
        ("0 0\n5 nan\n9 1\n", "line 2: CDF = nan"),
        ("0 0\n5 40\n9 90\n", "line 3: CDF = 90.0 is not allowed: expected 1 (fractions) or 100"),
        ("-1 0\n9 1\n", "line 1: BYTES = -1.0"),
        ("0 100\n", "1 points; expected at least two lines"),
        ('{"WRED_PROFILE": {}}\n', "0 points"),
    ],
)
def test_refused_lines(tmp_path, text, message):
    path = tmp_path / "sizes.txt"
    path.write_text(text)
    with pytest.raises(ValueError) as error:
        size_table(str(path))
    assert message in str(error.value)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)

"""Records: written and read without change; other files are refused."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pytest
from synthetic import evaluation, record

from ecn_marl.experiments.records import Record

ONE = {"J": np.array([[1.23456789, np.nan], [123456789.0, 1e-9 / 3.0]])}


def same(a: Record, b: Record) -> None:
    assert (a.name, a.meta, list(a.columns)) == (b.name, b.meta, list(b.columns))
    for name, column in a.columns.items():
        np.testing.assert_array_equal(column, b.columns[name])
    assert len(a.curves) == len(b.curves)
    for ours, theirs in zip(a.curves, b.curves, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("suffix", [".json", ".json.gz"])
def test_a_record_survives_a_round_trip(tmp_path, suffix):
    original = record("ippo", seeds=3, episodes=4, curves=True)
    path = tmp_path / f"ippo{suffix}"
    original.save(path)
    same(Record.load(path), original)
    first = path.read_bytes()
    Record.load(path).save(path)
    assert path.read_bytes() == first
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    text = gzip.decompress(first) if suffix.endswith("gz") else first
    assert json.loads(text)["columns"]["offered"] == [[520] * 4] * 3


def test_columns_are_those_of_the_evaluations():
    parts = [evaluation(seed=i) for i in range(2)]
    original = Record.of("x", parts, {"scenario": "s"})
    assert (original.seeds, original.episodes) == (2, 6)
    for i, part in enumerate(parts):
        assert set(part.columns) == set(original.columns)
        for name, column in part.columns.items():
            np.testing.assert_allclose(original.columns[name][i], column, rtol=5.1e-6)
    np.testing.assert_array_equal(original.columns["short_measured"], 400.0)


def test_numbers_are_rounded_when_a_record_is_made(tmp_path):
    """Whole numbers stay, others get 6 digits; so writing and reading changes nothing."""
    original = Record("x", {}, ONE)
    np.testing.assert_array_equal(
        original.columns["J"], [[1.23457, np.nan], [123456789.0, 3.33333e-10]]
    )
    original.save(tmp_path / "x.json")
    same(Record.load(tmp_path / "x.json"), original)
    assert '"J": [[1.23457,null],[123456789,3.33333e-10]]' in (tmp_path / "x.json").read_text()


def test_the_order_of_facts_does_not_matter(tmp_path):
    facts = {"b": (1, 2), "a": float("nan")}
    Record("x", facts, ONE).save(tmp_path / "1.json")
    Record("x", dict(reversed(facts.items())), ONE).save(tmp_path / "2.json")
    assert (tmp_path / "1.json").read_bytes() == (tmp_path / "2.json").read_bytes()
    assert Record.load(tmp_path / "1.json").meta == {"a": None, "b": [1, 2]}


def test_numbers_are_rounded_in_any_memory_order():
    rows = np.array([[1 / 3, 2 / 3], [1 / 7, 5 / 7]])
    c_order, fortran = (
        Record("x", {}, {"J": np.array(rows, order=order)}).columns["J"] for order in "CF"
    )
    assert (c_order == fortran).all() and (c_order != rows).any()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "a whole JSON file"),
        (b'{"format": "ecn-marl rec', "a whole JSON file"),
        (b"\xff\xfe", "a whole JSON file"),
        (b"[1, 2]", "format is 'ecn-marl record'"),
        (b'{"policies": []}', "format is 'ecn-marl record'"),
        (b'{"format": "ecn-marl record", "version": 9}', "version 1 of the format, not 9"),
        (b'{"format": "ecn-marl record", "version": 1}', "as they were written"),
        (
            b'{"format": "ecn-marl record", "version": 1, "name": "x", "meta": {}, "curves": [],'
            b'"columns": {"J": [[1, 2], [3]]}}',
            "as they were written",
        ),
        (
            b'{"format": "ecn-marl record", "version": 1, "name": "x", "meta": {}, "curves": [],'
            b'"columns": {"J": [["1"]], "K": [[1, 2]]}}',
            "as they were written",
        ),
    ],
)
def test_damaged_and_foreign_files_are_named(tmp_path, content, reason):
    path = tmp_path / "x.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=reason) as caught:
        Record.load(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    "damaged", [lambda data: data[:-20], lambda data: data[:12] + b"\xff" * 4 + data[16:]]
)
def test_a_damaged_archive_is_named(tmp_path, damaged):
    path = tmp_path / "x.json.gz"
    record("x").save(path)
    path.write_bytes(damaged(path.read_bytes()))
    with pytest.raises(ValueError, match="a whole JSON file"):
        Record.load(path)
    with pytest.raises(ValueError, match=r"ends in \.json or \.json\.gz"):
        record("x").save(tmp_path / "x.csv")


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"columns": {}}, "columns"),
        ({"columns": {"J": np.zeros((2, 0))}}, "columns"),
        ({"columns": {"J": np.zeros(3)}}, "columns"),
        ({"columns": {**ONE, "reward": np.zeros((1, 2))}}, "columns"),
        ({"meta": {"path": object()}}, "meta"),
        ({"curves": ((np.arange(3), np.arange(3)),)}, "curves"),
        ({"curves": ((np.arange(3), np.arange(2)),) * 2}, "curves"),
        ({"curves": ((np.arange(3), np.arange(3)),) * 2, "meta": {"curve": "joy"}}, "curve"),
    ],
)
def test_bad_records_are_named(change, field):
    from ecn_marl.experiments.records import Curve

    fields = {"name": "x", "meta": {}, "columns": ONE} | change
    fields["curves"] = tuple(Curve(*curve) for curve in fields.get("curves", ()))
    with pytest.raises(ValueError, match=field):
        Record(**fields)


def test_evaluations_of_different_episodes_are_refused():
    with pytest.raises(ValueError, match="evaluations"):
        Record.of("x", [], {})
    with pytest.raises(ValueError, match="evaluations"):
        Record.of("x", [evaluation(episodes=3), evaluation(episodes=4)], {})

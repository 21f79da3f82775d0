"""Files are written completely or not at all."""

from __future__ import annotations

import json

import pytest

from ecn_marl._files import Output, check_output, check_output_folder, json_text, write_all


def test_all_files_appear(tmp_path):
    write_all(
        {
            tmp_path / "a.txt": Output("w", lambda file: file.write("µs\n")),
            tmp_path / "b.bin": Output("wb", lambda file: file.write(b"\x00")),
        }
    )
    assert (tmp_path / "a.txt").read_bytes() == "µs\n".encode()
    assert (tmp_path / "b.bin").read_bytes() == b"\x00"
    assert len(list(tmp_path.iterdir())) == 2


def test_none_appears_if_one_fails(tmp_path):
    def fail(file):
        file.write("half")
        raise OSError("disk full")

    (tmp_path / "b").write_text("before")
    with pytest.raises(OSError, match="disk full"):
        write_all(
            {
                tmp_path / "a": Output("w", lambda file: file.write("new")),
                tmp_path / "b": Output("w", fail),
            }
        )
    assert [path.name for path in tmp_path.iterdir()] == ["b"]
    assert (tmp_path / "b").read_text() == "before"


def test_place_is_checked_beforehand(tmp_path):
    check_output("--out", tmp_path / "new")
    for path in (tmp_path, tmp_path / "none" / "new"):
        with pytest.raises(ValueError, match=r"--out = .* a file in a directory that exists"):
            check_output("--out", path)


def test_json_has_no_nan():
    tree = {"a": [1.0, float("nan")], "b": (float("inf"), "x", None), "c": {"d": -1}}
    assert json.loads(json_text(tree)) == {"a": [1, None], "b": [None, "x", None], "c": {"d": -1}}


def test_places_that_may_not_be_written_to(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    check_output("--out", tmp_path / "x.json")
    check_output_folder("--out", tmp_path / "old" / "new")
    with pytest.raises(ValueError, match=r"--out = .* a folder, old or new \(.*/file is a file\)"):
        check_output_folder("--out", tmp_path / "file" / "new")
    monkeypatch.setattr("os.access", lambda path, mode: False)
    with pytest.raises(ValueError, match=r"--out = .* that may be written to"):
        check_output("--out", tmp_path / "x.json")
    with pytest.raises(ValueError, match=r"--out = .* that may be written to"):
        check_output_folder("--out", tmp_path / "new")

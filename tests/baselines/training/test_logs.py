"""Logs, read back with an independent reader."""

from __future__ import annotations

import struct
import sys
import types

import numpy as np
import pytest

from ecn_marl.baselines.training.logs import JsonLines, TensorBoard, WeightsAndBiases, scalars

ROW = {"update": 3, "steps": 12, "reward": 0.5, "seconds": 1.5}


def events(folder):
    """Scalars of TensorBoard's event files: length, crc, message, crc; messages by protobuf."""
    from tensorboardX.proto.event_pb2 import Event

    scalars, starts = [], []
    for path in sorted(folder.glob("events.*"), key=lambda p: p.stat().st_mtime_ns):
        data = path.read_bytes()
        while data:
            (size,) = struct.unpack("<Q", data[:8])
            event = Event.FromString(data[12 : 12 + size])
            scalars += [(event.step, v.tag, v.simple_value) for v in event.summary.value]
            starts += [event.step] if event.session_log.status else []
            data = data[16 + size :]
    return scalars, starts


def test_tensorboard_has_every_scalar(tmp_path):
    log = TensorBoard(tmp_path)
    log.write(ROW)
    log.close()
    scalars, starts = events(tmp_path / "tensorboard")
    assert sorted(scalars) == [(3, "reward", 0.5), (3, "seconds", 1.5), (3, "steps", 12.0)]
    assert starts == []


def test_tensorboard_hides_rows_after_the_checkpoint(tmp_path):
    """A resumed run starts with a mark that makes the reader drop later steps of older files."""
    log = TensorBoard(tmp_path, after=3)
    log.write(ROW | {"update": 4})
    log.close()
    assert events(tmp_path / "tensorboard")[1] == [4]


def test_several_seeds_have_a_mean_and_one_scalar_each():
    row = {"update": 1, "steps": 8, "reward": [1.0, 3.0]}
    expected = {"steps": 8.0, "reward": 2.0, "reward/seed_0": 1.0, "reward/seed_1": 3.0}
    assert scalars(row) == expected


def test_json_lines_have_no_nan(tmp_path):
    JsonLines(tmp_path).write({"update": 1, "loss": float("nan"), "reward": [1.0, np.inf]})
    text = (tmp_path / "metrics.jsonl").read_text()
    assert text == '{"update": 1, "loss": null, "reward": [1.0, null]}\n'


def test_weights_and_biases_continues_its_run(tmp_path, monkeypatch):
    begun, sent = [], []

    class Run:
        id = "abc"

        def log(self, values, step):
            sent.append((step, values))

        def finish(self):
            sent.append("finished")

    def init(**options):
        begun.append(options)
        return Run()

    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=init))
    for _ in range(2):
        log = WeightsAndBiases(tmp_path, "queues", {"seed": 1})
        log.write(ROW)
        log.close()
    assert [options["id"] for options in begun] == [None, "abc"]
    assert begun[0]["project"] == "queues"
    assert begun[0]["config"] == {"seed": 1}
    assert sent[:2] == [(3, {"steps": 12.0, "reward": 0.5, "seconds": 1.5}), "finished"]


def test_weights_and_biases_is_an_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ValueError, match=r"wandb = 'queues' .*pip install 'ecn-marl\[wandb\]'"):
        WeightsAndBiases(tmp_path, "queues", {})

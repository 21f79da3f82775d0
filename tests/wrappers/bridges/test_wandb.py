"""The real Weights & Biases, offline: the logs of a run can be read back from its file."""

from __future__ import annotations

import json
import struct

import pytest

from ecn_marl.baselines.training.logs import WeightsAndBiases

wandb = pytest.importorskip("wandb")

BLOCK, FULL, LAST = 32768, 1, 4


def chunks(data):
    """Records of a wandb file: 7 bytes, then a log in the format of LevelDB."""
    at, payload = 7, b""
    while at + 7 <= len(data):
        if BLOCK - at % BLOCK < 7:  # a block's end is too short for a header
            at += BLOCK - at % BLOCK
            continue
        _, size, kind = struct.unpack_from("<IHB", data, at)
        payload += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (FULL, LAST):
            yield payload
            payload = b""


def rows(path):
    """Metrics in a file that wandb has written."""
    from wandb.proto.wandb_internal_pb2 import Record

    for chunk in chunks(path.read_bytes()):
        record = Record.FromString(chunk)
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            yield {i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in items}


def test_a_run_and_its_continuation_are_in_the_files(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    for start in (1, 3):
        log = WeightsAndBiases(tmp_path, "queues", {"seed": 1})
        for update in (start, start + 1):
            log.write({"update": update, "steps": 8 * update, "reward": [0.5, 1.0]})
        log.close()
    wandb.teardown()  # its process writes the end of the file some time later
    run = json.loads((tmp_path / "wandb.json").read_text())["id"]
    files = sorted(tmp_path.glob(f"wandb/offline-run-*/run-{run}.wandb"))
    written = [row for path in files for row in rows(path)]
    assert [row["_step"] for row in written] == [1, 2, 3, 4]
    assert [row["steps"] for row in written] == [8.0, 16.0, 24.0, 32.0]
    assert written[0]["reward"] == 0.75 and written[0]["reward/seed_1"] == 1.0

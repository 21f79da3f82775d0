"""Checkpoints that are damaged are refused; a run's other files, too."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import warnings
from importlib.metadata import version

import jax.numpy as jnp
import numpy as np
import pytest

from ecn_marl.baselines.training.checkpoint import (
    BEST,
    CONFIG,
    DIGESTS,
    RUN,
    Checkpoints,
    read_config,
    warn_of_versions,
    write_json,
)
from ecn_marl.errors import DamagedCheckpoint, DamagedFile, VersionWarning

STATE = {"w": jnp.arange(4096.0).reshape(64, 64), "n": jnp.int32(7)}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Checkpoints 1 and 2; the state of 2 is twice that of 1."""
    run = tmp_path_factory.mktemp("saved")
    checkpoints = Checkpoints(run)
    checkpoints.save(1, STATE)
    checkpoints.save(2, {name: 2 * x for name, x in STATE.items()})
    checkpoints.close()
    return run


@pytest.fixture
def run(saved, tmp_path):
    """A copy for tests that damage it."""
    return shutil.copytree(saved, tmp_path / "run")


def files(run, step):
    return sorted(p for p in (run / "checkpoints" / str(step)).rglob("*") if p.is_file())


def test_intact_checkpoints_are_restored(run):
    checkpoints = Checkpoints(run)
    for step in (1, 2):
        restored = checkpoints.restore(STATE, step)
        np.testing.assert_array_equal(restored["w"], step * STATE["w"])
        assert int(restored["n"]) == 7 * step


def test_a_flipped_bit_anywhere_is_found(run):
    rng = np.random.default_rng(0)
    checkpoints, paths = Checkpoints(run), files(run, 2)
    assert len(paths) > 3
    for path in paths * 8:
        content = bytearray(original := path.read_bytes())
        if not content:
            continue
        content[rng.integers(len(content))] ^= 1 << rng.integers(8)
        path.write_bytes(content)
        with pytest.raises(DamagedCheckpoint, match=r"2 is damaged: .*the last good one is 1: del"):
            checkpoints.restore(STATE)
        path.write_bytes(original)
    assert int(checkpoints.restore(STATE)["n"]) == 14


@pytest.mark.parametrize("damage", ["truncate", "delete"])
def test_a_truncated_or_missing_file_is_found(run, damage):
    largest = max(files(run, 2), key=lambda path: path.stat().st_size)
    if damage == "delete":
        largest.unlink()
    else:
        largest.write_bytes(largest.read_bytes()[:-1])
    with pytest.raises(DamagedCheckpoint, match=largest.name):
        Checkpoints(run).restore(STATE)
    shutil.rmtree(run / "checkpoints" / "2")  # what the message says
    assert int(Checkpoints(run).restore(STATE)["n"]) == 7


def test_the_error_says_if_no_checkpoint_is_intact(run):
    for step in (1, 2):
        files(run, step)[0].write_bytes(b"x")
    with pytest.raises(DamagedCheckpoint, match="no other one that is whole"):
        Checkpoints(run).restore(STATE)


def test_a_folder_without_digests_is_no_checkpoint(run):
    (run / "checkpoints" / "2" / DIGESTS).unlink()
    with pytest.raises(DamagedCheckpoint, match=r"no sha256\.json.*last good one is 1") as error:
        Checkpoints(run).restore(STATE)
    assert "\n" not in str(error.value)
    (run / "checkpoints" / "1" / DIGESTS).unlink()
    with pytest.raises(DamagedCheckpoint, match="no other one that is whole"):
        Checkpoints(run).restore(STATE)


KILLED = """
import os, sys
import numpy as np
from ecn_marl.baselines.training import checkpoint
checkpoints = checkpoint.Checkpoints(sys.argv[1])
name = sys.argv[2]

def killed(*args, **options):
    os._exit(9)

if name != "rmtree":
    setattr(checkpoint, name, killed)
else:
    checkpoint.shutil.rmtree = killed
for step in (2, 3):
    checkpoints.save(step, {"w": np.full((64, 64), 5.0), "n": np.int32(step)})
"""


@pytest.mark.parametrize(
    ("at", "left"),
    [("_digests", [1, 2]), ("write_json", [1, 2]), ("_delete", [1, 2]), ("rmtree", [1])],
)
def test_a_kill_at_any_moment_of_a_save_leaves_whole_checkpoints(run, at, left):
    """Killed as it saves 2 again: before its digests, as they are written, before it is renamed,
    and between that the old 2 is gone and the new one there."""
    process = subprocess.run([sys.executable, "-c", KILLED, str(run), at], timeout=120)
    assert process.returncode == 9
    checkpoints = Checkpoints(run)
    assert checkpoints.steps == left
    for step in left:
        assert int(checkpoints.restore(STATE, step)["n"]) == 7 * step
    # It goes on: what the kill left behind is in the way of nothing, and goes away.
    for _ in range(2):
        checkpoints.save(2, STATE)
    checkpoints.clean()
    assert checkpoints.steps == [1, 2] and int(checkpoints.restore(STATE)["n"]) == 7
    assert {path.name for path in checkpoints.folder.iterdir()} == {"1", "2"}


def test_merits_of_old_versions_are_read(run):
    """Up to 0.2 they were called scores."""
    for name in ("score", "merit"):
        write_json(run / "checkpoints" / BEST, [{"step": 1, name: 0.5}])
        assert Checkpoints(run).best() == (1, 0.5)
    write_json(run / CONFIG, {**GOOD, "score_by": "objective"})
    config = read_config(run, RUN)
    assert config["best_by"] == "objective" and "score_by" not in config


def test_another_structure_is_not_reported_as_damage(run):
    with pytest.raises(ValueError, match=r"checkpoint = .*same algorithm, network") as error:
        Checkpoints(run).restore({"v": STATE["w"]})
    assert not isinstance(error.value, DamagedFile)


@pytest.mark.parametrize("text", ["null", "{}", "[]", "[1]", '[{"step": 1}]', "[", '"x"', "\xff"])
def test_merits_that_cannot_be_read_are_named(run, text):
    (run / "checkpoints" / BEST).write_bytes(text.encode("latin-1"))
    with pytest.raises(DamagedFile, match=BEST):
        Checkpoints(run)


GOOD = {"algorithm": "ippo", "settings": {}, "steps": 8, "seed": 0}
PORTS = {"scenario": "incast-v0", "options": {}, "seeds": 1}


@pytest.mark.parametrize("text", ["null", "[]", "{}", "1", "{", "\xff", '{"algorithm": 1}'])
def test_a_configuration_that_cannot_be_read_is_named(tmp_path, text):
    (tmp_path / CONFIG).write_bytes(text.encode("latin-1"))
    with pytest.raises(DamagedFile, match=CONFIG):
        read_config(tmp_path)


def test_every_field_of_a_configuration_is_needed(tmp_path):
    complete = GOOD | PORTS
    for name in complete:
        for wrong in (None, 1.5, True):
            (tmp_path / CONFIG).write_text(json.dumps(complete | {name: wrong}))
            with pytest.raises(DamagedFile, match=f"expected {name} of type"):
                read_config(tmp_path)
    (tmp_path / CONFIG).write_text(json.dumps(GOOD))
    assert read_config(tmp_path, RUN) == GOOD


def test_other_versions_raise_a_warning(tmp_path):
    current = {name: version(name) for name in ("ecn-marl", "jax")}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_versions(tmp_path, {"versions": current | {"numpy": "0"}})
        warn_of_versions(tmp_path, {})
    for name in current:
        with pytest.warns(
            VersionWarning, match=rf"made with {name} 0\.0\.1 \(here {current[name]}\)"
        ):
            warn_of_versions(tmp_path, {"versions": current | {name: "0.0.1"}})

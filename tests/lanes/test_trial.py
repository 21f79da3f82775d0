"""The trial that decides between the kernel and XLA, with a processor in place of a GPU."""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ecn_marl.lanes import settings, trial
from ecn_marl.lanes.trial import Verdict
from ecn_marl.speed.trial import environments


def child(text: str, status: int = 0) -> tuple[str, ...]:
    """A process that says something and ends."""
    code = (
        f"import sys; print({text!r}); print('the last words', file=sys.stderr); sys.exit({status})"
    )
    return (sys.executable, "-c", code)


def result(**changed: float) -> str:
    return json.dumps({"agree": 1.0, "xla_s": 2e-3, "kernel_s": 1e-3} | changed)


@pytest.mark.parametrize(
    ("text", "status", "kernel", "reason"),
    [
        (result(), 0, True, "1000 us per step, XLA 2000 us"),
        (result(kernel_s=3e-3), 0, False, "3000 us per step, XLA 2000 us"),
        (result(agree=0.9), 0, False, "only 90.00 % of its numbers are XLA's"),
        (result(agree=float("nan")), 0, False, "only nan % of its numbers are XLA's"),
        (result(), 139, False, "the trial ended with status 139: the last words"),
        ("no numbers", 0, False, "the trial ended with status 0: the last words"),
        ("{}", 0, False, "the trial ended with status 0: the last words"),
    ],
)
def test_verdicts(text: str, status: int, kernel: bool, reason: str) -> None:
    """Only a kernel that is right and no slower is used; a crash stays in its process."""
    assert trial.run_trial(child(f"a line before\n{text}", status)) == Verdict(kernel, reason)


def test_a_trial_that_hangs_has_failed() -> None:
    command = (sys.executable, "-c", "import time; time.sleep(60)")
    assert trial.run_trial(command, 0.2) == Verdict(False, "the trial took more than 0.2 s")


def test_the_trial_uses_the_kernel_and_leaves_memory_to_others() -> None:
    names = (settings.GPU, "XLA_PYTHON_CLIENT_PREALLOCATE")
    code = f"import os, sys; sys.exit(' '.join(os.environ[n] for n in {names}))"
    assert trial.run_trial((sys.executable, "-c", code)).reason.endswith("status 1: 1 false")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Verdict]:
    """Trials that are made from now on; their verdict is the last element when they begin."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    verdicts: list[Verdict] = []

    def run_trial(command: tuple[str, ...]) -> Verdict:
        assert command[-1] == settings.trial_program() == "ecn_marl.speed.trial:environments"
        verdicts.append(Verdict(True, "it is"))
        return verdicts[-1]

    monkeypatch.setattr(trial, "run_trial", run_trial)
    return verdicts


def decide() -> bool:
    """What a new process would decide."""
    trial.device_verdict.cache_clear()
    return trial.kernel_is_better()


def test_a_verdict_is_kept(
    asked: list[Verdict], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """For this GPU and these versions; what cannot be read is tried again."""
    caplog.set_level(logging.INFO)
    assert decide()
    assert "once" in caplog.text
    assert decide()
    assert len(asked) == 1
    (path,) = (tmp_path / "jax_lanes").iterdir()
    kept = json.loads(path.read_text())
    assert kept["reason"] == "it is"
    assert set(kept["tried_on"]) >= {"device", "platform", "jax", "program", "sources"}
    path.write_text(json.dumps({"kernel": False, "reason": "slower"}))
    assert not decide()
    assert f"lanes use XLA on this GPU: slower ({path})" in caplog.text
    path.write_text("{")
    assert decide()
    assert len(asked) == 2
    other = trial.verdict_file(kept["tried_on"] | {"device": "another"})
    assert other != path


def test_without_a_folder_to_write_to_it_still_decides(
    asked: list[Verdict],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert decide()
    assert "is not kept" in caplog.text
    assert len(asked) == 1


def test_without_a_program_gpus_run_xla(
    asked: list[Verdict], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(settings, "_program", "")
    assert not decide()
    assert "no program was given" in caplog.text
    assert not asked


def small_program() -> trial.TrialProgram:
    return environments("websearch-star-v0", envs=20)


def test_the_program_is_a_step_of_environments() -> None:
    """The name is that of the function, and a turn leaves the state's form as it was."""
    module, _, function = settings.trial_program().partition(":")
    assert getattr(import_module(module), function) is environments
    program = environments("websearch-star-v0", envs=2)
    extra = [values for values, _ in program.extra]
    axes = (None, 0, *(0 if own else None for _, own in program.extra))
    step = jax.vmap(program.step, axes)
    state, _, ends = jax.eval_shape(step, jnp.int32(0), program.state, *extra)
    assert state == jax.eval_shape(lambda: program.state)
    assert [x.shape for x in ends] == [(2, 8), (2, 8)]


@pytest.mark.slow
@pytest.mark.thorough
def test_what_is_measured() -> None:
    """Both ways of the same steps; here, the processor's vectors take the kernel's part."""
    found = trial.measure(trial.load_program(f"{__name__}:small_program"))
    assert found["agree"] >= trial.SHARE
    assert 0.0 < found["kernel_s"] < found["xla_s"]


def tiny_program() -> trial.TrialProgram:
    def one(turn: Any, state: Any, by: Any) -> tuple[Any, Any, Any]:
        return state * by + turn, (state.sum(),), (state > 0,)

    return trial.TrialProgram(one, jnp.ones((20, 5)), ((jnp.float32(0.5), False),))


def test_a_trial_is_a_process_that_loads_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command as it is given to a GPU's process, here with a processor."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), *sys.path]))
    reason = trial.run_trial((*trial.COMMAND, f"{Path(__file__).stem}:tiny_program")).reason
    assert re.fullmatch(r"\d+ us per step, XLA \d+ us", reason)


def step(**changed: Any) -> tuple[Any, ...]:
    """A result of a step: state, results, decisions."""
    parts = {
        "state": jnp.arange(97),
        "obs": np.linspace(-1.0, 1.0, 100, dtype=np.float32),
        "reward": np.full(3, np.nan),
        "ends": (jnp.zeros(4, bool), jnp.zeros(4, bool)),
    } | changed
    return parts["state"], (parts["obs"], parts["reward"]), parts["ends"]


def test_agreement() -> None:
    """Rounding and numbers that neither has are equal, one number in two hundred may differ."""
    obs = np.asarray(step()[1][0])
    assert trial._agreement(step(), step(obs=obs * (1.0 + 1e-6))) == 1.0
    off = obs.copy()
    off[7] += 0.1
    assert trial._agreement(step(), step(obs=off)) == pytest.approx(1.0 - 1 / 208)
    assert trial._agreement(step(), step(obs=off)) >= trial.SHARE
    off[8] = np.nan
    assert trial._agreement(step(), step(obs=off)) < trial.SHARE
    assert trial._agreement(step(), step(ends=(jnp.zeros(4, bool), jnp.ones(4, bool)))) == 0.0

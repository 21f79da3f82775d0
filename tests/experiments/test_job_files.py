"""Jobs as TOML files: written for a command, and read back as the same job."""

from __future__ import annotations

import tomllib
from dataclasses import replace

import pytest
from commands import TINY, failure, run

from ecn_marl.experiments.job_files import read_job, toml_of
from ecn_marl.experiments.jobs import Job, new_job
from ecn_marl.experiments.workflow import job_text

pytestmark = pytest.mark.usefixtures("tiny_scenario")

FILE = f"""
algorithm = "ippo"
scenario = "{TINY}"
steps = 96
[options]
reward = "pet"
max_steps = 4
[settings]
hidden = [8, 8]
gamma = 0.5
[randomise]
rate = [0.5, 2.0]
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(FILE)
    return path


def test_options_override_the_file(file):
    options = {"steps": 48, "envs": 2}
    job = new_job(None, options, {"features": "pet"}, ["gamma=0.9"], read_job(file))
    assert (job.algorithm, job.scenario, job.steps) == ("ippo", TINY, 48)
    assert job.options == {"reward": "pet", "max_steps": 4, "features": "pet"}
    assert job.settings == {"hidden": [8, 8], "gamma": 0.9, "envs": 2}
    assert job.randomise == {"rate": [0.5, 2.0]}


def test_the_shown_configuration_is_the_same_job(file, tmp_path):
    shown = run("train", "--config", file, "--show-config")
    assert shown.exit_code == 0, shown.output
    again = tmp_path / "again.toml"
    again.write_text(shown.stdout)
    assert run("train", "--config", again, "--show-config").stdout == shown.stdout
    job_fields = tomllib.loads(shown.stdout)
    assert job_fields["settings"]["hidden"] == [8, 8] and job_fields["settings"]["gamma"] == 0.5
    assert job_fields["settings"]["rollout"] == 32, "defaults are filled in"
    assert not [path for path in tmp_path.iterdir() if path.is_dir()], "nothing is trained"


def test_jobs_with_other_intervals_survive_a_round_trip(tmp_path):
    """`max_steps` counts intervals of the scenario; those of the recipe are longer."""
    job = new_job("ippo", {"steps": 1000}, {"max_steps": 50}, [])
    assert job.options["max_steps"] == 20
    path = tmp_path / "run.toml"
    path.write_text(job_text(job))
    again = new_job(None, {}, {}, [], read_job(path))
    assert again.options["max_steps"] == 20
    assert job_text(again) == job_text(job)


def test_all_json_values_can_be_written(tmp_path):
    options = {"a": [1, [2.5]], "b c": {"d": 'say "µ"'}, "e": True, "f": float("inf"), "g": None}
    text = toml_of(Job("ippo", TINY, 1, {**options, "interval_us": 40.0}), ["own.py"])
    job_fields = tomllib.loads(text)
    del options["g"]
    assert job_fields["options"] == {**options, "interval_us": 40.0}
    assert job_fields["imports"] == ["own.py"]
    with pytest.raises(ValueError, match="what a TOML file can hold"):
        toml_of(Job("ippo", TINY, 1, {"a": object()}), [])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("steps = ", "a TOML file"),
        ("stepz = 1", "unknown field of run.toml 'stepz': did you mean 'steps'"),
        ("settings = 1", "settings in run.toml = 1 is not allowed: expected a table, [settings]"),
        ("imports = 'own.py'", "expected a list of modules and files"),
        ("imports = ['no_such.py']", "--import = 'no_such.py' is not allowed"),
        ("[options]\nfeatures = 'acc'\nrewrd = 'acc'", "did you mean 'reward'"),
        (
            "steps = 'many'",
            "steps = 'many' is not allowed: expected an integer",
        ),
        ("algorithm = 'ipo'", "unknown algorithm 'ipo': did you mean 'ippo'"),
        ("algorithm = 'ippo'\n[settings]\ngama = 1", "setting of ippo 'gama'"),
    ],
)
def test_errors_in_files_are_one_line(file, text, message):
    file.write_text(text)
    assert message in failure("train", "--config", file, "--show-config")


def test_files_are_for_new_runs_of_ports(file):
    assert "goes on as it was started" in failure("train", "--resume", file, "--config", file)
    assert "--config" in failure("train", "adpg", "--config", file)
    job = Job("ippo", TINY, 8)
    with pytest.raises(ValueError, match="seeds = 0"):
        replace(job, seeds=0)

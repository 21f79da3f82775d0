"""The command line: its output, its files and its errors."""

from __future__ import annotations

import csv
import gzip
import json
import shlex
import subprocess
import sys
import warnings
from importlib.metadata import version
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from commands import TINY, failure, run
from synthetic import evaluation

import ecn_marl
from ecn_marl.baselines.trained import run_controller
from ecn_marl.errors import InvalidInput, VersionWarning
from ecn_marl.lanes import settings
from ecn_marl.sim import Incast, Simulator

FLOWS = """\
scenario,flow_id,src,dst,size_B,start_ns
a,0,1,0,200000,0
a,1,2,0,200000,1000
a,2,3,0,50000,500
a,3,4,0,90000000,2000
"""
SMALL = ["--set", "envs=2", "--set", "rollout=4", "--set", "minibatches=2", "--set", "hidden=4"]
NETWORK = ["--topology", "star:5", "--dt-us", "5", "--duration-ms", "1"]

pytestmark = pytest.mark.usefixtures("tiny_scenario")


@pytest.fixture
def flows(tmp_path):
    path = tmp_path / "flows.csv"
    path.write_text(FLOWS)
    return path


def test_version():
    result = run("--version")
    assert (result.exit_code, result.stdout) == (0, f"ecn-marl {version('ecn-marl')}\n")


def test_the_command_alone_shows_its_help():
    result = run()
    assert "Usage" in result.output and "train" in result.output
    assert result.exit_code == 2, "nothing was asked for"  # as every group of click's


def test_help_is_light():
    code = (
        "import sys, typer.testing as t; from ecn_marl.cli import app; "
        "r = t.CliRunner().invoke(app, ['--help']); assert r.exit_code == 0; "
        "assert all(c in r.output for c in ('train', 'eval', 'replay', 'scenarios')), r.output; "
        "assert not {'jax', 'numpy', 'matplotlib'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_unknown_command():
    assert run("trian").exit_code == 2


def test_replay_round_trip(flows, tmp_path):
    out, queues = tmp_path / "fct.csv", tmp_path / "q.npz"
    result = run("replay", flows, *NETWORK, "--out", out, "--queues", queues, "--json")
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    summary = json.loads(result.stdout)
    with out.open() as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["flow_id", "size_B", "start_ns", "fct_ns", "slowdown"]
    assert [row["flow_id"] for row in rows] == ["0", "1", "2", "3"]
    assert [row["start_ns"] for row in rows] == ["0", "1000", "500", "2000"]
    assert rows[3]["fct_ns"] == rows[3]["slowdown"] == ""
    slowdown = [float(row["slowdown"]) for row in rows[:3]]
    assert summary["slowdown"]["all"]["mean"] == pytest.approx(np.mean(slowdown), abs=1e-4)
    assert summary["slowdown"]["(0,100KB]"]["flows"] == 1
    assert summary["flows"]["finished"] == 3
    assert summary["flows"]["unfinished"] == 1
    b = summary["bytes"]
    assert abs(b["error"]) <= 1e-6 * b["offered"]
    with np.load(queues) as arrays:
        assert arrays["queue_bytes"].shape == arrays["tx_bytes"].shape == (100, 5)
        assert arrays["port"][0] == "switch0->host0"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["fct.csv", "flows.csv", "q.npz"]


def test_replay_tables_gz_and_seed(flows, tmp_path):
    zipped = tmp_path / "flows.csv.gz"
    zipped.write_bytes(gzip.compress(flows.read_bytes()))
    table = run("replay", zipped, *NETWORK).stdout
    assert "3 of 4 flows finished" in table
    assert "(100KB,1MB]" in table

    def summary(path, *options):
        return run("replay", path, *NETWORK, "--ecn", "5,2000,0.05", *options, "--json").stdout

    assert summary(zipped) == summary(flows, "--seed", 0)
    assert summary(flows) != summary(flows, "--seed", 1)


def test_replay_thresholds_are_for_the_host_links(flows):
    """At 100 Gb/s a setting in KB is for 100 Gb/s; it is not scaled up from 25."""

    def marks(*options):
        return json.loads(run("replay", flows, *NETWORK, "--json", *options).stdout)["marks"]

    link = ["--link-gbps", "100"]
    assert marks(*link, "--ecn", "5,20,1") > 2 * marks(*link, "--ecn", "500,2000,1")
    assert marks(*link, "--ecn", "secn1") == marks(*link, "--ecn", "5,200,0.01")


def test_replay_takes_the_bytes_of_a_vendor_and_of_a_switch(flows, tmp_path, monkeypatch):
    """At 100 Gb/s `arista` has its 167 and 283 KB; a profile has its bytes on every port."""
    seen = []

    def thresholds(flows, topology, settings, *_, **__):
        params = Simulator(topology, (Incast(n_max=2),), slots=4).default_params()
        ecn = settings.thresholds(topology, params)
        seen.append([float(ecn.kmin[0]), float(ecn.kmax[0])])
        raise InvalidInput("seen")

    monkeypatch.setattr("ecn_marl.sim.replay.replay", thresholds)
    profile = {"ecn": "ecn_all", "wred_green_enable": "true", "green_min_threshold": "100000"}
    profile |= {"green_max_threshold": "400000", "green_drop_probability": "20"}
    (tmp_path / "config_db.json").write_text(json.dumps({"WRED_PROFILE": {"A": profile}}))
    for ecn in ("arista", f"@{tmp_path / 'config_db.json'}", "secn2"):
        assert "seen" in failure("replay", flows, *NETWORK, "--link-gbps", 100, "--ecn", ecn)
    assert seen == [[167_000, 283_000], [100_000, 400_000], [100_000, 400_000]]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--topology", "ring:5"], "unknown topology 'ring'"),
        (["--topology", "star:4"], "line 5: src = 4 is not allowed: expected a host of star:4"),
        (["--ecn", "200,5,0.01"], "expected 0 < Kmin <= Kmax"),
        (["--ecn", "secn3"], "unknown ECN setting 'secn3': did you mean 'secn"),
        (["--transport", "dcqcn:papr"], "unknown DCQCN preset 'papr': did you mean 'paper'"),
        (["--transport", "cubic"], "unknown transport 'cubic'"),
        (["--dt-us", "3"], "dt_us = 3.0 is not allowed: expected a substep that divides 10 µs"),
        (["--duration-ms", "-1"], "duration_ms = -1.0 is not allowed"),
        (["--slots", "0"], "slots = 0 is not allowed"),
        (["--buffer-mib", "0"], "buffer_mib = 0.0 is not allowed"),
        (["--link-gbps", "0"], "gbps = 0.0 is not allowed"),
        (["--out", "nowhere/fct.csv"], "--out = 'nowhere/fct.csv' is not allowed: expected a file"),
        (["--out", "same", "--queues", "same"], "--queues = 'same' is not allowed"),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, list) else "",
)
def test_replay_errors(flows, tmp_path, monkeypatch, args, message):
    monkeypatch.chdir(tmp_path)
    assert message in failure("replay", flows, *NETWORK, *args)
    assert [p.name for p in tmp_path.iterdir()] == ["flows.csv"]


def test_replay_malformed_line_writes_nothing(flows, tmp_path):
    out = tmp_path / "fct.csv"
    out.write_text("as it was")
    flows.write_text(FLOWS + "a,4,1,1,1000,0\n")
    error = failure("replay", flows, *NETWORK, "--out", out)
    assert f"{flows}, line 6: dst = 1 is not allowed: expected a host of star:5" in error
    assert out.read_text() == "as it was"


def test_replay_does_not_overwrite_its_input(flows):
    assert "a file other than the flow list" in failure("replay", flows, *NETWORK, "--out", flows)
    assert flows.read_text() == FLOWS
    for option in ("--topology", "--config", "--ecn"):
        file = flows.with_name("input.txt")
        args = ["--topology", "star:5", option, f"@{file}" if option == "--ecn" else file]
        for output in ("--out", "--queues"):
            assert f"other than {'the file of ' * (option == '--ecn')}{option}" in failure(
                "replay", flows, *args, output, file
            )


def test_missing_file(tmp_path):
    error = failure("replay", tmp_path / "none.csv", *NETWORK)
    assert error == f"ecn-marl: {tmp_path / 'none.csv'}: No such file or directory\n"


def test_traceback_on_request(flows):
    result = run("--traceback", "replay", flows, "--topology", "ring:5")
    assert isinstance(result.exception, ValueError)


def test_debug_is_the_same(flows):
    result = run("--debug", "replay", flows, "--topology", "ring:5")
    assert isinstance(result.exception, ValueError)


def test_unexpected_errors_are_one_line_and_a_traceback_in_a_file(monkeypatch, tmp_path):
    def broken():
        raise TypeError("a\nb")

    monkeypatch.setattr("ecn_marl.envs.registry.scenarios", broken)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    result = run("scenarios")
    (traceback_file,) = tmp_path.iterdir()
    where = f"(the traceback is in {traceback_file}, --debug shows it)"
    assert result.stderr == f"ecn-marl: unexpected TypeError: a b {where}\n"
    assert result.exit_code == 70
    assert "in broken" in traceback_file.read_text()
    assert isinstance(run("--debug", "scenarios").exception, TypeError)


def test_errors_of_lanes_are_one_line(monkeypatch):
    def refused():
        monkeypatch.setenv("LANES_GPU", "yes")
        return settings.gpu_mode()

    monkeypatch.setattr("ecn_marl.envs.registry.scenarios", refused)
    result = run("scenarios")
    assert result.exit_code == 2
    expected = "LANES_GPU = 'yes' is not allowed: expected 0, 1 or auto"
    assert result.stderr == f"ecn-marl: {expected}\n"


def test_warnings_of_other_versions_are_one_line(monkeypatch):
    def older():
        warnings.warn("made with jax 0.1", VersionWarning, stacklevel=1)
        return ()

    monkeypatch.setattr("ecn_marl.envs.registry.scenarios", older)
    result = run("scenarios")
    assert result.exit_code == 0
    assert result.stderr == "ecn-marl: warning: made with jax 0.1\n"


def test_settings_out_of_range_are_named_and_nothing_is_written(tmp_path):
    for option, value, name in (
        ("--env", 'failing={"share":0.5}', "failing"),
        ("--env", 'failing={"share":2.0,"at_us":1.0}', "share = 2.0"),
        ("--set", "hidden=0", "hidden = (0,)"),
        ("--set", "actor_lr=inf", "actor_lr = inf"),
        ("--set", "entropy=nan", "entropy = nan"),
        ("--envs", 10**9, "envs, seeds = (1000000000, 1)"),
    ):
        out = tmp_path / "run"
        command = ("train", "ippo", "--scenario", TINY, "--steps", 8, "--out", out, option, value)
        assert name in failure(*command)
        assert not out.exists()


def test_a_flow_that_starts_too_late_is_named(flows):
    flows.write_text(FLOWS + "a,4,1,0,1000,1e19\n")
    assert "line 6: start_ns = 1e+19" in failure("replay", flows, *NETWORK)


@pytest.fixture(scope="module")
def trained(tmp_path_factory, tiny_scenario):
    """A short run with evaluation: its folder and what was printed."""
    folder = tmp_path_factory.mktemp("runs") / "first"
    command = ["train", "ippo", "--scenario", TINY, "--steps", 20, "--seed", 3, *SMALL]
    result = run(*command, "--out", folder, "--evaluate", "--episodes", 2)
    assert result.exit_code == 0, result.output
    return folder, result


def test_train_leaves_a_run(trained):
    folder, _ = trained
    assert sorted(path.name for path in folder.iterdir()) == [
        "checkpoints",
        "config.json",
        "evaluation.json",
        "learning_curve.png",
        "metrics.jsonl",
        "queues.png",
        "records",
        "run.toml",
        "slowdown.png",
        "tensorboard",
    ]
    config = json.loads((folder / "config.json").read_text())
    assert (config["algorithm"], config["scenario"], config["seed"]) == ("ippo", TINY, 3)
    assert config["settings"]["envs"] == 2
    assert config["settings"]["hidden"] == [4]
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["steps"] for row in rows] == [8, 16, 24], "20 steps, rounded up to whole updates"
    for name in ("learning_curve.png", "queues.png", "slowdown.png"):
        assert (folder / name).read_bytes().startswith(b"\x89PNG")


def test_train_compares_with_static_settings(trained):
    folder, result = trained
    assert "2 episodes never trained on, seed 3" in result.stdout
    for name in ("IPPO first", "SECN1", "SECN2", "J", "short", "long", "queue", "util", "pauses"):
        assert name in result.stdout
    evaluation = json.loads((folder / "evaluation.json").read_text())
    names = [row["name"] for row in evaluation["policies"]]
    assert names == [str(folder), "static:secn1", "static:secn2"]
    assert evaluation["scenario"] == TINY
    for row in evaluation["policies"]:
        assert 0 < row["reward"]["mean"] <= 1
        assert row["slowdown"]["short"]["measured"] > 0


def test_every_command_has_examples_that_it_understands():
    import typer

    from ecn_marl.cli import app

    for name, command in typer.main.get_command(app).commands.items():
        title, *examples = command.epilog.splitlines()
        assert title.startswith("Example") and examples
        for example in examples:
            program, called, *args = shlex.split(example)
            assert (program, called) == ("ecn-marl", name)
            command.make_context(name, args)  # fails where an option does not exist
        shown = run(name, "--help").output.splitlines()
        assert title in [line.strip() for line in shown]


def test_json_means_the_same_on_every_command():
    """It is a flag for one document on stdout. Files have other options."""
    import typer

    from ecn_marl.cli import app

    group = typer.main.get_command(app)
    json_options = {
        (param.is_flag, param.help)
        for command in group.commands.values()
        for param in command.params
        if "--json" in param.opts
    }
    assert json_options == {(True, "Print one JSON document instead of tables.")}


@pytest.mark.parametrize(
    "command",
    [
        ("headroom", "restore-serve-v0"),
        ("bench", "restore-serve-v0"),
        ("tune", "restore-serve-v0", "ippo"),
        ("train", "ippo"),
        ("train", "adpg"),
    ],
)
def test_folders_that_cannot_be_made_are_refused_before_work_begins(command, tmp_path, monkeypatch):
    from ecn_marl.baselines import search

    monkeypatch.setattr(search.Search, "find", None)
    (tmp_path / "file").write_text("")
    message = failure(*command, "--out", tmp_path / "file" / "folder")
    assert "out = " in message and "folder" in message


def test_train_reports_progress_without_a_terminal(trained):
    lines = [line for line in trained[1].stderr.splitlines() if "compiling" not in line]
    assert lines[0].startswith("train ippo: 8/24 steps return ")
    assert lines[2].startswith("train ippo: 24/24 steps ")
    assert lines[-1] == "evaluate: 6/6 episodes SECN2 (100,400,0.2)"


def test_eval_of_a_run_gives_what_training_gave(trained):
    folder, _ = trained
    before = json.loads((folder / "evaluation.json").read_text())
    result = run("eval", folder, "--episodes", 2, "--seed", 3, "--json")
    assert result.exit_code == 0, result.output
    after = json.loads(result.stdout)["evaluation"]
    assert after["scenario"] == TINY
    assert after["policies"] == before["policies"][:1]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--seed", 4], "seed = 4 is not allowed: expected 3, with which"),
        (["--envs", 4], "envs = 4 is not allowed: expected 2, with which"),
        (["--set", "hidden=8"], "hidden = (8,) is not allowed: expected [4], with which"),
        (["--scenario", "incast-v0"], "scenario = 'incast-v0' is not allowed: expected 'tiny-v0"),
        (["--reward", "pet"], "reward = 'pet' is not allowed: expected the scenario's, with which"),
        (["--max-steps", 7], "max_steps = 7 is not allowed: expected the scenario's, with which"),
        (["--out", "elsewhere"], "out = 'elsewhere' is not allowed"),
        (["--steps", 8], "steps = 8 is not allowed: expected at least 20, what the run"),
        (["--set", "gama=1"], "unknown setting of ippo 'gama'"),
    ],
    ids=lambda x: " ".join(map(str, x)) if isinstance(x, list) else "",
)
def test_a_resumed_run_keeps_its_settings(trained, args, message):
    folder, _ = trained
    before = (folder / "config.json").read_text()
    assert message in failure("train", "--resume", folder, *args)
    assert (folder / "config.json").read_text() == before


def test_a_finished_run_has_nothing_to_resume(trained):
    folder, _ = trained
    before = (folder / "metrics.jsonl").read_text()
    result = run("train", "ippo", "--resume", folder, "--seed", 3, "--set", "hidden=4", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["training"]["update"] == 3
    assert (folder / "metrics.jsonl").read_text() == before
    (line,) = [text for text in result.stderr.splitlines() if "already" in text]
    assert line == f"{folder}: has its 24 steps already; --steps continues it to more"


def test_train_needs_an_algorithm_or_a_run(tmp_path):
    assert "algorithm = None is not allowed: expected one of" in failure("train")
    assert "config.json" in failure("train", "--resume", tmp_path)


def test_exported_policy_is_the_runs(trained, tmp_path):
    folder, _ = trained
    out = tmp_path / "policy.npz"
    result = run("export", folder, "--out", out)
    assert result.stdout.startswith(f"{out}: ippo of update 3, ")
    policy = ecn_marl.load_policy(out)
    assert policy.header["scenario"] == TINY
    assert policy.header["seed"] == 3
    assert policy.header["settings"]["hidden"] == [4]
    env = ecn_marl.make(TINY)
    obs = np.random.default_rng(1).uniform(size=(3, env.obs_dim)).astype(np.float32)
    expected = run_controller(folder, env)(jax.random.key(0), jnp.asarray(obs))
    np.testing.assert_array_equal(policy(obs), expected)
    assert "file in a directory" in failure("export", folder, "--out", tmp_path / "no" / "p.npz")
    assert "learner = 1" in failure("export", f"{folder}#1", "--out", out)
    assert "unknown checkpoint 'bst': did you mean 'best'" in failure(
        "export", folder, "--out", out, "--checkpoint", "bst"
    )


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["export", "pretrained:restore-serve-ippo", "--cell", 1], "--cell = 1 is not allowed"),
        (["export", "pretrained:restore-serve-ippo", "--queue", 3], "--queue = 3 is not allowed"),
        (["export", "pretrained:restore-serve-ippo", "--seed", 0], "none without sonic or nvue"),
        (["export", "pretrained:restore-serve-ippo", "--checkpoint", "best"], "is one policy"),
        (["export", "pretrained:restore-serve-ippo", "--checkpoint", "x"], "unknown checkpoint"),
        (["export", "sonic", "static:secn2", "--int8"], "no such option with sonic"),
        (["export", "nvue", "static:secn2", "--tree", 3], "no such option with nvue"),
        (["export", "sonic", "table.csv", "--seed", 0], "none: table.csv has the thresholds"),
        (["eval", "static:secn1", "--checkpoint", "bst"], "did you mean 'best'"),
        (["eval", "static:secn1", "--overwrite"], "used with --records"),
        (
            ["eval", "static:secn1", "--beside"],
            "used with --backend packets, to compare",
        ),
        (["eval", "swift:htsim", "--beside"], "used with --backend packets, to compare"),
        (["bench", "--packet-episodes", "8"], "expected used with --backend packets"),
        (["validate", "--quick", "--long"], "expected not used with --long"),
        (["record", "rule", "--checkpoint", "bst"], "did you mean 'best'"),
        (["bench", "adpg", "--episodes", 128], "--episodes = 128 is not allowed: expected no such"),
    ],
    ids=lambda x: " ".join(map(str, x)) if isinstance(x, list) else "",
)
def test_options_that_do_not_apply_are_refused(tmp_path, args, message):
    out = [] if args[0] == "eval" else ["--out", tmp_path / "p"]
    assert message in failure(*args, *out)
    assert not list(tmp_path.iterdir())


def test_papers_take_numbers_that_equal_the_benchmarks(monkeypatch, tmp_path):
    seen = []
    monkeypatch.setattr("ecn_marl.cli.papers.bench", lambda options, *_: seen.append(options))
    numbers = {"--episodes": 128, "--search-episodes": 64, "--eval-episodes": 16}
    given = [x for pair in numbers.items() for x in pair]
    for args in (given, []):
        assert run("bench", "pet", "--small", *args, "--out", tmp_path).exit_code == 0
    kept = {"records": None, "overwrite": False}
    asked = {"episodes_asked": 128, "search_episodes": 64, "eval_episodes": 16}
    assert [x.numbers for x in seen] == [kept | asked, kept]


def test_a_shown_configuration_is_one_that_can_be_made():
    command = ["train", "ippo", "--scenario", "restore-serve-v0", "--show-config"]
    assert "priority = 'throughput'" in failure(*command, "--priority", "throughput")
    assert "priority = '3' is not allowed" in failure(*command, "--priority", 3)


def test_train_keeps_what_is_in_the_folder(trained, tmp_path):
    folder, _ = trained
    config = (folder / "config.json").read_text()
    assert "new or empty" in failure("train", "ippo", "--scenario", TINY, *SMALL, "--out", folder)
    assert (folder / "config.json").read_text() == config
    (tmp_path / "thesis.tex").write_text("years of work")
    command = ["train", "ippo", "--scenario", TINY, *SMALL, "--out", tmp_path, "--overwrite"]
    assert "the folder of a run" in failure(*command)
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["ipo"], "unknown algorithm 'ipo': did you mean 'ippo'"),
        (["ippo", "--scenario", "websaerch-v0"], "unknown scenario 'websaerch-v0': did you mean"),
        (["ippo", "--features", "ac"], "unknown feature set or feature 'ac': did you mean 'acc'"),
        (["ippo", "--actions", "boxes"], "'boxes': did you mean 'box'"),
        (["ippo", "--reward", "pett"], "unknown reward 'pett': did you mean 'pet'"),
        (["ippo", "--load", "0", "--scenario", "websearch-v0"], "load = 0.0 is not allowed"),
        (["ippo", "--set", "gama=0.9"], "unknown setting of ippo 'gama': did you mean 'gamma'"),
        (["ippo", "--set", "gamma=high"], "gamma = 'high' is not allowed: expected a number"),
        (["ippo", "--set", "gamma=2"], "gamma = 2.0 is not allowed"),
        (["ippo", "--set", "rollout=1.5"], "rollout = '1.5' is not allowed: expected an integer"),
        (["ippo", "--set", "shared=maybe"], "shared = 'maybe' is not allowed: expected true or"),
        (["ippo", "--set", "hidden=a"], "hidden = 'a' is not allowed: expected a list"),
        (["ippo", "--envs", "0"], "envs = 0 is not allowed: expected an integer >= 1"),
        (["ippo", "--seeds", "0"], "seeds = 0 is not allowed: expected an integer >= 1"),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, list) else "",
)
def test_train_errors(tmp_path, args, message):
    out = tmp_path / "run"
    assert message in failure("train", *args, "--out", out)
    assert not out.exists()


def test_divergence_is_reported_and_is_a_failure(tmp_path, monkeypatch):
    from ecn_marl.baselines.training.loop import TrainingDiverged
    from ecn_marl.experiments import workflow

    def diverge(*args):
        raise TrainingDiverged("reward = nan at update 7 of seed 0: training stopped")

    monkeypatch.setattr(workflow, "train", diverge)
    result = run("train", "ippo", "--scenario", TINY, *SMALL, "--out", tmp_path / "run")
    assert result.exit_code == 1
    assert result.stderr == "ecn-marl: reward = nan at update 7 of seed 0: training stopped\n"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["static:secn3"], "unknown ECN setting 'secn3': did you mean"),
        (["static:200,5,0.01"], "expected 0 < Kmin <= Kmax"),
        (["runs/none"], "policy = 'runs/none' is not allowed: expected the folder of a run, FILE"),
        (["."], "config.json"),
        (["static:secn1", "--scenario", "incast"], "unknown scenario 'incast': did you mean"),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, list) else "",
)
def test_eval_errors(tmp_path, monkeypatch, args, message):
    monkeypatch.chdir(tmp_path)
    assert message in failure("eval", *args)


def test_eval_needs_a_seed_that_was_trained(trained):
    folder, _ = trained
    assert "learner = 1 is not allowed: expected 0 to 0" in failure("eval", f"{folder}#1")
    assert "#x' is not allowed: expected FOLDER or FOLDER#I" in failure("eval", f"{folder}#x")


def test_the_table_comes_before_the_plots(tmp_path, monkeypatch):
    """Results that took hours are printed even if a plot fails."""
    from ecn_marl.cli import training
    from ecn_marl.experiments import curves
    from ecn_marl.experiments import evaluation as evaluating

    def no_curve(folder, show):
        raise OSError("no curve")

    summary = evaluation("random", episodes=2, seed=0).summary()
    result = SimpleNamespace(
        summary={"scenario": TINY, "options": {}, "episodes": 2, "seed": 0, "policies": [summary]}
    )
    monkeypatch.setattr(training, "_train", lambda *_, **__: [{"update": 1}])
    monkeypatch.setattr(evaluating, "evaluate", lambda *_, **__: result)
    monkeypatch.setattr(curves, "draw_learning_curve", no_curve)
    answer = run("train", "ippo", "--scenario", TINY, "--evaluate", "--out", tmp_path)
    assert (answer.exit_code, answer.stderr) == (2, "ecn-marl: no curve\n")
    assert "J, 95%CI" in answer.stdout
    assert json.loads((tmp_path / "evaluation.json").read_text())["policies"]

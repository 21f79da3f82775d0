"""Objects that users register: names, suggestions, equality, entry points, files of `--import`."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from commands import failure, run

import ecn_marl
from ecn_marl import _imports, _registry
from ecn_marl._registry import Registry
from ecn_marl.baselines.algorithms import as_tuples
from ecn_marl.envs.features import COLUMNS, Feature, feature_set
from ecn_marl.envs.rewards import REWARDS, Reward
from ecn_marl.experiments.jobs import new_job, parse_fields
from ecn_marl.sim import Incast, Poisson, star
from ecn_marl.sim.traffic.sizes import SIZE_TABLES, size_table
from ecn_marl.sim.traffic.sources import SOURCES, as_source
from ecn_marl.sim.transports import TRANSPORTS, parse_transport
from ecn_marl.sim.transports.reno import Reno

STAR = "websearch-star-v0"


@pytest.fixture(autouse=True)
def as_before(monkeypatch):
    """Remove the objects that a test registers."""
    for registry in _registry.REGISTRIES.values():
        monkeypatch.setattr(registry, "registered", dict(registry.registered))
        monkeypatch.setattr(registry, "origin", dict(registry.origin))


def calm(stats, params, port_scale, interval_us):
    return -jnp.minimum(stats.queue_mean / 1e5, 1.0)


def half_queue(stats, ecn, scale):
    return 0.5 * jnp.clip(stats.queue / 1e6, 0.0, 1.0)


REGISTER = {
    "reward": (ecn_marl.register_reward, REWARDS, "acc", calm),
    "feature set or feature": (ecn_marl.register_features, COLUMNS, "queue", half_queue),
    "transport": (ecn_marl.register_transport, TRANSPORTS, "dcqcn", Reno()),
    "traffic source": (ecn_marl.register_source, SOURCES, "poisson", Incast),
    "flow-size table": (
        *(ecn_marl.register_size_table, SIZE_TABLES, "WebSearch"),
        ([1e3, 1e4], [0.5, 1.0]),
    ),
}


@pytest.mark.parametrize("kind", REGISTER)
def test_a_name_belongs_to_one_object(kind):
    register, registry, builtin_name, obj = REGISTER[kind]
    with pytest.raises(
        ValueError, match=f"{kind} name = '{builtin_name}' is not allowed.*the package"
    ):
        register(builtin_name, obj)
    with pytest.raises(ValueError, match="letters, digits"):
        register("a,b", obj)
    register("my-own", obj)
    register("my-own", obj)  # the same once more
    assert "my-own" in registry and registry.added == ("my-own",)
    with pytest.raises(ValueError, match=rf"unknown {kind} 'my_own': did you mean 'my-own'"):
        registry["my_own"]


def test_another_object_takes_a_name_only_if_asked_to():
    ecn_marl.register_reward("own", calm)
    other = Reward("own", calm, team=True)
    with pytest.raises(ValueError, match="replace=True"):
        ecn_marl.register_reward("own", other)
    assert REWARDS["own"] == Reward("own", calm)
    ecn_marl.register_reward("own", other, replace=True)
    assert REWARDS["own"] == other


def test_features_and_rewards_are_seen_by_make():
    ecn_marl.register_features("half_queue", half_queue)
    ecn_marl.register_features("mine", ("acc", "half_queue"))
    ecn_marl.register_reward("calm", calm)
    env = ecn_marl.make(STAR, features="mine,flows_begun", reward="calm", max_steps=4)
    assert env.feature.names[-3:] == ("pmax", "half_queue", "flows_begun")
    assert env.reward == Reward("calm", calm)
    with pytest.raises(ValueError, match="did you mean 'half_queue'"):
        feature_set("half-queue")
    with pytest.raises(ValueError, match="history"):
        COLUMNS.register("deep", feature_set("acc", 5))


def test_results_of_other_shapes_are_refused_at_make():
    ecn_marl.register_features("pairs", lambda stats, ecn, scale: jnp.stack([stats.queue] * 2, 1))
    ecn_marl.register_reward("scalar", lambda stats, *_: stats.queue_mean.sum())
    ecn_marl.register_reward("blind", lambda stats, *_: stats.accrued.sum(-1))
    with pytest.raises(ValueError, match=r"result of feature 'pairs' = 'float32 \[8, 2\]'"):
        ecn_marl.make(STAR, features="acc,pairs")
    with pytest.raises(ValueError, match=r"result of reward 'scalar' = 'float32 \[\]'.*\[8\]"):
        ecn_marl.make(STAR, reward="scalar")
    with pytest.raises(ValueError, match=r"reward 'blind' = .*NoneType"):
        ecn_marl.make(STAR, reward="blind")


def test_credit_goes_with_any_reward_in_completion_times():
    slow = Reward("slow", lambda stats, *_: -stats.accrued.sum(-1), accrues=True)
    ecn_marl.register_reward("slow", slow)
    assert ecn_marl.make(STAR, reward="slow", credit="team").reward.team
    assert not ecn_marl.make(STAR, reward="slow", credit="path").reward.team
    with pytest.raises(ValueError, match="only slowdown and slowdown-shaped and objective and"):
        ecn_marl.make(STAR, reward="acc", credit="path")


def test_a_priority_of_a_suite_goes_with_a_recipe_of_another_reward():
    """`bench pet` has rows of the benchmark's reward beside those that the priority is for."""
    env = ecn_marl.make("pet-websearch-small-v0", reward="objective-shaped", priority="latency")
    assert env.reward.accrues


def test_actions_that_a_user_names_leave_the_options_of_a_recipe():
    job = new_job("ippo", {"scenario": "restore-serve-v0"}, {"actions": "box"}, [])
    assert job.options["action_options"] == {} and job.env().action.name == "box"
    own = {"actions": "box", "action_options": {"alpha_kb": 20}}
    with pytest.raises(ValueError, match="option of box actions 'alpha_kb'"):
        new_job("ippo", {"scenario": "restore-serve-v0"}, own, []).env()


@pytest.mark.parametrize(("step_ns", "fits"), [(25_000, True), (4_500, False)])
def test_a_flow_list_repeats_no_faster_than_its_flows_are_admitted(tmp_path, step_ns, fits):
    """Three flows that start one per tick have a width of 1, and that is enough."""
    file = tmp_path / "flows.csv"
    rows = "".join(f"{i},1,0,1000,{i * step_ns}\n" for i in range(3))
    file.write_text("flow_id,src,dst,size_B,start_ns\n" + rows)
    made = {"flows": str(file), "dt_us": 5.0, "tick_steps": 4}
    if fits:
        assert ecn_marl.make(STAR, **made).sim.traffic[0].width == 1
        return
    repeats = "these 3 flows repeat every 13.5 us, and at most 3 begin per 20 us"
    with pytest.raises(ValueError, match=rf"flows = .*flows.csv' is not .*: {repeats}"):
        ecn_marl.make(STAR, **made)


def test_size_tables_by_name_and_by_file(tmp_path):
    file = tmp_path / "mine.csv"
    file.write_text("# measured\nbytes,cdf\n1000,0\n3000,1\n")
    ecn_marl.register_size_table("mine", file)
    ecn_marl.register_size_table("points", ([1000.0, 3000.0], [0.0, 1.0]))
    for name in ("mine", "points", str(file)):
        assert float(size_table(name).mean) == 2000.0
        assert Poisson(table=name).demand(np.full(2, 3125.0), 5.0).per_us > 0.0
    file.write_text("1000,0\n5000,1\n")
    assert float(size_table(str(file)).mean) == 3000.0, "a file that has changed is read again"
    file.write_text("1000,0\n5000,0.9\n")
    with pytest.raises(ValueError, match=r"mine.csv, line 2: CDF = 0.9 .*expected 1 "):
        ecn_marl.register_size_table("unfinished", file)
    file.write_text("1000,0\n5000;1\n")
    with pytest.raises(ValueError, match=r"mine.csv, line 2: line = '5000;1'"):
        size_table(str(file))
    with pytest.raises(ValueError, match=r"'/no/such.csv' is not allowed: expected a file"):
        Poisson(table="/no/such.csv")
    with pytest.raises(ValueError, match="did you mean 'WebSearch'"):
        Poisson(table="Websearch")


def test_sources_by_name():
    assert as_source("poisson:load=0.3,table=FbHdp") == Poisson(load=0.3, table="FbHdp")
    traffic = ["incast:n_max=2", {"source": "closed-loop", "clients": [0], "servers": [1, 2]}]
    env = ecn_marl.make(ecn_marl.Scenario(star(3), traffic=traffic))
    assert env.sim.traffic[1].servers == (1, 2)
    assert ecn_marl.make(STAR, traffic="poisson:load=0.1").sim.traffic[0].load == 0.1
    for text, message in {
        "poison": "did you mean 'poisson'",
        "poisson:loud=1": "unknown field of poisson 'loud': did you mean 'load'",
        "poisson:load": "NAME",
        "closed-loop": "all fields that closed-loop needs",
    }.items():
        with pytest.raises(ValueError, match=message):
            as_source(text)
    with pytest.raises(ValueError, match="it lacks init, offer, advance"):
        ecn_marl.register_source("half", type("Half", (), {"default_params": None}))


def test_senders_by_name():
    ecn_marl.register_transport("mine", {"slow": Reno(), "fast": Reno(overrides=(("keep", 0.9),))})
    assert parse_transport("mine:fast") == Reno(overrides=(("keep", 0.9),))
    assert ecn_marl.make(STAR, transport="mine:slow").sim.transport == Reno()
    with pytest.raises(ValueError, match="unknown mine preset 'fats': did you mean 'fast'"):
        parse_transport("mine:fats")
    with pytest.raises(ValueError, match="unknown mine constant 'kep'"):
        parse_transport("mine:fast,kep=1")
    with pytest.raises(ValueError, match=r"expected mine:PRESET, e\.g\. mine:slow"):
        parse_transport("mine")
    with pytest.raises(ValueError, match=r"transport half.*it lacks .*update"):
        TRANSPORTS.register("half", object())
    for header in (1.5, -8.0, 4000.0):
        sender = type("Long", (Reno,), {"header": header})()
        with pytest.raises(ValueError, match=rf"header of transport long:.* = {header} .*1000"):
            TRANSPORTS.register("long", sender)


@pytest.mark.parametrize("scenario", [STAR, "incast-v0"])
def test_a_load_acts_on_every_source_that_has_one(scenario):
    env = ecn_marl.make(scenario, load=0.25)
    assert [source.load for source in env.sim.traffic] == [0.25] * len(env.sim.traffic)


def test_everything_of_the_network_is_reached_from_the_command_line():
    """Each `--env` comes to be what it says in the simulator."""
    options = (
        'classes=[{"name": "rdma", "weight": 3}, {"transport": "dctcp:ns3", "lossless": false}]',
        "class_of=[1]",
        'failing={"share": 0.5, "at_us": 100}',
        "jitter_us=2",
        "loss_recovery=irn",
        "pfc=false",
        "ack_priority=true",
        "load_balancing=flowlet",
        "memory_us=512",
        "mark_quantum=0.01",
        "transport=dcqcn:ns3-50us,cnp_interval_us=50",
    )
    fields = {name: as_tuples(value) for name, value in parse_fields(list(options)).items()}
    env = ecn_marl.make("websearch-v0", **fields)
    sim = env.sim
    rdma, tcp = sim.classes
    assert (rdma.name, rdma.weight, rdma.transport.name) == ("rdma", 3, "hpcc-paper")
    assert rdma.transport.cnp_paced and rdma.transport.default_params().cnp_interval_us == 50
    assert (tcp.transport.kind, tcp.transport.name, tcp.lossless) == ("dctcp", "hpcc", False)
    assert sim.class_of == (1,) and sim.n_classes == 2
    assert sim.failures and (env.default_params.sim.net.fail_step == 100 / sim.dt_us).any()
    assert (sim.jitter_us, sim.memory_us, sim.mark_quantum) == (2, 512, 0.01)
    assert (sim.loss_recovery, sim.load_balancing) == ("irn", "flowlet")
    assert (sim.pfc, sim.ack_priority) == (False, True)


def test_a_stair_of_marks_cannot_be_rounded():
    with pytest.raises(ValueError, match=r"mark_quantum = 0.01 .*softness"):
        ecn_marl.make(STAR, softness=1000.0, mark_quantum=0.01)


def test_a_load_that_does_nothing_or_is_a_percentage_is_refused():
    with pytest.raises(ValueError, match=r"load = 60 is not allowed: .*<= 1.5.*\(60 % is 0.6\)"):
        ecn_marl.make(STAR, load=60)
    with pytest.raises(ValueError, match=r"no load to set \(FlowSets, Requests\)"):
        ecn_marl.make("restore-serve-v0", load=0.5)
    with pytest.raises(ValueError, match=r"load = 60"):
        Poisson(load=60)


def test_entry_points_are_found_by_their_names(tmp_path, monkeypatch):
    info = tmp_path / "someone-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: someone\nVersion: 1.0\n")
    lines = [
        "calm = someone:calm",
        "acc = someone:calm",
        "gone = someone:gone",
        "two = someone:TWO",
    ]
    (info / "entry_points.txt").write_text("[ecn_marl.rewards]\n" + "\n".join(lines) + "\n")
    (tmp_path / "someone.py").write_text("def calm(stats, *rest):\n    return 0.0\nTWO = 2\n")
    monkeypatch.syspath_prepend(tmp_path)
    builtin = {"acc": REWARDS["acc"]}
    monkeypatch.setattr(_registry, "REGISTRIES", {})
    rewards = Registry("reward", builtin, REWARDS._convert)
    with pytest.warns(UserWarning, match="someone:calm is not used: reward 'acc' belongs to the"):
        assert "calm" in rewards
    assert list(rewards) == ["acc", "calm", "gone", "two"]
    assert rewards["calm"].name == "calm" and rewards["acc"] is builtin["acc"]
    with pytest.raises(ValueError, match=r"'gone' = 'someone:gone' .*AttributeError"):
        rewards["gone"]
    with pytest.raises(ValueError, match="reward two = 2 is not allowed"):
        rewards["two"]


@pytest.fixture
def own_file(tmp_path):
    file = tmp_path / "own.py"
    file.write_text(
        "import ecn_marl\nimport beside\n"
        "def rule(stats, params, port_scale, interval_us):\n    return beside.SIGN * stats.queue\n"
        "ecn_marl.register_reward('beside', rule)\n"
    )
    (tmp_path / "beside.py").write_text("SIGN = -1.0\n")
    return file


def test_a_file_is_imported_once_and_known_as_the_origin(own_file):
    module = _imports.import_extension(str(own_file))
    assert _imports.import_extension(str(own_file)) is module
    assert REWARDS["beside"].rule is module.rule
    needed = _imports.needed_imports({"reward": "beside"})
    assert needed == {str(own_file): ["reward beside"]}
    assert not _imports.needed_imports({"reward": "acc", "out": "besides"})
    _imports.restore_imports(needed, "the run")  # nothing is missing
    assert _imports.source_digests(needed).keys() == {str(own_file)}
    assert "beside" in _imports.added_names()["reward"]


def test_what_cannot_be_imported_is_one_clear_line(tmp_path):
    with pytest.raises(ValueError, match=r"--import = 'no.py' .*there is no such file"):
        _imports.import_extension("no.py")
    with pytest.raises(ValueError, match=r"--import = 'no_such_module' .*ModuleNotFoundError"):
        _imports.import_extension("no_such_module")
    broken = tmp_path / "broken.py"
    broken.write_text("x = 1\ny = x / 0\n")
    with pytest.raises(ValueError, match=r"ZeroDivisionError: division by zero, line 2\)"):
        _imports.import_extension(str(broken))


def test_a_lost_import_is_named():
    lost = {"/lost/own.py": ["reward lost"]}
    expected = (
        r"run needs reward lost, which /lost/own.py registered \(.*no such file\): give --imp"
    )
    with pytest.raises(ValueError, match=expected):
        _imports.restore_imports(lost, "run")
    notebook = {"__main__": ["reward lost"]}
    with pytest.raises(ValueError, match="which a notebook or an interactive session registered"):
        _imports.restore_imports(notebook, "run")


def test_a_policy_file_imports_nothing_by_itself(tmp_path):
    """It may come from anywhere, and names the file that would run."""
    file = tmp_path / "trap.py"
    file.write_text("from pathlib import Path\nPath(__file__).with_name('ran').touch()\n")
    needed = {str(file): ["reward trapped"]}
    with pytest.raises(ValueError, match=r"imports nothing by itself\): give --import"):
        _imports.restore_imports(needed, "policy p.npz", trusted=False)
    assert not (tmp_path / "ran").exists()
    with pytest.raises(ValueError, match=r"policy p\.npz needs reward trapped"):
        _imports.restore_imports(needed, "policy p.npz")
    assert (tmp_path / "ran").exists()


def test_a_script_is_the_origin_of_what_it_registers(tmp_path):
    """It is not imported again, for that would run it again."""
    script = tmp_path / "script.py"
    script.write_text(
        "import ecn_marl\nfrom ecn_marl._imports import needed_imports, restore_imports\n"
        "ecn_marl.register_size_table('mine', ([1, 2], [0, 1]))\n"
        "needed = needed_imports('mine')\nprint(needed)\n"
        "from ecn_marl._registry import REGISTRIES\n"
        "REGISTRIES['flow-size table'].registered.clear()\n"
        "try:\n    restore_imports(needed, 'run')\nexcept ValueError as error:\n    print(error)\n"
    )
    command = [sys.executable, str(script)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert f"{{'__main__:{script}': ['flow-size table mine']}}" in output
    assert f"run needs flow-size table mine, which {Path(script)} registered (it is no" in output


def test_feature_is_public_where_recipes_import_it():
    assert COLUMNS["queue"] == (("queue", feature_set("queue").columns[0][1]),)
    assert isinstance(COLUMNS["queue"][0][1], Feature)


@pytest.mark.parametrize("before", [True, False])
def test_import_is_an_option_of_every_command_and_before_it(own_file, before):
    option = ["--import", own_file]
    words = [*option, "headroom", "--help"] if before else ["headroom", *option, "--help"]
    result = run(*words)
    assert result.exit_code == 0, result.output
    assert re.search(r"Registered: .*reward:\s+beside", " ".join(result.output.split()))
    missing_file = ["--import", "no.py"]
    message = failure(*missing_file, "scenarios") if before else failure("scenarios", *missing_file)
    assert "--import = 'no.py' is not allowed" in message


def test_errors_of_commands_name_what_was_imported(own_file):
    message = failure("eval", "random", "--import", own_file, "--env", "reward=besides")
    assert "unknown reward 'besides': did you mean 'beside'" in message

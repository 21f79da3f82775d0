"""`ecn-marl speed`: everything runs, and its numbers are consistent. Times are not tested."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import subprocess
import sys
import types
from dataclasses import fields, replace
from pathlib import Path

import commands
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from commands import TINY, failure, run
from rich.console import Console

import ecn_marl
from ecn_marl import parallelism
from ecn_marl.sim.simulator import Simulator
from ecn_marl.speed import (
    floor,
    machine,
    peers,
    programs,
    report,
    stages,
    sweep,
    timing,
)
from ecn_marl.speed.timing import Plan, Timing
from ecn_marl.wrappers import AutoReset

SUMMARY = {"median", "min", "max", "iqr"}
RATES = ("env_steps_per_s", "agent_steps_per_s", "flow_substeps_per_s", "sim_s_per_wall_s")
QUICK = Plan(steps=2)

pytestmark = pytest.mark.usefixtures("tiny_scenario")


@pytest.fixture(scope="module")
def measured(tmp_path_factory, tiny_scenario):
    """The command's output, and the JSON that it wrote."""
    file = tmp_path_factory.mktemp("speed") / "speed.json"
    args = ["speed", "--scenario", TINY, "--envs", "2", "--train", "ippo", "--steps", "3"]
    result = run(*args, "--devices", "1", "--out", file)
    assert result.exit_code == 0, result.output
    return result.stdout, json.loads(file.read_text())


# ------------------------------------------------------------------ the command and its numbers


def test_rows_fit_together(measured):
    _, tree = measured
    (env,), (train,) = tree["environments"], tree["training"]
    assert (env["program"], train["program"]) == ("environments", "train ippo")
    assert env["env_steps_per_run"] == 2 * 3
    assert train["env_steps_per_run"] == 2 * 32  # three intervals, rounded up to one roll-out
    for row in (env, train):
        assert (row["scenario"], row["envs"], row["devices"]) == (TINY, 2, 1)
        assert (row["agents"], row["slots"], row["substeps"], row["runs"]) == (3, 4, 8, 5)
        for name in (*RATES, "cores_used"):
            assert set(row[name]) == SUMMARY
            assert 0 <= row[name]["min"] <= row[name]["median"] <= row[name]["max"]
            assert row[name]["iqr"] <= row[name]["max"] - row[name]["min"] + 1e-12
        factors = {"agent_steps_per_s": 3, "flow_substeps_per_s": 4 * 8, "sim_s_per_wall_s": 40e-6}
        for name, factor in factors.items():
            for statistic in SUMMARY:
                expected = factor * row["env_steps_per_s"][statistic]
                assert row[name][statistic] == pytest.approx(expected, rel=1e-9)
        assert row["trace_s"] > 0 and row["compile_s"] > 0
        assert row["peak_memory"]["bytes"] > 1e6
        assert "maximum resident" in row["peak_memory"]["source"]
        assert 0 <= row["flagged"]["any"] <= 1


def test_the_share_of_flagged_environments():
    """Of three environments one waited for a slot, and one for that and lost feedback."""
    core = ecn_marl.make(TINY)
    keys = jax.random.split(jax.random.key(0), 3)
    _, state = jax.vmap(AutoReset(core).reset, (0, None))(keys, core.default_params)
    assert programs.flagged({"env": state}) == {"any": 0.0}
    flags = jnp.array([0, 1, 5], jnp.uint32)
    sim = replace(state.env.sim, flags=flags)
    flagged = programs.flagged((replace(state, env=replace(state.env, sim=sim)),))
    assert flagged == pytest.approx({"any": 2 / 3, "slots": 2 / 3, "memory": 1 / 3})


def test_the_table_says_which_flags_are_raised(measured):
    printed, tree = measured
    row = tree["environments"][0] | {"flagged": {"any": 0.25, "width": 0.25}}
    table = report.tables({**tree, "environments": [row], "training": []})[0]
    assert next(iter(list(table.columns)[-1].cells)) == "25%"
    assert "width: more flows began in a tick" in table.caption
    assert "a larger `width`" in table.caption
    assert "flagged: share of the environments" in " ".join(printed.split())


def test_state_bytes_are_those_of_a_real_state(measured):
    env = ecn_marl.make(TINY)
    _, state = env.reset(jax.random.key(0), env.default_params)
    size = sum(np.asarray(leaf).nbytes for leaf in jax.tree.leaves(state))
    assert measured[1]["environments"][0]["state_bytes_per_env"] == size


def test_the_machine_is_described(measured):
    text, tree = measured
    described = tree["machine"]
    assert described["platform"] == "cpu" and described["devices"] >= 1 and described["cores"] >= 1
    assert described["device_kind"] and described["processor"]
    assert set(described["versions"]) == {"python", "jax", "jaxlib", "numpy", "ecn-marl"}
    assert described["versions"]["jax"] == jax.__version__
    assert described["versions"]["numpy"] == np.__version__
    for part in (
        described["command"],
        described["device_kind"],
        jax.__version__,
        "5 runs of 3 steps",
    ):
        assert part in text


def test_command_line_can_be_typed_again():
    argv = ["/somewhere/ecn-marl", "speed", "--out", "a file.json"]
    assert machine.command_line(argv) == "ecn-marl speed --out 'a file.json'"


@pytest.mark.parametrize(
    "args, part",
    [
        (["--envs", "1,x"], "--envs"),
        (["--envs", "0"], "--envs"),
        (["--runs", "4"], "runs = 4"),
        (["--devices", "0"], "devices = 0"),
        (["--devices", "99"], "devices = 99"),
        (["--scenario", "websearch-v9"], "websearch-v0"),
        (["--scenario", TINY, "--train", "ipo"], "ippo"),
        (["--out", "no/such/folder/speed.json"], "--out"),
        (["--cold", "--train", "ippo"], "--train = 'ippo' is not allowed: expected no such option"),
        (
            ["--cold", "--stages"],
            "--stages = True is not allowed: expected no such option with --c",
        ),
        (["--explain", "--envs", "64"], "--envs = '64'"),
        (["--explain", "--gpu-plan"], "no such option with --gpu-plan"),
        (["--gpu", "--steps", "5"], "--steps = 5"),
    ],
)
def test_errors_are_one_line(args, part):
    jax.devices()  # JAX has started, with fewer than 99 devices
    assert part in failure("speed", *args)


# ---------------------------------------------------------------------------------------- timing


class Clock:
    """A clock that only moves when told to."""

    def __init__(self, monkeypatch, step_s):
        self.now, self.step_s, self.calls = 0.0, step_s, []
        for name in ("perf_counter", "process_time"):
            monkeypatch.setattr(timing.time, name, lambda: self.now)

    def advance(self, n):
        self.calls.append(n)
        self.now += n * self.step_s


def test_runs_take_the_target_time(monkeypatch):
    clock = Clock(monkeypatch, step_s=0.004)
    measured_runs = timing.measure(clock.advance, Plan(runs=7, target_s=1.0))
    assert measured_runs.steps == pytest.approx(250, abs=1)
    assert clock.calls[-8:] == [measured_runs.steps] * 8  # a warm-up and seven runs
    assert len(measured_runs.wall_s) == 7
    assert measured_runs.rate(10)["median"] == pytest.approx(2500)


def test_a_long_step_is_not_repeated(monkeypatch):
    clock = Clock(monkeypatch, step_s=30.0)
    measured_runs = timing.measure(clock.advance, Plan(target_s=1.0))
    assert clock.calls == [1] * 7  # one to find out, a warm-up, five runs
    assert measured_runs.steps == 1


def test_steps_given_are_steps_made(monkeypatch):
    clock = Clock(monkeypatch, step_s=1e-6)
    timing.measure(clock.advance, Plan(steps=3))
    assert clock.calls == [3] * 6


def test_a_summary_is_that_of_the_numbers():
    summary = timing.summarise([4.0, 1.0, 2.0, 3.0, 10.0])
    assert summary == {"median": 3.0, "min": 1.0, "max": 10.0, "iqr": 2.0}
    assert Timing(10, (2.0, 4.0), (1.0, 4.0)).cores_used["min"] == 0.5
    rate = Timing(10, (2.0, 5.0), (1.0, 1.0)).rate(3.0)
    assert (rate["min"], rate["max"]) == (6.0, 15.0)


def test_compared_programs_run_in_turn(monkeypatch):
    clock, order = Clock(monkeypatch, 0.0), []

    def advance(name, step_s):
        def go(n):
            order.append(name)
            clock.now += n * step_s

        return go

    both = {"slow": advance("slow", 0.5), "fast": advance("fast", 0.001)}
    timings = timing.interleaved(both, Plan(runs=6, target_s=0.5))
    assert order[-12:] == ["slow", "fast"] * 6
    assert timings["slow"].least_cpu_s == pytest.approx(0.5) and len(timings["slow"].wall_s) == 6
    assert timings["fast"].least_s == pytest.approx(0.001) and timings["fast"].steps > 100


@pytest.mark.parametrize("wrong", [{"runs": 4}, {"steps": 0}, {"target_s": 0.0}])
def test_plans_are_checked(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Plan(**wrong)


def test_costs_of_a_known_program():
    n = 1000
    program = timing.compiled(jax.jit(lambda x: x * 2.5 + x * x), jnp.ones(n))
    assert program.costs["flops"] == 3 * n
    assert program.costs["bytes"] == 2 * 4 * n  # fused: read once, written once
    assert program.memory["arguments"] == 4 * n
    assert program.memory["results"] == 4 * n


# ------------------------------------------------------------------------------- several devices

SHARDED = f"""
import jax, numpy as np
import jax.numpy as jnp
from ecn_marl import parallelism as pl
pl.host_devices(2)
import sys
sys.path.insert(0, {str(Path(commands.__file__).parent)!r})
from commands import tiny
from ecn_marl.speed import programs
from ecn_marl.speed.report import start_devices
from ecn_marl.envs.registry import make
assert start_devices(2) == 2 and len(jax.devices()) == 2
env, found = make(tiny()), []
for devices in (1, 2):
    program, carry, params = programs.compiled_steps(env, 4, devices)
    for n in (3, 8):  # beyond the end of an episode; results go in again
        carry = program.call(*carry, params, jnp.int32(n))
    assert len(jax.tree.leaves(carry[1])[0].sharding.device_set) == devices
    keys, *rest = carry
    found.append([np.asarray(x) for x in jax.tree.leaves((jax.random.key_data(keys), rest))])
assert sum(x.size for x in found[0]) > 100 and float(np.abs(found[0][-1]).sum()) > 0
for a, b in zip(*found, strict=True):
    np.testing.assert_array_equal(a, b)
try:
    pl.host_devices(3)
except ValueError as error:
    assert "at most 2" in str(error)
else:
    raise AssertionError("no error")
print("same")
"""


@pytest.mark.slow
@pytest.mark.thorough
def test_environments_do_not_notice_that_they_are_split():
    done = subprocess.run([sys.executable, "-c", SHARDED], capture_output=True, text=True)
    assert done.stdout.strip() == "same", done.stderr[-3000:]


def test_as_many_devices_as_divide_the_environments():
    assert [parallelism.fitting_devices(n, 4) for n in (1, 2, 3, 6, 8, 9, 100)] == [
        1, 2, 3, 3, 4, 3, 4,
    ]  # fmt: skip


def test_mesh_and_shards_are_checked():
    with pytest.raises(ValueError, match="devices = 0"):
        parallelism.env_mesh(0)
    with pytest.raises(ValueError, match="cpu devices"):
        parallelism.env_mesh(1000)
    mesh = parallelism.env_mesh(1)
    with pytest.raises(ValueError, match="leading axis"):
        parallelism.shard_envs({"a": jnp.zeros(())}, mesh)
    tree = parallelism.shard_envs({"a": jnp.arange(3)}, mesh)
    np.testing.assert_array_equal(tree["a"], [0, 1, 2])


def test_per_device_shares_and_donates():
    mesh = parallelism.env_mesh(1)
    function = parallelism.per_device(lambda x, c: x * c, mesh, shared=(1,), donate=(0,))
    x = parallelism.shard_envs(jnp.arange(4.0), mesh)
    np.testing.assert_array_equal(function(x, jnp.float32(3.0)), [0, 3, 6, 9])
    assert x.is_deleted()


# --------------------------------------------------------------------------------------- scaling


def test_growth_per_doubling():
    rows = [{"size": 8, "t": 10.0}, {"size": 32, "t": 90.0}]
    assert sweep._growth(None, rows[0], lambda row: row["t"]) is None
    assert sweep._growth(*rows, lambda row: row["t"]) == pytest.approx(3.0)


def test_points_vary_one_thing(monkeypatch):
    points = list(sweep.points())
    for name in ("environments", "star, ports", "flow slots", "substeps"):
        group = [p for p in points if p.sweep == name]
        sizes = [p.size for p in group]
        assert len(group) >= 3 and sizes == sorted(set(sizes))
        sizes_of = {
            "environments": [p.envs for p in group],
            "star, ports": [p.env.num_agents for p in group],
            "flow slots": [p.env.sim.slots for p in group],
            "substeps": [p.env.sim.interval_steps for p in group],
        }
        assert sizes_of[name] == sizes
        assert all(len(set(x)) == 1 for other, x in sizes_of.items() if other != name)
        assert {p.env.horizon * p.env.interval_us for p in group} == {20_000.0}
    fabric = [p for p in points if p.sweep.startswith("leaf-spine")]
    assert [p.env.num_agents for p in fabric] == [p.size for p in fabric]
    assert [p.size for p in fabric[-2:]] == [432, 1728]  # 288 and 1152 hosts
    assert {p.devices for p in points} == {1}
    monkeypatch.setattr(sweep, "FABRICS", ())  # these networks take the time
    for devices, used in ((2, [1, 2]), (6, [1, 2, 4]), (8, [1, 2, 4, 8])):
        many = [p for p in sweep.points(devices) if p.sweep == "devices"]
        assert [p.size for p in many] == [p.devices for p in many] == used
        assert len({(p.env, p.envs) for p in many}) == 1


def test_scaling_rows(monkeypatch):
    env = ecn_marl.make(TINY)
    points = [sweep.Point("environments", n, env, n) for n in (1, 4)]
    monkeypatch.setattr(sweep, "points", lambda devices: iter(points))
    names: list[str] = []
    first, second = sweep.scaling(QUICK, show=names.append)
    assert names == ["scaling: environments 1", "scaling: environments 4"]
    assert first["per_doubling"] is None and (first["ports"], first["slots"]) == (3, 4)
    expected = math.sqrt(second["step_us"]["median"] / first["step_us"]["median"])
    assert second["per_doubling"] == pytest.approx(expected)
    assert report._scaling_table([first, second]).row_count == 2


# ----------------------------------------------------------------------------------------- peers


def test_without_jaxmarl_the_table_says_so(monkeypatch):
    monkeypatch.setattr(peers, "find_spec", lambda name: None)
    rows = peers.jaxmarl_rows((1,), 1, QUICK)
    assert [row["name"] for row in rows] == [f"JaxMARL {name}" for name in peers.JAXMARL]
    file = io.StringIO()
    Console(file=file, width=150).print(report._peer_table(rows))
    assert file.getvalue().count("pip install 'ecn-marl[jaxmarl]'") == 2
    assert all("ecn-marl[jaxmarl]" in row["note"] for row in rows)
    assert report._peer_table(rows).row_count == len(rows)


class Counter:
    """Two agents with the interface of JaxMARL; each is paid 1 a step."""

    agents = ("left", "right")

    def action_space(self, agent):
        return types.SimpleNamespace(sample=lambda key: jax.random.randint(key, (), 0, 5))

    def reset(self, key):
        return {a: jnp.zeros(2) for a in self.agents}, jnp.int32(0)

    def step(self, key, state, action):
        assert set(action) == set(self.agents)
        obs = {a: jnp.full(2, state, jnp.float32) for a in self.agents}
        rewards = {a: jnp.float32(1.0) for a in self.agents}
        return obs, state + 1, rewards, dict.fromkeys(self.agents, False), {}


def test_jaxmarl_is_stepped_and_counted(monkeypatch):
    keys = jax.random.split(jax.random.key(0), 3)
    first = (keys, jnp.zeros(3, jnp.int32), {a: jnp.zeros((3, 2)) for a in Counter.agents})
    _, state, _, total = peers._jaxmarl_steps(Counter(), *first, jnp.zeros((3, 2)), jnp.int32(7))
    np.testing.assert_array_equal(state, [7, 7, 7])
    np.testing.assert_array_equal(total, np.full((3, 2), 7.0))
    monkeypatch.setitem(sys.modules, "jaxmarl", types.SimpleNamespace(make=lambda _: Counter()))
    monkeypatch.setattr(peers, "find_spec", lambda name: True)
    monkeypatch.setattr(peers, "version", lambda name: "9.9")
    rows = peers.jaxmarl_rows((2,), 1, QUICK)
    assert [row["name"] for row in rows] == [f"JaxMARL {name}" for name in peers.JAXMARL]
    for row in rows:
        assert row["agents"] == 2 and row["envs"] == 2 and "9.9" in row["note"]
        for statistic in SUMMARY:
            twice = 2 * row["env_steps_per_s"][statistic]
            assert row["agent_steps_per_s"][statistic] == pytest.approx(twice)


def test_recorded_packets():
    rows = {row["name"]: row for row in peers.packet_rows()}
    row = rows[f"packets, {peers.RECORDED} {peers.PROFILE} {peers.SETTING}"]
    assert row["repetitions"] == 2
    path = Path(peers.__file__).parent / "data" / "packet_timing.csv"
    with open(path) as file:
        lines = list(csv.DictReader(file))
    assert sum(r["repetitions"] for r in rows.values()) == len(lines)
    quoted = [float(x["sim_ms_per_wall_s"]) for x in lines if x["case"] == peers.RECORDED]
    assert row["sim_ms_per_wall_s"]["min"] == pytest.approx(min(quoted), rel=1e-4)
    assert row["sim_ms_per_wall_s"]["max"] == pytest.approx(max(quoted), rel=1e-4)
    readme = (path.parent / "README.md").read_text()
    assert "High-Precision-Congestion-Control" in readme and "AMD EPYC" in readme


def test_replay_counts_its_replays():
    row = peers.replay_row(2, runs=5, window_ms=0.05)
    assert (row["lanes"], row["devices"], row["repetitions"]) == (2, 1, 5)
    # 2 lanes x 0.05 ms are 2 x 50 substeps of 1 µs with 256 slots each
    ratio = row["flow_substeps_per_s"]["median"] / row["sim_ms_per_wall_s"]["median"]
    assert ratio == pytest.approx(2 * 50 * 256 / 0.1)


# ------------------------------------------------------------------------------ stages and floor


def test_variants_leave_out_their_stages():
    env = ecn_marl.make(TINY)
    params = jax.tree.map(jnp.asarray, env.default_params.sim)
    ecn = env.static_ecn("secn1", env.default_params)
    state = jax.jit(env.sim.init)(jax.random.key(1), params)

    def after(kind, state):
        sim = stages._without_stages(kind, env.sim)
        assert all(getattr(sim, f.name) == getattr(env.sim, f.name) for f in fields(Simulator))
        return jax.jit(sim.interval)(state, params, ecn)[0]

    run = jax.jit(env.sim.interval)
    for _ in range(20):
        state = run(state, params, ecn)[0]
        if float(state.flows.rest_low.sum()) > 0:  # caught in the middle of a burst
            break
    started = int(state.totals.started)
    assert started > 0 and float(state.flows.rest_low.sum()) > 0
    drained = after(stages.NoAdmission, state)
    assert int(drained.totals.started) == started
    assert float(drained.flows.rest_low.sum()) != float(state.flows.rest_low.sum())
    still = after(stages.NoSubsteps, state)
    np.testing.assert_array_equal(still.flows.rest_low, state.flows.rest_low)
    assert int(still.step) == int(state.step) + env.sim.interval_steps
    bare = after(stages.NoCompletion, state)
    np.testing.assert_array_equal(bare.flows.stage, state.flows.stage)


def test_stages_add_up_to_the_step():
    names = ("all", "no reset", "fixed", "Simulator", "NoAdmission", "NoSubsteps", "NoCompletion")
    times = {n: Timing(10, (t,), (t,)) for n, t in zip(names, (9, 8, 7, 6, 5, 2, 1), strict=True)}
    full_step, *parts = stages._rows(times)
    assert full_step["cpu_us"] == pytest.approx(0.9e6) and full_step["share"] == 1
    assert sum(row["cpu_us"] for row in parts) == pytest.approx(full_step["cpu_us"])
    assert sum(row["share"] for row in parts) == pytest.approx(1.0)
    share = {row["stage"]: row["share"] for row in parts}
    assert share["substeps"] == pytest.approx(3 / 9)


def test_operations_are_counted_by_kind():
    text = """HloModule m
inner { x = f32[2] add(a, b) }
ENTRY main {
  p = f32[2]{0} parameter(0)
  f = f32[2]{0} fusion(p), calls=inner
  g = (f32[2]{0}, f32[]) fusion(f), calls=inner
  s = f32[2]{0} scatter(f, p), to_apply=inner
  ROOT t = (f32[2]{0}) tuple(s)
}"""
    assert floor.operations("\n" + text) == {"fusion": 2, "scatter": 1}


def test_micro_benchmarks_do_the_counted_work():
    x = jnp.linspace(-1.0, 1.0, 12)
    values = x * 0.5 + 1.0
    for i in range(1, floor.CHAIN):
        values = values * 0.5 + (1.0 + i)
    np.testing.assert_allclose(floor._multiply_add(x), values, rtol=1e-6)
    program = timing.compiled(jax.jit(floor._multiply_add), x)
    assert program.costs["flops"] == 2 * floor.CHAIN * x.size
    index = jnp.array([[0, 1, 0, 2]])
    table = jnp.array([[5.0, 6.0, 7.0, 8.0]])
    np.testing.assert_array_equal(floor._gather(index, table), [[5.0, 6.0, 5.0, 7.0]])
    summed = floor._scatter(index, table)
    np.testing.assert_allclose(summed, [[12e-9, 6.0, 7.0, 8.0]], rtol=1e-6)


AS_USERS = """
import sys
import commands, ecn_marl

ecn_marl.register(commands.TINY, commands.tiny)
commands.app(sys.argv[1:])
"""
"""The command line in a process whose programs XLA compiles as it does for users."""


@pytest.mark.slow
@pytest.mark.thorough
def test_stages_and_floor_run(tmp_path):
    """In a new process: XLA's older loop emitters, which the tests use, leave no scatters."""
    file = tmp_path / "speed.json"
    args = ["speed", "--scenario", TINY, "--envs", "1", "--steps", "2", "--stages"]
    python_path = os.pathsep.join(
        [str(Path(commands.__file__).parent), os.environ.get("PYTHONPATH", "")]
    )
    call = [sys.executable, "-c", AS_USERS, *args, "--out", str(file)]
    env = {**os.environ, "XLA_FLAGS": "", "PYTHONPATH": python_path}
    done = subprocess.run(call, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    tree = json.loads(file.read_text())
    floors, rows = tree["floor"], tree["stages"]["rows"]
    assert sum(r["share"] for r in rows[1:]) == pytest.approx(1.0, abs=1e-6)
    parts = floors["floor_ns"]
    names = ("arithmetic", "memory", "transcendentals", "scatters", "gathers")
    assert parts["program"] == pytest.approx(sum(parts[name] for name in names))
    assert floors["over_program"] == pytest.approx(floors["measured_ns"] / parts["program"])
    assert floors["per_flow_substep"]["flops"] > 50 and floors["per_flow_substep"]["scatters"] >= 3
    assert floors["per_flow_substep"]["bytes"] > floors["per_flow_substep"]["state_bytes"]


def test_counts():
    assert programs.parse_counts("--envs", "1, 20,300") == (1, 20, 300)

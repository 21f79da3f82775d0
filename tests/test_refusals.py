"""Invalid values raise a one-line error that names the field, before anything is allocated.

The cases run in a separate process without the suite's type checker, as for users.
"""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

from ecn_marl._checks import SEED as SEED_RULE
from ecn_marl._checks import STREAM_SEED, Each, Flag, Kind, Real, Whole

SETUP = """
import json, math, sys, tempfile, time
from dataclasses import replace
import jax
import numpy as np
import ecn_marl
from ecn_marl._errors import bad_value
from ecn_marl.baselines.evaluation.episodes import evaluation_keys
from ecn_marl.baselines.evaluation.statistics import Draws
from ecn_marl.baselines.runs import train_run
from ecn_marl.baselines.search import Effort
from ecn_marl.envs.agent_checks import check_actions
from ecn_marl.envs.rate.measure import measure as measure_rate
from ecn_marl.experiments.jobs import Job
from ecn_marl.experiments.rate import train_rate
from ecn_marl.sim.traffic.matrices import permutation
from ecn_marl.sim.replay import Settings
from ecn_marl.wrappers.bridges.network import network_env
from ecn_marl import make, vector_env
from ecn_marl.errors import EcnMarlError
from ecn_marl.sim import *
from ecn_marl.sim.core.failures import fail_links
from ecn_marl.sim.traffic.flow_groups import FlowGroup
from ecn_marl.sim.traffic.jobs import FlowSets, Requests, Timeline
from ecn_marl.sim.traffic.loops import ClosedLoop
from ecn_marl.sim.traffic.phased_incast import PhasedIncast
from ecn_marl.sim.network.topology import fat_tree, parse_topology
from ecn_marl.sim.transports import parse_transport
from ecn_marl.envs.episode import HostGroup
from ecn_marl.envs.rate.scenarios import RateScenario
from ecn_marl.envs.actions import BoxAction, DiscreteAction
from ecn_marl.envs.registry import lookup
from ecn_marl.sim.traffic.graphs import Node
from ecn_marl.sim.replay import Settings, replay
from ecn_marl.sim.traffic.schedules import schedule
from ecn_marl.sim.traffic.trace import FlowList

inf, nan = math.inf, math.nan

def env(**options):
    return make("incast-v0", **options).default_params

def sim(*sources, hosts=4, **options):
    return Simulator(star(hosts), sources, **{"slots": 64, **options}).default_params()

def act(action):
    env = make("incast-v0", max_steps=2)
    params = env.default_params
    state = jax.eval_shape(env.reset, jax.eval_shape(lambda: jax.random.key(0)), params)[1]
    env.step(None, state, action, params)

def failing(**times):
    network = leaf_spine(2, 2, 2)
    simulator = Simulator(network, (Poisson(load=0.1),), slots=64, failures=True)
    return fail_links(simulator.default_params(), network, **{"dt_us": 1.0, **times})

def starting(*start_ns):
    flows = {"src": [0] * 2, "dst": [1] * 2, "size_B": [9] * 2, "start_ns": start_ns}
    rows = len(start_ns)
    return schedule({name: np.array(column[:rows]) for name, column in flows.items()}, 1.0)

def schedule_of(**columns):
    flows = {"src": [0, 1], "dst": [1, 2], "size_B": [9, 9], "start_ns": [0.0, 1.0]} | columns
    return schedule(flows, 1.0)

def flow_list(**columns):
    number = np.arange(2)
    by_hash = np.full(2, -1)
    good = FlowList(number, number, number + 1, number + 9, number * 1.0, by_hash, by_hash)
    return replay(replace(good, **columns), star(4), Settings(duration_ms=0.01))

def node(*fields):
    return Graph((Node(*fields), Node("z", 1, 0, 9))).default_params()

def graph_file(**fields):
    # The suffix keeps a random name from ending in "np.", which the test looks for.
    with tempfile.NamedTemporaryFile("w", suffix="-graph.json") as file:
        json.dump({"nodes": [{"id": "a", "src": 0, "dst": 1, "bytes": 9} | fields]}, file)
        file.flush()
        return read_graph(file.name)

def thresholds(*setting, **options):
    return scaled_ecn(sim(Poisson()).net, *setting, **options)

LINE = Timeline((500.0, 500.0))
SPEC = lookup("incast-v0")
messages = []
for code, _ in json.load(sys.stdin):
    began = time.monotonic()
    try:
        result = eval(code)
        message = str(result) if isinstance(result, EcnMarlError) else "accepted"
    except EcnMarlError as error:
        message = str(error)
    except BaseException as error:
        message = f"raw {type(error).__name__}: {error}"
    messages.append((message, time.monotonic() - began))
json.dump(messages, sys.stdout)
"""


def of(call: str, **values: list[str]) -> list[tuple[str, str]]:
    """Calls with one field each, and what the error has to name."""
    return [
        (call.replace("*", f"{name}={value}"), name) for name in values for value in values[name]
    ]


NONSENSE = ["nan", "'x'", "None"]
NUMBER = [*NONSENSE, "inf", "-1.0"]
SEED = ["3.0", "'3'", "True", "np.float64(3.0)", "np.bool_(True)", "nan", "-1"]
COUNT = [*NONSENSE, "1.5", "-2", "True", "10**12"]
FLAG = ["'false'", "2", "None"]

HOST_GROUPS = ["()", "(0, 0)", "(0, True)", "(1.5,)", "(-1,)", "5", "'ab'", "(nan,)"]
THRESHOLDS = [
    *("('5', 200, 0.2)", "(5, '200', 0.2)", "(5, 200, '0.2')", "(True, 200, 0.2)"),
    *("(5, 200, True)", "(5, 200, nan)", "(nan, 200, 0.2)", "(5, inf, 0.2)", "(200, 5, 0.2)"),
    *("(5, 200)", "(5, 200, 0.2, 1)", "None", "'5,200,0.2'", "5"),
]
NODES = [
    *[(f"'a', {host}, 1, 9", "node 'a': src = ") for host in ("-1", "0.5", "True", "'x'", "2**31")],
    *[(f"'a', 0, {host}, 9", "node 'a': dst = ") for host in ("0", "-1", "None", "nan")],
    *[(f"'a', 0, 1, {size}", "node 'a': bytes = ") for size in ("0", "10**12 + 1", "2**63", "1.5")],
    *[(f"'a', 0, 1, 9, {delay}", "node 'a': delay_us = ") for delay in ("'x'", "nan", "True")],
    *[(f"'a', 0, 1, 9, 0.0, {after}", "node 'a': after = ") for after in ("'z'", "['z']", "([],)")],
    *[(f"{name}, 0, 1, 9", f"node {name}: id = ") for name in ("None", "True", "[1]", "1.5")],
]
NODE_FILES = [
    *[("id=None", "node None: id = None"), ("id=True", "id = True"), ("bytes=1.5", "bytes = 1.5")],
    *[("bytes=True", "bytes = True"), ("src='0'", "src = '0'"), ("delay_us='x'", "delay_us = 'x'")],
    *[("after='a'", "after = 'a'"), ("after=[[1]]", "after = [1]"), ("bytes=10**20", "bytes = 1")],
]


def columns(call: str, size: str) -> list[tuple[str, str]]:
    """Calls with a fault in row 1 of one column."""
    faults = {
        "src": ["-1", "0.5", "True", "nan", "2**31", "'1'", "None"],
        "dst": ["-1", "1", "0.5", "False", "nan", "2**64"],
        size: ["0", "-5", "1.5", "10**18", "10**20", "nan", "inf", "True", "'9'"],
        "start_ns": ["nan", "inf", "-1.0", "'0'", "None", "True", "10**400"],
    }
    good = {"src": "0", "dst": "1", size: "9", "start_ns": "0.0"}
    return [
        (call.replace("*", f"{name}=[{good[name]}, {value}]"), f"{name}[1] = ")
        for name, values in faults.items()
        for value in values
    ]


CASES = [
    *of(
        "env(*)",
        dt_us=[*NUMBER, "0", "1e6", "True"],
        tick_steps=[*COUNT, "0"],
        interval_us=[*NUMBER, "0"],
        slots=[*COUNT, "0"],
        max_steps=[*COUNT, "0", "2**31"],
        buffer_mib=NUMBER,
        pfc=FLAG,
        ack_priority=FLAG,
        flowlet_gap_us=NUMBER,
        bins=COUNT,
        initial=["5", "None"],
        memory_us=[*NUMBER, "0"],
        jitter_us=NUMBER,
        softness=NUMBER,
        mark_quantum=[*NUMBER, "2"],
        slowdown_weights=["(nan, 1, 1)", "(1, 1)", "'x'"],
        margins_us=["(nan, 0)", "(-1, 0)", "(0,)", "'x'"],
        traffic=["()", "None", "'x'", "(1,)"],
        transport=["5"],
        class_of=["'x'", "(1.5,)", "(-1,)"],
        placement=["5", "'x'", "((0,),)", "((0, 1.5),)", "((0, True),)", "((0, 10**9),)"],
        topology=["None", "'ring:4'"],
        host_groups=["(1,)"],
        failing=["5", "{'dt_us': -1}", "{'at': 1.0}"],
        action_options=["5"],
        reward_options=["5"],
        telemetry=["5"],
        load=[*(set(NUMBER) - {"None"}), "0", "1e30"],
        history=[*(set(COUNT) - {"None"}), "0"],
        features=["5", "()"],
        reward=["5"],
        counts=["5", "'x'"],
        flows=["1", "True", "()"],
    ),
    ("env(initial='1,1e38,1')", "Kmin, Kmax"),
    ("ecn_marl.evaluate('rule', SPEC)", "scenario = 'a Scenario'"),
    ("ecn_marl.train('ippo', SPEC)", "scenario = 'a Scenario'"),
    ("ecn_marl.bench(SPEC)", "scenario = 'a Scenario'"),
    ("ecn_marl.bench([SPEC])", "scenario = 'a Scenario'"),
    ("sim(Poisson(), placement='0,1')", "placement = '0,1'"),
    ("sim(Poisson(), placement=((0, 1), (1, 2)))", "placement = ((0, 1), (1, 2))"),
    ("env(transport='dcqcn:hpcc-paper,g=inf')", "g = inf"),
    ("env(transport='dcqcn:hpcc-paper,g=nan')", "g = nan"),
    ("env(transport='hpcc:hpcc,eta=inf')", "eta"),
    ("env(action_options={'alpha_kb': 'x'})", "alpha_kb = 'x'"),
    ("env(reward_options={'mice_weight': 'x'})", "mice_weight = 'x'"),
    ("env(failing={'share': 0.5})", "failing"),
    ("starting(0.0, 1e13)", "start_ns[1] = 10000000000000.0"),
    ("starting(-1.0)", "start_ns[0] = -1.0"),
    *columns("schedule_of(*)", "size_B"),
    *columns("flow_list(*)", "size"),
    ("flow_list(flow_id=[3, 3])", "flows.flow_id[1] = 3"),
    ("flow_list(spine_data=[-1, 1])", "flows.spine_data[1] = 1"),
    ("schedule({'src': [0]}, 1.0)", "flows = ['src']"),
    *[(f"node({fields})", name) for fields, name in NODES],
    *[(f"graph_file({fields})", name) for fields, name in NODE_FILES],
    *of("ring_all_reduce(range(4), *)", size=[*COUNT[:-1], "3", "5e12", "5 * 10**12"]),
    *of("tree_all_reduce(*, size=9)", hosts=["(0, 1.5)", "(0, True)", "5", "'ab'", "(0, 2**40)"]),
    *of("FlowGroup(destinations=(1,), *)", sources=HOST_GROUPS),
    *of("ClosedLoop(servers=(1,), *)", clients=HOST_GROUPS),
    *of("Requests(LINE, (1.0, 1.0), destinations=(1,), *)", sources=HOST_GROUPS),
    *of("Settings(*)", ecn=THRESHOLDS, ecn_gbps=[*(set(NUMBER) - {"None"}), "0"]),
    *of("Settings(*)", dt_us=NUMBER, duration_ms=NUMBER, slots=["1.5", "True", "0", "'x'"]),
    *[(f"thresholds(*{setting})", " = ") for setting in THRESHOLDS[:9]],
    ("thresholds(5, 200, 0.1, base_gbps=0)", "base_gbps = 0"),
    *[(f"DiscreteAction(template=({setting},))", "template[0]") for setting in THRESHOLDS[:-3]],
    *of("RateScenario('many-to-one', 2, *)", gbps=NUMBER, dt_us=["nan", "'x'"], duration_us=NUMBER),
    ("env(priority='x')", "priority 'x'"),
    ("env(priority=nan)", "priority = nan"),
    ("env(priority=2)", "priority = 2 is not allowed: expected latency, throughput, or the weight"),
    ("make('restore-serve-v0', reward='slowdown', priority='latency')",
     "priority = 'latency' is not allowed: expected none with the reward slowdown: only acc, pet"),
    ("env(actions=['box'])", "actions = ['box'] is not allowed: expected multidiscrete, discrete"),
    ("env(actions='box', action_options={'alpha_kb': 20})", "option of box actions 'alpha_kb'"),
    ("env(actions=BoxAction(), action_options={'pmax': (.1, 1.)})", "a name, to go with pmax"),
    ("env(actions='discrete', action_options={'template': (5., 200., .01)})",
     "template = (5.0, 200.0, 0.01) is not allowed: expected a tuple of values, each a setting"),
    ("make('storage-train-v0', flows='g.csv')", "flows = 'g.csv' is not allowed: expected none in"),
    ("make(5)", "scenario = 5"),
    ("make('websearch-star-v0', load='0.6')", "load = '0.6' is not allowed: expected a number > 0"),
    ("make('websearch-star-v0', load=60)", "a share of the line rate (60 % is 0.6)"),
    ("env(reward=lambda *_: 0)", "'a function, <lambda>' is not allowed: expected Reward('mine', "),
    ("env(actions=lambda *_: 0)", "discrete, box, thresholds, or an ActionCodec"),
    ("env(features=lambda *_: 0)", "names with commas between, a tuple, or a FeatureSet"),
    ("check_actions(np.zeros((8, 3)), ['port_0', 'port_7'])", "dict(zip(env.agents, actions))"),
    ("check_actions([1], ['port_0', 'port_7'])", "one action for every agent, port_0 … port_7"),
    ("act(np.zeros(3, int))", "shape of action = (3,) is not allowed: expected (17, 3)"),
    ("act({'port_0': 1})", "an array [17, 3]: agents first"),
    *of(
        "sim(Incast(*))",
        load=[*NUMBER, "0"],
        n_min=["'x'", "1.5", "0"],
        n_max=["2.5", "nan", "10**9", "1"],
        flow_kb=[*NUMBER, "0", "1e30"],
        receiver=["4", "-2", "1.5", "nan", "'x'"],
        jitter_us=NUMBER,
        width=["0", "1.5", "'x'", "10**12"],
    ),
    ("sim(Incast(receiver=4, width=4))", "receiver = 4"),
    *of("sim(Poisson(*))", load=NUMBER, table=["'x'", "5"], width=["0", "'x'"]),
    ("sim(Poisson(matrix='x'))", "matrix"),
    ("sim(Poisson(matrix=((0, nan), (1, 0))))", "matrix"),
    *of("star(4, *)", gbps=[*NUMBER, "0", "1e9"], delay_us=[*NUMBER, "1e9"]),
    ("star('x')", "hosts"),
    ("star(1.5)", "hosts"),
    *of("Timeline(*)", lengths_us=["()", "(nan,)", "5"]),
    ("Timeline((500.0,), length_jitter=nan)", "length_jitter"),
    *of("Requests(LINE, (1.0, 1.0), (0,), (1,), *)", largest_kb=NUMBER, shift=["1.5"]),
    ("Requests(LINE, (nan, 1.0), (0,), (1,))", "per_us"),
    ("sim(Requests(LINE, (1e-4, 1e-4), (0,), (9,)))", "destinations"),
    ("sim(Requests(LINE, (1e-4, 1e-4), (0,), (9,), width=4))", "destinations"),
    *of("FlowSets(LINE, 0, ((0, 1),), *)", fill=NUMBER, size_jitter=["nan"], start_us=NUMBER),
    ("FlowSets(LINE, 0, ((0, 1.5),))", "pairs"),
    ("sim(FlowSets(LINE, 0, ((0, 9),), start_us=100.0))", "pairs"),
    *of("FlowGroup((0,), (1,), *)", each=["1.5", "0"], flow_kb=["nan", "-1"], start_us=NUMBER),
    *of("ClosedLoop((0,), (1,), *)", depth=["1.5", "0"], read_share=NUMBER, think_us=NUMBER),
    ("ClosedLoop((0,), (1,), response=inf)", "response"),
    ("PhasedIncast(LINE, (Incast(),))", "phases"),
    ("PhasedIncast(LINE, (Incast(), Incast(receiver=1)))", "receiver of phases"),
    ("PhasedIncast(LINE, (Incast(width=4), Incast()))", "width of phases"),
    ("sim(PhasedIncast(LINE, (Incast(receiver=9),) * 2))", "receiver"),
    ("sim(PhasedIncast(LINE, (Incast(0.1, min_gap_us=1e4), Incast(0.9, min_gap_us=1e4))))", "gap"),
    ("HostGroup('g', ('h',), shift=1.5)", "shift"),
    *of("failing(at_us=1.0, *)", share=NUMBER),
    *of("failing(share=0.5, at_us=1.0, *)", dt_us=["-1", "nan", "0"]),
    *of("failing(share=0.5, *)", at_us=[*NUMBER, "1e30"]),
    ("failing(share=0.5, at_us=1.0, repair_us=inf)", "repair_us"),
    ("vector_env('incast-v0', 1.5)", "num_networks"),
    *of("ecn_marl.parallel_env('incast-v0').reset(*)", seed=SEED),
    *of("ecn_marl.env('incast-v0').reset(*)", seed=SEED),
    *of("ecn_marl.rate_parallel_env('many-to-one-4-v0').reset(*)", seed=SEED),
    *of("network_env('incast-v0').reset(*)", seed=SEED),
    *of(
        "vector_env('incast-v0', 2).reset(*)",
        seed=[*SEED, "[1, 2.5]", "[1, True]", "(1, '2')", "[1, -1]", "[1]", "'12'"],
    ),
    *of("failing(share=0.5, at_us=1.0, *)", seed=[*SEED, "2**32"]),
    *of("permutation(4, *)", seed=[*SEED, "2**32"]),
    *of("Settings(*)", seed=[*SEED, "2**32"]),
    *of("Effort(*)", seed=[*SEED, "2**32"]),
    *of("Job('ippo', 'incast-v0', 9, *)", seed=[*SEED, "2**32"]),
    *of("Draws(4, *)", seed=[*SEED, "2**32"]),
    *of("evaluation_keys(episodes=4, *)", seed=[*SEED, "2**32"]),
    *of("train_run('ippo', 'incast-v0', steps=9, out='never', *)", seed=[*SEED, "2**32"]),
    ("train_run('ippo', 'incast-v0', steps=9, out='never', seeds=2, seed=2**32 - 1)", "seed"),
    *of("train_rate('adpg', 'never', *)", seed=[*SEED, "2**32"]),
    *of("measure_rate(None, None, *)", seed=[*SEED, "2**32"]),
    ("bad_value('f', [np.float64(0.0), (np.int32(1), {'x': np.bool_(True)})], 'g')",
     "f = [0.0, (1, {'x': True})] is"),
    ("bad_value('f', jax.numpy.float32(0.5), 'g')", "f = 0.5 is"),
]  # fmt: skip

HUGE = [
    ("star(999999999999)", "hosts"),
    ("parse_topology('star:2000000', gbps=25.0, uplink_gbps=1.0, delay_us=1.0)", "2.79 GiB"),
    ("leaf_spine(10**6, 10**6, 10**6)", "topology = 'leaf-spine"),
    ("leaf_spine(2, 2, 2, parallel=10**8)", "topology"),
    ("fat_tree(10**5)", "topology = 'fat-tree:100000'"),
    ("sim(Poisson(load=0.1), slots=2**31 - 1, memory_us=1e7)", "slots, bins, memory_us, dt_us"),
    ("sim(Poisson(load=0.1), transport=parse_transport('hpcc:hpcc'), memory_us=1e7,"
     " dt_us=1e-6, slots=10**6)", "and this machine has"),
    ("vector_env('incast-v0', 2**31 - 1)", "num_networks = 2147483647"),
]  # fmt: skip


@pytest.fixture(scope="module")
def messages():
    """The message of each case, and its time, s."""
    request = json.dumps(CASES + HUGE)
    command = [sys.executable, "-c", SETUP]
    result = subprocess.run(command, input=request, check=True, capture_output=True, text=True)
    return dict(zip([code for code, _ in CASES + HUGE], json.loads(result.stdout), strict=True))


def test_nothing_is_accepted_and_nothing_is_raw(messages):
    assert len(messages) > 200
    unclear = {}
    for code, name in CASES + HUGE:
        text, _ = messages[code]
        raw = text == "accepted" or text.startswith("raw ") or "\n" in text
        if raw or name not in text or "np." in text or "Array(" in text:
            unclear[code] = text
    assert not unclear, json.dumps(unclear, indent=1)


def test_sizes_are_refused_at_once(messages):
    """Before anything of the size is made."""
    for code, _ in HUGE:
        assert messages[code][1] < 2.0, code


def test_rules():
    assert Real(low=0.0, high=1.0).fits(1) and Real(above=0.0).fits(1e-300)
    assert not any(
        Real(above=0.0).fits(x) for x in (0, float("nan"), float("inf"), True, "1", None)
    )
    assert Real(above=0.0, infinite=True).fits(float("inf"))
    assert not Real(infinite=True).fits(float("-inf"))
    assert Real(words=("auto",), none=True).fits("auto") and Real(none=True).fits(None)
    assert Whole(low=1).fits(3) and not any(Whole().fits(x) for x in (3.0, True, 2**31))
    assert SEED_RULE.fits(np.int64(7)) and SEED_RULE.fits(2**32 - 1)
    assert not any(SEED_RULE.fits(x) for x in (2**32, -1, 3.0, "3", True, None, np.bool_(1)))
    assert STREAM_SEED.fits(None) and STREAM_SEED.fits(10**400) and not STREAM_SEED.fits(3.0)
    assert Flag().fits(True) and not Flag().fits(1)
    assert Each(Whole(), 2).fits((1, 2)) and not Each(Whole(), 2).fits((1,))
    assert Kind(("append",), "a list").fits([]) and not Kind((str,), "a word").fits([])


def test_rules_in_words():
    assert Real(low=0.0, below=1.0).allowed == "a number >= 0 and < 1"
    assert Real(above=0.0, unit="µs", words=("auto",)).allowed == "a number > 0 µs, or auto"
    assert Whole(low=1, high=8, none=True).allowed == "an integer >= 1 and <= 8, or None"
    assert Each(Flag(), 2).allowed == "a tuple of 2 values, each True or False"

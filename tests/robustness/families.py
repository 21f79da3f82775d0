"""Families of cases: options, parameters, actions, flow lists, folders, flags."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st
from outcomes import ACCEPTED, SOUND, Tally, Unsound, tried
from typer.testing import CliRunner

import ecn_marl
from ecn_marl._checks import check_numbers
from ecn_marl.baselines import runs
from ecn_marl.baselines.training.checkpoint import Checkpoints, read_config, write_json
from ecn_marl.cli import app
from ecn_marl.envs.ecn import EcnEnv
from ecn_marl.envs.parallel import PROGRAMS, EcnParallelEnv
from ecn_marl.envs.scenario import Scenario
from ecn_marl.errors import EcnMarlError
from ecn_marl.sim import Incast, star
from ecn_marl.sim.traffic.sizes import CHUNK
from ecn_marl.sim.traffic.trace import read_flows

STEPS = 4

NUMBERS = st.one_of(
    st.floats(),
    st.integers(-10, 10),
    st.integers(),
    st.floats(1e-3, 1e3),
    st.sampled_from([0, 0.0, -0.0, 2**31, 2**31 - 1, 1e-300, 1e300, True, None]),
)
ANYTHING = st.one_of(
    NUMBERS,
    st.text(max_size=8),
    st.sampled_from(["auto", "secn1", "secn2", "latency", "acc", "pet", "slowdown", "box", ""]),
    st.lists(NUMBERS, max_size=3).map(tuple),
    st.dictionaries(st.text(max_size=4), NUMBERS, max_size=2),
    st.binary(max_size=4),
    st.just(object()),
)
OPTIONS = [f.name for f in fields(Scenario)]
OPTIONS += ["features", "actions", "history", "load", "flows", "priority", "credit", "counts"]


UNIT, LENGTH = st.floats(0.0, 1.0), st.floats(0.0, 500.0)
PLAUSIBLE: dict[str, st.SearchStrategy[Any]] = {
    "load": st.floats(0.01, 1.5),
    "max_steps": st.integers(0, 1000),
    "buffer_mib": st.floats(0.0, 64.0),
    "slowdown_weights": st.tuples(UNIT, UNIT, UNIT),
    "margins_us": st.tuples(LENGTH, LENGTH),
    "reward_options": st.fixed_dictionaries({"utilisation_weight": st.floats(-0.2, 1.2)}),
    "priority": st.one_of(UNIT, st.sampled_from(["latency", "throughput"])),
    "initial": st.sampled_from(["secn1", "SECN1", "5,200,0.01", "200,5,0.01", "5,200"]),
    "traffic": st.tuples(
        st.builds(
            dict,
            load=st.floats(0.0, 3.0),
            n_max=st.integers(1, 4),
            flow_kb=st.floats(1e-3, 1e7),
            jitter_us=LENGTH,
            receiver=st.integers(-1, 3),
        )
    ),
    "superseded": st.text(max_size=3),
    "pfc": st.booleans(),
    "slots": st.integers(0, 32),
    "history": st.integers(0, 4),
}
"""Values of options that are often allowed."""


def small(**options: Any) -> EcnEnv:
    """Three hosts, two of which keep sending to the first."""
    given = {"topology": star(3), "slots": 8, "max_steps": STEPS, "interval_us": 40.0, **options}
    traffic = (Incast(n_max=2, flow_kb=50.0, width=2),)
    return ecn_marl.make("incast-v0", **{"traffic": traffic, **given})


@cache
def functions(codec: str) -> tuple[EcnEnv, Callable[..., Any], Callable[..., Any]]:
    """The small environment and its compiled functions; these serve all of its numbers.

    They are those of `EcnParallelEnv`, too.
    """
    core = small(actions=codec)
    reset, step, _ = PROGRAMS.of(core.program)
    return core, reset, step


def check_step(found: Any) -> None:
    """What a step returns is finite, and observations are in their space."""
    obs, state, reward, *_, info = found
    for name, x in {"obs": obs, "reward": reward, **info}.items():
        if not np.isfinite(np.asarray(x)).all():
            raise Unsound(f"{name} is not finite")
    if not ((np.asarray(obs) >= 0.0) & (np.asarray(obs) <= 1.0)).all():
        raise Unsound("an observation is outside of [0, 1]")
    if float(np.asarray(state.sim.queue).min()) < -1.0:
        raise Unsound("a queue is negative")


def check_bytes(state: Any) -> None:
    """No byte is made: what left the network was offered."""
    totals = state.sim.totals
    counters = (totals.offered, totals.delivered)
    offered, delivered = (float(high) * CHUNK + float(low) for high, low in counters)
    if delivered > offered * (1.0 + 1e-4) + 1.0:
        raise Unsound(f"{delivered} bytes delivered of {offered} offered")


def simulate(params: Any, actions: Any = None, codec: str = "multidiscrete") -> str:
    """Some steps of the small environment under parameters; what comes out has to be sound."""
    core, reset, step = functions(codec)
    key = jax.random.key(0)
    obs, state = reset(key, params)
    if not np.isfinite(np.asarray(obs)).all():
        raise Unsound("the first observation is not finite")
    for number in range(STEPS):
        drawn = core.action.sample(jax.random.fold_in(key, number), core.num_agents)
        found = step(key, state, drawn if actions is None else actions, params)
        state = found[1]
        check_step(found)
    check_bytes(state)
    return SOUND


def options(examples: int, number: int = 0) -> Tally:
    """`make` with one or two options that may be anything; what is accepted and small is run."""
    reference = functions("multidiscrete")[0].program

    def run(case: dict[str, Any]) -> str:
        sources = case.get("traffic")
        if isinstance(sources, tuple) and sources and isinstance(sources[0], dict):
            named = {"n_min": 1, "width": 2, **{str(k): v for k, v in sources[0].items()}}
            case = {**case, "traffic": (Incast(**named) if "load" in named else sources[0],)}
        env = small(**case)
        params = env.default_params
        check_numbers(params)
        return simulate(params) if env.program == reference else ACCEPTED

    either = st.one_of(ANYTHING, NUMBERS, st.floats(0.0, 2.0), st.integers(1, 64))
    wild = st.dictionaries(st.sampled_from(OPTIONS), either, min_size=1, max_size=2)
    likely = st.lists(st.sampled_from([*PLAUSIBLE]), min_size=1, max_size=3, unique=True).flatmap(
        lambda names: st.fixed_dictionaries({name: PLAUSIBLE[name] for name in names})
    )
    cases = st.one_of(wild, likely)
    return tried("options of make", cases, run, examples, number)


def _leaves(tree: Any, where: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Ways to the numbers of parameters: fields and places in tuples."""
    if isinstance(tree, tuple):
        return [way for i, x in enumerate(tree) for way in _leaves(x, (*where, i))]
    if is_dataclass(tree):
        return [w for f in fields(tree) for w in _leaves(getattr(tree, f.name), (*where, f.name))]
    return [where] if tree is not None and np.asarray(tree).dtype.kind == "f" else []


def _put(tree: Any, way: tuple[Any, ...], change: Callable[[Any], Any]) -> Any:
    if not way:
        return change(tree)
    first, *rest = way
    if isinstance(first, int):
        return (*tree[:first], _put(tree[first], tuple(rest), change), *tree[first + 1 :])
    return replace(tree, **{first: _put(getattr(tree, first), tuple(rest), change)})


def parameters(examples: int, number: int = 0) -> Tally:
    """Numbers of `EnvParams` changed; refused in checked mode, or what comes out is sound."""
    params = functions("multidiscrete")[0].default_params
    ways = [w for w in _leaves(params) if "pfc_alpha" not in w]

    def run(case: tuple[Any, float, bool]) -> str:
        way, value, times = case

        def change(x: Any) -> Any:
            old = np.asarray(x)
            new = old * value if times else np.full_like(old, value)
            return new.astype(old.dtype)

        changed = _put(params, way, change)
        check_numbers(changed)
        return simulate(changed)

    numbers = st.one_of(st.floats(width=32), st.floats(0.0, 4.0, width=32))
    cases = st.tuples(st.sampled_from(ways), numbers, st.booleans())
    with np.errstate(all="ignore"):
        return tried("parameters", cases, run, examples, number)


def actions(examples: int, number: int = 0) -> Tally:
    """Actions of the functional environment, of any numbers whatever: observations stay sound."""
    params = functions("box")[0].default_params

    def box(case: list[float]) -> str:
        return simulate(params, jnp.asarray(case, jnp.float32).reshape(3, 3), "box")

    def indices(case: list[int]) -> str:
        return simulate(params, jnp.asarray(case, jnp.int32).reshape(3, 3), "multidiscrete")

    real = st.lists(st.floats(width=32), min_size=9, max_size=9)
    whole = st.lists(st.integers(-(2**31), 2**31 - 1), min_size=9, max_size=9)
    first = tried("actions", real, box, examples // 2, number)
    second = tried("actions", whole, indices, examples - examples // 2, number)
    return Tally("actions", first.counts + second.counts, first.faults + second.faults)


def dicts_of_actions(examples: int, number: int = 0) -> Tally:
    """Actions of the PettingZoo face: anything at all, as anything at all."""
    env = EcnParallelEnv(small())
    one = st.lists(st.integers(-2, 12), min_size=3, max_size=3).map(np.array)
    good = st.fixed_dictionaries({f"port_{i}": one for i in range(3)})
    junk = st.dictionaries(st.sampled_from(["port_0", "port_1", "port_9", 3, None]), ANYTHING)

    def run(case: Any) -> str:
        env.reset(seed=0)
        obs, reward, *_ = env.step(case)
        if not all(np.isfinite(x).all() for x in (*obs.values(), *reward.values())):
            raise Unsound("an observation or reward is not finite")
        return SOUND

    return tried("dicts of actions", st.one_of(good, junk, ANYTHING), run, examples, number)


HEADER = "flow_id,src,dst,size_B,start_ns\n"


def flow_lists(examples: int, number: int = 0) -> Tally:
    """Files of flows: rows of anything, bytes of anything."""
    topology = star(3)
    field_ = st.one_of(st.integers(-1, 4), st.integers(), st.floats(), st.text(max_size=4))
    good = st.tuples(*(st.integers(0, 2),) * 2, st.integers(1, 10**9), st.integers(0, 10**6))
    row = st.one_of(good, st.tuples(field_, field_, field_, field_))
    lists = st.one_of(st.lists(row, max_size=4), st.lists(good, min_size=1, max_size=3))
    rows = lists.map(
        lambda rs: HEADER + "".join(f"{i},{','.join(map(str, r))}\n" for i, r in enumerate(rs))
    )
    content = st.one_of(
        rows.map(lambda text: text.encode("utf-8", "surrogatepass")),
        st.binary(max_size=60),
        st.binary(max_size=8).map(lambda tail: b"\x1f\x8b" + tail),
    )

    def run(case: bytes) -> str:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "flows.csv"
            path.write_bytes(case)
            flows = read_flows(path, topology)
        if min(flows.size) < 1 or not np.isfinite(flows.start_ns).all():
            raise Unsound("a flow without bytes, or without a start")
        if (flows.src == flows.dst).any() or max(*flows.src, *flows.dst) > 2:
            raise Unsound("a flow from or to a host that there is not")
        return SOUND

    return tried("flow lists", content, run, examples, number)


def folders(examples: int, number: int = 0) -> Tally:
    """Checkpoints and configurations with bytes changed, cut off or gone."""
    whole = Path(tempfile.mkdtemp())
    state = {"w": np.arange(32.0), "n": np.int32(3)}
    Checkpoints(whole).save(1, state)
    config = {"algorithm": "ippo", "settings": {}, "steps": 1, "seed": 0}
    write_json(whole / "config.json", {**config, "scenario": "x", "options": {}, "seeds": 1})
    names = sorted(str(p.relative_to(whole)) for p in whole.rglob("*") if p.is_file())

    def run(case: tuple[str, str, int, bytes]) -> str:
        name, how, at, junk = case
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / "run"
            shutil.copytree(whole, copy)
            file = copy / name
            data = bytearray(file.read_bytes())
            if how == "flip" and data:
                data[at // 8 % len(data)] ^= 1 << at % 8
            file.write_bytes({"cut": data[: at % (len(data) + 1)], "junk": junk}.get(how, data))
            if how == "gone":
                file.unlink()
            read_config(copy)
            found = Checkpoints(copy).restore(state, 1)
        same = all(np.array_equal(found[k], state[k]) for k in state)
        if not same:
            raise Unsound("other weights were restored")
        return SOUND

    how = st.sampled_from(["flip", "cut", "junk", "gone"])
    cases = st.tuples(st.sampled_from(names), how, st.integers(0, 10**5), st.binary(max_size=9))
    try:
        return tried("folders of runs", cases, run, examples, number)
    finally:
        shutil.rmtree(whole)


class Began(Exception):
    """A command was accepted; what it does is not done."""


FLAGS: dict[str, tuple[str, ...]] = {
    "train": ("--steps", "--envs", "--seed", "--seeds", "--set", "--scenario", "--features"),
    "eval": ("--scenario", "--episodes", "--seed", "--batch"),
    "replay": ("--topology", "--link-gbps", "--delay-us", "--ecn", "--seed", "--dt-us"),
    "bench": ("--scenario", "--seeds", "--episodes"),
    "headroom": ("--scenario", "--episodes"),
}


ALLOWED = {
    "--steps": "8",
    "--envs": "2",
    "--seed": "1",
    "--seeds": "2",
    "--set": "rollout=4",
    "--scenario": "incast-v0",
    "--features": "acc",
}
"""Values of flags of `train` that are allowed."""


def flags(examples: int, number: int = 0) -> Tally:
    """Command lines with values of anything: exit code 2 and one line, or the work would begin."""
    word = st.one_of(
        st.text(max_size=6),
        st.integers().map(str),
        st.floats().map(str),
        st.sampled_from(["star:4", "leaf-spine:2x2x2", "star:999999999999", "secn1"]),
        st.sampled_from(["hidden=0", "lr=nan", "g=inf", "1", "0.5", "incast-v0", "acc", "8"]),
    ).filter(lambda text: "\0" not in text and not text.startswith("-h"))

    @st.composite
    def lines(draw: Any) -> list[str]:
        command = draw(st.sampled_from([*FLAGS]))
        chosen = draw(st.lists(st.sampled_from(FLAGS[command]), min_size=1, max_size=3))
        first = draw(st.one_of(st.sampled_from(["ippo", "static:secn1", "nowhere"]), word))
        values = [draw(word) for _ in chosen]
        if command == "train" and draw(st.booleans()):
            first = "ippo"
            kept = [draw(st.booleans()) for _ in chosen]
            values = [ALLOWED[f] if k else v for f, k, v in zip(chosen, kept, values, strict=True)]
        return [command, first, *(x for pair in zip(chosen, values, strict=True) for x in pair)]

    def run(case: list[str]) -> str:
        def begin(*args: Any, **more: Any) -> Any:
            raise Began

        with (
            tempfile.TemporaryDirectory() as folder,
            mock.patch.object(runs, "_train", begin),
            mock.patch("ecn_marl.baselines.evaluation.episodes.evaluate", begin),
        ):
            more = ["--out", f"{folder}/out"] if case[0] == "train" else []
            result = CliRunner().invoke(app, [*case, *more])
        if isinstance(result.exception, Began) or "Began" in result.stderr:
            return ACCEPTED
        if result.exit_code in (0, 1) and result.exception is None:
            return ACCEPTED
        one = result.stderr.startswith("ecn-marl: ") and result.stderr.count("\n") == 1
        if result.exit_code == 2 and (one or result.stderr.startswith("Usage: ")):
            raise EcnMarlError("refused in one line, or by the parser of options")
        raise RuntimeError(f"{result.exit_code} {result.exception!r} {result.stderr[-300:]}")

    return tried("flags", lines(), run, examples, number)


FAMILIES = (options, parameters, actions, dicts_of_actions, flow_lists, folders, flags)
"""All families, each called with the number of cases."""

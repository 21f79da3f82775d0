"""The GPU form of programs: emulated on this processor, as PTX, and how it is launched."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gpu_form
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import test_operations
import test_programs
from hypothesis import given, settings
from jax import lax
from jax.extend.core import jaxprs_in_params, primitives
from xla_and_lanes import check, raw

import ecn_marl
from ecn_marl import lanes
from ecn_marl.lanes import cuda, mapping, trial
from ecn_marl.lanes.kernel import Launch, planned
from ecn_marl.lanes.lower import lower, primitives_table
from ecn_marl.sim import leaf_spine
from ecn_marl.speed.trial import environments
from ecn_marl.wrappers import AutoReset
from tests.lanes import test_lane_networks, test_loop_skipping


@pytest.fixture(scope="module", params=[(gpu_form.KEEPING, True), (8, False)])
def kernels(request: pytest.FixtureRequest) -> Iterator[list[str]]:
    """Batches run through emulated kernels with so many environments in a warp; their texts."""
    with pytest.MonkeyPatch.context() as patch:
        lanes, downwards = request.param
        yield gpu_form.emulate(patch, lanes=lanes, downwards=downwards)


@pytest.fixture(
    params=[(4, False), (4, True), (gpu_form.KEEPING, False), (gpu_form.KEEPING, True)],
    ids=["upwards", "downwards", "kept upwards", "kept downwards"],
)
def emulated(request: pytest.FixtureRequest) -> Iterator[list[str]]:
    with pytest.MonkeyPatch.context() as patch:
        lanes, downwards = request.param
        yield gpu_form.emulate(patch, lanes=lanes, downwards=downwards)


def totals() -> None:
    """Sums of loops that are written out (40 elements) and of longer ones (100), used at once."""

    def fun(x: jax.Array) -> tuple[jax.Array, ...]:
        def turn(carry: jax.Array, _: None) -> tuple[jax.Array, None]:
            return carry + (x * carry).sum() + (x[:40] - carry).max(), None

        last, _ = jax.lax.scan(turn, jnp.float32(0.5), None, 3)
        # One element, at a place that depends on data: a single thread changes it.
        one = x[:40].at[(last > 0).astype(jnp.int32)].add(last)
        return last, x.sum() + 1.0, x.max() - x[:40].min(), one, one.sum()

    check(
        fun,
        (0,),
        test_operations.floats(5, special=False)[:, :1] * 0.0 + jnp.linspace(-1, 1, 100),
        rtol=1e-5,
    )


def divisors() -> jax.Array:
    """Floats without numbers that a GPU's quotient takes for 0 or infinity."""
    x = test_operations.floats(2)
    extreme = (jnp.abs(x) < 1e-37) & (x != 0) | (jnp.abs(x) > 1e37) & jnp.isfinite(x)
    return jnp.where(extreme, 1.5, x)


PROGRAMS = {
    "moving": test_programs.test_moving_elements,
    "sums": test_programs.test_reductions_and_running_sums,
    "totals": totals,
    "positions": lambda: test_programs.test_data_dependent_positions(8),
    "shared": test_programs.test_shared_arguments,
    "loops": test_programs.test_loops,
    "branches": test_programs.test_branches,
    "random": test_programs.test_random_numbers_are_bit_exact,
    "floats": lambda: test_operations.check_floats(test_operations.floats(1), divisors()),
    "signed": lambda: test_operations.test_integers_are_exact(np.int32),
    "unsigned": lambda: test_operations.test_integers_are_exact(np.uint32),
    "conversions": test_operations.test_conversions_saturate,
    "exp": lambda: test_operations.test_transcendentals_against_float64("exp", 10.0),
    "log1p": lambda: test_operations.test_transcendentals_against_float64("log1p", 1.0),
    "total order": test_operations.test_total_order_sorts_like_integers,
}


@pytest.mark.parametrize(
    "name",
    [
        # Whole steps draw random numbers, too.
        pytest.param(name, marks=pytest.mark.thorough if name == "random" else ())
        for name in PROGRAMS
    ],
)
def test_programs_give_the_results_of_xla(emulated: list[str], name: str) -> None:
    """The tests of vector code, through emulated threads."""
    PROGRAMS[name]()
    assert emulated
    assert not any("x float>" in text for text in emulated)


@settings(max_examples=8)
@given(
    st.lists(st.sampled_from(sorted(test_loop_skipping.STEPS)), min_size=1, max_size=5),
    st.sampled_from(["one loop", "two loops", "no loop"]),
)
def test_loops_pass_over_idle_elements(kernels: list[str], names: list[str], shape: str) -> None:
    """To the bit, whether other environments of the warp have work or not."""
    test_loop_skipping.test_results_are_those_of_all_elements.hypothesis.inner_test(names, shape)
    assert kernels


def test_warps_go_through_large_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """More environments than two warps hold at a time: ten rounds; shared tables stay."""
    gpu_form.emulate(monkeypatch, most=2, lanes=8)
    x = jnp.asarray(np.random.default_rng(0).normal(size=(150, 5)).astype(np.float32))
    table = jnp.arange(7.0)

    def fun(x: jax.Array, table: jax.Array) -> Any:
        return x * (table**2).sum() + table[(x > 0).sum()], x > 0

    expected = jax.vmap(fun, (0, None))(x, table)
    for a, b in zip(expected, lanes.vmap(fun, (0, None))(x, table), strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-6)


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize(
    ("scenario", "lanes", "downwards"),
    [
        ("websearch-v0", gpu_form.KEEPING, True),
        ("lost-link-v0", gpu_form.KEEPING, False),
        ("storage-train-v0", gpu_form.KEEPING, True),
        ("restore-serve-v0", 1, True),
        ("websearch-v0", 8, False),
        ("shuffle-serve-v0", 2, False),
        ("moving-tenants-v0", 4, True),
    ],
)
def test_environments_agree_in_every_form(
    monkeypatch: pytest.MonkeyPatch, scenario: str, lanes: int, downwards: bool
) -> None:
    """What the trial on a GPU compares, for other networks and environments in a warp."""
    gpu_form.emulate(monkeypatch, lanes=lanes, downwards=downwards)
    program = environments(scenario, 12)
    assert trial.agreement(program, *trial.forms(program))[0] >= trial.SHARE


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(test_lane_networks.CASES))
def test_warps_keep_networks_of_every_kind(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Senders, classes, failures and ways of balancing load, beside XLA."""
    gpu_form.emulate(monkeypatch, lanes=gpu_form.KEEPING)
    test_lane_networks.test_an_interval_is_that_of_xla(name)


ENVS, STEPS = 12, 3


@pytest.fixture(scope="module")
def episodes() -> dict[str, Any]:
    """Short steps on two levels through XLA and through a kernel, from the same states."""
    short = {"topology": leaf_spine(2, 2, 2), "slots": 32, "interval_us": 20.0}
    env = AutoReset(ecn_marl.make("websearch-v0", **short))
    params = replace(env.default_params, max_steps=jnp.int32(2))
    quick = {"xla_backend_optimization_level": 0}
    keys = jax.random.split(jax.random.key(0), ENVS)
    _, state = (
        jax.jit(jax.vmap(env.reset, (0, None))).lower(keys, params).compile(quick)(keys, params)
    )
    action = jax.vmap(lambda k: env.action.sample(k, env.num_agents))(keys)
    axes = (0, 0, 0, None)
    with pytest.MonkeyPatch.context() as patch:
        texts = gpu_form.emulate(patch, lanes=gpu_form.KEEPING)
        fast = jax.jit(lanes.vmap(env.step, axes, {1: 1})).lower(keys, state, action, params)
        fast = fast.compile(quick)
    slow = jax.jit(jax.vmap(env.step, axes)).lower(keys, state, action, params).compile(quick)
    rows = []
    for _ in range(STEPS):
        expected, found = (f(keys, state, action, params) for f in (slow, fast))
        rows.append((expected, found))
        state = expected[1]
        keys = jax.vmap(lambda k: jax.random.fold_in(k, 1))(keys)
    return {"rows": rows, "text": texts[0]}


def test_steps_of_environments_are_those_of_xla(episodes: dict[str, Any]) -> None:
    """Observations, states, rewards, ends and restarts; a coin may fall otherwise by rounding."""
    for expected, found in episodes["rows"]:
        agree = total = 0
        for a, b in zip(jax.tree.leaves(expected), jax.tree.leaves(found), strict=True):
            x, y = raw(a), raw(b)
            assert (x.dtype, x.shape) == (y.dtype, y.shape)
            agree += np.isclose(y, x, rtol=1e-3, atol=1e-3, equal_nan=True).sum()
            total += x.size
        assert agree >= 0.995 * total
        np.testing.assert_allclose(found[2], expected[2], rtol=1e-3, atol=1e-4)  # rewards
        np.testing.assert_array_equal(found[4], expected[4])  # ends by time
    ends = [bool(np.all(expected[4])) for expected, _ in episodes["rows"]]
    assert ends == [False, True, False]


def assembled(text: str, tmp_path: Path) -> str:
    """What `ptxas` says of PTX."""
    program = shutil.which("ptxas")
    if program is None:
        pytest.skip("no ptxas on PATH: PTX was written, but not assembled")
    source = tmp_path / "step.ptx"
    source.write_text(text)
    command = [program, "-v", "-O1", "-arch=sm_90", str(source), "-o", str(tmp_path / "step.cubin")]
    found = subprocess.run(command, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    return found.stderr


def test_a_whole_step_is_one_kernel_without_generic_pointers(episodes: dict[str, Any]) -> None:
    """Every load and store is known to be to the GPU's memory, or a parameter."""
    text = cuda.ptx(episodes["text"])
    assert text.count(".entry step(") == 1
    assert ".target sm_80" in text
    assert ".version 8.0" in text
    spaces = Counter(re.findall(r"^\s*(?:@%p\d+ )?(?:ld|st)\.(\w+)", text, re.MULTILINE))
    assert spaces["global"] > 500
    assert spaces["shared"] > 500
    assert set(spaces) <= {"global", "shared", "param", "local"}
    assert "vote.sync.ballot" in text
    assert "shfl.sync.bfly" in text


@pytest.mark.slow
@pytest.mark.thorough
def test_a_whole_step_assembles(episodes: dict[str, Any], tmp_path: Path) -> None:
    """For an H100; registers that let 32 warps share a processor."""
    said = assembled(cuda.ptx(episodes["text"]), tmp_path)
    assert int(re.findall(r"Used (\d+) registers", said)[0]) <= 64


def every_operation(x: jax.Array, n: jax.Array, u: jax.Array, b: jax.Array) -> list[Any]:
    """All that lanes compute element by element."""
    whole = lax.convert_element_type(x, jnp.int32)
    found = [f(x) for f in (
        lax.neg, lax.sign, lax.abs, lax.floor, lax.ceil, lax.round, lax.exp, lax.log, lax.log1p,
        lax.expm1, lax.tanh, lax.logistic, lax.sqrt, lax.rsqrt, lax.square,
        lax.is_finite, lax.erf_inv,
    )]  # fmt: skip
    for v in (x, n, u):
        w = v[::-1]
        found += [f(v, w) for f in (
            lax.add, lax.sub, lax.mul, lax.div, lax.rem, lax.max, lax.min, lax.eq, lax.ne, lax.lt,
            lax.le, lax.gt, lax.ge,
        )]  # fmt: skip
        found += [lax.select_n(b, v, w), lax.clamp(w, v, w + v), lax.sign(v)]
        found += [v.astype(t) for t in (jnp.float32, jnp.int32, jnp.uint32, jnp.bool_)]
    for v in (n, u):
        w = v[::-1]
        found += [f(v, w) for f in (
            lax.shift_left, lax.shift_right_logical, lax.shift_right_arithmetic, lax.bitwise_and,
            lax.bitwise_or, lax.bitwise_xor,
        )]  # fmt: skip
        found += [~v, lax.bitcast_convert_type(v, jnp.float32)]
    found += [b & b[::-1], b | b[::-1], b ^ b[::-1], ~b, b.astype(jnp.float32)]
    found += [lax.pow(x, x[::-1]), lax.integer_pow(x, 5), lax.integer_pow(x, -2), whole]
    found += [lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN)]
    table = jnp.sort(x)
    found += [jnp.searchsorted(table, x, side, method="compare_all") for side in ("left", "right")]
    found += [p.bind(v, v[::-1]) for p in (primitives.lt_to_p, primitives.le_to_p) for v in (x, n)]
    if hasattr(lax, "one_minus_square"):
        found += [lax.one_minus_square(v) for v in (x, n, u)]
    return [*found, jax.random.bits(jax.random.wrap_key_data(u[:2]), (3,))]


def test_every_operation_compiles_for_gpus(tmp_path: Path) -> None:
    """Also those that the environments do not use."""
    kinds = (jnp.float32, jnp.int32, jnp.uint32, jnp.bool_)
    jaxpr = jax.make_jaxpr(every_operation)(*(jax.ShapeDtypeStruct((6,), k) for k in kinds))

    def names(jaxpr: Any) -> Iterator[str]:
        for eqn in jaxpr.eqns:
            yield eqn.primitive.name
            for inner in jaxprs_in_params(eqn.params):
                yield from names(inner)

    elementwise = {name for name, record in primitives_table().items() if record.emit is not None}
    absent = set() if hasattr(lax, "one_minus_square") else {"one_minus_square"}  # jax < 0.12
    assert set(names(jaxpr.jaxpr)) >= elementwise - {"copy"} - absent
    text, *_ = gpu_form.kernel_of(jaxpr, [True] * 4)
    assembled(cuda.ptx(text), tmp_path)


FOUR = Launch(4)

POINTERS = [0x1000, 0x2000, 0x3000, 0x4000]
"""Data of two arguments, a result and memory to work in."""


class Frame:
    """A call frame as XLA makes one, with a stand-in for its interface and for the driver."""

    def __init__(
        self, batch: int, api: int | None = None, code: int = 0, launch: Launch = FOUR
    ) -> None:
        self.launched = launch
        self.calls: list[Any] = []
        self.stream, self.context, self.kernel = 0x5000, 0x6000, 0x7000
        self.kept: list[Any] = []
        dims = self.keep((ctypes.c_int64 * 2)(batch, 5))
        buffers = [
            self.keep((ctypes.c_int64 * 6)(48, 0, 11, pointer, 2, dims)) for pointer in POINTERS
        ]
        args, rets = (self.keep((ctypes.c_void_p * 2)(*b)) for b in (buffers[:2], buffers[2:]))
        table = (ctypes.c_int64 * 24)()
        if api is not None:
            ctypes.memmove(table, api, ctypes.sizeof(table))
        else:
            table[6] = self.function([ctypes.c_void_p], self.error)
        table[10] = self.function([ctypes.c_void_p], self.get_stream)
        words = [0, 0, self.keep(table), self.context, 3, 40, 0, 2, 0, args, 40, 0, 2, 0, rets]
        self.at = self.keep((ctypes.c_int64 * 20)(*words))
        unsigned = [ctypes.c_uint] * 7
        launch = ctypes.CFUNCTYPE(
            ctypes.c_int, ctypes.c_void_p, *unsigned, ctypes.c_void_p,
            ctypes.POINTER(ctypes.POINTER(ctypes.c_int64)), ctypes.c_void_p,
        )(lambda *a: self.launch(*a) or code)  # fmt: skip
        self.kept.append(launch)
        self.driver = ctypes.cast(launch, ctypes.c_void_p).value

    def keep(self, array: Any) -> int:
        self.kept.append(array)
        return ctypes.addressof(array)

    def function(self, kinds: list[Any], fun: Any) -> Any:
        made = ctypes.CFUNCTYPE(ctypes.c_void_p, *kinds)(fun)
        self.kept.append(made)
        return ctypes.cast(made, ctypes.c_void_p).value

    def get_stream(self, asked: int) -> None:
        words = ctypes.cast(asked, ctypes.POINTER(ctypes.c_int64))
        self.calls.append(("stream", words[0], words[2]))
        words[3] = self.stream

    def error(self, asked: int) -> int:
        words = ctypes.cast(asked, ctypes.POINTER(ctypes.c_int64))
        message = ctypes.cast(words[2], ctypes.c_char_p).value
        self.calls.append(("error", words[0], words[3] & 0xFFFFFFFF, message))
        return 0x8000

    def launch(self, kernel: int, *rest: Any) -> None:
        *sizes, stream, parameters, extra = rest
        values = [parameters[k][0] for k in range(5)]
        self.calls.append(("launch", kernel, sizes, stream, values, extra))

    def run(self) -> int | None:
        kept, handler = cuda.launcher(self.kernel, self.driver, self.launched)
        assert kept
        return handler(self.at)


@pytest.mark.parametrize(
    ("batch", "launch", "blocks"),
    [
        (1, Launch(1), 1),
        (2, Launch(1), 1),
        (3, Launch(1), 2),
        (65, Launch(8), 5),
        (16_000, Launch(8), 1000),
        (10**6, Launch(8), 2112),
        (17, Launch(1, 512, 1, 200_000), 2),
        (10**6, Launch(1, 512, 1, 200_000), 264),
    ],
)
def test_the_handler_launches_the_kernel(batch: int, launch: Launch, blocks: int) -> None:
    """With the stream of the call, all pointers and the batch; a bounded number of warps."""
    frame = Frame(batch, launch=launch)
    assert not frame.run()
    asked, launched = frame.calls
    assert asked == ("stream", 32, frame.context)
    sizes = [blocks, 1, 1, launch.block, 1, 1, launch.near]
    assert launch.warps(batch) == blocks * launch.block // 32
    assert launched == ("launch", frame.kernel, sizes, frame.stream, [*POINTERS, batch], None)


def test_an_empty_batch_launches_nothing() -> None:
    frame = Frame(0)
    assert not frame.run()
    assert not frame.calls


def test_errors_of_the_driver_are_errors_of_the_call() -> None:
    """With the driver's number, as an internal error."""
    frame = Frame(32, code=719)
    assert frame.run() == 0x8000
    assert frame.calls[-1] == ("error", 28, 13, (cuda.FAILURE % 719).encode())


def test_errors_are_those_of_this_version_of_xla() -> None:
    """The offsets in XLA's own interface: a CPU has no stream, and errors can be made."""
    frame = Frame(32)
    kept, handler = cuda.launcher(frame.kernel, frame.driver, frame.launched)
    jax.ffi.register_ffi_target("ecn_marl_no_stream", jax.ffi.pycapsule(handler), platform="cpu")
    x = jnp.zeros((32, 5))
    call = jax.ffi.ffi_call("ecn_marl_no_stream", (x, x))
    with pytest.raises(Exception, match=r"(?i)stream|gpu|device"):
        jax.block_until_ready(call(x, x))
    assert kept
    assert not frame.calls

    apis: list[int] = []

    @ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
    def spy(at: int) -> None:
        words = ctypes.cast(at, ctypes.POINTER(ctypes.c_int64))
        extension = ctypes.cast(words[1], ctypes.POINTER(ctypes.c_int32)) if words[1] else None
        if extension is not None and extension[2] == 1:
            version = ctypes.cast(words[1], ctypes.POINTER(ctypes.c_int64))[3]
            numbers = ctypes.cast(version, ctypes.POINTER(ctypes.c_int32))
            numbers[6], numbers[7], numbers[8] = 0, 1, 0
            return
        apis.append(words[2])

    jax.ffi.register_ffi_target("ecn_marl_spy", jax.ffi.pycapsule(spy), platform="cpu")
    jax.block_until_ready(jax.ffi.ffi_call("ecn_marl_spy", (x,))(x))
    failing = Frame(32, api=apis[0], code=700)
    error = failing.run()
    assert error
    asked = (ctypes.c_int64 * 4)(32, 0, error, 0)
    table = ctypes.cast(apis[0], ctypes.POINTER(ctypes.c_void_p))
    message = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(table[7])
    message(ctypes.addressof(asked))
    said = ctypes.cast(asked[3], ctypes.c_char_p).value
    assert said is not None
    assert said.endswith(b"returned error 700")
    destroy = (ctypes.c_int64 * 3)(24, 0, error)
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(table[8])(ctypes.addressof(destroy))


def turn(state: jax.Array, key: jax.Array, by: jax.Array) -> tuple[jax.Array, jax.Array]:
    return state.sum(), state * by + jax.random.uniform(key, state.shape)


def lowered(platform: str) -> str:
    """StableHLO of a batch of turns for a platform."""
    state, keys = jnp.ones((40, 6)), jax.random.split(jax.random.key(0), 40)
    fast = jax.jit(jax.vmap(lanes.mapped(turn, {0: 1}), (0, 0, None)))
    return fast.trace(state, keys, jnp.float32(2)).lower(lowering_platforms=(platform,)).as_text()


def test_gpus_get_kernels_if_switched_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """One call for the whole step, in place; a CPU gets what it always gets."""
    monkeypatch.delenv("LANES_GPU", raising=False)
    before = lowered("cpu")
    monkeypatch.setenv("LANES_GPU", "1")
    text = lowered("cuda")
    assert text.count("custom_call @ecn_marl_lanes_cuda_") == 1
    assert text.count("custom_call @ecn_marl_lanes") == 1
    assert "output_operand_alias" in text
    assert "stablehlo.multiply" not in text
    targets = [re.findall(r"custom_call @(ecn_marl_lanes\w+)", t) for t in (before, lowered("cpu"))]
    assert targets[0] == targets[1]
    assert len(targets[0]) == 1
    with lanes.off():
        assert "ecn_marl_lanes" not in lowered("cuda")


@pytest.mark.parametrize("better", [True, False])
def test_a_trial_decides_for_gpus(monkeypatch: pytest.MonkeyPatch, better: bool) -> None:
    """Unless it is told: a process with a GPU asks once for every batch, one without never."""
    asked: list[str] = []
    monkeypatch.delenv("LANES_GPU", raising=False)
    monkeypatch.setattr(mapping, "kernel_is_better", lambda: asked.append("") or better)
    lowered("cpu")
    assert not asked
    monkeypatch.setattr(mapping, "_on_cpu", lambda: False)
    monkeypatch.setattr(mapping, "_on_cuda", lambda: True)
    monkeypatch.setattr(cuda, "register", lambda text, launch: cuda.name_of(text))
    assert ("ecn_marl_lanes_cuda_" in lowered("cuda")) == better
    assert asked
    del asked[:]
    monkeypatch.setenv("LANES_GPU", "0")
    assert "ecn_marl_lanes" not in lowered("cuda")
    assert not asked


def test_the_switch_has_three_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANES_GPU", "yes")
    with pytest.raises(lanes.InvalidValue, match="LANES_GPU = 'yes' is not allowed: expected 0, 1"):
        lowered("cpu")


def test_a_switched_on_process_still_runs_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANES_GPU", "1")
    state, keys = jnp.ones((40, 6)), jax.random.split(jax.random.key(0), 40)
    expected = jax.vmap(turn, (0, 0, None))(state, keys, 2.0)
    found = jax.jit(jax.vmap(lanes.mapped(turn, {0: 1}), (0, 0, None)))(state, keys, 2.0)
    for a, b in zip(expected, found, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-6)


def test_in_a_process_with_gpus_cpus_run_what_xla_makes(monkeypatch: pytest.MonkeyPatch) -> None:
    """There, code for GPUs is loaded at once."""
    monkeypatch.setenv("LANES_GPU", "1")
    monkeypatch.setattr(mapping, "_on_cpu", lambda: False)
    loaded: list[str] = []

    def register(text: str, launch: Launch) -> str:
        loaded.append(text)
        return cuda.name_of(text)

    monkeypatch.setattr(cuda, "register", register)
    assert "ecn_marl_lanes_cuda_" in lowered("cuda")
    assert len(loaded) == 1
    state, keys = jnp.ones((40, 6)), jax.random.split(jax.random.key(0), 40)
    found = jax.jit(lanes.vmap(turn, (0, 0, None)))(state, keys, jnp.float32(2))
    expected = jax.vmap(turn, (0, 0, None))(state, keys, 2.0)
    for a, b in zip(expected, found, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-6)
    assert "ecn_marl_lanes" not in lowered("cpu")


def test_without_a_driver_the_error_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(cuda.ctypes, "CDLL", missing)
    jaxpr = jax.make_jaxpr(lambda x: x + 1)(jax.ShapeDtypeStruct((6,), jnp.float32))
    text, *_ = gpu_form.kernel_of(jaxpr, [True])
    with pytest.raises(RuntimeError, match=r"CUDA driver: libcuda"):
        cuda.register(text, FOUR)


@pytest.mark.parametrize(
    ("slots", "size", "launched"),
    [
        (64, 1, (1, 32)),
        (64, 1056, (1, 256)),
        (64, 1057, (1, 512)),
        (64, 10**5, (1, 512)),
        (65, 1023, (1, 64)),
        (65, 10**5, (8, 64)),
    ],
)
def test_small_environments_are_kept_near_their_threads(
    slots: int, size: int, launched: tuple[int, int]
) -> None:
    """As many warps share a block's memory as a processor has environments."""

    def fun(x: jax.Array) -> jax.Array:
        there = lanes.busy(x > 0)
        return jnp.where(there, x * 2, x)

    jaxpr, _ = mapping.traced(
        fun, jax.tree.structure((0,)), (jax.ShapeDtypeStruct((slots,), jnp.float32),)
    )
    launch, plan = planned(lower(jaxpr, [True]), size, cuda.H100_BYTES)
    assert (launch.lanes, launch.block) == launched
    assert (plan.residence is not None) == (slots <= 64)
    assert launch.near <= cuda.H100_BYTES

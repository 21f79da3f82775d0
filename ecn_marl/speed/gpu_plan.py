"""What a step of environments will cost on a GPU, known without one: XLA's program, and the kernel.

XLA compiles for an H100 that is only described to it. In its program every launch of a kernel can
be counted, and the bytes that each reads and writes. `ptxas` assembles the kernel of
`ecn_marl.lanes` and tells its registers.
"""

from __future__ import annotations

import math
import re
import shutil
import subprocess
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from rich.table import Table

from ecn_marl import lanes
from ecn_marl._errors import bad_value
from ecn_marl.envs.ecn import EcnEnv
from ecn_marl.render.tables import DASH, compact, plain_table
from ecn_marl.wrappers import AutoReset

H100 = """
gpu_device_info {
  cuda_compute_capability { major: 9 }
  core_count: 132  fpus_per_core: 128  clock_rate_ghz: 1.98
  threads_per_warp: 32  threads_per_block_limit: 1024  threads_per_core_limit: 2048
  registers_per_core_limit: 65536  registers_per_block_limit: 65536
  shared_memory_per_core: 233472  shared_memory_per_block: 49152
  shared_memory_per_block_optin: 232448
  block_dim_limit_x: 2147483647  block_dim_limit_y: 65535  block_dim_limit_z: 65535
  l2_cache_size: 52428800  device_memory_size: 84942979072  memory_bandwidth: 3352000000000
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 1 }
device_description_str: "NVIDIA H100"
"""
"""An H100 (SXM, 80 GB) by NVIDIA's data sheet, as XLA's `GpuTargetConfig`."""

BYTES_PER_S, LAUNCH_S = 3.35e12, 2e-6
"""Rate of its memory, and the time that a launch took on one about."""

WIDTHS = {"pred": 1, "s8": 1, "u8": 1, "s16": 2, "u16": 2, "f16": 2, "bf16": 2}
WIDTHS |= {"s32": 4, "u32": 4, "f32": 4, "s64": 8, "u64": 8, "f64": 8}
"""Bytes of XLA's types."""

FREE = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all"}
"""Operations that launch nothing."""

XLA_COLUMNS = ("envs", "launches", "a substep", "copies", "GB", "agent-steps/s")
KERNEL_COLUMNS = ("envs", "a warp", "registers", "put aside, B", "shared memory")

COMPUTATION = re.compile(r"^(ENTRY )?(%[\w.\-]+) \(.*\{$")
INSTRUCTION = re.compile(r"(?:ROOT )?(%[\w.\-]+) = (\(.*?\)(?=\s[a-z])|\S+) ([\w\-]+)\((.*)$")
ARRAY = re.compile(r"\b([a-z]+\d*)\[([\d,]*)\]")
CALLED = re.compile(r"(?:to_apply|calls|branch_computations|body)=\{?(%[\w.\-]+)")
TRIPS = re.compile(r'known_trip_count":\{"n":"(\d+)"')


@dataclass(frozen=True)
class Launches:
    """What XLA's program does in one interval.

    Attributes:
        launches: kernels launched, copies among them.
        copies: copies of arrays.
        bytes: what kernels read and write.
        innermost: launches in one turn of the loop that turns most often: a substep.
    """

    launches: int
    copies: int
    bytes: int
    innermost: int

    @property
    def seconds(self) -> float:
        """Estimate of the time of an interval: by the rate of the memory, and by launches."""
        return self.bytes / BYTES_PER_S + self.launches * LAUNCH_S


def launches(text: str) -> Launches:
    """Count what an optimised program launches.

    Args:
        text: XLA's program for a GPU, as text (HLO).

    Raises:
        ValueError: a loop's number of turns is not known.
    """
    bodies, entry = _computations(text)
    found: Counter[str] = Counter()
    per_turn: Counter[int] = Counter()

    def walk(name: str, times: int) -> None:
        types: dict[str, str] = {}
        for line in bodies[name]:
            match = INSTRUCTION.match(line)
            if match is None:
                continue
            own, kind, op, rest = match.groups()
            types[own] = kind
            if op in FREE:
                continue
            if op in ("while", "call", "conditional"):
                turns = TRIPS.search(line) if op == "while" else None
                if op == "while" and turns is None:
                    raise ValueError(f"the number of turns of {own} is not known")
                for inner in CALLED.findall(line):
                    walk(inner, times * (int(turns[1]) if turns else 1))
                continue
            operands = re.findall(r"%[\w.\-]+", rest.split("), ")[0])
            found["launches"] += times
            found["copies"] += times * (op == "copy")
            found["bytes"] += times * (_size(kind) + sum(_size(types.get(o, "")) for o in operands))
            per_turn[times] += 1

    walk(entry, 1)
    return Launches(found["launches"], found["copies"], found["bytes"], per_turn[max(per_turn)])


def _computations(text: str) -> tuple[dict[str, list[str]], str]:
    """Lines of every computation by its name, and the name of the first."""
    bodies: dict[str, list[str]] = {}
    entry = name = ""
    for line in text.splitlines():
        head = COMPUTATION.match(line)
        if head:
            name = head[2]
            bodies[name] = []
            entry = name if head[1] else entry
        elif name and " = " in line:
            bodies[name].append(line.strip())
    return bodies, entry


def _size(kind: str) -> int:
    """Bytes of an array or of a tuple of arrays."""
    return sum(
        WIDTHS.get(dtype, 0) * math.prod(int(n) for n in dims.split(",") if n)
        for dtype, dims in ARRAY.findall(kind)
    )


def check_plugin() -> None:
    """Raise a ValueError if XLA cannot compile for a GPU here."""
    try:
        topologies.get_topology_desc("", platform="cuda", target_config=H100, topology="1x1x1")
    except Exception as problem:  # whatever a missing or broken plugin raises
        raise bad_value("--gpu-plan", str(problem), "jax[cuda12] or jax[cuda13]") from None


def rows(
    envs: Mapping[str, EcnEnv], counts: Sequence[int], show: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Plan an interval of each environment for an H100.

    Args:
        envs: environments by the names of their scenarios.
        counts: numbers of environments stepped at once.
        show: called with the next task.

    Returns:
        A row for each environment and number: the attributes of `Launches`, `agent_steps_per_s`
        (an estimate, by the rate of the memory and by launches), and `kernel`, see `kernel`.
    """
    found = []
    for name, env in envs.items():
        for count in counts:
            show(f"{name}, {count} environments, XLA for an H100")
            by_xla = launches(xla_program(env, count))
            show(f"{name}, {count} environments, the kernel")
            found.append(
                {"scenario": name, "envs": count, "kernel": kernel(env, count)}
                | {k: getattr(by_xla, k) for k in ("launches", "copies", "bytes", "innermost")}
                | {"agent_steps_per_s": count * env.num_agents / by_xla.seconds}
            )
    return found


def _arguments(env: EcnEnv, key: jax.Array) -> tuple[Any, ...]:
    """Arguments of a step of an environment that starts anew."""
    params = env.default_params
    state = AutoReset(env).reset(key, params)[1]
    return key, state, env.action.sample(key, env.num_agents), params


def xla_program(env: EcnEnv, count: int) -> str:
    """XLA's program of one interval of so many environments, for an H100."""
    described = topologies.get_topology_desc(
        "", platform="cuda", target_config=H100, topology="1x1x1"
    )
    place = NamedSharding(Mesh(np.array(described.devices[:1]), ("x",)), PartitionSpec())
    with lanes.off():
        keys = jax.random.split(jax.random.key(0), count)
        axes = (0, 0, 0, None)
        args = jax.eval_shape(jax.vmap(partial(_arguments, env), out_axes=axes), keys)
        placed = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), args
        )
        step = jax.vmap(AutoReset(env).step, axes)
        whole = jax.jit(step, donate_argnums=1, in_shardings=place, out_shardings=place)
        lowered = whole.trace(*placed).lower(lowering_platforms=("cuda",))
        with warnings.catch_warnings():
            # A cache of compiled programs cannot hold those of a GPU that is not there.
            warnings.filterwarnings("ignore", "Error reading persistent compilation cache")
            compiled = lowered.compile()
    return str(compiled.as_text())


def kernel(env: EcnEnv, count: int) -> dict[str, Any]:
    """The kernel of `lanes` for so many environments.

    Returns:
        `environments` of a warp, `warps` of a block, `shared_bytes` of a warp, and, where `ptxas`
        is on the path, `registers` of a thread and its `spilled_bytes`, stored and loaded; or
        `left_to_xla`, the reason.
    """
    args = jax.eval_shape(partial(_arguments, env), jax.random.key(0))
    try:
        text, launch = lanes.explain_kernel(AutoReset(env).step, *args, shared=(3,), envs=count)
    except lanes.Unsupported as problem:
        return {"left_to_xla": str(problem)}
    warps = launch.block // 32
    facts = {"environments": launch.lanes, "warps": warps, "shared_bytes": launch.near // warps}
    return facts | assembled(text)


def assembled(ptx: str) -> dict[str, int]:
    """What `ptxas` says of a kernel for an H100; nothing if it is not on the path."""
    program = shutil.which("ptxas")
    if program is None:
        return {}
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "step.ptx"
        source.write_text(ptx)
        command = [program, "-v", "-arch=sm_90", str(source), "-o", str(source.with_suffix(".o"))]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    spills = re.search(r"for step\s+.*?(\d+) bytes spill stores, (\d+) bytes spill loads", said)
    registers = re.search(r"Used (\d+) registers", said)
    assert spills is not None and registers is not None, said
    return {"registers": int(registers[1]), "spilled_bytes": int(spills[1]) + int(spills[2])}


def tables(found: Sequence[Mapping[str, Any]]) -> list[Table]:
    """What XLA's programs do, and what the kernels need: a line for each environment and number."""
    by_xla = plain_table("A step through XLA on an H100, planned: nothing was measured")
    kernels = plain_table("The kernel of lanes on an H100, planned")
    for shown, names in ((by_xla, XLA_COLUMNS), (kernels, KERNEL_COLUMNS)):
        shown.add_column("scenario", no_wrap=True)
        for name in names:
            shown.add_column(name, justify="right")
    for row in found:
        for shown, cells in ((by_xla, xla_cells(row)), (kernels, kernel_cells(row))):
            shown.add_row(row["scenario"], *cells)
    by_xla.caption = (
        "launches and copies of an interval, launches of a substep, and what kernels read and\n"
        "write; agent-steps/s by 3.35 TB/s and 2 µs a launch"
    )
    kernels.caption = (
        "environments of a warp; registers of a thread, and bytes that it puts aside for lack of\n"
        "more; shared memory of a warp (registers: where ptxas is on the path)"
    )
    return [by_xla, kernels]


def xla_cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Cells of XLA's program, as `XLA_COLUMNS`."""
    return (
        f"{row['envs']:,}",
        f"{row['launches']:,}",
        str(row["innermost"]),
        f"{row['copies']:,}",
        f"{1e-9 * row['bytes']:.1f}",
        compact(row["agent_steps_per_s"]),
    )


def kernel_cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Cells of a kernel, as `KERNEL_COLUMNS`."""
    facts = row["kernel"]
    shared = facts.get("shared_bytes")
    return (
        f"{row['envs']:,}",
        str(facts.get("environments", "left to XLA")),
        str(facts.get("registers", DASH)),
        str(facts.get("spilled_bytes", DASH)),
        DASH if not shared else f"{1e-3 * shared:.1f} KB",
    )

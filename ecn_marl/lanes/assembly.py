"""Text in LLVM's assembly language: modules, tables, instructions."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
from jax.typing import ArrayLike

from ecn_marl.lanes.graph import BOOL, F32, I32, U32
from ecn_marl.lanes.schedule import Plan

SCALAR = {F32: "float", I32: "i32", U32: "i32", BOOL: "i1", "f64": "double"}
"""LLVM's types of elements; its integers have no sign."""

MANGLED = {F32: "f32", I32: "i32", U32: "i32", BOOL: "i1"}
"""Types in the names of intrinsics."""


class Module:
    """The text of a module: functions, tables and declarations.

    Attributes:
        lanes: environments in a vector.
        share: threads of a GPU that share each of these environments; 0 on a CPU.
    """

    def __init__(self, plan: Plan, lanes: int, share: int = 0) -> None:
        """An empty module for a plan."""
        self.plan, self.lanes, self.share = plan, lanes, share
        self.functions: list[str] = []
        self.declared: dict[str, str] = {}
        self._tables: dict[tuple[str, bytes], str] = {}
        self._globals: list[str] = []
        self._count = 0

    @property
    def threads(self) -> bool:
        """Whether code is for a GPU's threads, which compute scalars."""
        return self.share > 0

    @property
    def distances(self) -> list[int]:
        """Differences between the numbers of threads that share an environment, as powers of two.

        Neighbouring threads compute neighbouring environments: so they read one line of memory.
        """
        return [self.lanes << k for k in range(self.share.bit_length() - 1)]

    def name(self, stem: str) -> str:
        """A new name."""
        self._count += 1
        return f"{stem}{self._count}"

    def table(self, data: np.ndarray, dtype: str) -> str:
        """A constant array; equal ones are kept once."""
        kinds = {F32: np.float32, I32: np.int32, U32: np.uint32, BOOL: np.uint8}
        data = np.ascontiguousarray(data, kinds[dtype])
        key = (dtype, data.tobytes())
        if key not in self._tables:
            name = self.name("@t")
            self._tables[key] = name
            kind = "i8" if dtype == BOOL else SCALAR[dtype]
            numbers = ", ".join(f"{kind} {literal(x, dtype)}" for x in data)
            self._globals.append(
                f"{name} = private unnamed_addr constant [{len(data)} x {kind}]"
                f" [{numbers}], align 64"
            )
        return self._tables[key]

    def text(self) -> str:
        """The whole module."""
        return "\n".join([*self._globals, *self.declared.values(), *self.functions])


def literal(x: Any, dtype: str) -> str:
    """A scalar as LLVM writes it."""
    if dtype == F32:
        # LLVM writes a float as the bits of the equal double: decimal digits would have to be
        # exact.
        bits = struct.unpack("<Q", struct.pack("<d", float(np.float32(x))))[0]
        return f"0x{bits:016X}"
    if dtype == BOOL:
        return "1" if x else "0"
    return str(int(x))


class Code:
    """The body of one function.

    Attributes:
        wide: whether values are vectors at this point.
        named: how many local names are in use.
        stem: beginning of these names.
    """

    stem = "%v"

    def __init__(self, module: Module, named: int = 0) -> None:
        """An empty body."""
        self.module, self.wide, self.named = module, not module.threads, named
        self.lines: list[str] = []

    def fresh(self) -> str:
        """A new local name."""
        self.named += 1
        return f"{self.stem}{self.named}"

    def emit(self, text: str) -> str:
        """Append an instruction and return the name of its result."""
        name = self.fresh()
        self.lines.append(f"  {name} = {text}")
        return name

    def drain(self) -> list[str]:
        """The lines so far; the body has none after it."""
        lines, self.lines = self.lines, []
        return lines

    def do(self, text: str) -> None:
        """Append an instruction without a result."""
        self.lines.append(f"  {text}")

    def vector(self, scalar: str) -> str:
        """The type of what differs between environments: a vector, unless each has a thread."""
        return scalar if self.module.threads else f"<{self.module.lanes} x {scalar}>"

    def type(self, dtype: str) -> str:
        """LLVM's name of a type."""
        return self.vector(SCALAR[dtype]) if self.wide else SCALAR[dtype]

    def number(self, value: ArrayLike, dtype: str) -> str:
        """A constant."""
        one = literal(value, dtype)
        if not self.wide:
            return one if dtype != BOOL else ("true" if value else "false")
        return f"splat ({SCALAR[dtype]} {one})"

    def broadcast(self, scalar: str, dtype: str) -> str:
        """A vector of one number."""
        kind, vector = SCALAR[dtype], self.vector(SCALAR[dtype])
        # LLVM has no instruction for this, but recognises the pair as one broadcast.
        first = self.emit(f"insertelement {vector} poison, {kind} {scalar}, i32 0")
        zeros = f"<{self.module.lanes} x i32> zeroinitializer"
        return self.emit(f"shufflevector {vector} {first}, {vector} poison, {zeros}")

    def call(self, name: str, dtype: str, *args: str) -> str:
        """Call an intrinsic whose arguments are all of type `dtype`."""
        kind = self.type(dtype)
        width = f"v{self.module.lanes}" if self.wide else ""
        full = f"{name}.{width}{MANGLED[dtype]}"
        self.module.declared[full] = f"declare {kind} @{full}({', '.join([kind] * len(args))})"
        return self.emit(f"call {kind} @{full}({', '.join(f'{kind} {a}' for a in args)})")

    def quotient(self, a: str, b: str) -> str:
        """The quotient of two floats, rounded to the nearest.

        A GPU's own division leaves the common path for a numerator of 0, and the threads of its
        warp wait. Here the error of `a * (1 / b)` is added once more. Quotients by 0, by infinity
        and of infinity are those of the product. So are quotients by numbers below 1e-38 or above
        1e38, which are taken for 0 and for infinity.
        """
        if not self.module.threads:
            return self.emit(f"fdiv {self.type(F32)} {a}, {b}")
        name = "llvm.nvvm.rcp.approx.ftz.f"
        self.module.declared[name] = f"declare float @{name}(float)"
        less = self.emit(f"fneg float {b}")
        rough = self.emit(f"call float @{name}(float {b})")
        off = self.call("llvm.fma", F32, less, rough, self.number(1.0, F32))
        inverse = self.call("llvm.fma", F32, off, rough, rough)
        first = self.emit(f"fmul float {a}, {inverse}")
        rest = self.call("llvm.fma", F32, less, first, a)
        better = self.call("llvm.fma", F32, rest, inverse, first)
        plain = self.emit(f"fmul float {a}, {rough}")
        known = self.emit(f"fcmp ord float {better}, {better}")
        return self.emit(f"select i1 {known}, float {better}, float {plain}")

    def gather(
        self, pointers: str, dtype: str, mask: str | None, other: str = "zeroinitializer"
    ) -> str:
        """Load one element per lane; `other` where the mask is not set."""
        kind, n = self.vector(SCALAR[dtype]), self.module.lanes
        full = f"llvm.masked.gather.v{n}{MANGLED[dtype]}.v{n}p0"
        flags = self.vector("i1")
        self.module.declared[full] = (
            f"declare {kind} @{full}({self.vector('ptr')}, i32, {flags}, {kind})"
        )
        mask = mask or "splat (i1 true)"
        return self.emit(
            f"call {kind} @{full}({self.vector('ptr')} {pointers}, i32 4, {flags} {mask},"
            f" {kind} {other})"
        )

    def scatter(self, value: str, pointers: str, dtype: str, mask: str | None) -> None:
        """Store one element per lane."""
        kind, n = self.vector(SCALAR[dtype]), self.module.lanes
        full = f"llvm.masked.scatter.v{n}{MANGLED[dtype]}.v{n}p0"
        flags = self.vector("i1")
        self.module.declared[full] = (
            f"declare void @{full}({kind}, {self.vector('ptr')}, i32, {flags})"
        )
        mask = mask or "splat (i1 true)"
        self.do(
            f"call void @{full}({kind} {value}, {self.vector('ptr')} {pointers}, i32 4,"
            f" {flags} {mask})"
        )

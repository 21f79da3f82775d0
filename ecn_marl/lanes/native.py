"""Machine code for this processor, and how XLA calls it.

LLVM compiles the module for the processor that runs it. XLA calls the code through its foreign
function interface (`xla/ffi/api/c_api.h`), without copies and without Python.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Callable
from pathlib import Path

import jax
import llvmlite.binding as llvm

from ecn_marl.lanes.compat import FFI
from ecn_marl.lanes.object_cache import kept

HEAD = """
; The start of a handler for XLA's foreign function interface. The handler's own code comes after
; `work`. It finds %na arguments at %a, %nr results at %r, and the size of the batch, %batch, at %d.
define ptr @handler(ptr %frame) {{
  %e = getelementptr i8, ptr %frame, i64 {extension}
  %extension = load ptr, ptr %e, align 8
  %extended = icmp ne ptr %extension, null
  br i1 %extended, label %kind, label %work
kind:
  %k = getelementptr i8, ptr %extension, i64 {extension_kind}
  %kind.number = load i32, ptr %k, align 4
  %metadata = icmp eq i32 %kind.number, {metadata_kind}
  br i1 %metadata, label %tell, label %work
tell: ; registration: XLA asks which version of the interface the handler was made for
  %m = getelementptr i8, ptr %extension, i64 {metadata}
  %to = load ptr, ptr %m, align 8
  %major = getelementptr i8, ptr %to, i64 {version_major}
  store i32 {major}, ptr %major, align 4
  %minor = getelementptr i8, ptr %to, i64 {version_minor}
  store i32 {minor}, ptr %minor, align 4
  %traits = getelementptr i8, ptr %to, i64 {traits}
  store i32 0, ptr %traits, align 4
  ret ptr null
work:
  %na.at = getelementptr i8, ptr %frame, i64 {arguments}
  %na = load i64, ptr %na.at, align 8
  %a.at = getelementptr i8, ptr %frame, i64 {argument_list}
  %a = load ptr, ptr %a.at, align 8
  %nr.at = getelementptr i8, ptr %frame, i64 {results}
  %nr = load i64, ptr %nr.at, align 8
  %r.at = getelementptr i8, ptr %frame, i64 {result_list}
  %r = load ptr, ptr %r.at, align 8
  ; The batch is the leading axis of the first result.
  %one = load ptr, ptr %r, align 8
  %d.at = getelementptr i8, ptr %one, i64 {buffer_dims}
  %d = load ptr, ptr %d.at, align 8
  %batch = load i64, ptr %d, align 8
""".format(**FFI)
"""The start of a handler, for a CPU and for a GPU."""

HANDLER = (
    HEAD
    + """  %args = alloca ptr, i64 %na, align 8
  %rets = alloca ptr, i64 %nr, align 8
  call void @buffers(ptr %a, ptr %args, i64 %na)
  call void @buffers(ptr %r, ptr %rets, i64 %nr)
  call void @run(ptr %args, ptr %rets, i64 %batch)
  ret ptr null
}
"""
)


def pointers(name: str, value: str) -> str:
    """LLVM's text of a function that writes `value` of every buffer of a list to an array.

    Args:
        name: its name.
        value: `%data`, the address of a buffer's numbers, or `%data.at`, where that address is.
    """
    return f"""
define internal void @{name}(ptr %from, ptr %to, i64 %n) {{
entry:
  %none = icmp eq i64 %n, 0
  br i1 %none, label %done, label %loop
loop:
  %i = phi i64 [0, %entry], [%next, %loop]
  %f = getelementptr ptr, ptr %from, i64 %i
  %buffer = load ptr, ptr %f, align 8
  %data.at = getelementptr i8, ptr %buffer, i64 {FFI["buffer_data"]}
  %data = load ptr, ptr %data.at, align 8
  %t = getelementptr ptr, ptr %to, i64 %i
  store ptr {value}, ptr %t, align 8
  %next = add i64 %i, 1
  %over = icmp eq i64 %next, %n
  br i1 %over, label %done, label %loop
done:
  ret void
}}
"""


Handler = Callable[[int], int | None]
"""A handler as a function of ctypes: address of a call frame -> address of an error, or None."""

_loaded: dict[str, tuple[llvm.ExecutionEngine, Handler]] = {}
"""Compiled modules by name; they stay for the life of the process, as programs call into them."""


def optimised() -> bool:
    """Whether LLVM optimises: not if JAX is told to leave out most optimisations.

    Without, code is made in a quarter of the time, and takes 1.5 times as long to run: better only
    for programs that run a few steps, as in tests.
    """
    return not jax.config.read("jax_disable_most_optimizations")


def _machine() -> llvm.TargetMachine:
    """This very processor."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_default_triple()
    name, features = _processor()
    return target.create_target_machine(
        cpu=name, features=features, opt=3 if optimised() else 0, jit=True
    )


def has_wide_registers() -> bool:
    """Whether registers of this processor hold 16 float32 (AVX-512)."""
    return bool(llvm.get_host_cpu_features().get("avx512f", False))


def _processor() -> tuple[str, str]:
    """Its name and its features, as LLVM has them."""
    return llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()


def register(text: str) -> str:
    """Compile a module and make it known to XLA.

    Args:
        text: a module with a function `run(args, rets, batch)`, see `emit`.

    Returns:
        The name of the target, for `jax.ffi.ffi_call`.
    """
    # By content: the same program is compiled once per process, and has the same name in all of
    # them, as JAX's compilation cache needs.
    name = "ecn_marl_lanes_" + hashlib.sha256(text.encode()).hexdigest()[:24]
    if name in _loaded:
        return name
    engine, handler = load(text + HANDLER + pointers("buffers", "%data"))
    # XLA keeps only the address, so `_loaded` has to keep the code.
    jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(handler), platform="cpu")
    _loaded[name] = engine, handler
    return name


def load(text: str) -> tuple[llvm.ExecutionEngine, Handler]:
    """Make a module for this processor, or take its code from a process before this one.

    Only the machine code stays in memory. The module and the target machine that compiled it would
    take ten times as much.

    Returns:
        The engine, which keeps the code loaded, and the module's function `handler`.
    """
    machine = _machine()
    here = Path(__file__).read_bytes()  # how it is compiled
    facts = (here, text, machine.triple, *_processor(), llvm.llvm_version_info, optimised())
    name = hashlib.sha256(repr(facts).encode()).hexdigest()
    # The engine gets finished machine code instead of the module, which it would keep.
    code = kept(f"{name}.o", lambda: _compiled(text, machine))
    machine.close()
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _machine())
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    address = engine.get_function_address("handler")
    return engine, ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(address)


def _compiled(text: str, machine: llvm.TargetMachine) -> bytes:
    """The machine code of a module."""
    module = llvm.parse_assembly(text)
    if optimised():
        optimize(module, machine)
    code: bytes = machine.emit_object(module)
    module.close()
    return code


def optimize(module: llvm.ModuleRef, machine: llvm.TargetMachine) -> None:
    """Optimise a module for a machine, without changing the structure of its loops."""
    module.verify()
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    # The code is vectors already: the vectorisers find next to nothing, and unrolling makes it a
    # sixth larger. All three lengthen compilation.
    options.loop_vectorization = options.slp_vectorization = options.loop_unrolling = False
    passes = llvm.create_pass_builder(machine, options)
    passes.getModulePassManager().run(module, passes)

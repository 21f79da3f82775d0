"""GPU code, and how XLA calls it.

LLVM compiles a kernel (`kernel`) to PTX, which the driver compiles for the GPU at hand. XLA calls a
handler through its foreign function interface, as on a CPU (`native`). The handler launches the
kernel on XLA's stream. Tests emulate kernels and launches on a CPU. On a GPU, `trial` decides
whether the kernel is used.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib

import jax
import llvmlite.binding as llvm

from ecn_marl.lanes.compat import FFI
from ecn_marl.lanes.kernel import WARPS, Launch
from ecn_marl.lanes.native import HEAD, Handler, load, optimize, pointers
from ecn_marl.lanes.residence import WARP

PROCESSOR = "sm_80"
"""The oldest GPU (Ampere) that is supported. Drivers compile PTX for newer GPUs, too."""

PTX_VERSION, PTX_OF_MANY = "ptx80", "ptx81"
"""The oldest PTX (CUDA 12.0) that is supported, and that of kernels of many arguments (12.1)."""

FEW_PARAMETERS = 512
"""Most parameters of 8 bytes that kernels of the oldest PTX may have."""

HANDLER = """
  ; The driver takes the address of every parameter. Here they are fields of XLA's own structures.
  %n = add i64 %na, %nr
  %size = add i64 %n, 1
  %parameters = alloca ptr, i64 %size, align 8
  %after = getelementptr ptr, ptr %parameters, i64 %na
  %end = getelementptr ptr, ptr %parameters, i64 %n
  call void @fields(ptr %a, ptr %parameters, i64 %na)
  call void @fields(ptr %r, ptr %after, i64 %nr)
  store ptr %d, ptr %end, align 8
  %none = icmp eq i64 %batch, 0
  br i1 %none, label %done, label %ask ; CUDA refuses to launch no blocks
ask:
  %api.at = getelementptr i8, ptr %frame, i64 {api}
  %api = load ptr, ptr %api.at, align 8
  %context.at = getelementptr i8, ptr %frame, i64 {context}
  %context = load ptr, ptr %context.at, align 8
  %query = alloca [4 x i64], align 8
  store [4 x i64] [i64 {stream_size}, i64 0, i64 0, i64 0], ptr %query, align 8
  %query.context = getelementptr i8, ptr %query, i64 {stream_context}
  store ptr %context, ptr %query.context, align 8
  %get.at = getelementptr i8, ptr %api, i64 {stream_get}
  %get = load ptr, ptr %get.at, align 8
  %no.stream.error = call ptr %get(ptr %query)
  %has.stream = icmp eq ptr %no.stream.error, null
  br i1 %has.stream, label %start, label %no.stream
no.stream:
  ret ptr %no.stream.error
start:
  %stream.at = getelementptr i8, ptr %query, i64 {stream_stream}
  %stream = load ptr, ptr %stream.at, align 8
  %padded = add i64 %batch, {vector_less}
  %vectors = udiv i64 %padded, {vector}
  %warps = call i64 @llvm.umin.i64(i64 %vectors, i64 {warps})
  %rounded = add i64 %warps, {each_less}
  %blocks.long = udiv i64 %rounded, {each}
  %blocks = trunc i64 %blocks.long to i32
  %code = call i32 inttoptr (i64 {driver} to ptr)(ptr inttoptr (i64 {kernel} to ptr), i32 %blocks,
    i32 1, i32 1, i32 {block}, i32 1, i32 1, i32 {near}, ptr %stream, ptr %parameters, ptr null)
  %ok = icmp eq i32 %code, 0
  br i1 %ok, label %done, label %failed
failed:
  %message = alloca [128 x i8], align 8
  call i32 (ptr, i64, ptr, ...) @snprintf(ptr %message, i64 128, ptr @failure, i32 %code)
  %details = alloca [4 x i64], align 8
  store [4 x i64] [i64 {error_size}, i64 0, i64 0, i64 13], ptr %details, align 8 ; 13: internal
  %details.message = getelementptr i8, ptr %details, i64 {error_message}
  store ptr %message, ptr %details.message, align 8
  %create.at = getelementptr i8, ptr %api, i64 {error_create}
  %create = load ptr, ptr %create.at, align 8
  %error = call ptr %create(ptr %details)
  ret ptr %error
done:
  ret ptr null
}}

@failure = private constant [{length} x i8] c"{failure}\\00"
declare i32 @snprintf(ptr, i64, ptr, ...)
declare i64 @llvm.umin.i64(i64, i64)
"""

NEAR_BYTES = 8
"""`CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`: without it a block gets 48 KB."""

MOST_SHARED = 97
"""`CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN`."""

H100_BYTES = 232_448
"""What an H100 answers."""

FAILURE = "ecn_marl.lanes: CUDA did not launch a step: cuLaunchKernel returned error %d"

_loaded: dict[str, tuple[llvm.ExecutionEngine, Handler]] = {}
"""Handlers and their modules by name; they stay for the life of the process."""


def ptx(text: str) -> str:
    """PTX of a kernel's module, see `kernel`.

    This needs no GPU.
    """
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    _short_pointers()
    target = llvm.Target.from_triple("nvptx64-nvidia-cuda")
    head = text[text.index("define ptx_kernel") :].split("{")[0]
    version = PTX_OF_MANY if head.count(" %") > FEW_PARAMETERS else PTX_VERSION
    machine = target.create_target_machine(cpu=PROCESSOR, features=f"+{version}", opt=3)
    module = llvm.parse_assembly(text)
    module.triple = "nvptx64-nvidia-cuda"
    module.data_layout = str(machine.target_data)
    optimize(module, machine)
    return str(machine.emit_assembly(module))


@functools.cache
def _short_pointers() -> None:
    """Addresses of shared memory take 32 bits; LLVM can be told once per process."""
    llvm.set_option("", "--nvptx-short-ptr")


def launcher(kernel: int, driver: int, launch: Launch) -> tuple[llvm.ExecutionEngine, Handler]:
    """A handler for XLA that launches a kernel.

    Args:
        kernel: the driver's handle of the kernel.
        driver: address of the driver's `cuLaunchKernel`.
        launch: how it is launched.

    Returns:
        The engine, which keeps the code loaded, and the handler.
    """
    each = launch.block // WARP
    text = HANDLER.format(
        kernel=kernel,
        driver=driver,
        vector=launch.lanes,
        vector_less=launch.lanes - 1,
        warps=WARPS,
        block=launch.block,
        near=launch.near,
        each=each,
        each_less=each - 1,
        failure=FAILURE,
        length=len(FAILURE) + 1,
        **FFI,
    )
    return load(HEAD + text + pointers("fields", "%data.at"))


def name_of(text: str) -> str:
    """The name under which XLA knows a kernel."""
    return "ecn_marl_lanes_cuda_" + hashlib.sha256(text.encode()).hexdigest()[:24]


def register(text: str, launch: Launch) -> str:
    """Compile a kernel and register it with XLA.

    Args:
        text: a module with a kernel `step`, see `kernel`.
        launch: how it is launched.

    Returns:
        The name of the target, for `jax.ffi.ffi_call`.

    Raises:
        RuntimeError: there is no CUDA driver, it is older than 12.0, or it refuses the kernel.
    """
    name = name_of(text)
    if name in _loaded:
        return name
    driver, kernel = _load(ptx(text), launch.near)
    address = ctypes.cast(driver.cuLaunchKernel, ctypes.c_void_p).value
    assert address is not None
    compiled, handler = launcher(kernel, address, launch)
    jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(handler), platform="CUDA")
    # XLA keeps only the handler's address.
    _loaded[name] = compiled, handler
    return name


def block_bytes() -> int:
    """Shared memory that a block may have on every GPU of this process, bytes.

    Without a GPU it is that of an H100.
    """
    try:
        driver, count = _driver()
    except RuntimeError:
        return H100_BYTES
    found = []
    for device in range(count):
        value = ctypes.c_int()
        status = driver.cuDeviceGetAttribute(ctypes.byref(value), MOST_SHARED, device)
        _check(driver, status, "cuDeviceGetAttribute")
        found.append(value.value)
    return min(found, default=H100_BYTES)


def _driver() -> tuple[ctypes.CDLL, int]:
    """The driver, and its number of devices."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as problem:
        raise RuntimeError(f"lanes on a GPU need the CUDA driver: {problem}") from None
    if not hasattr(driver, "cuLibraryLoadData"):
        raise RuntimeError("lanes on a GPU need a CUDA driver of version 12.0 or newer (525)")
    _check(driver, driver.cuInit(ctypes.c_uint(0)), "cuInit")
    count = ctypes.c_int()
    _check(driver, driver.cuDeviceGetCount(ctypes.byref(count)), "cuDeviceGetCount")
    return driver, count.value


def _load(code: str, near: int) -> tuple[ctypes.CDLL, int]:
    """The driver, and its handle of the kernel in a PTX module, allowed so much shared memory."""
    driver, devices = _driver()
    library, kernel = ctypes.c_void_p(), ctypes.c_void_p()
    text = ctypes.c_char_p(code.encode())
    no_options = (None, None, ctypes.c_uint(0))
    # A library is bound to no device and needs no current context, unlike a module of older
    # drivers.
    loaded = driver.cuLibraryLoadData(ctypes.byref(library), text, *no_options, *no_options)
    _check(driver, loaded, "cuLibraryLoadData")
    status = driver.cuLibraryGetKernel(ctypes.byref(kernel), library, ctypes.c_char_p(b"step"))
    _check(driver, status, "cuLibraryGetKernel")
    assert kernel.value is not None
    for device in range(devices if near else 0):
        status = driver.cuKernelSetAttribute(NEAR_BYTES, near, kernel, device)
        _check(driver, status, "cuKernelSetAttribute")
    return driver, kernel.value


def _check(driver: ctypes.CDLL, code: int, function: str) -> None:
    """Raise a RuntimeError if a call of the driver returned an error."""
    if code:
        text = ctypes.c_char_p()
        driver.cuGetErrorString(ctypes.c_int(code), ctypes.byref(text))
        message = (text.value or b"unknown").decode()
        raise RuntimeError(f"the CUDA driver: {function} returned error {code} ({message})")

"""Machine code in the folder of JAX's compilation cache, for the processes to come.

JAX keeps what XLA compiles in the folder that `jax_compilation_cache_dir` names, or the variable
`JAX_COMPILATION_CACHE_DIR`. Vector code goes into its folder `lanes`, by the same switches:
`jax_enable_compilation_cache`, and `jax_persistent_cache_min_compile_time_secs`, below which a
program is not kept. Files can be deleted at any time.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

FOLDER = "lanes"
"""Name of the folder within that of JAX."""

_DIGEST = hashlib.sha256().digest_size
"""Bytes at the start of a file: the hash of the others."""


def folder() -> Path | None:
    """Where code is kept; None if it is not, or not in a folder of this machine."""
    path = _option("compilation_cache_dir")
    if not path or not _option("enable_compilation_cache") or "://" in str(path):
        return None
    return Path(path) / FOLDER


def _option(name: str) -> Any:
    """One of JAX's options; its type stubs do not know all of them."""
    return getattr(jax.config, f"jax_{name}")


def kept(name: str, compiled: Callable[[], bytes]) -> bytes:
    """Code from its file, or compiled and written there.

    Args:
        name: of the file; it stands for everything that the code depends on.
        compiled: compiles it.

    Returns:
        The code. A file that cannot be written is reported with a warning.
    """
    where = folder()
    if where is None:
        return compiled()
    file = where / name
    if (code := _read(file)) is not None:
        return code
    start = time.perf_counter()
    code = compiled()
    if time.perf_counter() - start >= _option("persistent_cache_min_compile_time_secs"):
        _write(file, code)
    return code


def _read(file: Path) -> bytes | None:
    """What a file holds; None if there is none, or it is not whole."""
    try:
        content = file.read_bytes()
    except OSError:
        return None
    digest, code = content[:_DIGEST], content[_DIGEST:]
    return code if hashlib.sha256(code).digest() == digest else None


def _write(file: Path, code: bytes) -> None:
    """Write a file, whole or not at all."""
    # A file of this thread's own, then renamed: those that compile together never read a half.
    partial = file.with_suffix(f".{os.getpid()}.{threading.get_ident()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(hashlib.sha256(code).digest() + code)
        partial.replace(file)
    except OSError as problem:
        with contextlib.suppress(OSError):
            partial.unlink()
        warnings.warn(f"{problem}: vector code is not kept for other processes", stacklevel=2)

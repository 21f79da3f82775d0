"""Code is compiled once: when a program is lowered, and by the first process that needs it."""

from __future__ import annotations

import errno
import itertools
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ecn_marl import lanes
from ecn_marl.lanes import native, object_cache

X = jnp.asarray(np.random.default_rng(0).uniform(size=(8, 5)).astype(np.float32))


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Modules that LLVM compiles from now on."""
    texts: list[str] = []
    plain = native._compiled

    def compiling(text: str, machine: Any) -> bytes:
        texts.append(text)
        return plain(text, machine)

    monkeypatch.setattr(native, "_compiled", compiling)
    return texts


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for JAX's compilation cache in which everything is kept."""
    options = {
        "compilation_cache_dir": str(tmp_path),
        "enable_compilation_cache": True,
        "persistent_cache_min_compile_time_secs": 0.0,
    }
    monkeypatch.setattr(object_cache, "_option", options.__getitem__)
    return tmp_path / object_cache.FOLDER


_numbers = itertools.count(2)


def fresh() -> Callable[[jax.Array, Any], jax.Array]:
    """A function that no other has the code of."""
    number = float(next(_numbers))
    return lambda x, factor: x * factor + number * x[::-1]


def test_a_scan_whose_carry_is_not_mapped_at_first_compiles_once(compiled: list[str]) -> None:
    """JAX traces the body again when it finds that the carry is mapped after a turn."""
    traced = []

    def step(carry: jax.Array, x: jax.Array) -> jax.Array:
        traced.append(carry)
        return carry * number + x.sum()

    number = float(next(_numbers)) / 1000.0

    def run(x: jax.Array, step: Any) -> jax.Array:
        return jax.lax.scan(lambda c, _: (step(c, x), None), jnp.ones(3), None, length=4)[0]

    found = jax.jit(jax.vmap(lambda x: run(x, lanes.mapped(step))))(X)
    assert len(compiled) == 1 and len(traced) > 2
    np.testing.assert_allclose(found, jax.vmap(lambda x: run(x, step))(X), rtol=1e-6)


def test_tracing_compiles_nothing(compiled: list[str]) -> None:
    fun = fresh()
    fast = jax.vmap(lanes.mapped(fun), (0, None))
    assert jax.eval_shape(fast, X, 2.0).shape == X.shape
    assert "lanes[" in str(jax.make_jaxpr(fast)(X, 2.0))
    assert not compiled
    program = jax.jit(fast).lower(X, 2.0)
    assert len(compiled) == 1
    expected = jax.vmap(fun, (0, None))(X, 2.0)
    np.testing.assert_allclose(program.compile()(X, 2.0), expected, rtol=1e-6)
    assert len(compiled) == 1


PROCESS = """
import jax, jax.numpy as jnp, numpy as np
from ecn_marl import lanes
from ecn_marl.lanes import native
plain, compiled = native._compiled, []
native._compiled = lambda *args: compiled.append(args) or plain(*args)
x = jnp.arange(40, dtype=jnp.float32).reshape(8, 5)
found = lanes.vmap(lambda x: jnp.tanh(x) + x[::-1] / 3, (0,))(x)
print(len(compiled), np.asarray(found).tobytes().hex())
"""


def test_the_next_process_finds_the_code(tmp_path: Path) -> None:
    variables = {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    runs = [
        subprocess.run(
            [sys.executable, "-c", PROCESS],
            env=os.environ | variables,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
        for _ in range(2)
    ]
    (first, found), (second, again) = runs
    assert (first, second) == ("1", "0") and found == again
    assert len(list((tmp_path / object_cache.FOLDER).iterdir())) == 1


def test_code_that_is_not_whole_or_of_another_processor_is_compiled_anew(
    compiled: list[str], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lanes.vmap(fresh(), (0, None))(X, 3.0)
    (text,) = compiled
    native.load(text)
    assert len(compiled) == 1
    (file,) = cache.iterdir()
    whole = file.read_bytes()
    for broken in (b"", whole[:-1], b"x" * 100):
        file.write_bytes(broken)
        native.load(text)
        assert file.read_bytes() == whole
    assert len(compiled) == 4
    name, features = native._processor()
    monkeypatch.setattr(native, "_processor", lambda: (name, features + ",-avx512f"))
    native.load(text)
    assert len(compiled) == 5 and len(list(cache.iterdir())) == 2


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("compilation_cache_dir", None),
        ("compilation_cache_dir", "gs://bucket/cache"),
        ("enable_compilation_cache", False),
        ("persistent_cache_min_compile_time_secs", 3600.0),
    ],
)
def test_switches_of_the_cache_are_jaxs(
    compiled: list[str],
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    option: str,
    value: object,
) -> None:
    plain = object_cache._option
    monkeypatch.setattr(
        object_cache, "_option", lambda name: value if name == option else plain(name)
    )
    lanes.vmap(fresh(), (0, None))(X, 4.0)
    assert len(compiled) == 1 and not cache.exists()


def test_the_options_are_jaxs() -> None:
    """Under the names that JAX has for them."""
    assert object_cache._option("compilation_cache_dir") == jax.config.jax_compilation_cache_dir
    assert object_cache._option("enable_compilation_cache") in (True, False)
    assert object_cache._option("persistent_cache_min_compile_time_secs") >= 0.0


def test_a_folder_that_cannot_be_written_is_reported(compiled: list[str], cache: Path) -> None:
    cache.write_text("a file in the place of the folder")
    fun = fresh()
    with pytest.warns(UserWarning, match="vector code is not kept"):
        found = lanes.vmap(fun, (0, None))(X, 5.0)
    np.testing.assert_allclose(found, jax.vmap(fun, (0, None))(X, 5.0), rtol=1e-6)


def test_a_full_disk_is_left_without_half_a_file(
    compiled: list[str], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def half(file: Path, content: bytes) -> None:
        with open(file, "wb") as open_file:
            open_file.write(content[: len(content) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", half)
    with pytest.warns(UserWarning, match="No space left on device: vector code is not kept"):
        lanes.vmap(fresh(), (0, None))(X, 6.0)
    assert len(compiled) == 1 and not list(cache.iterdir())


def test_threads_write_their_own_files(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two that compile the same program: both have written before either renames its file."""
    together, plain = threading.Barrier(2, timeout=60.0), Path.replace

    def replace(file: Path, target: Path) -> Path:
        together.wait()
        return plain(file, target)

    monkeypatch.setattr(Path, "replace", replace)
    with warnings.catch_warnings(), ThreadPoolExecutor(2) as pool:
        warnings.simplefilter("error")
        jobs = [pool.submit(object_cache.kept, "code.o", lambda: b"code") for _ in range(2)]
        assert [job.result() for job in jobs] == [b"code", b"code"]
    assert [file.name for file in cache.iterdir()] == ["code.o"]

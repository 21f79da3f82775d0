"""Settings of the whole suite: shapes are checked at run time, property tests are repeatable."""

from __future__ import annotations

import gc
import os
from collections import Counter
from collections.abc import Generator, Iterator
from importlib.util import find_spec
from pathlib import Path
from pkgutil import iter_modules

import jaxtyping
import pytest
from jaxtyping import install_import_hook
from property_draws import examples, repeat_draws
from quick_compiling import compile_quickly
from skipped import line
from typechecker import CHECK_LANES, first_calls

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Most of the suite's time goes into compiling. With XLA_FLAGS="", tests compile as users do.
QUICKLY = compile_quickly()

# Functions that work on arrays check the shapes and types of their arguments in their first calls.
# Those of the compiler `lanes` do so only for `lanes/test_types.py`: with checks it takes more than
# twice as long. Commands, experiments and pictures hold few arrays and many nested functions, each
# of which would be wrapped anew whenever it is defined; mypy checks them.
UNCHECKED = {"cli", "experiments", "lanes", "render", "speed", "validation"}
if CHECK_LANES in os.environ:
    UNCHECKED.remove("lanes")
package = find_spec("ecn_marl")
assert package is not None
modules = {m.name for m in iter_modules(package.submodule_search_locations)}
assert modules > UNCHECKED
# What the hook decorates functions with.
jaxtyping.jaxtyped = first_calls
install_import_hook([f"ecn_marl.{name}" for name in modules - UNCHECKED], "typechecker.check")

repeat_draws()


# Traced and compiled programs are a million objects that stay: looking through them again and again
# takes a tenth of the time.
gc.set_threshold(50_000, 10, 10)


def pytest_collection_finish() -> None:
    """What importing and collecting made is never garbage."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def tiny_scenario() -> None:
    """Registers the scenario `commands.TINY`."""
    from commands import TINY, tiny

    import ecn_marl

    ecn_marl.register(TINY, tiny)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with many slow tests come first, so that no process waits for the last of them."""
    slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    items.sort(key=lambda item: -slow[item.path])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Failing examples of a property test stand below it, to be pasted above it."""
    report = yield
    if call.excinfo is not None:
        found = examples(call.excinfo.value, getattr(item, "fixturenames", ()))
        if found:
            report.sections.append(("to keep: paste above the test", "\n".join(found)))
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says what to install to run what was skipped."""
    skipped = terminalreporter.stats.get("skipped", [])
    text = line(report.longrepr[2] for report in skipped)
    if text:
        terminalreporter.write_line(text)


WITH_ALL_PASSES = {
    "lanes",
    "validation",
    "sim/test_conservation.py",
    "baselines/test_adpg.py",
    "baselines/exporting/test_rate_export.py",
}
"""Folders and files whose tests run long or train long, or compare the bits of batches and runs."""


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Without the suite's checks of types, as for users."""
    import jaxtyping

    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture(scope="module", autouse=True)
def cheap_passes(request: pytest.FixtureRequest) -> Iterator[None]:
    """Elsewhere nearly all the time goes into compiling, so LLVM's passes are left out.

    Those of XLA's programs, and those of programs for lanes.
    """
    import jax

    path = request.path.relative_to(Path(__file__).parent)
    cheap = QUICKLY and not WITH_ALL_PASSES & {path.parts[0], path.as_posix()}
    jax.config.update("jax_disable_most_optimizations", cheap)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


MANY_MAPPINGS = 25_000
"""Memory mappings of a process from which on compiled programs are dropped; Linux allows 65,530."""


@pytest.fixture(scope="module", autouse=True)
def room_for_programs() -> Iterator[None]:
    """Drops compiled programs between files before XLA runs out of memory mappings.

    Every program takes some; a process that compiled too many crashed in the compiler.
    """
    import jax

    yield
    maps = Path("/proc/self/maps")
    if maps.is_file() and maps.read_bytes().count(b"\n") > MANY_MAPPINGS:
        jax.clear_caches()
        gc.collect()

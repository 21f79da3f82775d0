"""The compiler's functions are called with what their signatures say; see `conftest.py`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from jaxtyping import TypeCheckError
from typechecker import CHECK_LANES

from ecn_marl.lanes import native

CHECKED = (
    "test_types.py::test_another_type_is_refused",
    "test_programs.py::test_loops",
    "test_programs.py::test_data_dependent_positions",
    "test_loop_skipping.py::test_idle_elements_are_passed_over",
    "test_products.py::test_gpus_compute_the_same_products",
)
"""What is run with checks: loops, positions, idle elements, products in a kernel."""

THOROUGH = (
    "test_operations.py",
    "test_products.py",
    "test_gpu_form.py::test_warps_go_through_large_batches",
    "test_gpu_form.py::test_a_whole_step_is_one_kernel_without_generic_pointers",
)
"""And: every operation, products, a kernel of many warps, a whole environment."""


@pytest.mark.parametrize("tests", [CHECKED, pytest.param(THOROUGH, marks=pytest.mark.thorough)])
def test_calls_have_the_types_of_signatures(tests):
    """In a process of its own, as modules are checked from their import on."""
    here = Path(__file__).parent
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir"]
    command += [str(here.parent), *(str(here / test) for test in tests)]
    environment = os.environ | {CHECK_LANES: "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-5000:]
    assert "skipped" not in done.stdout


@pytest.mark.skipif(CHECK_LANES not in os.environ, reason="run by the test above")
def test_another_type_is_refused():
    with pytest.raises(TypeCheckError):
        native.register(3)

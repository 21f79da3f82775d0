"""A few cases of every family of the campaign; the whole is `make robustness`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

CAMPAIGN = Path(__file__).with_name("campaign.py")


@pytest.mark.slow
def test_nothing_breaks_it():
    """In a process without the suite's run-time checks of types, which would answer first."""
    command = [sys.executable, CAMPAIGN, "--quick"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.stdout, done.stderr
    families = json.loads(done.stdout)["families"]
    assert len(families) == 7
    for name, counts in families.items():
        assert counts["tried"] >= 15, name
        assert counts["faults"] == [], name
    assert done.returncode == 0
    for name in ("options of make", "parameters", "actions", "flow lists"):
        assert families[name]["sound"] > 0, name


def test_mutants_are_of_modules_and_tests_that_are_there():
    from robustness import mutation

    for module, tests in mutation.cases().items():
        assert (mutation.ROOT / module).is_file(), module
        for test in tests.split():
            assert (mutation.ROOT / test).is_file(), test

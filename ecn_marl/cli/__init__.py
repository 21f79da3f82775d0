"""The command line, `ecn-marl`.

Commands import what they need when they run, so that `ecn-marl --help` answers at once.
"""

from __future__ import annotations

import gc

# isort: off
# Each import adds its commands; the help lists them in this order.
from ecn_marl.cli import training, exporting, policies, playing, comparing, measuring
from ecn_marl.cli import reporting, scenarios, network, examples

# isort: on
from ecn_marl.cli.app import app

__all__ = [
    "app",
    "comparing",
    "examples",
    "exporting",
    "main",
    "measuring",
    "network",
    "playing",
    "policies",
    "reporting",
    "scenarios",
    "training",
]


def main() -> None:
    """Entry point of the console script."""
    # Programs that are traced are a million objects that stay. To look through them again and again
    # takes a sixth of the time until a command begins to work.
    gc.set_threshold(50_000, 10, 10)
    app()

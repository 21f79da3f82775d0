"""The command line, `ecn-marl`.

Commands import what they need when they run, so that `ecn-marl --help` answers at once.
"""

from __future__ import annotations

# isort: off
# Each import adds its commands; the help lists them in this order.
from ecn_marl.cli import training, exporting, policies, playing, comparing, measuring
from ecn_marl.cli import reporting, scenarios, replaying, validating, examples

# isort: on
from ecn_marl._garbage import seldom_collected
from ecn_marl.cli.app import app

__all__ = [
    "app",
    "comparing",
    "examples",
    "exporting",
    "main",
    "measuring",
    "playing",
    "policies",
    "replaying",
    "reporting",
    "scenarios",
    "training",
    "validating",
]


def main() -> None:
    """Entry point of the console script."""
    with seldom_collected():
        app()

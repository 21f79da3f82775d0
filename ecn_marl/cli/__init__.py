"""The command line, `ecn-marl`.

Commands import what they need when they run, so that `ecn-marl --help` answers at once.
"""

from __future__ import annotations

from ecn_marl.cli import comparing, examples, learning, network, reporting  # adds the commands
from ecn_marl.cli.app import app

__all__ = ["app", "comparing", "examples", "learning", "main", "network", "reporting"]


def main() -> None:
    """Entry point of the console script."""
    app()

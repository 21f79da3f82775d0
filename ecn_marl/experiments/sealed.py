"""Sealed test episodes: for final scores only. Every use of them is noted.

Nothing is trained, tuned, searched or chosen on these episodes. Their keys are made here only,
`ecn-marl bench --sealed` is the only command that uses them, and a test searches the package for
other uses. They need a clean checkout, and the use is first noted in `results/USES.md`. So the git
history shows which code scored which policies on them, and how often.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import jax

from ecn_marl.baselines.evaluation.streams import root_key, stream_keys
from ecn_marl.experiments.sources import Checkout

USES = "results/USES.md"
"""Where uses are noted, in the checkout."""

SET = 9
"""Number of the test set.

2: learners' recipes were changed after scores on the first set.
3: marking in the simulator, and recipes (falling learning rates), were changed after scores on the
   second set.
4: the simulator, rewards and recipes were changed after scores on the third set.
5: the settings of `ippo` were changed after scores on the fourth set.
6: the simulator (turns at NICs) and the settings of `ddqn-fct` were changed after scores on the
   fifth set.
7: the steps of learners on `restore-files-v0` were changed after scores on the sixth set.
8: the generalist learns otherwise, and sees its switch, after scores on the seventh set.
9: the generalist learns costs by group of ports, after scores on the eighth set.
"""

_ROOT = (0x5EA1ED00, SET)
"""Words of the root key of the sealed episodes."""

_HEAD = """\
# Uses of the sealed episodes

One line for every time that `ecn-marl bench --sealed` scored something, written before it did.

| date (UTC) | commit | scenario | policies | steps | seeds | episodes | settings |
|---|---|---|---|---:|---:|---:|---|
"""


@dataclass(frozen=True)
class Use:
    """One look at the sealed episodes of a scenario.

    Attributes:
        scenario: name of the scenario.
        policies: what is scored.
        steps: environment steps that each learner was trained for.
        seeds: seeds of each learner.
        episodes: sealed episodes.
        settings: hash of all settings, as in the results.
    """

    scenario: str
    policies: Sequence[str]
    steps: int
    seeds: int
    episodes: int
    settings: str


def sealed_keys(use: Use, checkout: Checkout) -> jax.Array:
    """Note a use, then return the keys of the episodes, `[episodes]`.

    Args:
        use: the use.
        checkout: the git checkout of the package.

    Raises:
        ValueError: the checkout has changes that are not committed, or `episodes` below 1.
        OSError: the use cannot be noted.
    """
    checkout.check_clean()
    # First, since it refuses a wrong number of episodes, and nothing must be noted then.
    keys = stream_keys(root_key(_ROOT), 0, use.episodes)
    _note(checkout.root / USES, use, checkout.commit)
    return keys


def _note(path: Path, use: Use, commit: str) -> None:
    """Append a line; the file is made if it does not exist."""
    path.parent.mkdir(parents=True, exist_ok=True)
    date = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S")
    cells = (
        date,
        f"`{commit[:12]}`",
        f"`{use.scenario}`",
        ", ".join(use.policies),
        f"{use.steps:,}",
        str(use.seeds),
        str(use.episodes),
        f"`{use.settings}`",
    )
    with path.open("a", encoding="utf-8") as file:
        if file.tell() == 0:  # opened at its end: the file is new
            file.write(_HEAD)
        file.write("| " + " | ".join(cells) + " |\n")

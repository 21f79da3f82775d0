"""Writes the tables of the documentation that follow from the code.

    python docs/tables.py            # rewrite the tables in README.md and docs/**/*.md, plot speed
    python docs/tables.py --check    # fail if one is out of date

A table stands between `<!-- table: NAME -->` and `<!-- end -->`; NAME is a function of a
module of `generated/`. A long one is not kept in the repository: where `<!-- site: NAME -->`
stands, the site shows it.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from generated import (
    command_line,
    decisions,
    intervals,
    learners,
    network,
    performance,
    recorded,
)

HERE = Path(__file__).parent

BLOCK = re.compile(r"(<!-- table: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)

SITE = re.compile(r"<!-- site: ([\w-]+) -->")

TABLES: dict[str, Callable[[], str]] = {
    f.__name__.replace("_", "-"): f
    for f in (
        decisions.scenarios,
        decisions.paper_scenarios,
        decisions.superseded,
        decisions.feature_sets,
        decisions.features,
        decisions.telemetry,
        decisions.queue_examples,
        decisions.actions,
        decisions.template,
        decisions.static_settings,
        decisions.reward_options,
        decisions.reward_references,
        decisions.info,
        network.preset_names,
        network.flags,
        network.regimes,
        network.dcqcn_presets,
        network.size_tables,
        network.primitives,
        command_line.commands,
        learners.results,
        recorded.leaderboard,
        recorded.rate_bench,
        recorded.rate_bench_sizes,
        recorded.rate_bench_large,
        recorded.ai_fabrics,
        recorded.senders_of_fabrics,
        recorded.papers_pet,
        recorded.papers_pet_own,
        recorded.papers_acc_own,
        recorded.papers_haecn_own,
        recorded.papers_readings,
        recorded.papers_choices,
        recorded.papers_acc,
        recorded.papers_haecn,
        recorded.reliability,
        learners.rewards_of_ippo,
        learners.learners_sealed,
        learners.learners_packets,
        learners.learners_of_jobs,
        learners.learners_on_fabrics,
        learners.learners_imitating,
        learners.generalist_sealed,
        learners.generalists,
        learners.splits,
        learners.arms_of_learners,
        learners.ablations,
        learners.budgets,
        learners.needs,
        intervals.intervals,
        performance.speed_machine,
        performance.speed_machines,
        performance.speed_environments,
        performance.speed_training,
        performance.speed_packets,
        performance.speed_peers,
        performance.speed_gpu,
        performance.speed_kernels,
        performance.speed_gpu_plan,
        performance.speed_scaling,
        performance.speed_senders,
    )
}
"""Tables by name."""


def renewed(text: str) -> str:
    """A page with all its tables written anew."""
    return BLOCK.sub(lambda m: f"{m[1]}\n{TABLES[m[2]]()}\n\n{m[3]}", text)


def shown(text: str) -> str:
    """A page as the site shows it."""
    return SITE.sub(lambda m: f"\n{TABLES[m[1]]()}\n", text)


def pages() -> list[Path]:
    """All pages of the documentation, and the README."""
    return [HERE.parent / "README.md", *sorted(HERE.rglob("*.md"))]


def main(argv: Sequence[str] | None = None) -> int:
    """Rewrites or checks the tables.

    Args:
        argv: command line, that of the process if None.
    """
    parser = argparse.ArgumentParser(description="Tables of the documentation.")
    parser.add_argument("--check", action="store_true", help="write nothing, exit with 1 if stale")
    args = parser.parse_args(argv)
    stale = []
    for page in pages():
        text = page.read_text()
        new = renewed(text)
        if new != text:
            stale.append(str(page.relative_to(HERE.parent)))
            if not args.check:
                page.write_text(new)
    if not args.check:  # the bytes of a PNG depend on versions, so a check leaves it out
        for made in (performance, learners, intervals):
            made.PICTURE.write_bytes(made.plot())
    if stale:
        print("out of date:" if args.check else "written:", ", ".join(stale))
    return 1 if args.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())

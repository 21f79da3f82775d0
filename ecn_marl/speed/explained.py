"""How `lanes` compiles a step of an environment, as rows and as tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
from rich.markup import escape
from rich.table import Table

from ecn_marl import lanes
from ecn_marl.envs.ecn import EcnEnv
from ecn_marl.render.tables import plain_table

LOOPS = 12
"""Number of loops in a table, the most expensive ones."""

HEADS = ("work", "turns x elements", "ops", "idle", "lines, or what prevents skipping")


def rows(envs: Mapping[str, EcnEnv], show: Callable[[str], None]) -> list[dict[str, Any]]:
    """Explain a step of each environment, see `lanes.explain`.

    Args:
        envs: environments by the names of their scenarios.
        show: called with the next task.

    Returns:
        For each: its name, estimated instructions of a step of a vector of environments, the share
        of work that skips idle slots, bytes of state, and its loops, the most expensive first.
    """
    explained = []
    for name, env in envs.items():
        show(f"{name}, explain a step")
        explanation = step(env)
        explained.append(
            {
                "scenario": name,
                "summary": explanation.heading(),
                "instructions": explanation.instructions,
                "skipped": explanation.skipped,
                "state_bytes": explanation.state_bytes,
                "shared_bytes": explanation.shared_bytes,
                "loops": [dict(zip(HEADS, row, strict=True)) for row in explanation.rows()],
            }
        )
    return explained


def step(env: EcnEnv) -> lanes.Explanation:
    """Explanation of a step of an environment, with parameters shared by the batch."""
    key, params = jax.random.key(0), env.default_params
    _, state = jax.eval_shape(env.reset, key, params)  # shapes are enough, nothing is computed
    action = jax.eval_shape(lambda k: env.action.sample(k, env.num_agents), key)
    return lanes.explain(env.step, key, state, action, params, shared=(3,))


def tables(explained: list[dict[str, Any]]) -> list[Table]:
    """A table of the loops of each scenario."""
    step_tables = []
    for row in explained:
        table = plain_table(f"{row['scenario']}: a step", right=HEADS[:4])
        table.add_column(HEADS[4])
        for loop in row["loops"][:LOOPS]:
            table.add_row(*(escape(loop[head]) for head in HEADS))
        table.caption = row["summary"]
        step_tables.append(table)
    return step_tables

"""Cost of a flow under each kind of sender, and share of work on free slots that is skipped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.table import Table

from ecn_marl.envs.ecn import EcnEnv
from ecn_marl.envs.registry import make
from ecn_marl.render.tables import DASH, number, percent, plain_table
from ecn_marl.sim.metrics import counted
from ecn_marl.sim.traffic.sizes import CHUNK
from ecn_marl.speed import explained
from ecn_marl.speed.programs import AT_ONCE, random_steps, start
from ecn_marl.speed.timing import Compiled, Plan, Timing, compiled, interleaved

SENDERS = (
    *("dcqcn:hpcc-paper", "dcqcn:hpcc-paper,source=mean_field", "dcqcn:hpcc-paper,windowed=1"),
    *("dctcp:sigcomm10", "hpcc:hpcc", "timely:hpcc", "swift:htsim", "reno:rfc5681"),
)
"""One sender of every kind; the others are compared with the first."""

ENVS = 256
"""Environments stepped at once, on one device."""

ENDLESS = 10**8
"""Steps of an episode: so many that none ends, because a reset would restart the counters."""


class Network:
    """A batch of environments under random actions, with one kind of sender.

    Attributes:
        env: the environment.
        timing: its runs; None before they are timed.
    """

    def __init__(self, scenario: str, sender: str) -> None:
        """Compile steps, and reset the batch."""
        self.env: EcnEnv = make(scenario, transport=sender, max_steps=ENDLESS)
        self._params = self.env.default_params
        begin = jax.jit(start, static_argnums=(0, 3))
        self._carry = begin(self.env, self._params, jax.random.key(0), ENVS)
        steps = jax.jit(random_steps(self.env, AT_ONCE), donate_argnums=(0, 1, 2, 3))
        self._program: Compiled = compiled(steps, *self._carry, self._params, jnp.int32(1))
        self._steps, self._ticks = 0, 0.0
        self.timing: Timing | None = None

    def advance(self, steps: int) -> None:
        """Make `steps * AT_ONCE` steps."""
        before = self._flow_ticks()
        self._carry = self._program.call(*self._carry, self._params, jnp.int32(steps))
        jax.block_until_ready(self._carry)
        self._steps += steps * AT_ONCE
        self._ticks += float(np.mean(self._flow_ticks() - before, dtype=np.float64))

    def _flow_ticks(self) -> np.ndarray:
        # As float64 it is a copy; the next call takes the memory of the state.
        return counted(self._carry[1].sim.totals.flow_ticks, CHUNK)

    @property
    def busy(self) -> float:
        """Flow slots in use, the mean over ticks and environments."""
        sim = self.env.sim
        return self._ticks / (self._steps * sim.interval_steps / sim.tick_steps)

    @property
    def cpu_us(self) -> float:
        """Least CPU time of a step of one environment over all runs, µs."""
        assert self.timing is not None
        return 1e6 * self.timing.least_cpu_s / (AT_ONCE * ENVS)


def rows(scenario: str, plan: Plan, show: Callable[[str], None]) -> list[dict[str, Any]]:
    """Time every kind of sender on one scenario, in turn.

    Args:
        scenario: name of a scenario.
        plan: numbers of steps and runs.
        show: called with the next task.

    Returns:
        For each: `sender`, slots, the mean of those in use, CPU time of a step of one environment
        (µs) and of a flow in use and substep (ns), that over the first sender's, and the share of
        work on slots that skips free ones (`lanes.explain`).
    """
    networks = {}
    for sender in SENDERS:
        show(f"{scenario}, compile {sender}")
        networks[sender] = Network(scenario, sender)
    show(f"{scenario}, time all senders by turns")
    timings = interleaved({name: net.advance for name, net in networks.items()}, plan)
    sender_rows: list[dict[str, Any]] = []
    for sender, net in networks.items():
        net.timing = timings[sender]
        ns_per_flow = 1e3 * net.cpu_us / (net.busy * net.env.sim.interval_steps)
        first_ns = sender_rows[0]["cpu_ns_per_busy_flow_substep"] if sender_rows else ns_per_flow
        sender_rows.append(
            {
                "sender": sender,
                "slots": net.env.sim.slots,
                "busy": net.busy,
                "step_cpu_us": net.cpu_us,
                "cpu_ns_per_busy_flow_substep": ns_per_flow,
                "over_first": ns_per_flow / first_ns,
                "skipped": explained.step(net.env).skipped,
            }
        )
    return sender_rows


def table(scenario: str, sender_rows: list[dict[str, Any]]) -> Table:
    """One row for every kind of sender."""
    title = f"Senders, {scenario}, {ENVS} environments, one device"
    heads = ("slots", "in use", "CPU, µs per step", "ns per flow", "over first", "skipped")
    sender_table = plain_table(title, ["sender"], heads)
    for row in sender_rows:
        sender_table.add_row(
            row["sender"],
            str(row["slots"]),
            number(row["busy"], 1),
            number(row["step_cpu_us"], 1),
            number(row["cpu_ns_per_busy_flow_substep"], 1),
            number(row["over_first"], 2),
            DASH if np.isnan(row["skipped"]) else percent(row["skipped"]),
        )
    sender_table.caption = (
        "ns per flow: CPU time of a flow slot in use and substep, least of all runs; skipped: "
        "share of the\nwork on slots that passes over those free in all environments of a vector"
    )
    return sender_table

"""Checked mode: parameters, actions and thresholds out of range are errors."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import numpy as np
from jaxtyping import Array, PyTree

from ecn_marl._checks import check_numbers, of_batch
from ecn_marl.envs.interface import PortEnvironment, StepResult
from ecn_marl.sim.core.queues import Ecn
from ecn_marl.wrappers.forwarding import Forwarding


@dataclass(frozen=True)
class Checked(Forwarding):
    """The wrapped environment with checks of parameters, actions and thresholds.

    Every number of the parameters must be in the range that its field declares: no NaN, no negative
    rate, no episode of 0 steps. Actions must be in their space. A check reads the numbers, which
    takes about a millisecond. Use it in development, and for parameters that come from outside.

    Under `vmap` the numbers and actions of the whole batch are checked. While a function is
    compiled (`jit`, `scan`) its arguments have no numbers yet. There the wrapper does nothing,
    neither then nor when the compiled function runs. Check first, then compile:
    `Checked(env).check(params)`, then `jax.jit(env.reset)(key, params)`. Episodes that begin with a
    NaN parameter all the same are flagged, see `sim.core.flags`.

    Parameters are checked without the wrapper, too, where an episode begins. The PettingZoo and
    Gymnasium faces check them at their first reset, and actions always.

    The wrapper has every attribute of the wrapped environment.

    Attributes:
        env: a functional environment.
    """

    env: PortEnvironment

    def check(self, params: PyTree) -> None:
        """Check parameters.

        Raises:
            InvalidValue: the first number that is out of range, with its name, e.g.
                `params.sim.net.port_rate[3]`.
        """
        check_numbers(params)

    def reset(self, key: jax.Array, params: PyTree) -> tuple[Array, PyTree]:
        """Start an episode; see the wrapped environment.

        Raises:
            InvalidValue: see `check`.
        """
        check_numbers(params)
        return self.env.reset(key, params)

    def step(self, key: jax.Array, state: PyTree, action: Array, params: PyTree) -> StepResult:
        """One step; see the wrapped environment.

        Raises:
            InvalidValue: see `check`, or an action that is not in its space.
        """
        check_numbers(params)
        self._check_action(action)
        return self.env.step(key, state, action, params)

    def _check_action(self, action: Array) -> None:
        """Check actions, those of every member of a batch, unless they are compiled."""
        try:
            numbers = np.asarray(of_batch(action))
        except TypeError:
            return
        for member in numbers.reshape(-1, *np.shape(action)):
            self.env.action.check(member, self.env.num_agents, self.env.agents)

    def step_ecn(self, key: jax.Array, state: PyTree, ecn: Ecn, params: PyTree) -> StepResult:
        """One step with thresholds instead of actions; see the wrapped environment.

        Raises:
            InvalidValue: see `check`, or thresholds out of range.
        """
        check_numbers(params)
        check_numbers(ecn, "ecn")
        return self.env.step_ecn(key, state, ecn, params)

"""A trained policy of flows that set their own rates, in one file; numpy only.

`load_policy` returns a `RatePolicy` for files of this kind. A policy maps a flow's observations of
its last round trips (`columns` and `history`, see `envs.rate.env.COLUMNS`) to a factor of its rate:

    policy = ecn_marl.load_policy("adpg-int8.npz")
    rate *= policy(obs)                     # obs: float, [obs_dim], or [flows, obs_dim]

There are three forms, see `MODELS`. They are written for numpy and `jax.numpy` alike, so that the
simulator runs the arithmetic that would be deployed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from ecn_marl._errors import bad_value, unknown_name

CODE = 127
"""Largest int8 value; -128 is not used, so that ranges are symmetric (Wu et al. 2020, §3)."""

FRACTION = 2**-16
"""Unit of the table of factors of an int8 policy: a NIC multiplies and shifts by 16."""


def dense(xp: ModuleType, arrays: Mapping[str, Any], obs: Any) -> Any:
    """A network in float32: ReLU layers, tanh at the end.

    Args:
        xp: `numpy` or `jax.numpy`.
        arrays: weights `w0 [obs, out]`, biases `b0 [out]`, `w1`, …; `range`: middle and half width
            of the range of factors.
        obs: observations `[..., obs]`.

    Returns:
        Factors of the rates, `[...]`.
    """
    last = sum(name.startswith("w") for name in arrays) - 1
    x = obs
    for i in range(last + 1):
        x = x @ arrays[f"w{i}"] + arrays[f"b{i}"]
        if i < last:
            x = xp.maximum(x, 0.0)
    return arrays["range"][0] + arrays["range"][1] * xp.tanh(x[..., 0])


def int8(xp: ModuleType, arrays: Mapping[str, Any], obs: Any) -> Any:
    """A quantised network: float observations in, integers until the table of factors.

    Args:
        xp: `numpy` or `jax.numpy`.
        arrays: those of `int8_codes`; `inverse`: int8 steps per unit of each observation; `table`
            `[255]`: factors of codes from -127 on, in units of `FRACTION`.
        obs: observations `[..., obs]`.

    Returns:
        Factors of the rates, `[...]`.
    """
    steps = xp.clip(xp.rint(obs * arrays["inverse"]), -float(CODE), float(CODE))
    code = int8_codes(xp, arrays, steps.astype(xp.int32))
    return arrays["table"][code + CODE].astype(xp.float32) * np.float32(FRACTION)


def int8_codes(xp: ModuleType, arrays: Mapping[str, Any], codes: Any) -> Any:
    """The integer part of a quantised network; no sum or product leaves int32.

    A layer multiplies int8 by int8, sums in int32, and goes back to int8 by a multiplication and
    a shift with rounding: `(sum * m + 2^(shift - 1)) >> shift`. ReLU is the clip at 0.

    Args:
        xp: `numpy` or `jax.numpy`.
        arrays: `w0 [in, out]` int8, `b0 [out]` int32 in units of the sums, `m0 [out]` int32,
            `shift0` int32, `w1`, ….
        codes: quantised observations `[..., in]`, int32 from -127 to 127.

    Returns:
        Codes of the output, int32 from -127 to 127, `[...]`.
    """
    last = sum(name.startswith("w") for name in arrays) - 1
    for i in range(last + 1):
        weight, shift = arrays[f"w{i}"].astype(xp.int32), arrays[f"shift{i}"]
        total = (codes[..., :, None] * weight).sum(-2, dtype=xp.int32) + arrays[f"b{i}"]
        scaled = (total * arrays[f"m{i}"] + (xp.ones_like(shift) << (shift - 1))) >> shift
        codes = xp.clip(scaled, 0 if i < last else -CODE, CODE)
    return codes[..., 0]


def tree(xp: ModuleType, arrays: Mapping[str, Any], obs: Any) -> Any:
    """A complete binary tree of thresholds.

    Args:
        xp: `numpy` or `jax.numpy`.
        arrays: `feature` and `threshold` `[2^depth - 1]` of the inner nodes, level by level; the
            right child follows where the feature is above the threshold; `value [2^depth]` of the
            leaves.
        obs: observations `[..., obs]`.

    Returns:
        Factors of the rates, `[...]`.
    """
    leaves = arrays["value"].shape[0]
    columns = xp.arange(obs.shape[-1], dtype=xp.int32)
    node = xp.zeros(obs.shape[:-1], xp.int32)
    for _ in range(leaves.bit_length() - 1):
        tested = arrays["feature"][node][..., None] == columns
        x = xp.where(tested, obs, 0.0).sum(-1)
        node = 2 * node + 1 + (x > arrays["threshold"][node]).astype(xp.int32)
    return arrays["value"][node - (leaves - 1)]


MODELS: dict[str, Callable[[Any, Mapping[str, Any], Any], Any]] = {
    "dense": dense,
    "int8": int8,
    "tree": tree,
}
"""Forms of a policy by name: `f(xp, arrays, obs) -> factors`."""


@dataclass(frozen=True, repr=False)
class RatePolicy:
    """A policy of flows.

    Attributes:
        header: its training and observations, see `rate_export.export_rate_policy`.
        arrays: arrays of its form in `MODELS`.
    """

    header: Mapping[str, Any]
    arrays: Mapping[str, np.ndarray]

    def __post_init__(self) -> None:
        """Check the form.

        Raises:
            ValueError: an unknown form.
        """
        if self.model not in MODELS:
            raise unknown_name("form of the policy", self.model, MODELS)

    def __repr__(self) -> str:
        """One line: its algorithm and form."""
        size = f"{self.history} events of {len(self.columns)} numbers"
        return f"<RatePolicy of {self.header['algorithm']}: {self.model}, {size}>"

    @property
    def model(self) -> str:
        """Its form: `dense`, `int8` or `tree`."""
        return str(self.header["model"]["form"])

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of one event; an observation has `history` such blocks, the latest last."""
        return tuple(self.header["columns"])

    @property
    def history(self) -> int:
        """Number of events in an observation."""
        return int(self.header["history"])

    @property
    def obs_dim(self) -> int:
        """Length of an observation."""
        return self.history * len(self.columns)

    def __call__(self, obs: object) -> Any:
        """Factors of the rates.

        Args:
            obs: observation `[obs_dim]`, a batch `[..., obs_dim]`, or a PettingZoo dict, agent ->
                observation.

        Returns:
            float32, `[...]`; for a dict, a dict: agent -> factor.

        Raises:
            ValueError: an observation of another length.
        """
        if isinstance(obs, Mapping):
            return {agent: self(agent_obs) for agent, agent_obs in obs.items()}
        x = np.asarray(obs, np.float32)
        if x.shape[-1:] != (self.obs_dim,):
            raise bad_value("obs shape", x.shape, f"(..., {self.obs_dim})")
        return np.asarray(MODELS[self.model](np, self.arrays, x), np.float32)

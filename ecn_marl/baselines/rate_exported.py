"""Exported policies of flows in the simulator: `FILE.npz` in place of a run of a learner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from ecn_marl._errors import bad_value
from ecn_marl.baselines.exported import is_exported
from ecn_marl.baselines.exporting.files import policy_file, read_policy
from ecn_marl.baselines.exporting.rate_policy import MODELS, RatePolicy
from ecn_marl.envs.rate.actions import ContinuousFactor


@dataclass(frozen=True)
class Deployed:
    """A form of policy, `(arrays, obs) -> factors`, as `measure.Steered` takes it.

    Attributes:
        model: form in `rate_policy.MODELS`.
    """

    model: str

    def __call__(self, arrays: PyTree, obs: Float[Array, "*b obs"]) -> Float[Array, "*b"]:
        """Factors of the rates."""
        return jnp.asarray(MODELS[self.model](jnp, arrays, obs))


def device_arrays(policy: RatePolicy) -> dict[str, jax.Array]:
    """Arrays that `Deployed` reads; integers are int32, as vector code has no narrower ones."""
    kinds = {"i": np.int32, "f": np.float32}
    return {name: jnp.asarray(x, kinds[x.dtype.kind]) for name, x in policy.arrays.items()}


def is_rate_file(policy: str) -> bool:
    """Whether a policy is a file with a policy of flows."""
    if not is_exported(policy) or not policy_file(policy).is_file():
        return False
    return isinstance(read_policy(policy), RatePolicy)


def read_rate_exported(policy: str) -> RatePolicy:
    """The policy of a file.

    Args:
        policy: `FILE.npz` or `pretrained:NAME`.

    Raises:
        ValueError: no such file or name, or a file of another kind.
    """
    if not policy_file(policy).is_file():
        raise bad_value("policy", policy, "a file that `ecn-marl export` has written")
    loaded = read_policy(policy)
    if not isinstance(loaded, RatePolicy):
        raise bad_value("policy", policy, "a policy of flows here: this one is of ports")
    return loaded


def rate_view(policy: RatePolicy) -> dict[str, Any]:
    """Observations and actions of the policy, as options of `make_rate`."""
    header = policy.header
    return {
        "columns": policy.columns,
        "history": policy.history,
        "target": header["target"],
        "offset": header["offset"],
        "actions": ContinuousFactor(*header["factors"]),
    }

"""Static settings: the same thresholds on every port for a whole episode."""

from __future__ import annotations

import jax
from jaxtyping import PyTree

from ecn_marl.envs.actions import EcnSetting, parse_ecn
from ecn_marl.envs.interface import PortEnvironment
from ecn_marl.sim.core.queues import Ecn

PREFIX = "static:"
"""Prefix of the name of a static setting, e.g. `static:secn1`."""


class Static:
    """A controller that never changes anything.

    Named settings are SECN1 (DCQCN's, 5/200 KB, 1 %), SECN2 (a cloud provider's, 100/400 KB, 20 %)
    and DCTCP's step; others are given as `KMIN,KMAX,PMAX` (KB for a 25 Gb/s port).
    """

    def __init__(self, env: PortEnvironment, params: PyTree, setting: str) -> None:
        """Read the setting.

        Args:
            env: functional environment.
            params: its parameters.
            setting: name or triple.

        Raises:
            ValueError: a setting that cannot be read or is not allowed.
        """
        self.setting: EcnSetting = parse_ecn(setting)
        self.ecn: Ecn = env.static_ecn(setting, params)

    def __repr__(self) -> str:
        """One line: the setting at 25 Gb/s."""
        kmin, kmax, pmax = (getattr(self.setting, n) for n in ("kmin_kb", "kmax_kb", "pmax"))
        return f"<Static Kmin {kmin:g} KB, Kmax {kmax:g} KB, Pmax {pmax:g}>"

    def __call__(self, key: jax.Array, obs: jax.Array) -> Ecn:
        """The thresholds, for all observations."""
        return self.ecn

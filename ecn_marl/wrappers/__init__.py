"""Bridges and views of the environments.

Names are loaded when they are first used, so unused frameworks need not be installed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ecn_marl.wrappers.auto_reset import AutoReset, AutoResetState
    from ecn_marl.wrappers.bridges.comparison import compare, evaluate_policy, show
    from ecn_marl.wrappers.bridges.jaxmarl import EcnJaxMARL, jaxmarl_env
    from ecn_marl.wrappers.bridges.network import NetworkEnv, network_env
    from ecn_marl.wrappers.bridges.registries import register_envs
    from ecn_marl.wrappers.bridges.rllib import rllib_env, rllib_vector_env
    from ecn_marl.wrappers.bridges.sb3 import EcnSB3VecEnv as EcnSB3VecEnv
    from ecn_marl.wrappers.bridges.sb3 import sb3_env as sb3_env
    from ecn_marl.wrappers.bridges.torch import to_jax, to_torch
    from ecn_marl.wrappers.bridges.torchrl import EcnTorchRL as EcnTorchRL
    from ecn_marl.wrappers.bridges.torchrl import torchrl_env as torchrl_env
    from ecn_marl.wrappers.bridges.vector import EcnVectorEnv
    from ecn_marl.wrappers.bridges.vector_agents import AgentVectorEnv, vector_env
    from ecn_marl.wrappers.checked import Checked
    from ecn_marl.wrappers.episode_statistics import EpisodeStatistics, EpisodeStatisticsState
    from ecn_marl.wrappers.lanes import Lanes

_HOME = {
    "AgentVectorEnv": "bridges.vector_agents",
    "AutoReset": "auto_reset",
    "AutoResetState": "auto_reset",
    "Checked": "checked",
    "EcnJaxMARL": "bridges.jaxmarl",
    "EcnSB3VecEnv": "bridges.sb3",
    "EcnTorchRL": "bridges.torchrl",
    "EcnVectorEnv": "bridges.vector",
    "EpisodeStatistics": "episode_statistics",
    "EpisodeStatisticsState": "episode_statistics",
    "Lanes": "lanes",
    "NetworkEnv": "bridges.network",
    "compare": "bridges.comparison",
    "evaluate_policy": "bridges.comparison",
    "jaxmarl_env": "bridges.jaxmarl",
    "network_env": "bridges.network",
    "register_envs": "bridges.registries",
    "rllib_env": "bridges.rllib",
    "rllib_vector_env": "bridges.rllib",
    "sb3_env": "bridges.sb3",
    "show": "bridges.comparison",
    "to_jax": "bridges.torch",
    "to_torch": "bridges.torch",
    "torchrl_env": "bridges.torchrl",
    "vector_env": "bridges.vector_agents",
}

_EXTRAS = ("sb3", "torchrl")
"""Modules that need the extra of their name; their contents are left out of `__all__`."""

__all__ = [
    "AgentVectorEnv",
    "AutoReset",
    "AutoResetState",
    "Checked",
    "EcnJaxMARL",
    "EcnVectorEnv",
    "EpisodeStatistics",
    "EpisodeStatisticsState",
    "Lanes",
    "NetworkEnv",
    "compare",
    "evaluate_policy",
    "jaxmarl_env",
    "network_env",
    "register_envs",
    "rllib_env",
    "rllib_vector_env",
    "show",
    "to_jax",
    "to_torch",
    "vector_env",
]


if not TYPE_CHECKING:  # type checkers then report names that do not exist

    def __getattr__(name: str) -> Any:
        """Load a public name on first use (PEP 562)."""
        if name not in _HOME:
            raise AttributeError(
                f"module 'ecn_marl.wrappers' has no attribute {name!r}; it has {', '.join(__all__)}"
            )
        home = _HOME[name]
        extra = home.rpartition(".")[2]
        try:
            module = import_module(f"{__name__}.{home}")
        except ModuleNotFoundError as error:
            if extra not in _EXTRAS:
                raise
            hint = f"{name} needs {error.name}: pip install 'ecn-marl[{extra}]'"
            raise ModuleNotFoundError(hint, name=error.name) from error
        value = getattr(module, name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    """Public names, loaded or not."""
    return sorted({*globals(), *_HOME})

"""Bridges and views of the environments.

Names are loaded when they are first used: a framework's face costs nothing where it is not.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ecn_marl.wrappers.auto_reset import AutoReset, AutoResetState
    from ecn_marl.wrappers.checked import Checked
    from ecn_marl.wrappers.comparison import compare, evaluate_policy, show
    from ecn_marl.wrappers.episode_statistics import EpisodeStatistics, EpisodeStatisticsState
    from ecn_marl.wrappers.jaxmarl import EcnJaxMARL, jaxmarl_env
    from ecn_marl.wrappers.lanes import Lanes
    from ecn_marl.wrappers.network import NetworkEnv, network_env
    from ecn_marl.wrappers.registries import register_envs
    from ecn_marl.wrappers.rllib import rllib_env, rllib_vector_env
    from ecn_marl.wrappers.sb3 import EcnSB3VecEnv as EcnSB3VecEnv
    from ecn_marl.wrappers.sb3 import sb3_env as sb3_env
    from ecn_marl.wrappers.torch import to_jax, to_torch
    from ecn_marl.wrappers.torchrl import EcnTorchRL as EcnTorchRL
    from ecn_marl.wrappers.torchrl import torchrl_env as torchrl_env
    from ecn_marl.wrappers.vector import EcnVectorEnv
    from ecn_marl.wrappers.vector_agents import AgentVectorEnv, vector_env

_HOME = {
    "AgentVectorEnv": "vector_agents",
    "AutoReset": "auto_reset",
    "AutoResetState": "auto_reset",
    "Checked": "checked",
    "EcnJaxMARL": "jaxmarl",
    "EcnSB3VecEnv": "sb3",
    "EcnTorchRL": "torchrl",
    "EcnVectorEnv": "vector",
    "EpisodeStatistics": "episode_statistics",
    "EpisodeStatisticsState": "episode_statistics",
    "Lanes": "lanes",
    "NetworkEnv": "network",
    "compare": "comparison",
    "evaluate_policy": "comparison",
    "jaxmarl_env": "jaxmarl",
    "network_env": "network",
    "register_envs": "registries",
    "rllib_env": "rllib",
    "rllib_vector_env": "rllib",
    "sb3_env": "sb3",
    "show": "comparison",
    "to_jax": "torch",
    "to_torch": "torch",
    "torchrl_env": "torchrl",
    "vector_env": "vector_agents",
}

_EXTRAS = ("sb3", "torchrl")
"""Modules that need the extra of their name; what they hold is left out of `__all__`."""

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
        try:
            module = import_module(f"{__name__}.{home}")
        except ModuleNotFoundError as error:
            if home not in _EXTRAS:
                raise
            hint = f"{name} needs {error.name}: pip install 'ecn-marl[{home}]'"
            raise ModuleNotFoundError(hint, name=error.name) from error
        value = getattr(module, name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    """Public names, loaded or not."""
    return sorted({*globals(), *_HOME})

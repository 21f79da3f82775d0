"""The registries of gymnasium and PettingZoo: scenarios as `ecn_marl/websearch-v0` and so on.

Neither reads entry points (gymnasium dropped its own in 1.0), so registering is a call:

    ecn_marl.register_envs()
    gymnasium.make_vec("ecn_marl/websearch-v0", num_envs=16)
    gymnasium.make("ecn_marl/websearch-v0")
    pettingzoo.make("parallel", "ecn_marl/websearch-v0", load=0.8)

Importing this module registers them as well, and gymnasium imports it if the id names it:

    gymnasium.make_vec("ecn_marl.wrappers.bridges.registries:ecn_marl/websearch-v0", num_envs=16)
"""

from __future__ import annotations

from typing import Any

import gymnasium
import pettingzoo

from ecn_marl.envs.registry import make, scenarios
from ecn_marl.wrappers.batch import with_steps
from ecn_marl.wrappers.bridges.vector import EcnVectorEnv
from ecn_marl.wrappers.bridges.vector_agents import AgentVectorEnv, networks_for

NAMESPACE = "ecn_marl"


def register_envs() -> tuple[str, ...]:
    """Register all scenarios that are not registered yet, those of `ecn_marl.register` included.

    PettingZoo has a registry from 1.27 on. With an older one only gymnasium has the names.

    Returns:
        The ids.
    """
    ids = []
    for scenario in scenarios():
        name = f"{NAMESPACE}/{scenario}"
        ids.append(name)
        kwargs = {"scenario": scenario}
        if name not in gymnasium.registry:
            gymnasium.register(
                name,
                entry_point="ecn_marl.wrappers.bridges.network:network_env",
                vector_entry_point="ecn_marl.wrappers.bridges.registries:batched_env",
                kwargs=dict(kwargs),
            )
        if not hasattr(pettingzoo, "register"):
            continue
        faces = {"parallel": "ecn_marl:parallel_env", "aec": "ecn_marl:env"}
        for kind, entry_point in faces.items():
            if name not in getattr(pettingzoo, f"{kind}_registry"):
                pettingzoo.register(kind, name, entry_point=entry_point, kwargs=dict(kwargs))
    return tuple(ids)


def batched_env(
    num_envs: int, scenario: str, *, per_agent: bool = False, **options: Any
) -> EcnVectorEnv:
    """The vector environment that `gymnasium.make_vec` returns.

    Args:
        num_envs: sub-environments: networks, or with `per_agent` the agents of all of them.
        scenario: name of a registered scenario.
        per_agent: `AgentVectorEnv` instead of `EcnVectorEnv`.
        **options: `autoreset_mode`, `max_steps` as in `vector_env`, and those of `ecn_marl.make`.

    Raises:
        ValueError: an unknown name or a value that is not allowed.
    """
    vector_options = {k: options.pop(k) for k in ("autoreset_mode", "max_steps") if k in options}
    core = make(scenario, **with_steps(options, vector_options.get("max_steps")))
    if per_agent:
        return AgentVectorEnv(core, networks_for(core, num_envs), **vector_options)
    return EcnVectorEnv(core, num_envs, **vector_options)


register_envs()

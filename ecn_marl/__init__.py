"""Multi-agent reinforcement learning for automatic ECN tuning in data-centre networks.

Every switch egress port is an agent. In each tuning interval it observes its queue, rates, marks
and flows, and sets its ECN thresholds (Kmin, Kmax, Pmax). Its reward falls with completion times,
or grows with utilisation and falls with queue length.

    import ecn_marl

    env = ecn_marl.parallel_env("websearch-v0")      # PettingZoo
    env = ecn_marl.make("websearch-v0")              # functional: jit, vmap, scan
    env = ecn_marl.vector_env("websearch-v0", 16)    # gymnasium.vector

Train, evaluate, and take the numbers home as data frames:

    run = ecn_marl.train("ippo", "restore-serve-v0")
    result = ecn_marl.evaluate([run, "static:best", "rule"], "restore-serve-v0")
    result.flows, result.episodes, result.compare(str(run.folder), "rule")

Or every flow is an agent that sets its own rate, on every RTT packet (`ecn_marl.envs.rate`):

    env = ecn_marl.rate_parallel_env("many-to-one-8-v0")

Names are loaded when they are first used; importing the package does not import JAX.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ecn_marl.lanes.settings import set_trial_program as _set_trial_program

if TYPE_CHECKING:
    from ecn_marl import baselines, envs, errors, lanes, sim, wrappers
    from ecn_marl.baselines.algorithms import register_algorithm
    from ecn_marl.baselines.exporting.files import pretrained_policies
    from ecn_marl.baselines.training.trainer import Trainer
    from ecn_marl.envs.features import register_features
    from ecn_marl.envs.parallel import env, parallel_env
    from ecn_marl.envs.rate.parallel import rate_parallel_env
    from ecn_marl.envs.rate.scenarios import make_rate, rate_scenarios
    from ecn_marl.envs.registry import make, register, scenarios
    from ecn_marl.envs.rewards import register_reward
    from ecn_marl.envs.scenario import Scenario
    from ecn_marl.experiments.datasets import read_dataset, record
    from ecn_marl.experiments.evaluation import evaluate
    from ecn_marl.experiments.front import bench, train
    from ecn_marl.experiments.loading import load_policy
    from ecn_marl.experiments.results import read_records
    from ecn_marl.sim.traffic.sizes import register_size_table
    from ecn_marl.sim.traffic.sources import register_source
    from ecn_marl.sim.transports import register_transport
    from ecn_marl.wrappers.bridges.jaxmarl import jaxmarl_env
    from ecn_marl.wrappers.bridges.registries import register_envs
    from ecn_marl.wrappers.bridges.vector_agents import vector_env

    __version__: str

_HOME = {
    "Scenario": "ecn_marl.envs.scenario",
    "Trainer": "ecn_marl.baselines.training.trainer",
    "bench": "ecn_marl.experiments.front",
    "env": "ecn_marl.envs.parallel",
    "evaluate": "ecn_marl.experiments.evaluation",
    "jaxmarl_env": "ecn_marl.wrappers.bridges.jaxmarl",
    "load_policy": "ecn_marl.experiments.loading",
    "make": "ecn_marl.envs.registry",
    "make_rate": "ecn_marl.envs.rate.scenarios",
    "parallel_env": "ecn_marl.envs.parallel",
    "pretrained_policies": "ecn_marl.baselines.exporting.files",
    "rate_parallel_env": "ecn_marl.envs.rate.parallel",
    "rate_scenarios": "ecn_marl.envs.rate.scenarios",
    "read_dataset": "ecn_marl.experiments.datasets",
    "read_records": "ecn_marl.experiments.results",
    "record": "ecn_marl.experiments.datasets",
    "register": "ecn_marl.envs.registry",
    "register_algorithm": "ecn_marl.baselines.algorithms",
    "register_features": "ecn_marl.envs.features",
    "register_reward": "ecn_marl.envs.rewards",
    "register_size_table": "ecn_marl.sim.traffic.sizes",
    "register_source": "ecn_marl.sim.traffic.sources",
    "register_transport": "ecn_marl.sim.transports",
    "register_envs": "ecn_marl.wrappers.bridges.registries",
    "scenarios": "ecn_marl.envs.registry",
    "train": "ecn_marl.experiments.front",
    "vector_env": "ecn_marl.wrappers.bridges.vector_agents",
}
_MODULES = ("baselines", "envs", "errors", "lanes", "sim", "wrappers")

__all__ = [
    "Scenario",
    "Trainer",
    "baselines",
    "bench",
    "env",
    "envs",
    "errors",
    "evaluate",
    "jaxmarl_env",
    "lanes",
    "load_policy",
    "make",
    "make_rate",
    "parallel_env",
    "pretrained_policies",
    "rate_parallel_env",
    "rate_scenarios",
    "read_dataset",
    "read_records",
    "record",
    "register",
    "register_algorithm",
    "register_envs",
    "register_features",
    "register_reward",
    "register_size_table",
    "register_source",
    "register_transport",
    "scenarios",
    "sim",
    "train",
    "vector_env",
    "wrappers",
]


# Set here because whatever runs on a GPU has imported this file. It is only a name, so nothing is
# loaded.
_set_trial_program("ecn_marl.speed.trial:environments")

if not TYPE_CHECKING:  # type checkers then report names that do not exist

    def __getattr__(name: str) -> Any:
        """Load a public name on first use (PEP 562)."""
        if name in _MODULES:
            return import_module(f"ecn_marl.{name}")
        if name in _HOME:
            value = getattr(import_module(_HOME[name]), name)
            globals()[name] = value  # later uses find it without a call of `__getattr__`
            return value
        if name == "__version__":  # on demand: reading the metadata takes longer than this import
            from importlib.metadata import version

            return version("ecn-marl")
        raise AttributeError(
            f"module 'ecn_marl' has no attribute {name!r}; it has {', '.join(__all__)}"
        )


def __dir__() -> list[str]:
    """Public names, loaded or not."""
    return sorted({*__all__, *(name for name in globals() if name.startswith("__")), "__version__"})

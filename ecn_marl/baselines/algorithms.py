"""Algorithms by name: trainers whose agents are ports, and those of flows, and their settings."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from ecn_marl._errors import bad_value, unknown_name
from ecn_marl._registry import Registry
from ecn_marl.baselines.adpg import ADPG
from ecn_marl.baselines.apg import APG
from ecn_marl.baselines.aurora import Aurora
from ecn_marl.baselines.c_acc import CentralACC
from ecn_marl.baselines.dagger import Dagger
from ecn_marl.baselines.ddqn import DDQN
from ecn_marl.baselines.generalist import Generalist
from ecn_marl.baselines.gnn import GNN
from ecn_marl.baselines.haecn import HAECN
from ecn_marl.baselines.ippo import IPPO
from ecn_marl.baselines.mappo import MAPPO
from ecn_marl.baselines.oracle import RULES
from ecn_marl.baselines.pqn import PQN
from ecn_marl.baselines.rate_dqn import RateDQN
from ecn_marl.baselines.rate_ppo import RatePPO
from ecn_marl.baselines.rate_reinforce import Reinforce
from ecn_marl.baselines.rl.rate_learning import RateTrainer
from ecn_marl.baselines.sac import SAC
from ecn_marl.baselines.training.trainer import Trainer, as_trainer

RATE_ALGORITHMS: dict[str, type[RateTrainer]] = {
    "adpg": ADPG,
    "ppo": RatePPO,
    "reinforce": Reinforce,
    "aurora": Aurora,
    "dqn": RateDQN,
    "apg": APG,
}
"""Trainers whose agents are flows, by name, see `experiments.rate`."""

RESERVED = (
    *("pet", "ddqn-fct", "haecn-fct", "vdn"),
    *RATE_ALGORITHMS,
    *(*RULES, "static", "dynamic", "pretrained"),
)
"""Names of policies that are not in this registry: rows of the benchmark, learners of rates,
rules."""

ALGORITHMS: Registry[type[Trainer]] = Registry(
    "algorithm",
    {
        **{
            "ippo": IPPO,
            "mappo": MAPPO,
            "gnn": GNN,
            "sac": SAC,
            "pqn": PQN,
            "generalist": Generalist,
            "dagger": Dagger,
        },
        **{"ddqn": DDQN, "c-acc": CentralACC, "haecn": HAECN},
    },
    as_trainer,
    RESERVED,
)
"""Trainers whose agents are ports, by name."""


def register_algorithm(name: str, trainer: type[Trainer], replace: bool = False) -> None:
    """Register a trainer, to be named in `train` and `bench`.

    Args:
        name: e.g. `my-algorithm`.
        trainer: a class derived from `Trainer`, which states all that is needed.
        replace: whether to replace a trainer of this name.

    Raises:
        ValueError: the name is no name or taken, or the class does not keep the contract; the
            message names all that is missing.
    """
    ALGORITHMS.register(name, trainer, replace)


def check_agents(field: str, name: str) -> None:
    """Raise a ValueError, about a field, for the name of a learner whose agents are flows."""
    if name in RATE_ALGORITHMS:
        allowed = f"a learner whose agents are ports; of {name} they are flows (see `bench adpg`)"
        raise bad_value(field, name, allowed)


def algorithm_config(algorithm: str, **settings: object) -> Any:
    """Settings of an algorithm by name, defaults where nothing is given.

    Raises:
        ValueError: unknown algorithm or setting, or a value that is not allowed.
    """
    learner = RATE_ALGORITHMS.get(algorithm) or ALGORITHMS[algorithm]
    kind: type[Any] = learner.config_class
    names = [f.name for f in fields(kind) if f.init]
    for name in settings:
        if name not in names:
            raise unknown_name(f"setting of {algorithm}", name, names)
    tuples = [f.name for f in fields(kind) if isinstance(f.default, tuple)]
    for name in tuples:  # JSON has no tuples
        if name in settings:
            settings[name] = as_tuples(settings[name])
    return kind(**settings)


def as_tuples(value: object) -> Any:
    """Lists of JSON as tuples."""
    return tuple(as_tuples(x) for x in value) if isinstance(value, list | tuple) else value

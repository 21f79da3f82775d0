"""One policy for several scenarios, taught by what each setting costs where and when.

A port sees itself alone, in numbers that do not depend on its rate or on the size of the network.
So one actor serves every port of every network. But what a setting costs depends on the traffic:
the deepest one has 2.5 times the J of the shallowest in `websearch-v0`, and two thirds of it while
hosts of `restore-serve-v0` restore. Who is right nine times of ten may do more harm than good.

So the student learns costs, not answers. Before training, a search finds the best setting of each
phase and group of ports of each scenario, and how far log J rises if another one is taken there
instead (`search.costs_in`). A phase at a group is a place. An update is that of `Dagger`, in all
scenarios at once:

    roll out in every scenario, under the student (at first the teacher)
    ->  observation, place and utilisation of every port go into a memory, one per scenario
    ->  `gradient_steps` steps on the squared distance between the network's outputs and minus the
        costs of all settings, in rows drawn from every memory

Where places look alike to a port, the network learns the mean of their costs, and the setting with
the lowest one is the best that can be done with what it sees. Ross and Bagnell, "Reinforcement and
Imitation Learning via Interactive No-Regret Learning", arXiv 1406.5979, 2014, regress costs-to-go
in the same way. Here the cost is that of a whole place, spread over the decisions in it, and a
decision counts as much as its port was used in the interval that followed: what an idle port sets
costs nothing, and most ports are idle most of the time.

A run belongs to its first scenario, which `train --scenario` names; `also` has the others. They
take its options: features, actions, interval, reward. Checkpoints are chosen by the mean over all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from ecn_marl._errors import bad_value
from ecn_marl.baselines.dagger import Dagger, DaggerConfig, TrainState
from ecn_marl.baselines.oracle import group_names, phase_names, port_groups
from ecn_marl.baselines.rl import replay
from ecn_marl.baselines.rl.networks import moments, standardise
from ecn_marl.envs.interface import Environment, PortEnvironment

RAREST = 0.1
"""Share of what is carried that a place counts as at least: a rare one is not to outweigh all."""

IDLE = 1e-3
"""Sum of utilisations below which rows count less, down to nothing where nothing was carried."""

Costs = tuple[tuple[tuple[float, ...], ...], ...]
"""Cost of each setting in each phase at each group of ports of a scenario."""


@dataclass(frozen=True)
class GeneralistConfig(DaggerConfig):
    """Settings of the generalist: those of DAgger; each scenario has `envs` environments.

    Attributes:
        capacity: rows of the memory of each scenario.
        batch: rows of each gradient step from each scenario.
        also: names of the other scenarios.
        costs: of every scenario, first that of the run, the cost of each setting in each phase at
            each group of ports; `train` and `bench` search for it, see `experiments.taught`.
    """

    capacity: int = 65_536
    batch: int = 256
    also: tuple[str, ...] = ()
    costs: tuple[Costs, ...] = ()

    def __post_init__(self) -> None:
        """Check all settings."""
        super().__post_init__()
        if len(set(self.also)) < len(self.also) or not all(isinstance(x, str) for x in self.also):
            raise bad_value("also", self.also, "names of scenarios, each once")
        if self.teacher:
            raise bad_value("teacher", self.teacher, "(): the setting of the lowest cost teaches")
        if self.costs and len(self.costs) != 1 + len(self.also):
            allowed = f"a table for each of {1 + len(self.also)} scenarios"
            raise bad_value("costs", self.costs, allowed)

    @property
    def steps_per_update(self) -> int:
        """Environment steps per update, over all scenarios."""
        return self.envs * self.rollout * (1 + len(self.also))


class Student(Dagger):
    """The learner in one scenario, whose outputs are minus the costs of settings."""

    config: GeneralistConfig

    def __init__(self, env: Environment, config: GeneralistConfig, costs: Costs) -> None:
        """Set up.

        Args:
            env: functional environment.
            config: settings.
            costs: cost of each setting in each phase at each group of ports.

        Raises:
            ValueError: the costs are no such table, or see `Dagger`.
        """
        names = group_names(env)
        self.groups = len(names)
        self.group_of_port = np.array([names.index(name) for name in port_groups(env)], np.int32)
        self.costs = _table(costs, (len(phase_names(env)), self.groups), env)
        super().__init__(env, config)

    def taught(self, phases: tuple[str, ...]) -> tuple[int, ...]:
        """The setting of the lowest cost at each place.

        Raises:
            ValueError: the costs are of more or fewer settings than the environment has.
        """
        if self.costs.shape[1] != self.head.outputs:
            allowed = f"{self.head.outputs} settings of {self.env.name}"
            raise bad_value("costs", self.costs.tolist(), allowed)
        return tuple(int(choice) for choice in self.costs.argmin(1))

    def port_places(self, state: PyTree, params: PyTree) -> Int[Array, " ports"]:
        """The place of every port: its phase and its group."""
        return super().port_places(state, params) * self.groups + self.group_of_port

    def row(self, obs: PyTree, place: PyTree, info: Mapping[str, PyTree]) -> tuple[PyTree, ...]:
        """What the memory keeps of a decision, and how much it counts."""
        return obs, place, info["utilisation"]

    def loss(self, actor: PyTree, memory: PyTree, key: jax.Array) -> Float[Array, ""]:
        """Squared distance to minus the costs, summed over settings, a mean over what was carried.

        Empty slots of the memory carry nothing.
        """
        _, places, carried = memory.rows
        at_place = jax.nn.one_hot(places, len(self.costs)) * carried[:, None]
        share = at_place.sum(0) / jnp.maximum(carried.sum(), IDLE)
        costs = self.costs / jnp.maximum(share, RAREST)[:, None]
        obs, place, used = replay.drawn(memory, key, self.config.batch)
        error = ((jnp.asarray(self.net.apply(actor, obs)) + costs[place]) ** 2).sum(-1)
        return (used * error).sum() / jnp.maximum(used.sum(), IDLE)


class Generalist(Student):
    """The learner in several scenarios.

    `env`, `obs` and `memory` of its training state are tuples with an entry for each scenario.

    Attributes:
        others: environments of the other scenarios.
    """

    config_class = GeneralistConfig

    def __init__(
        self,
        env: PortEnvironment,
        config: GeneralistConfig,
        others: Sequence[PortEnvironment] = (),
    ) -> None:
        """Set up the network and its optimiser.

        Args:
            env: functional environment of the first scenario.
            config: settings.
            others: those of the scenarios `config.also`, with the same options.

        Raises:
            ValueError: no costs, other environments than those of `also`, one whose agents see or
                do something else, or see `Student`.
        """
        if not config.costs:
            allowed = (
                "a table for each scenario; `train` and `bench` search for it where rewards "
                "are in completion times"
            )
            raise bad_value("costs", config.costs, allowed)
        super().__init__(env, config, config.costs[0])
        names = tuple(other.name for other in others)
        if names != config.also:
            raise bad_value("others", names, f"environments of {config.also}")
        for other in others:
            if (other.obs_dim, other.action) != (env.obs_dim, env.action):
                raise bad_value(
                    "also", other.name, f"scenarios that look like {env.name} to a port"
                )
        self.others = tuple(others)
        pairs = zip(others, config.costs[1:], strict=True)
        self._students = (self, *(Student(other, config, costs) for other, costs in pairs))

    def init(self, key: jax.Array, params: PyTree) -> TrainState:
        """A fresh network, that standardises by the moments of all scenarios together."""
        keys = jax.random.split(key, len(self._students))
        starts = [
            Dagger.init(student, own, of)
            for student, own, of in zip(self._students, keys, self._params(params), strict=True)
        ]
        actor = starts[0].actor
        if self.config.standardise:
            actor = standardise(actor, *_pooled([moments(start.actor) for start in starts]))
        return replace(
            starts[0],
            actor=actor,
            env=tuple(start.env for start in starts),
            obs=tuple(start.obs for start in starts),
            memory=tuple(start.memory for start in starts),
        )

    def update(self, state: TrainState, params: PyTree) -> tuple[TrainState, dict[str, Array]]:
        """Roll out in every scenario, then fit the network to the costs in all.

        Args:
            state: training state.
            params: parameters of the first scenario.

        Returns:
            New state, and the update's metrics, means over scenarios.
        """
        key, learn_key, *keys = jax.random.split(state.key, 2 + len(self._students))
        places = zip(state.env, state.obs, state.memory, self._params(params), strict=True)
        parts: list[TrainState] = []
        metrics: list[dict[str, Array]] = []
        for student, own, (env, obs, memory, of) in zip(self._students, keys, places, strict=True):
            part, rows, means = student._collect(replace(state, env=env, obs=obs), own, of)
            parts.append(replace(part, memory=replay.append(memory, rows)[0]))
            metrics.append(means)
        memories = tuple(part.memory for part in parts)
        actor, opt, losses = self._learn(state.actor, state.opt, memories, learn_key)
        state = replace(
            state,
            actor=actor,
            opt=opt,
            memory=memories,
            env=tuple(part.env for part in parts),
            obs=tuple(part.obs for part in parts),
            key=key,
            updates=state.updates + 1,
        )
        means = {name: jnp.stack([x[name] for x in metrics]).mean() for name in metrics[0]}
        return state, means | losses

    def loss(self, actor: PyTree, memory: PyTree, key: jax.Array) -> Float[Array, ""]:
        """The mean of the losses in the scenarios; `memory` is a tuple of theirs."""
        keys = jax.random.split(key, len(self._students))
        each = zip(self._students, memory, keys, strict=True)
        return jnp.stack([Student.loss(s, actor, own, key) for s, own, key in each]).mean()

    def _params(self, params: PyTree) -> tuple[PyTree, ...]:
        return (params, *(other.default_params for other in self.others))


def _table(costs: Costs, places: tuple[int, int], env: Environment) -> np.ndarray:
    """Costs as an array `[places, settings]`, phases first."""
    try:
        table: np.ndarray = np.asarray(costs, np.float32)
    except ValueError:  # rows of several lengths
        table = np.empty(0)
    if table.ndim != 3 or table.shape[:2] != places or not np.isfinite(table).all():
        allowed = "finite numbers for each of {} phases and {} groups of ports of {}"
        raise bad_value("costs", costs, allowed.format(*places, getattr(env, "name", env)))
    return table.reshape(-1, table.shape[-1])


def _pooled(each: Sequence[tuple[Array, Array]]) -> tuple[Array, Array]:
    """Mean and deviation of all scenarios' observations together, each counting alike."""
    mean = jnp.stack([x for x, _ in each]).mean(0)
    square = jnp.stack([x**2 + deviation**2 for x, deviation in each]).mean(0)
    return mean, jnp.sqrt(jnp.maximum(square - mean**2, 0.0))

"""The interface of a trainer, for `train`, `eval`, `bench`, `export` and `play`.

    class MyTrainer(Trainer):
        config_class = MyConfig                     # settings: a frozen dataclass

        def init(self, key, params): ...            # a fresh training state, which has an `actor`
        def update(self, state, params): ...        # one update: the state, and metrics
        def act(self, actor, key, obs, greedy=False): ...

    ecn_marl.register_algorithm("mine", MyTrainer)

Everything else has a default. A trainer holds no arrays: the parameters are in its state.
"""

from __future__ import annotations

import inspect
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, PyTree

from ecn_marl._errors import bad_value, error_with_line
from ecn_marl._types import Leaf
from ecn_marl.baselines.evaluation.episodes import Controller, StatefulController
from ecn_marl.baselines.evaluation.merit import Greedy
from ecn_marl.baselines.rl.distributions import Head, head_for
from ecn_marl.baselines.rl.networks import Applied
from ecn_marl.baselines.training.spaces import Choice, LogUniform, Space
from ecn_marl.envs.interface import Environment, PortEnvironment
from ecn_marl.errors import EcnMarlError
from ecn_marl.wrappers import AutoReset

FLOAT_BYTES = 4
"""Bytes of a number that agents exchange: float32."""


@struct.dataclass
class TrainingState:
    """Fields that every training state has; trainers may define their own state.

    Attributes:
        actor: parameters of the policy.
        env: environment states, leading axis `envs`.
        obs: observations, `[envs, A, obs_dim]`.
        key: PRNG key.
    """

    actor: PyTree
    env: PyTree
    obs: Leaf
    key: Leaf


class Network(NamedTuple):
    """A policy that can be exported: one network from a port's observation to its action.

    Attributes:
        head: how outputs become an action, `Trainer.head`.
        layers: parameters of a `networks.Mlp`, or pairs of weights `[in, out]` and biases `[out]`,
            first layer first; with a leading axis of ports if every port has its own.
        activation: between the layers, `tanh` or `relu`.
        message: numbers of a message if ports exchange some, see `gnn.MessagePassing`.
    """

    head: Head
    layers: PyTree
    activation: str = "tanh"
    message: int = 0


class Trainer(ABC):
    """A learner of thresholds whose agents are ports; one object for an environment and settings.

    Attributes:
        config_class: its settings, a frozen dataclass whose fields all have defaults that JSON can
            hold (tuples are lists there). It has `envs`, environments stepped at once (`--envs`),
            and `steps_per_update`, environment steps of an update. If it has `shared`, and that is
            False, a policy serves only in networks of as many ports.
        per_env: fields of the training state with a leading axis of environments; these are split
            over devices.
        recipe: options of `ecn_marl.make` in scenarios of the benchmark: features, actions and
            reward, by the names of `recipes.OPTIONS`. None for those of `ippo`.
        space: what `ecn-marl tune` draws settings from, by their names, e.g.
            `{"lr": LogUniform(1e-4, 1e-2), "hidden": Choice(((32,), (64, 64)))}` (see `spaces`).
            None if there is nothing to tune.
        env: its environment, which resets itself at the end of an episode.
        config: its settings.
        head: how outputs of a network become an action's distribution, see `distributions.Head`.
    """

    config_class: ClassVar[type[Any]]
    per_env: ClassVar[tuple[str, ...]] = ("env", "obs")
    recipe: ClassVar[Mapping[str, Any] | None] = None
    space: ClassVar[Space | None] = None

    env: AutoReset
    config: Any
    head: Head

    def __init__(self, env: Environment, config: object) -> None:
        """Set up networks and optimisers.

        Args:
            env: functional environment; here it is wrapped in `AutoReset`.
            config: settings, of `config_class`.
        """
        self.env = AutoReset(env)
        self.config = config
        self.head = head_for(env.action)

    def __eq__(self, other: object) -> bool:
        """Whether another acts alike: the same class, environment and settings.

        What only training needs, such as networks that it starts from, is not compared.
        """
        if not isinstance(other, Trainer):
            return NotImplemented
        return type(self) is type(other) and (self.config, self.env) == (other.config, other.env)

    def __hash__(self) -> int:
        """Hash of what is compared."""
        return hash((type(self), self.config, self.env))

    @abstractmethod
    def init(self, key: jax.Array, params: PyTree) -> PyTree:
        """A fresh training state: a pytree dataclass with the policy's parameters as `actor`.

        Args:
            key: PRNG key.
            params: parameters of the environment.
        """

    @abstractmethod
    def update(self, state: PyTree, params: PyTree) -> tuple[PyTree, dict[str, Array]]:
        """One update; a pure function, as it is compiled and mapped over seeds.

        Args:
            state: training state.
            params: parameters of the environment.

        Returns:
            The next state, of the same shapes, and metrics, scalars by name: a row of
            `metrics.jsonl`. Those named `reward`, `queue_mean` and `utilisation` are plotted.
        """

    def act(
        self,
        actor: PyTree,
        key: jax.Array,
        obs: Float[Array, "*b agents obs"],
        greedy: bool = False,
    ) -> Array:
        """Actions for observations; a trainer has this or `controller`.

        Args:
            actor: parameters of the policy.
            key: PRNG key.
            obs: observations of all ports.
            greedy: the most likely actions instead of drawn ones.
        """
        raise NotImplementedError  # registration requires `act` or `controller`

    def controller(self, actor: PyTree, env: PortEnvironment) -> Controller | StatefulController:
        """The greedy policy for evaluation: a `Controller`, or a `StatefulController`.

        If it is a frozen dataclass whose field `actor` has the parameters, and whose other fields
        have a hash, one program evaluates all policies that differ in their parameters only.

        Args:
            actor: parameters of the policy.
            env: environment to act in, whose agents are ports.
        """
        return Greedy(self, actor)

    @property
    def flops(self) -> int | tuple[int, ...] | None:
        """Floating-point operations of one inference; None if not counted."""
        return None

    def modules(self, actor: PyTree) -> dict[str, tuple[Applied, PyTree]]:
        """Network and parameters of one port, as `policy`, to time them; empty for no timing."""
        return {}

    def network(self, actor: PyTree) -> Network | None:
        """The policy to be exported; None if it is not one network from observation to action."""
        return None

    def exchanged_bytes(self, env: PortEnvironment, rows: Sequence[Mapping[str, object]]) -> float:
        """Bytes that agents exchange, or send to a centre, per second of a network's time.

        Learners that share parameters are trained in one place, which is not counted.

        Args:
            env: environment whose agents are ports.
            rows: rows of `metrics.jsonl`.
        """
        return 0.0


CALLS: dict[str, int] = {"__init__": 3, "init": 3, "update": 3, "act": 4, "controller": 3}
"""Methods of a trainer, and how many arguments they are called with."""


def as_trainer(name: str, trainer: object) -> type[Trainer]:
    """The class of a trainer, after checks of its members and signatures.

    Args:
        name: of the algorithm.
        trainer: the class.

    Raises:
        ValueError: something is missing or wrong; the message names all of it.
    """
    field = f"trainer of {name}"
    if not isinstance(trainer, type):
        raise bad_value(field, trainer, "a class, derived from ecn_marl.Trainer")
    wrong = [f"{method}() is missing" for method in ("init", "update") if _lacks(trainer, method)]
    if _lacks(trainer, "act") and _lacks(trainer, "controller"):
        wrong.append("act() (or controller()) is missing")
    for method, count in CALLS.items():
        if not _lacks(trainer, method) and not _takes(getattr(trainer, method), count):
            wrong.append(f"{method}{inspect.signature(getattr(Trainer, method))} is expected")
    wrong += _wrong_config(getattr(trainer, "config_class", None))
    if not wrong:
        wrong += _wrong_space(trainer)
    if not issubclass(trainer, Trainer):
        wrong.insert(0, "it is not derived from ecn_marl.Trainer")
    if wrong:
        raise bad_value(field, trainer, f"the members of ecn_marl.Trainer: {'; '.join(wrong)}")
    return trainer


def _lacks(trainer: type, method: str) -> bool:
    """Whether a class neither defines a method nor inherits it from another base."""
    member = getattr(trainer, method, None)
    return member is None or member is getattr(Trainer, method)


def _takes(method: Callable[..., object], count: int) -> bool:
    try:
        inspect.signature(method).bind(*[None] * count)
    except TypeError:
        return False
    return True


def _wrong_config(kind: object) -> list[str]:
    """What is wrong with the class of a trainer's settings."""
    if not (isinstance(kind, type) and is_dataclass(kind)):
        return ["config_class, a frozen dataclass of settings, is missing"]
    try:
        config = kind()
        json.dumps(asdict(config))
        hash(config)
    except (TypeError, ValueError) as error:
        requirement = "needs defaults that JSON can hold, and frozen=True"
        return [f"config_class {kind.__name__} {requirement} ({error})"]
    return [
        f"config_class {kind.__name__} needs {name}, an integer of at least 1"
        for name in ("envs", "steps_per_update")
        if not isinstance(getattr(config, name, None), int) or getattr(config, name) < 1
    ]


def _wrong_space(trainer: Any) -> list[str]:
    """What is wrong with the search space of a trainer whose settings are right."""
    space, config_class = getattr(trainer, "space", None), trainer.config_class
    if space is None:
        return []
    if not isinstance(space, Mapping):
        return [f"space is {type(space).__name__}, a dict by setting is expected"]
    names = [field.name for field in fields(config_class) if field.init]
    wrong = []
    for name, kind in space.items():
        if name not in names:
            wrong.append(f"space has {name!r}, {config_class.__name__} has {', '.join(names)}")
        elif not isinstance(kind, LogUniform | Choice):
            wrong.append(f"space of {name} is {kind!r}, a LogUniform or Choice is expected")
    return wrong


def check_training(name: str, trainer: Trainer, params: PyTree) -> None:
    """Check the states and metrics of a trainer by their shapes; nothing is computed.

    Args:
        name: of the algorithm.
        trainer: the trainer.
        params: parameters of its environment.

    Raises:
        ValueError: a method raises an error, its state has no `actor`, an update changes the
            state's shapes, or its metrics are no scalars.
    """
    for attribute in ("env", "config"):
        if not hasattr(trainer, attribute):
            raise bad_value(f"trainer of {name}", type(trainer), f"one that sets self.{attribute}")
    key = jax.eval_shape(lambda: jax.random.key(0))
    state = _shapes(name, trainer, "init", key, params)
    if not hasattr(state, "actor"):
        allowed = "a pytree dataclass with the policy's parameters as `actor`"
        raise bad_value(f"state that init() of {name} makes", type(state), allowed)
    result = _shapes(name, trainer, "update", state, params)
    if not isinstance(result, tuple) or len(result) != 2 or not isinstance(result[1], dict):
        raise bad_value(f"update() of {name}", type(result), "(state, dict of metrics)")
    for path, changed in _changes(state, result[0]):
        raise bad_value(f"state of {name} after update()", path, f"the shapes of init(): {changed}")
    for metric, value in result[1].items():
        shape = getattr(value, "shape", None)
        if shape != () or not jnp.issubdtype(value.dtype, jnp.number):
            got = list(shape) if shape is not None else value
            raise bad_value(f"metric {metric} of {name}", got, "a scalar")


def _shapes(name: str, trainer: Trainer, method: str, *args: PyTree) -> Any:
    """What a method returns, by shapes; another error than ours names the line that raised it."""
    try:
        return jax.eval_shape(getattr(trainer, method), *args)
    except EcnMarlError:
        raise
    except Exception as error:  # a user's code may raise anything
        code = getattr(inspect.unwrap(getattr(type(trainer), method)), "__code__", None)
        found = error_with_line(error, code.co_filename if code else "")
        raise bad_value(f"{method}() of {name}", found, "a method that runs") from error


def _changes(before: object, after: object) -> list[tuple[str, str]]:
    """Leaves whose shape or type an update changes: path and change."""
    old, new = (jax.tree_util.tree_flatten_with_path(tree)[0] for tree in (before, after))
    if [path for path, _ in old] != [path for path, _ in new]:
        return [("another tree", f"{len(old)} leaves, not {len(new)}")]
    return [
        (jax.tree_util.keystr(path), f"{x.dtype}{list(x.shape)}, not {y.dtype}{list(y.shape)}")
        for (path, x), (_, y) in zip(old, new, strict=True)
        if (x.shape, x.dtype) != (y.shape, y.dtype)
    ]

"""A task of BenchMARL: its algorithms over the batch of `wrappers.torchrl_env`.

    from benchmarl.algorithms import MappoConfig
    from benchmarl.experiment import Experiment, ExperimentConfig
    from benchmarl.models.mlp import MlpConfig
    from ecn_marl.wrappers.bridges.benchmarl import benchmarl_task

    Experiment(
        task=benchmarl_task("restore-serve-v0"),
        algorithm_config=MappoConfig.get_from_yaml(),
        model_config=MlpConfig.get_from_yaml(),
        critic_model_config=MlpConfig.get_from_yaml(),
        seed=0,
        config=ExperimentConfig.get_from_yaml(),
    ).run()

BenchMARL 1.5 needs TorchRL below 0.12, the extra `torchrl` a later one. So BenchMARL needs a
separate Python environment, see docs/howto/frameworks.md.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarl.environments.common import TaskClass
from torchrl.data import Composite
from torchrl.envs import EnvBase

from ecn_marl.envs.registry import make
from ecn_marl.wrappers.bridges.torchrl import GROUP, EcnTorchRL


class EcnTask(TaskClass):
    """A scenario as a task; every port is an agent, all in one group, episodes are truncated.

    With continuous actions an agent sets its thresholds as `box`, else as `discrete`, unless the
    options name others.
    """

    def get_env_fun(
        self, num_envs: int, continuous_actions: bool, seed: int | None, device: object
    ) -> Callable[[], EcnTorchRL]:
        """A function that makes a batch of `num_envs` networks; it can be pickled."""
        defaults = {"actions": "box" if continuous_actions else "discrete"}
        return partial(_make_env, self.config["scenario"], num_envs, defaults | self._options, seed)

    @property
    def _options(self) -> dict[str, Any]:
        return {name: value for name, value in self.config.items() if name != "scenario"}

    def supports_continuous_actions(self) -> bool:
        """Whether thresholds can be set as real numbers."""
        return self._options.get("actions", "box") == "box"

    def supports_discrete_actions(self) -> bool:
        """Whether thresholds can be chosen from a list."""
        return self._options.get("actions", "discrete") == "discrete"

    def max_steps(self, env: EnvBase) -> int:
        """Tuning intervals of an episode."""
        return env.core.horizon

    def has_render(self, env: EnvBase) -> bool:
        """A batch cannot be rendered; see `ecn-marl play`."""
        return False

    def group_map(self, env: EnvBase) -> dict[str, list[str]]:
        """One group with all ports."""
        return {GROUP: list(env.core.agents)}

    def observation_spec(self, env: EnvBase) -> Composite:
        """Of one network: `("agents", "observation")` `[A, obs_dim]`."""
        return env.full_observation_spec_unbatched

    def action_spec(self, env: EnvBase) -> Composite:
        """Of one network: `("agents", "action")`."""
        return env.full_action_spec_unbatched

    def state_spec(self, env: EnvBase) -> None:
        """Critics get the observations of all ports; there is no other state."""

    def info_spec(self, env: EnvBase) -> None:
        """No info."""

    def action_mask_spec(self, env: EnvBase) -> None:
        """Every action is allowed at any time."""

    @staticmethod
    def env_name() -> str:
        """Name of the environment in BenchMARL's logs."""
        return "ecn_marl"


def _make_env(
    scenario: str, networks: int, options: dict[str, Any], seed: int | None
) -> EcnTorchRL:
    env = EcnTorchRL(make(scenario, **options), networks)
    env.set_seed(seed)
    return env


def benchmarl_task(scenario: str, **options: Any) -> EcnTask:
    """A scenario as a task of BenchMARL.

    Args:
        scenario: name of a registered scenario.
        **options: as in `ecn_marl.make`.

    Raises:
        ValueError: an unknown name or a value that is not allowed.
    """
    make(scenario, **options)
    return EcnTask(name=scenario.upper(), config={"scenario": scenario, **options})

"""Settings that trainers of ports have in common, and checks of settings."""

from __future__ import annotations

from dataclasses import dataclass

from ecn_marl._checks import Each, Real, Rule, Whole, check_value
from ecn_marl._errors import bad_value

WIDEST = 2**16
"""Largest number of units of a layer."""


def _all(settings: object, names: tuple[str, ...], rule: Rule) -> None:
    for name in names:
        check_value(name, getattr(settings, name), rule)


def at_least_one(settings: object, *names: str) -> None:
    """Check counts.

    Raises:
        ValueError: one of the settings named is no integer, or below 1.
    """
    _all(settings, names, Whole(low=1, high=2**53))


def shares(settings: object, *names: str) -> None:
    """Check probabilities, discounts and the like.

    Raises:
        ValueError: one of the settings named is not in [0, 1].
    """
    for name in names:
        if not Real(low=0.0, high=1.0).fits(getattr(settings, name)):
            raise bad_value(name, getattr(settings, name), "a number in [0, 1]")


def exploration(settings: object) -> None:
    """Check the chance of a random action: `epsilon`, `epsilon_decay` and `epsilon_min`.

    Raises:
        ValueError: one of them is no chance, or the chance would grow.
    """
    shares(settings, "epsilon")
    epsilon, decay, least = (
        getattr(settings, name) for name in ("epsilon", "epsilon_decay", "epsilon_min")
    )
    if not Real(above=0.0, high=1.0).fits(decay):
        raise bad_value("epsilon_decay", decay, "a number in (0, 1]")
    if not Real(low=0.0, high=epsilon).fits(least):
        raise bad_value("epsilon_min", least, f"a number in [0, epsilon = {epsilon}]")


def positive(settings: object, *names: str, infinite: bool = False) -> None:
    """Check rates and bounds.

    Raises:
        ValueError: one of the settings named is not above 0; or infinite, unless that is allowed.
    """
    _all(settings, names, Real(above=0.0, infinite=infinite))


def not_negative(settings: object, *names: str) -> None:
    """Check weights and tolerances.

    Raises:
        ValueError: one of the settings named is below 0, or infinite.
    """
    _all(settings, names, Real(low=0.0))


def widths(settings: object, *names: str, least: int = 0) -> None:
    """Check widths of hidden layers.

    Raises:
        ValueError: one is no integer from 1 to `WIDEST`, or there are fewer layers than `least`.
    """
    _all(settings, names, Each(Whole(low=1, high=WIDEST), least=least))


@dataclass(frozen=True)
class LearnerSettings:
    """Settings of every trainer of ports; each adds its own, and has defaults of its own.

    Attributes:
        envs: environments stepped at once.
        rollout: intervals per environment and update.
        anneal_updates: updates over which learning rates fall to `optimisers.FINAL_RATE` of what
            they were; 0 for rates that do not fall.
        gamma: discount per tuning interval.
        reward_scale: factor of the rewards that are learnt from. It should bring returns to about
            1: values start near 0 and take long to reach returns of a hundred.
        max_grad_norm: gradients are scaled down to this norm.
        hidden: widths of the hidden layers.
        standardise: intervals of random actions at the start, by which networks standardise their
            features, see `networks.standardise`; 0 for unscaled features.
    """

    envs: int = 64
    rollout: int = 32
    anneal_updates: int = 0
    gamma: float = 0.95
    reward_scale: float = 1.0
    max_grad_norm: float = 10.0
    hidden: tuple[int, ...] = (64, 64)
    standardise: int = 0

    def __post_init__(self) -> None:
        """Check all settings."""
        at_least_one(self, "envs", "rollout")
        not_negative(self, "anneal_updates", "standardise")
        shares(self, "gamma")
        positive(self, "reward_scale")
        positive(self, "max_grad_norm", infinite=True)
        widths(self, "hidden")

    @property
    def steps_per_update(self) -> int:
        """Environment steps (tuning intervals) per update."""
        return self.envs * self.rollout

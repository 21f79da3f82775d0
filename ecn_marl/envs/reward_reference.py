"""Rewards relative to a reference policy: 0 for the reference, 1 for the oracle, over an episode.

    make("restore-serve-v0", reward_reference="static:best")

A port's reward r in an interval becomes

    (r - m) / H,    m = R / T

with R the port's mean return of an episode under the reference, T the intervals of an episode, and
H the headroom: the oracle's return minus the reference's, mean over ports. So the mean over ports
of an episode's rewards adds up to 0 under the reference and to 1 under the oracle, on average over
episodes. A single episode may differ, because its traffic does.

The problem stays the same: the order of policies does not change. Reward that no policy can change
(an idle port's 0.7 under the papers' rewards) is subtracted, port by port.

`ecn-marl reward-reference` (`experiments.reward_references`) measures R and H on separate tuning
episodes and writes them to files. The package's own are in `scenarios/reward_references`. A file is
valid only for the episodes and the reward that it was measured with; others are an error.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from hashlib import sha256
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ecn_marl._errors import bad_value
from ecn_marl.envs.rewards import Reward, RewardParams
from ecn_marl.envs.telemetry import Telemetry

if TYPE_CHECKING:  # it imports environments, and these import this module
    from ecn_marl.envs.scenario import Scenario

SHIPPED = Path(__file__).parent / "scenarios" / "reward_references"
"""Files of the scenarios of the package, `SCENARIO.json`."""

EXCLUDED = (
    *("features", "action_options", "reward", "reward_options", "slowdown_weights"),
    *("benchmark", "superseded", "reward_reference", "interval_us", "max_steps"),
)
"""Fields of a scenario that episodes under given thresholds do not depend on, or that count in
another way: weights as options of the reward, intervals as the time of an episode."""


@dataclass(frozen=True)
class RewardReference:
    """Returns of a reference policy in an episode, and the headroom of the oracle above them.

    Attributes:
        name: the policy that earns 0, e.g. `static:best`.
        returns: its mean return of an episode, for each of A ports.
        headroom: the oracle's mean return minus the reference's, mean over ports; above 0.
    """

    name: str
    returns: tuple[float, ...]
    headroom: float


def fingerprint(spec: Scenario, telemetry: Telemetry) -> str:
    """A hash of all that decides the episodes of a scenario under given thresholds.

    Args:
        spec: the `Scenario`, options of `make` applied.
        telemetry: delay, period and precision of observations and actions.
    """
    facts = {"time_us": f"{spec.max_steps * spec.interval_us:g}"}
    for field, value in _changed(spec):
        if field not in EXCLUDED:
            facts[field] = _described(value)
    if telemetry != Telemetry():
        facts["telemetry"] = _described(telemetry)
    return sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def _changed(value: Any) -> list[tuple[str, Any]]:
    """Fields of a dataclass that are not at their defaults, and their values."""
    changed = []
    for field in fields(value):
        usual = field.default
        if usual is MISSING and field.default_factory is not MISSING:
            usual = field.default_factory()
        if repr(getattr(value, field.name)) != repr(usual):
            changed.append((field.name, getattr(value, field.name)))
    return changed


def _described(value: object) -> str:
    """A value as text; of dataclasses only what is not at its default.

    So an option that is added later, and is not used, changes no fingerprint.
    """
    if isinstance(value, tuple):
        return f"({', '.join(map(_described, value))})"
    if is_dataclass(value) and not isinstance(value, type):
        inside = (f"{name}={_described(item)}" for name, item in _changed(value))
        return f"{type(value).__name__}({', '.join(inside)})"
    return repr(value)


def reward_facts(
    reward: Reward, options: Mapping[str, object], interval_us: float
) -> dict[str, Any]:
    """What identifies a reward in a file: rewards with equal facts have equal returns.

    The sum of a reward in completion times does not depend on the length of intervals; other
    rewards have the length among their facts. The credit is left out, because shares add up to the
    whole.
    """
    parameters = signature(RewardParams.create).parameters.items()
    usual = {name: parameter.default for name, parameter in parameters}
    settled = {name: float(x) for name, x in sorted((usual | dict(options)).items())}
    facts: dict[str, Any] = {"reward": reward.name, "options": settled}
    return facts if reward.accrues else facts | {"interval_us": float(interval_us)}


def find_reference(
    reference: str,
    scenario: str,
    spec: Scenario,
    telemetry: Telemetry,
    reward: Reward,
    options: Mapping[str, Any],
) -> RewardReference:
    """The measured reference that an environment's `reward_reference` names.

    Args:
        reference: `POLICY` for a file of the package, or `POLICY@FILE.json`.
        scenario: name of the scenario, as registered.
        spec: the scenario, options of `make` applied.
        telemetry: delay, period and precision of observations and actions.
        reward: the reward.
        options: its options.

    Raises:
        ValueError: no such file, or nothing in it was measured for these episodes and this reward.
    """
    if reward.whole:
        raise bad_value("reward_reference", reference, "none with credit='flows': not measured")
    policy, _, own_file = reference.partition("@")
    file = Path(own_file) if own_file else SHIPPED / f"{scenario}.json"
    entries = _entries(reference, file) if own_file or file.is_file() else []
    facts = {
        "episodes": fingerprint(spec, telemetry),
        **reward_facts(reward, options, spec.interval_us),
    }
    for entry in entries:
        if {name: entry.get(name) for name in facts} == facts and policy in entry["returns"]:
            returns = tuple(float(x) for x in entry["returns"][policy])
            headroom = float(entry["headroom"][policy]["value"])
            if reward.accrues and reward.team:  # shares were measured; every port earns their sum
                ports = len(returns)
                return RewardReference(policy, (sum(returns),) * ports, headroom * ports)
            return RewardReference(policy, returns, headroom)
    names = {f"{name} under {entry['reward']}" for entry in entries for name in entry["returns"]}
    measured = f"{file.name} has {', '.join(sorted(names))}" if names else "there is none"
    allowed = (
        f"one that was measured in these episodes of {scenario} for reward {reward.name!r} and its "
        f"options ({measured}); `ecn-marl reward-reference` measures it"
    )
    raise bad_value("reward_reference", reference, allowed)


def _entries(reference: str, file: Path) -> list[dict[str, Any]]:
    """The entries of a file; each holds the returns of one reward in one kind of episodes.

    Raises:
        ValueError: it cannot be read.
    """
    try:
        entries: list[dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))["entries"]
        for entry in entries:
            _ = entry["reward"], entry["episodes"], entry["options"], entry["returns"].items()
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        allowed = f"POLICY@FILE.json, a file of `ecn-marl reward-reference` ({error!r})"
        raise bad_value("reward_reference", reference, allowed) from None
    return entries

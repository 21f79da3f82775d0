"""Names of policies, the same in all commands.

A name is the folder of a run, `FOLDER#I` for the I-th of its seeds; the file of an exported policy,
`FILE.npz`, or `pretrained:NAME` for one that ships; or a rule: `static:SETTING` (`static:best`
searches a grid), `dynamic:TUNER`, `oracle` or `random`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ecn_marl._errors import bad_value
from ecn_marl.baselines.dynamic import PREFIX as DYNAMIC
from ecn_marl.baselines.exported import is_exported, read_exported
from ecn_marl.baselines.exporting.policy import PRETRAINED
from ecn_marl.baselines.oracle import RULES
from ecn_marl.baselines.static import PREFIX
from ecn_marl.baselines.training.checkpoint import read_config
from ecn_marl.envs.actions import STATIC_ECN, parse_ecn
from ecn_marl.sim.tuners import parse_tuner


def is_rule(policy: str) -> bool:
    """Whether a policy is a rule, not trained."""
    return policy in RULES or policy.startswith((PREFIX, DYNAMIC))


def learners(policy: str | Path) -> list[str]:
    """Names of the single policies that a name stands for: one per seed of a run.

    Raises:
        ValueError: not a name as in the module's docstring, or a file that cannot be read.
    """
    name = str(policy)
    if name in RULES:
        return [name]
    if name.startswith(PREFIX):
        parse_ecn(name.removeprefix(PREFIX))
        return [name]
    if name.startswith(DYNAMIC):
        parse_tuner(name.removeprefix(DYNAMIC))
        return [name]
    if is_exported(name):
        read_exported(name)
        return [name]
    folder, _, number = name.partition("#")
    seeds = run_config(folder)["seeds"]
    if number:
        return [name]
    return [name] if seeds == 1 else [f"{name}#{i}" for i in range(seeds)]


def run_config(folder: str) -> dict[str, Any]:
    """Configuration of a run; the error for other names says what a policy can be."""
    if not Path(folder).is_dir():
        rules = f"{PREFIX}secn1 or {DYNAMIC}pi or another such rule"
        allowed = f"the folder of a run, FILE.npz, {PRETRAINED}NAME, or {rules}"
        raise bad_value("policy", folder, allowed)
    return read_config(folder)


def label(policy: str) -> str:
    """How a policy is shown: its trainer and folder or file; static settings in numbers, KB."""
    if policy in RULES:
        return RULES[policy]
    if policy.startswith(DYNAMIC):
        name, _, constants = policy.removeprefix(DYNAMIC).partition(":")
        title = parse_tuner(name).title
        return f"{title} ({constants})" if constants else title
    if is_exported(policy):
        stem = Path(policy.removeprefix(PRETRAINED)).stem
        return f"{read_exported(policy).header['algorithm'].upper()} {stem}"
    if not is_rule(policy):
        folder, _, number = policy.partition("#")
        config = run_config(folder)
        name = f"{config['algorithm'].upper()} {Path(folder).name}"
        return f"{name}, seed {config['seed'] + int(number)}" if number else name
    name = policy.removeprefix(PREFIX).strip().lower()
    setting = parse_ecn(name)
    numbers = f"({setting.kmin_kb:g},{setting.kmax_kb:g},{setting.pmax:g})"
    return f"{name.upper()} {numbers}" if name in STATIC_ECN else f"static {numbers}"

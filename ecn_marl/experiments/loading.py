"""`ecn_marl.load_policy`: a policy by the name that the commands take, ready for a loop.

Files need numpy only, so everything else is imported where it is needed.
"""

from __future__ import annotations

from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ecn_marl._errors import bad_value
from ecn_marl.baselines.exporting.files import PRETRAINED, read_policy
from ecn_marl.baselines.exporting.policy import Policy
from ecn_marl.baselines.exporting.rate_policy import RatePolicy

if TYPE_CHECKING:
    from ecn_marl.baselines.bound import BoundPolicy


def load_policy(
    policy: Any, scenario: str | None = None, *, checkpoint: str = "best", **options: Any
) -> Policy | RatePolicy | BoundPolicy:
    """Load a policy, by the name that `eval` and `evaluate` take.

    Args:
        policy: a file that `ecn-marl export` has written (needs numpy only), `pretrained:NAME` (see
            `pretrained_policies`), the folder of a run (`FOLDER#I` for one of its seeds), or a
            rule: `static:secn1`, `static:best`, `dynamic:pi`, `rule`, `oracle`, `random`, …
        scenario: the scenario that it will act in; None for the one that it was trained in, for
            rules `restore-serve-v0`. Settings of rules depend on it.
        checkpoint: of a run: `best` (the latest if none was evaluated), `latest`.
        **options: options of `ecn_marl.make` for that scenario, such as `load=0.5`.

    Returns:
        Of a file: `policy(obs) -> action`, `policy.thresholds(obs)`; of flows `policy(obs) ->
        factor`. Of a run or rule of ports a `BoundPolicy`: `policy(observations, infos) ->
        actions`, and pure functions. All of ports have `make_options`, the options of the
        environment that they need.

    Raises:
        OSError: a file that cannot be read.
        ValueError: not the name of a policy; a file that is none, or of a later version; options
            that the policy brings along itself; senders, which set their rates themselves.
        DamagedFile: a field of a file's header is missing, or a weight is no finite number.
    """
    if isinstance(policy, str | PathLike):
        name = fspath(policy)
        if name.startswith(PRETRAINED) or (Path(name).is_file() and not _is_run(name)):
            return read_policy(name)
        if name.endswith(".npz") and not Path(name).is_dir():
            return read_policy(name)  # raises that there is no such file
    return _bound(policy, scenario, checkpoint, options)


def _is_run(name: str) -> bool:
    return Path(name.partition("#")[0]).is_dir()


def _bound(
    policy: Any, scenario: str | None, checkpoint: str, options: dict[str, Any]
) -> RatePolicy | BoundPolicy:
    from dataclasses import replace

    from ecn_marl.baselines.bound import BoundPolicy
    from ecn_marl.experiments import policies as po
    from ecn_marl.experiments import rate

    if isinstance(policy, str | PathLike):
        name = fspath(policy)
        if rate.is_rate_run(name):
            return rate.rate_policy_of(name, checkpoint)
        if rate.is_senders(name):
            allowed = (
                "a policy that takes observations: senders set their rates themselves; evaluate "
                "them by this name, or put them into a scenario, transport=…"
            )
            raise bad_value("policy", name, allowed)
    named = po.resolve(policy)
    if isinstance(named, po.OwnPolicy):
        raise bad_value("policy", policy, "a name: your own policy needs no loading")
    arena = replace(po.arena([named], scenario, **options), checkpoint=checkpoint)
    if len(named.members) > 1:
        named = po.resolve(named.members[0])  # the first of several seeds, as `export` does
    env = arena.env(named)
    controller: Any = named.controller(env, arena)
    return BoundPolicy(named, env, controller, named.view(arena))

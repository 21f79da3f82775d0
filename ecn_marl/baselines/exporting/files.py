"""Files of trained policies; reading and writing them needs numpy only.

A file is an `.npz` archive without pickles: `header` is JSON (UTF-8 bytes), `w0, b0, w1, …` are
the layers of a network, `settings` the thresholds of discrete actions. Layers that are normalised
have scales and offsets `s0, o0, …`, a policy with a memory its GRU's `recurrent` weights and
`recurrent_bias`. If ports exchange messages, the layers of messages lie between the others, and the
header says who is whose neighbour.

Some policies ship with the package: `pretrained:NAME` stands for their files.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from ecn_marl._errors import bad_value, unknown_name
from ecn_marl._files import Output, write_all
from ecn_marl.baselines.exporting.policy import GRU, Policy
from ecn_marl.baselines.exporting.rate_policy import RatePolicy
from ecn_marl.errors import DamagedFile

FORMAT = "ecn-marl-policy"
VERSION = 4
"""Latest version of the format. Policies of ports are written as version 1, those of flows as 2,
those of ports with a memory or normalised layers as 3, of ports that exchange messages as 4."""

FLOWS = "flows"
"""Value of `agents` in the header where they are flows; policies of ports have no such entry."""

PRETRAINED = "pretrained:"
"""Prefix of the name of a shipped policy, in place of a file."""

SHIPPED = Path(__file__).resolve().parents[2] / "pretrained"
"""Folder of the policies that ship."""


def save_policy(policy: Policy | RatePolicy, path: str | Path) -> None:
    """Write a policy to one file, whole or not at all."""
    format_fields: dict[str, Any] = {"format": FORMAT, "version": 1}
    arrays: dict[str, Any] = {}
    if isinstance(policy, RatePolicy):
        format_fields |= {"version": 2, "agents": FLOWS}
        arrays |= policy.arrays
    else:
        for i, (weight, bias) in enumerate(policy.layers):
            arrays |= {f"w{i}": weight, f"b{i}": bias}
        arrays["settings"] = policy.settings
        for i, (scale, offset) in enumerate(policy.norms):
            arrays |= {f"s{i}": scale, f"o{i}": offset}
        if policy.gru is not None:
            arrays |= dict(zip(GRU, policy.gru, strict=True))
        if policy.message:
            format_fields["version"] = VERSION
        elif policy.gru is not None or policy.norms:
            format_fields["version"] = 3
    header = np.frombuffer(json.dumps({**format_fields, **policy.header}).encode(), np.uint8)
    write_all({Path(path): Output("wb", lambda file: np.savez(file, header=header, **arrays))})


def pretrained_policies() -> tuple[str, ...]:
    """Names of the policies that ship with the package, for `load_policy("pretrained:NAME")`."""
    return tuple(sorted(path.stem for path in SHIPPED.glob("*.npz")))


def policy_file(name: str | Path) -> Path:
    """The file of a policy.

    Args:
        name: a path, or `pretrained:NAME`.

    Raises:
        ValueError: no policy of that name ships; the message has the nearest names.
    """
    if not str(name).startswith(PRETRAINED):
        return Path(name)
    short, names = str(name).removeprefix(PRETRAINED), pretrained_policies()
    if short not in names:
        raise unknown_name("pretrained policy", short, names)
    return SHIPPED / f"{short}.npz"


NOT_A_POLICY = (ValueError, KeyError, TypeError, AttributeError, EOFError, BadZipFile, zlib.error)
"""Errors from reading a file of another kind; numpy and json have no common one."""


def read_policy(path: str | Path) -> Policy | RatePolicy:
    """Read the file of a policy that `ecn-marl export` has written; needs numpy only.

    Args:
        path: the file, or `pretrained:NAME` for a policy that ships, see `pretrained_policies`.

    Returns:
        Of ports: `policy(obs) -> action`, `policy.thresholds(obs)`. Of flows: `policy(obs) ->
        factor`.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no policy, or of a later version; or no policy of that name ships.
        DamagedFile: a field of its header is missing, or a weight is no finite number.
    """
    path = policy_file(path)
    allowed = "a file that `ecn-marl export` has written"
    try:
        # A pickle runs code of whoever made the file.
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        header = json.loads(arrays.pop("header").tobytes())
    except OSError:
        raise
    except NOT_A_POLICY:
        raise bad_value("policy", str(path), allowed) from None
    is_policy = isinstance(header, dict) and header.get("format") == FORMAT
    if not is_policy or not isinstance(header.get("version"), int):
        raise bad_value("policy", str(path), allowed)
    if header["version"] > VERSION:
        raise bad_value("version of the policy", header["version"], f"at most {VERSION}")
    if header.get("agents") == FLOWS:
        return _rate_policy(header, arrays, path)
    return _port_policy(header, arrays, path)


NEEDED = ("algorithm", "scenario", "interval_us", "features", "actions", "network")
"""Fields of the header of a policy of ports, beside `ports`."""


def _port_policy(header: dict[str, Any], arrays: dict[str, np.ndarray], path: Path) -> Policy:
    """A policy of ports; one call checks that header and arrays fit."""
    for name in (*NEEDED, "ports"):
        if name not in header:
            expected = "expected a file that `ecn-marl export` has written"
            raise DamagedFile(f"policy {path} is damaged: its header has no {name}; {expected}")
    for name, array in arrays.items():
        if array.dtype.kind not in "biuf" or not np.isfinite(array).all():
            raise DamagedFile(f"policy {path} is damaged: {name} holds more than finite numbers")
    try:
        count = sum(name.startswith("w") for name in arrays)
        layers = tuple((arrays[f"w{i}"], arrays[f"b{i}"]) for i in range(count))
        weight, bias = (arrays.get(name) for name in GRU)
        gru = None if weight is None or bias is None else (weight, bias)
        if (gru is None) == bool(header["network"].get("memory")):
            raise ValueError
        normalised = count - 1 - (gru is not None) if header["network"].get("normalised") else 0
        norms = tuple((arrays[f"s{i}"], arrays[f"o{i}"]) for i in range(normalised))
        policy = Policy(header, layers, arrays["settings"], gru, norms)
        if policy.message:
            action = policy(np.zeros((len(header["ports"]), policy.obs_dim), np.float32))
        else:
            action, _ = policy.step(np.zeros(policy.obs_dim, np.float32), None, 0)
        policy.thresholds_of(action, 0)
        if len(policy.features) * header["features"]["history"] != policy.obs_dim:
            raise ValueError
    except (*NOT_A_POLICY, IndexError):  # of the right version, with other contents
        allowed = "a file that `ecn-marl export` has written, with all of its fields and arrays"
        raise bad_value("policy", str(path), allowed) from None
    return policy


def _rate_policy(
    header: Mapping[str, object], arrays: dict[str, np.ndarray], path: Path
) -> RatePolicy:
    """A policy of flows; one call checks that its arrays fit its form."""
    try:
        policy = RatePolicy(header, arrays)
        if any(array.dtype.kind == "f" and np.isnan(array).any() for array in arrays.values()):
            raise ValueError
        policy(np.zeros(policy.obs_dim, np.float32))
    except (KeyError, TypeError, IndexError, ValueError):
        allowed = "a file whose header and arrays are those of a form in `rate_policy.MODELS`"
        raise bad_value("policy", str(path), allowed) from None
    return policy

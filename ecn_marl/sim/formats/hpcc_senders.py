"""Senders with the constants of a `config.txt`: the nearest preset, and what differs from it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from ecn_marl.errors import InvalidValue
from ecn_marl.sim.formats.hpcc_config import HpccConfig
from ecn_marl.sim.transports import dcqcn, dctcp, hpcc, parse_transport, timely
from ecn_marl.sim.transports.base import with_overrides
from ecn_marl.sim.transports.names import RATES, LinkRate
from ecn_marl.sim.units import MBPS

SAME = 1e-6
"""Relative difference up to which two constants are the same; presets are float32 in part."""


class Kind(NamedTuple):
    """Senders of a `CC_MODE`.

    Attributes:
        name: congestion control, as in `KIND:PRESET`.
        presets: those that work as that simulator's senders do.
        keys: the key of each constant.
        rates: constants whose values are rates, Mb/s in the file.
        fixed: constants that the file has no key for.
    """

    name: str
    presets: Mapping[str, Any]
    keys: Mapping[str, str]
    rates: tuple[str, ...]
    fixed: Mapping[str, float] = {}


KINDS = {
    1: Kind(
        "dcqcn",
        dcqcn.PRESETS,
        {
            "decrease_us": "RATE_DECREASE_INTERVAL",
            "alpha_us": "ALPHA_RESUME_INTERVAL",
            "g": "EWMA_GAIN",
            "increase_us": "RP_TIMER",
            "recovery_steps": "FAST_RECOVERY_TIMES",
            "ai": "RATE_AI",
            "hai": "RATE_HAI",
            "min_rate": "MIN_RATE",
            "clamp_target": "CLAMP_TARGET_RATE",
        },
        ("ai", "hai", "min_rate"),
        {
            "byte_counter": math.inf,
            "alpha_init": 1.0,
            "cut_at_first_cnp": 0.0,
            "cnp_interval_us": 0.0,
        },
    ),
    3: Kind(
        "hpcc",
        hpcc.PRESETS,
        {"eta": "U_TARGET", "ai": "RATE_AI", "max_stage": "MI_THRESH", "min_rate": "MIN_RATE"},
        ("ai", "min_rate"),
    ),
    7: Kind(
        "timely",
        {"hpcc": timely.PRESETS["hpcc"]},
        {"ai": "RATE_AI", "hai": "RATE_HAI", "min_rate": "MIN_RATE"},
        ("ai", "hai", "min_rate"),
    ),
    8: Kind(
        "dctcp",
        {"hpcc": dctcp.PRESETS["hpcc"]},
        {"g": "EWMA_GAIN", "ai_rate": "DCTCP_RATE_AI", "min_rate": "MIN_RATE"},
        ("ai_rate", "min_rate"),
    ),
}
"""Senders by `CC_MODE`."""


class Senders(NamedTuple):
    """Senders that a file asks for.

    Attributes:
        transport: their short form, see `parse_transport`.
        note: the nearest preset, and what differs from it, in words.
    """

    transport: str
    note: str


class _Candidate(NamedTuple):
    """A preset, and the constants that differ from it: (value, the preset's) by name."""

    preset: str
    differences: dict[str, tuple[float, float]]

    @property
    def distance(self) -> tuple[int, int, float]:
        """How far away it is: constants that differ, those among them that are no rates, ratios."""
        ratios = [_ratio(value, old) for value, old in self.differences.values()]
        others = [name for name in self.differences if name not in ("ai", "hai")]
        return len(ratios), len(others), sum(ratios)


def senders(config: HpccConfig, nic_gbps: float) -> Senders:
    """The senders of a `config.txt`.

    Args:
        config: the file.
        nic_gbps: rate of the NICs, to which some presets scale, Gb/s.

    Raises:
        InvalidInput: a `CC_MODE` that is not simulated, or a constant that is missing or not
            allowed.
    """
    kind = KINDS.get(config.mode)
    if kind is None:
        known = ", ".join(f"{mode} ({kind.name})" for mode, kind in KINDS.items())
        raise config.error("CC_MODE", config.mode, f"one of {known}")
    wanted = {
        name: config.number(key) * (MBPS if name in kind.rates else 1.0)
        for name, key in kind.keys.items()
    } | dict(kind.fixed)
    best = min(_candidates(kind, nic_gbps, wanted), key=lambda one: one.distance)
    options = [f"{name}={value!r}" for name, (value, _) in best.differences.items()]
    if kind.name == "dcqcn" and config.number("HAS_WIN", 1.0) and config.number("VAR_WIN", 0.0):
        options.append("windowed=1")
    transport = ",".join([best.preset, *options])
    try:
        parse_transport(transport)
    except InvalidValue as error:
        key = kind.keys.get(error.field, "CC_MODE")
        raise config.error(key, _in_file(kind, error.field, error.value), error.allowed) from None
    return Senders(transport, _note(kind, best))


def _candidates(kind: Kind, nic_gbps: float, wanted: Mapping[str, float]) -> Iterator[_Candidate]:
    """All presets, as they are and scaled to the rate of the NICs."""
    for name in kind.presets:
        rate = RATES.get(f"{kind.name}:{name}", LinkRate(None))
        scaled = [nic_gbps] if rate.scaled and rate.gbps != nic_gbps else []
        for gbps in (None, *scaled):
            option = {} if gbps is None else {"gbps": gbps}
            constants = with_overrides(kind.name.upper(), kind.presets, name, option)
            own = {field: float(getattr(constants, field)) for field in wanted}
            yield _Candidate(
                f"{kind.name}:{name}" + ("" if gbps is None else f",gbps={gbps:g}"),
                {
                    field: (value, own[field])
                    for field, value in wanted.items()
                    if not math.isclose(value, own[field], rel_tol=SAME)
                },
            )


def _ratio(a: float, b: float) -> float:
    """Distance of two constants: the logarithm of their ratio, at most 10."""
    ordered = min(a, b) > 0.0 and max(a, b) < math.inf
    return min(abs(math.log(a / b)), 10.0) if ordered else 10.0


def _in_file(kind: Kind, field: str, value: Any) -> Any:
    """A value as the file has it: rates in Mb/s."""
    return value / MBPS if field in kind.rates else value


def _note(kind: Kind, best: _Candidate) -> str:
    """The preset and what differs from it, in words."""
    if not best.differences:
        return f"senders {best.preset}"
    parts = [
        f"{kind.keys.get(name, name)} {_in_file(kind, name, value):g}, "
        f"there {_in_file(kind, name, old):g}"
        for name, (value, old) in best.differences.items()
    ]
    return f"nearest preset {best.preset}, but for {'; '.join(parts)}"

"""Results that Tessler et al. 2021 print: tables 2, 3 and 6, and table 5 (long and short flows).

Units are those of `envs.rate.measure`. Rows are keyed by the first word of a policy's
name; the quantised agent is `adpg:int8`. Where the paper has no number (`packet loss`) it is None.
"""

from __future__ import annotations

Numbers = tuple[float, float, float] | None

STEADY = ("utilisation", "fairness", "queue_us")
LONG = ("recovery_us", "drop_rate", "long_bandwidth")

MANY_TO_ONE: dict[int, dict[str, Numbers]] = {
    128: {"adpg": (92, 95, 8), "dcqcn": (100, 56, 11), "hpcc": (83, 96, 5), "swift": (97, 94, 26)},
    1024: {
        "adpg": (90, 70, 15),
        "dcqcn": (100, 50, 13),
        "hpcc": (59, 48, 27),
        "swift": (89, 96, 27),
    },
    4096: {"adpg": (91, 44, 26), "dcqcn": (95, 65, 12), "hpcc": None, "swift": (88, 85, 77)},
    8192: {"adpg": (92, 29, 42), "dcqcn": (95, 64, 12), "hpcc": None, "swift": None},
}
"""Table 2: utilisation %, fairness %, queue µs."""

ALL_TO_ALL: dict[int, dict[str, Numbers]] = {
    4: {"adpg": (94, 77, 6), "dcqcn": (89, 93, 4), "hpcc": (71, 18, 3), "swift": (93, 100, 10)},
    8: {"adpg": (94, 97, 8), "dcqcn": (87, 66, 5), "hpcc": (69, 60, 3), "swift": (92, 100, 11)},
}
"""Table 3."""

LONG_SHORT: dict[int, dict[str, Numbers]] = {
    2: {
        "adpg": (6e-7, 0, 97),
        "dcqcn": (3e-2, 0, 63),
        "hpcc": (3e-5, 0, 90),
        "swift": (1e-3, 0, 97),
    },
    128: {
        "adpg": (8e-4, 0, 94),
        "dcqcn": (5e-2, 0, 40),
        "hpcc": (1e-2, 0.4, 75),
        "swift": (1e-2, 0.3, 85),
    },
    1024: {
        "adpg": (3e-2, 1.1, 62),
        "dcqcn": None,
        "hpcc": (2e-2, 1.1, 72),
        "swift": (1e-2, 1.2, 83),
    },
    2048: {
        "adpg": (3e-2, 2.7, 56),
        "dcqcn": None,
        "hpcc": (3e-2, 1.8, 62),
        "swift": (2e-2, 2.1, 72),
    },
}
"""Table 5: recovery s, drops %, the long flow's share %."""

QUANTISED: dict[int, tuple[Numbers, Numbers]] = {
    2: ((96.9, 99, 5.2), (99.91, 100, 8.29)),
    4: ((96.9, 98, 5.4), (99.86, 100, 8.59)),
    16: ((95.1, 99, 6.2), (99.61, 99, 9.46)),
    32: ((95.6, 86, 7.0), (99.22, 99, 9.90)),
    64: ((93.3, 96, 7.0), (99.06, 98, 9.72)),
    128: ((92.5, 94, 8.0), (98.57, 96, 10.94)),
    256: ((91.4, 91, 9.3), (98.02, 90, 12.85)),
    512: ((90.4, 86, 11.3), (97.54, 86, 16.26)),
    1024: ((90.2, 74, 14.7), (97.10, 75, 20.92)),
    2048: ((90.5, 56, 20.3), (96.74, 61, 27.67)),
    4096: ((91.3, 46, 27.7), (96.65, 43, 36.87)),
    8192: ((92.8, 28, 40.0), (96.79, 29, 48.40)),
}
"""Table 6: the agent in float, and in int8. Where table 2 has the agent too, table 2 is used."""


def printed(kind: str, size: int, policy: str) -> dict[str, float] | None:
    """The paper's numbers for a policy.

    Args:
        kind: kind of scenario, see `RateScenario`.
        size: its size.
        policy: name of a row, e.g. `adpg`, `adpg:int8`, `swift:htsim`.

    Returns:
        Metrics by the names of `envs.rate.measure`, in its units; None if there are none.
    """
    first = policy.partition(":")[0]
    if policy == "adpg:int8":
        numbers = QUANTISED[size][1] if kind == "many-to-one" and size in QUANTISED else None
    else:
        tables = {"many-to-one": MANY_TO_ONE, "all-to-all": ALL_TO_ALL, "long-short": LONG_SHORT}
        numbers = tables[kind].get(size, {}).get(first)
        if numbers is None and policy == "adpg" and kind == "many-to-one" and size in QUANTISED:
            numbers = QUANTISED[size][0]
    if numbers is None:
        return None
    a, b, c = numbers
    if kind == "long-short":
        return dict(zip(LONG, (1e6 * a, b / 100.0, c / 100.0), strict=True))
    return dict(zip(STEADY, (a / 100.0, b / 100.0, c), strict=True))

"""Names of presets: where their constants are from, for which link rate, and second names.

Some presets are named after the configuration files they were read from. Each of these has a
second name that says what it is: the paper, the vendor, or the simulator and its timers. Both mean
the same senders; reports and records use the older name.

Some simulators multiply some constants with the rate of the NICs. Presets of these have the option
`gbps`: `dcqcn:hpcc-run,gbps=100` has the constants of `run.py --bw 100`. Without it the constants
are those for the rate that `RATES` says, whatever the network's.
"""

from __future__ import annotations

from typing import NamedTuple

ALIASES: dict[str, dict[str, str]] = {
    "dcqcn": {
        "sigcomm15": "paper",
        "connectx": "mellanox",
        "ns3-4us": "hpcc-run",
        "ns3-50us": "hpcc-paper",
        "ns3-4us-slow-increase": "hpcc-config",
    },
    "dctcp": {"ns3": "hpcc"},
    "timely": {"ns3": "hpcc", "conext16-patched": "patched"},
    "hpcc": {"ns3": "hpcc"},
}
"""Per congestion control, the second name of a preset and its name."""

SOURCES: dict[str, str] = {
    "dcqcn:paper": "Zhu et al., SIGCOMM'15, §5 and Table 14",
    "dcqcn:mellanox": "NVIDIA ConnectX-4 and later, firmware defaults",
    "dcqcn:hpcc-run": "HPCC's ns-3 simulator, `run.py`, `dcqcn`",
    "dcqcn:hpcc-paper": "HPCC's ns-3 simulator, `run.py`, `dcqcn_paper`",
    "dcqcn:hpcc-config": "HPCC's ns-3 simulator, `config.txt`",
    "dcqcn:sigcomm15-np50us": "as `paper`, CNPs paced at the receiver (§3.1)",
    "dctcp:sigcomm10": "Alizadeh et al., SIGCOMM'10, §3.2; first window of RFC 6928",
    "dctcp:hpcc": "HPCC's ns-3 simulator",
    "timely:hpcc": "HPCC's ns-3 simulator",
    "timely:conext16": "Zhu et al., CoNEXT'16, Table 2",
    "timely:patched": "Zhu et al., CoNEXT'16, §4.3",
    "hpcc:hpcc": "HPCC's ns-3 simulator, `run.py --mi 0`",
    "hpcc:sigcomm19": "Li et al., SIGCOMM'19, §5.1",
    "swift:htsim": "htsim, whose authors call most of them a guess",
    "reno:rfc5681": "RFC 5681; first window of RFC 6928",
    "rate-agent:line-rate": "this project; an agent sets the rates",
}
"""Where the constants of each preset are from, by `KIND:PRESET`."""


class LinkRate(NamedTuple):
    """The link rate that constants are for.

    Attributes:
        gbps: Gb/s of the NICs; None where the source has the same constants at every rate.
        scaled: constants that the source multiplies with the rate over `gbps`.
    """

    gbps: float | None
    scaled: tuple[str, ...] = ()


RATES: dict[str, LinkRate] = {
    # SIGCOMM'15 and CoNEXT'16 have links of 40 Gb/s; neither says how constants scale.
    "dcqcn:paper": LinkRate(40.0),
    "dcqcn:mellanox": LinkRate(None),
    # `run.py`: AI = 5 bw / 25, HAI = 50 bw / 25 Mb/s.
    "dcqcn:hpcc-run": LinkRate(25.0, ("ai", "hai")),
    "dcqcn:hpcc-paper": LinkRate(25.0, ("ai", "hai")),
    "dcqcn:hpcc-config": LinkRate(None),
    "dcqcn:sigcomm15-np50us": LinkRate(40.0),
    "dctcp:sigcomm10": LinkRate(None),
    # `run.py`: 615 Mb/s at every rate, a packet of 1 KB per round trip of 13 µs.
    "dctcp:hpcc": LinkRate(None),
    # `run.py`: AI = 10 bw / 10, HAI = 50 bw / 10 Mb/s.
    "timely:hpcc": LinkRate(25.0, ("ai", "hai")),
    "timely:conext16": LinkRate(10.0),
    "timely:patched": LinkRate(10.0),
    # `run.py`: AI = 10 bw / 25 Mb/s, whatever `--mi`.
    "hpcc:hpcc": LinkRate(25.0, ("ai",)),
    "hpcc:sigcomm19": LinkRate(25.0, ("ai",)),
    "swift:htsim": LinkRate(None),
    "reno:rfc5681": LinkRate(None),
    "rate-agent:line-rate": LinkRate(None),
}
"""The link rate that the constants of each preset are for, by `KIND:PRESET`."""


def describe(kind: str, name: str) -> tuple[str, str, str]:
    """Second names of a preset, the link rate its constants are for, and where they are from.

    Args:
        kind: congestion control, as in `KIND:PRESET`.
        name: preset.
    """
    text = f"{kind}:{name}"
    second = [f"{kind}:{alias}" for alias, old in ALIASES.get(kind, {}).items() if old == name]
    rate = RATES.get(text)
    if rate is None:
        return ", ".join(second), "not stated", "added by `register_transport`"
    words = "any" if rate.gbps is None else f"{rate.gbps:g} Gb/s"
    words += f"; gbps= scales {' and '.join(rate.scaled)}" if rate.scaled else ""
    return ", ".join(second), words, SOURCES[text]


def canonical(kind: str, name: str) -> str:
    """Name of a preset that may be given by its second name; other names as they are.

    Args:
        kind: congestion control, as in `KIND:PRESET`.
        name: preset.
    """
    return ALIASES.get(kind, {}).get(name, name)

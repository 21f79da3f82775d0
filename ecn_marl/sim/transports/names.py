"""Names of presets: where their constants are from, and field names beside the older ones.

Some presets are named after the configuration files they were read from. Each of these has a
second name that says what it is: the paper, the vendor, or the simulator and its timers. Both mean
the same senders; reports and records use the older name.
"""

from __future__ import annotations

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


def canonical(kind: str, name: str) -> str:
    """Name of a preset that may be given by its second name; other names as they are.

    Args:
        kind: congestion control, as in `KIND:PRESET`.
        name: preset.
    """
    return ALIASES.get(kind, {}).get(name, name)

"""Units: the simulator has bytes, µs and bytes/µs, its surface Gb/s, KB and MiB."""

from __future__ import annotations

GBPS = 125.0
"""Bytes per microsecond in one Gb/s."""

MBPS = 0.125
"""Bytes per microsecond in one Mb/s."""

KB = 1000.0
"""Bytes in one KB, the unit of ECN thresholds."""

MIB = float(2**20)
"""Bytes in one MiB, the unit of switch buffers."""

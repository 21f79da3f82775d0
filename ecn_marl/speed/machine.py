"""The machine of a measurement: device, versions, cores, memory."""

from __future__ import annotations

import os
import platform
import resource
import shlex
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import jax

from ecn_marl import lanes
from ecn_marl.parallelism import cores

PACKAGES = ("jax", "jaxlib", "numpy", "ecn-marl")


def describe() -> dict[str, Any]:
    """Description of the machine, which is published with the numbers."""
    devices = jax.devices()
    return {
        "command": command_line(sys.argv),
        "platform": devices[0].platform,
        "device_kind": devices[0].device_kind,
        "devices": len(devices),
        "processor": processor(),
        "cores": cores(),
        "system": platform.platform(),
        "load_average": list(os.getloadavg()) if hasattr(os, "getloadavg") else None,
        "versions": versions(),
        "batches": lanes.way(),
    }


def command_line(argv: list[str]) -> str:
    """The command as it can be typed again."""
    return shlex.join([Path(argv[0]).name, *argv[1:]])


def versions() -> dict[str, str | None]:
    """Versions of Python and of packages that speed depends on; None if not installed."""
    by_package: dict[str, str | None] = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            by_package[name] = version(name)
        except PackageNotFoundError:
            by_package[name] = None
    return by_package


def processor() -> str:
    """Model of the processor, with family and model number where the name is generic."""
    info = Path("/proc/cpuinfo")
    if not info.is_file():
        return platform.processor() or platform.machine()
    fields: dict[str, str] = {}
    for line in info.read_text().splitlines():
        key, _, value = line.partition(":")
        fields.setdefault(key.strip(), value.strip())  # keys repeat for every core
    name = fields.get("model name", platform.machine())
    numbers = [f"{key} {fields[key]}" for key in ("cpu family", "model") if key in fields]
    return f"{name} ({', '.join(numbers)})" if numbers else name


def peak_memory() -> dict[str, Any]:
    """Peak memory so far, bytes, and the source of the number.

    On devices with statistics it is the memory that JAX has allocated, the largest of all devices.
    Elsewhere it is the largest resident size of the process since its start. That includes
    compilers and earlier programs, so it is an upper bound that never falls.
    """
    peaks = []
    for device in jax.devices():
        stats = device.memory_stats() or {}
        if "peak_bytes_in_use" in stats:
            peaks.append(int(stats["peak_bytes_in_use"]))
    if peaks:
        return {"bytes": max(peaks), "source": "device memory_stats, peak_bytes_in_use"}
    unit = 1 if sys.platform == "darwin" else 1024  # macOS counts bytes, Linux KiB
    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return {"bytes": size, "source": "maximum resident set size of the process since its start"}

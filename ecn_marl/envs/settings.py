"""Static ECN settings: (Kmin, Kmax, Pmax) of a 25 Gb/s port, and the ones that have a name.

Thresholds are given in KB (1000 B) for a port of 25 Gb/s and grow with a port's rate, as SECN2 does
(ACC, section 5.1).
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ecn_marl._checks import TEXT, check_value
from ecn_marl._errors import bad_value, unknown_name
from ecn_marl.sim.core.queues import LARGEST_KB as LARGEST_KB
from ecn_marl.sim.core.queues import Ecn, checked_thresholds
from ecn_marl.sim.formats.sonic import read_profile
from ecn_marl.sim.network.topology import GBPS, KB
from ecn_marl.sim.state import SimParams

BASE_GBPS = 25.0
"""Link rate for which thresholds in KB are meant; they scale with the rate of a port."""


def port_scale(sim: SimParams) -> Float[Array, " ports"]:
    """Link rate of every port over 25 Gb/s, `[P]`."""
    return jnp.asarray(sim.net.port_rate, jnp.float32) / (BASE_GBPS * GBPS)


class EcnSetting(NamedTuple):
    """One RED/ECN setting of a 25 Gb/s port."""

    kmin_kb: float
    """Queue at which marking starts, KB."""
    kmax_kb: float
    """Queue above which every packet is marked, KB."""
    pmax: float
    """Marking probability at kmax, in (0, 1]."""

    def scaled(self, port_scale: Float[Array, " agents"]) -> Ecn:
        """The setting on ports of the given rates / 25 Gb/s, as arrays in bytes."""
        return Ecn(
            kmin=np.float32(self.kmin_kb * KB) * port_scale,
            kmax=np.float32(self.kmax_kb * KB) * port_scale,
            pmax=jnp.full_like(port_scale, self.pmax),
        )


class SwitchSetting(EcnSetting):
    """Thresholds in KB on a port of any rate, as the WRED profile of a switch has them."""

    def scaled(self, port_scale: Float[Array, " agents"]) -> Ecn:
        """The setting on every port, as arrays in bytes; rates do not matter."""
        return EcnSetting(*self).scaled(jnp.ones_like(port_scale))


FROM_FILE = "@"
"""Begins a setting that is read from a switch's configuration, `@FILE` or `@FILE#PROFILE`."""


def _on_port(gbps: float, kmin_kb: float, kmax_kb: float, pmax: float) -> EcnSetting:
    """A setting whose KB are meant for ports of another rate than 25 Gb/s."""
    return EcnSetting(kmin_kb * BASE_GBPS / gbps, kmax_kb * BASE_GBPS / gbps, pmax)


STATIC_ECN: dict[str, EcnSetting] = {
    "secn1": EcnSetting(5.0, 200.0, 0.01),
    "secn2": EcnSetting(100.0, 400.0, 0.2),
    "dctcp": EcnSetting(75.0, 75.001, 1.0),
    "alibaba": EcnSetting(100.0, 400.0, 0.2),
    "huawei-25g": _on_port(25.0, 7.0, 150.0, 0.3),
    "huawei-100g": _on_port(100.0, 7.0, 500.0, 0.3),
    "arista": _on_port(100.0, 167.0, 283.0, 0.05),
    "sonic-mellanox": _on_port(100.0, 2048.0, 10240.0, 0.05),
}
"""Static settings by name.

`secn1`: DCQCN (Zhu et al., SIGCOMM'15); Pmax 1 % after its authors' stability analysis.
`secn2`: HPCC's setting for DCQCN (Li et al., SIGCOMM'19), a cloud provider's; Pmax 20 %.
`dctcp`: marks every packet above 30 KB per 10 Gb/s (Alizadeh et al., SIGCOMM'10). A step, written
as a ramp of one byte, as it was when results were published; `75,75,1` is the step itself.

What vendors ship or advise. Thresholds grow with a port's rate like all others. Where a vendor
gives bytes for one kind of port, the entry is such that ports of that rate get just these bytes.

`alibaba`: `secn2` by the name of its owner: 100 and 400 KB per 25 Gb/s, 20 % are what Alibaba uses
(alibaba-edu/High-Precision-Congestion-Control, issue 21).
`huawei-25g`, `huawei-100g`: 7/150 KB on ports of 25 Gb/s, 7/500 KB on ports of 100 Gb/s, 30 %:
CloudEngine, delay-sensitive traffic (Huawei EDOC1100155250, table 2-12).
`arista`: 167/283 KB (166912 and 282624 B), 5 %: SONiC's profile of Arista switches with ports of
100 Gb/s (sonic-buildimage, pull request 25626).
`sonic-mellanox`: 2048/10240 KB, 5 %: SONiC's profile of Mellanox switches with ports of 100 Gb/s;
that of the SN4600C has 2000/10000 KB (sonic-buildimage, pull request 20265).
"""

PUBLISHED = ("secn1", "secn2", "dctcp")
"""Settings of `STATIC_ECN` that are in the default list of `discrete` and in the grid of
`static:best`. Both must stay the same when names are added above: trained policies depend on the
list, published results on the grid."""


def parse_ecn(spec: str) -> EcnSetting:
    """Reads a static setting: a name of `STATIC_ECN`, or `KMIN,KMAX,PMAX` in KB, KB, probability.

    `@config_db.json` or `@config_db.json#PROFILE` is a WRED profile of a switch with SONiC, see
    `sim.formats.sonic`: a `SwitchSetting`, the same bytes on every port.

    Raises:
        ValueError: for an unknown name (with the nearest ones), three values that are not numbers,
            numbers that break 0 < Kmin <= Kmax, 0 < Pmax <= 1, or a file without such a profile.
        OSError: the file cannot be opened.
    """
    check_value("ecn", spec, TEXT)
    if spec.startswith(FROM_FILE):
        path, profile = file_of(spec)
        found = read_profile(path, profile)
        setting = (found.kmin / KB, found.kmax / KB, found.percent / 100.0)
        return SwitchSetting(*checked_setting(setting, f"{path}: profile"))
    name = spec.strip().lower()
    if name in STATIC_ECN:
        return STATIC_ECN[name]
    parts = name.split(",")
    if len(parts) == 1 and not name[:1].isdigit():
        raise unknown_name("ECN setting", spec, tuple(STATIC_ECN))
    try:
        kmin, kmax, pmax = (float(part) for part in parts)
    except ValueError:
        form = "KMIN,KMAX,PMAX (KB, KB, probability) such as 5,200,0.01"
        raise bad_value("ecn", spec, f"{form}, or one of {', '.join(STATIC_ECN)}") from None
    return checked_setting((kmin, kmax, pmax), "ecn")


def file_of(spec: str) -> tuple[Path, str]:
    """File and profile of a setting `@FILE#PROFILE`; the profile is empty if none is named."""
    path, _, profile = spec.removeprefix(FROM_FILE).partition("#")
    return Path(path), profile


def checked_setting(setting: tuple[float, ...], field: str) -> EcnSetting:
    """Checks 0 < Kmin <= Kmax and 0 < Pmax <= 1; thresholds in KB. Kmin = Kmax is a step.

    Raises:
        ValueError: naming `field`, the setting, and what is allowed.
    """
    return EcnSetting(*checked_thresholds(setting, field, above_zero=True))

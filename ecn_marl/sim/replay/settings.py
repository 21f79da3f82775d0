"""How a flow list is replayed: senders, thresholds, clock, and the simulator that follows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import jax.numpy as jnp
import numpy as np

from ecn_marl._checks import Real, Whole, check, check_seed
from ecn_marl._errors import bad_value
from ecn_marl.sim.core.paths import ALONE
from ecn_marl.sim.core.queues import Ecn, checked_thresholds
from ecn_marl.sim.network.topology import Topology
from ecn_marl.sim.replay.samples import SAMPLE_US
from ecn_marl.sim.simulator import MAX_TICK, SimParams, Simulator, scaled_ecn
from ecn_marl.sim.traffic.schedules import Schedule, widest_tick
from ecn_marl.sim.transports import parse_transport
from ecn_marl.sim.units import KB

TICK_US, TICK_STEPS = 5.0, 5
"""Longest tick, µs or substeps, whichever is more. Each admits flows and refreshes feedback delays.
"""

DEFAULT_SLOTS = 512
"""Default limit of flows in progress."""


@dataclass(frozen=True)
class Settings:
    """How a flow list is replayed.

    Attributes:
        transport: the senders, e.g. `dcqcn:PRESET` or `hpcc`, see `transports.parse_transport`.
        ecn: (Kmin, Kmax, Pmax) of every port, KB for a port of `ecn_gbps`; thresholds of other
            ports scale with their rates. Kmin = Kmax is a step. Or such a triple for each rate of
            ports by Gb/s, `{25: (100, 400, 0.2), 100: (400, 1600, 0.2)}`, which do not scale.
        ecn_gbps: the rate that `ecn` is meant for, Gb/s; None for that of the slowest NIC.
        dt_us: substep, µs; must divide 10 µs.
        duration_ms: simulated time, a multiple of 0.01 ms.
        seed: fixes marking coins and ECMP hashes.
        buffer_mib: shared buffer of each switch, MiB.
        slots: flows in progress at most; None for as many as there are flows, up to 512. Further
            ones wait at their hosts, count as deferred, and their FCT counts from their start.
        pfc: pause upstream links when buffers fill; without it full buffers drop.
        ack_priority: ACKs and CNPs ride in a class of their own instead of the data queues.
        mark_quantum: step of marking probabilities, see `SimConfig`.
        ideal: the completion time that slowdowns are relative to, one of `paths.IDEALS`: `alone`,
            that of the flow in an empty network, or `standalone`, as the HPCC simulator has it.
        memory_us: how far back feedback can reach, µs, see `SimConfig`.
    """

    transport: str = "dcqcn:hpcc-paper"
    ecn: tuple[float, float, float] | Mapping[float, tuple[float, float, float]] = (5, 200, 0.01)
    ecn_gbps: Annotated[float | None, Real(above=0.0, unit="Gb/s", none=True)] = None
    dt_us: Annotated[float, Real()] = 1.0
    duration_ms: Annotated[float, Real()] = 60.0
    seed: int = 0
    buffer_mib: float = 32.0
    slots: Annotated[int | None, Whole(low=1, none=True)] = None
    pfc: bool = True
    ack_priority: bool = False
    mark_quantum: float = 0.0
    ideal: str = ALONE
    memory_us: float = 256.0

    def __post_init__(self) -> None:
        """Check clocks, slots and thresholds; the rest is checked where it is used."""
        check(self)
        by_rate = self.ecn.items() if isinstance(self.ecn, Mapping) else ((None, self.ecn),)
        for rate, triple in by_rate:
            checked_thresholds(triple, "ecn" if rate is None else f"ecn[{rate}]")
        count = SAMPLE_US / self.dt_us if self.dt_us > 0 else 0.0
        if not 1 <= count <= 1e4 or abs(count - round(count)) > 1e-6:
            allowed = f"a substep that divides {SAMPLE_US} µs, 0.001 µs or longer"
            raise bad_value("dt_us", self.dt_us, f"{allowed}, e.g. 0.5, 1, 2 or 5")
        count = self.duration_ms * 1e3 / SAMPLE_US
        multiple = math.isfinite(count) and abs(count - round(count)) <= 1e-6 * max(count, 1.0)
        if not multiple or round(count) < 1:
            raise bad_value("duration_ms", self.duration_ms, "a positive multiple of 0.01 ms")
        if self.samples * self.substeps >= 2**31:
            allowed = f"less than 2^31 substeps of {self.dt_us} µs"
            raise bad_value("duration_ms", self.duration_ms, allowed)
        check_seed(self.seed)

    @property
    def samples(self) -> int:
        """Number of samples T."""
        return round(self.duration_ms * 1e3 / SAMPLE_US)

    @property
    def substeps(self) -> int:
        """Substeps per sample."""
        return round(SAMPLE_US / self.dt_us)

    def thresholds(self, topology: Topology, params: SimParams) -> Ecn:
        """Thresholds of the ports of a network, `[P]`.

        Raises:
            ValueError: `ecn` has thresholds by rate, and a port has another rate.
        """
        if not isinstance(self.ecn, Mapping):
            gbps = min(topology.nic_gbps) if self.ecn_gbps is None else self.ecn_gbps
            return scaled_ecn(params.net, *self.ecn, gbps)
        for port in topology.ports:
            if port.gbps not in self.ecn:
                allowed = f"thresholds for {port.gbps:g} Gb/s, the rate of {port.name}, too"
                raise bad_value("ecn", dict(self.ecn), allowed)
        rows = np.array([self.ecn[port.gbps] for port in topology.ports], np.float32)
        kmin, kmax, pmax = jnp.asarray(rows * np.array([KB, KB, 1.0], np.float32)).T
        return Ecn(kmin, kmax, pmax)

    def simulator(self, topology: Topology, start_ns: np.ndarray) -> Simulator:
        """The simulator for flows that start at `start_ns`; its tuning interval is one sample."""
        n = self.substeps
        fitting = [k for k in range(1, min(n, MAX_TICK) + 1) if n % k == 0]
        tick = max(k for k in fitting if k <= TICK_STEPS or k * self.dt_us <= TICK_US)
        slots = min(start_ns.size, DEFAULT_SLOTS) if self.slots is None else self.slots
        return Simulator(
            topology,
            (Schedule(self.dt_us, widest_tick(start_ns, self.dt_us * tick, slots)),),
            parse_transport(self.transport),
            dt_us=self.dt_us,
            tick_steps=tick,
            interval_steps=n,
            slots=slots,
            scheduled=start_ns.size,
            bins=0,
            pfc=self.pfc,
            ack_priority=self.ack_priority,
            mark_quantum=self.mark_quantum,
            ideal=self.ideal,
            buffer_mib=self.buffer_mib,
            memory_us=self.memory_us,
        )

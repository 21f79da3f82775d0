"""Scenarios of rate control by name, and `make_rate`.

`many-to-one-N-v0`: N endless flows to one receiver, spread over hosts as in table A.1 of Tessler et
al. `all-to-all-N-v0`: N hosts, an endless flow from each to each other one. `long-short-N-v0`: an
endless flow, interrupted at `interrupt_us` by N - 1 short ones to the same receiver.

Values that the paper does not state are fields with defaults: link rate and delay (an empty round
trip of 8.1 us; its code divides by 8.192), the buffer, and the short flows' size and start. There
is no PFC, as in the paper: full buffers drop, and dropped bytes are sent again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any

from ecn_marl._checks import INT32, Kind, Real, Whole, check, check_value
from ecn_marl._errors import bad_value, unknown_name
from ecn_marl.envs.rate.actions import Factor, factor_codec
from ecn_marl.envs.rate.env import COLUMNS, RateEnv
from ecn_marl.envs.settings import parse_ecn
from ecn_marl.sim.network.links import DELAY, RATE
from ecn_marl.sim.network.topology import star
from ecn_marl.sim.simulator import Simulator
from ecn_marl.sim.traffic.flow_groups import FlowGroup
from ecn_marl.sim.transports import Transport, as_transport

HOSTS = {
    2: (2, 1),
    4: (4, 1),
    8: (8, 1),
    16: (16, 1),
    32: (32, 1),
    64: (64, 1),
    128: (64, 2),
    256: (32, 8),
    512: (64, 8),
    1024: (32, 32),
    2048: (64, 32),
    4096: (64, 64),
    8192: (64, 128),
}
"""Hosts and flows per host for each number of flows (table A.1; 8 flows, the scenario for training,
are not in it)."""

KINDS = ("many-to-one", "all-to-all", "long-short")
SIZES = {
    "many-to-one": tuple(HOSTS),
    "all-to-all": (4, 8),
    "long-short": (2, 8, 128, 1024, 2048),
}
"""Sizes of the scenarios that have names."""

NAMES = {f"{kind}-{size}-v0": (kind, size) for kind, sizes in SIZES.items() for size in sizes}
"""Scenarios by name: kind and size."""

TIMES: dict[str, dict[str, Any]] = {
    "all-to-all": {"duration_us": 4e5, "warm_up_us": 2e5},
    "long-short": {"duration_us": 2e5, "warm_up_us": 0.0},
}
"""Their times, µs, where these are not the defaults."""

SENDERS = "rate-agent:line-rate,min_rate=0.125"
"""Rates set by agents, 1 Mb/s at least: 8192 flows of a 100 Gb/s link have 12 each."""


@dataclass(frozen=True)
class RateScenario:
    """Settings from which `make_rate` builds an environment; times in µs.

    Attributes:
        kind: one of `KINDS`.
        size: flows (many-to-one, long-short) or hosts (all-to-all).
        gbps: rate of all links, Gb/s.
        delay_us: one-way propagation delay of every link.
        buffer_mib: shared buffer of the switch, MiB.
        dt_us: substep; None for 1 up to 512 flows, 2 beyond.
        tick_steps: substeps per step; None for 2 up to 512 flows, 4 beyond.
        start_window_us: time over which endless flows start; None for 0.05 per flow, at least an
            empty round trip.
        interrupt_us: when the short flows of long-short start.
        short_kb: payload of each, KB.
        short_window_us: time over which they start.
        duration_us: length of an episode.
        warm_up_us: time at the start that is not measured, see `measure`.
        transport: senders, in their short form or as an object.
        ecn: ECN setting of all ports, for senders that listen to it.
    """

    kind: str
    size: Annotated[int, Whole(low=2, high=2**20)]
    gbps: Annotated[float, RATE] = 100.0
    delay_us: Annotated[float, DELAY] = 2.0
    buffer_mib: Annotated[float, Real(above=0.0, high=1e9, unit="MiB")] = 32.0
    dt_us: Annotated[float | None, Real(above=0.0, high=1e4, unit="µs", none=True)] = None
    tick_steps: Annotated[int | None, Whole(low=1, none=True)] = None
    start_window_us: Annotated[float | None, Real(low=0.0, below=1e7, unit="µs", none=True)] = None
    interrupt_us: Annotated[float, Real(low=0.0, below=1e7, unit="µs")] = 5_000.0
    short_kb: Annotated[float, Real(above=0.0, high=1e9, unit="KB")] = 100.0
    short_window_us: Annotated[float, Real(low=0.0, below=1e7, unit="µs")] = 10.0
    duration_us: Annotated[float, Real(above=0.0, unit="µs")] = 2e6
    warm_up_us: Annotated[float, Real(low=0.0, unit="µs")] = 1e6
    transport: str | Transport = SENDERS
    ecn: str = "secn1"

    def __post_init__(self) -> None:
        """Check the fields that the simulator does not check."""
        if self.kind not in KINDS:
            raise unknown_name("kind of scenario", self.kind, KINDS)
        check(self)
        if not 0.0 <= self.warm_up_us < self.duration_us < math.inf:
            times = (self.warm_up_us, self.duration_us)
            raise bad_value("warm_up_us, duration_us", times, "0 <= warm_up_us < duration_us")
        parse_ecn(self.ecn)  # a setting that cannot be read is an error here, not at the first step

    @property
    def n_flows(self) -> int:
        """Number of flows."""
        return self.size * (self.size - 1) if self.kind == "all-to-all" else self.size

    @property
    def hosts(self) -> tuple[int, int]:
        """Sending hosts, and flows on each.

        If the paper does not list the number of flows, each flow has its own host, up to 64 flows.
        A larger number has to be a multiple of 64.
        """
        if self.kind == "all-to-all":
            return self.size, self.size - 1
        if self.size in HOSTS:
            return HOSTS[self.size]
        if self.size <= 64:
            return self.size, 1
        if self.size % 64:
            raise bad_value("size", self.size, "at most 64, or a multiple of 64")
        return 64, self.size // 64

    @property
    def groups(self) -> tuple[FlowGroup, ...]:
        """Its traffic."""
        window_us = self.start_window_us
        if window_us is None:
            window_us = max(0.05 * self.n_flows, 4.0 * self.delay_us)
        hosts, per_host = self.hosts
        if self.kind == "all-to-all":
            everyone = tuple(range(hosts))
            return (FlowGroup(everyone, everyone, start_window_us=window_us),)
        if self.kind == "many-to-one":
            return (
                FlowGroup(tuple(range(1, hosts + 1)), (0,), per_host, start_window_us=window_us),
            )
        return (FlowGroup((1,), (0,)), *self._short_flows())

    def _short_flows(self) -> tuple[FlowGroup, ...]:
        """The size - 1 short flows, spread evenly over the hosts without the long flow."""
        last_host, _ = self.hosts
        n, senders = self.size - 1, tuple(range(2, last_host + 1))
        per_host, extra = divmod(n, len(senders))
        groups = [(senders, per_host), (senders[:extra], 1)]
        return tuple(
            FlowGroup(
                hosts,
                (0,),
                flows,
                flow_kb=self.short_kb,
                start_us=self.interrupt_us,
                start_window_us=self.short_window_us,
            )
            for hosts, flows in groups
            if hosts and flows
        )

    @property
    def clock(self) -> tuple[float, int]:
        """Substep, µs, and substeps per step."""
        small = self.n_flows <= 512
        dt_us = self.dt_us if self.dt_us is not None else (1.0 if small else 2.0)
        return dt_us, self.tick_steps if self.tick_steps is not None else (2 if small else 4)

    def simulator(self) -> Simulator:
        """The network with its senders and traffic.

        Raises:
            ValueError: a value that is not allowed, or a step longer than an empty round trip.
        """
        dt_us, ticks = self.clock
        hosts = self.hosts[0] + (self.kind != "all-to-all")
        net = star(hosts, gbps=self.gbps, delay_us=self.delay_us)
        if dt_us * ticks > 4.0 * self.delay_us:
            allowed = f"at most {4.0 * self.delay_us:g} us together: an empty round trip"
            raise bad_value("dt_us * tick_steps", dt_us * ticks, allowed)
        return Simulator(
            topology=net,
            traffic=self.groups,
            transport=as_transport(self.transport),
            dt_us=dt_us,
            tick_steps=ticks,
            interval_steps=ticks,
            slots=self.n_flows,
            bins=0,
            pfc=False,
            buffer_mib=self.buffer_mib,
        )


def rate_scenarios() -> tuple[str, ...]:
    """Names of all scenarios of rate control."""
    return tuple(NAMES)


def lookup_rate(name: str) -> RateScenario:
    """The scenario of a name.

    Raises:
        ValueError: unknown name, with the nearest ones.
    """
    if name not in NAMES:
        raise unknown_name("rate scenario", name, NAMES)
    kind, size = NAMES[name]
    return RateScenario(kind, size, **TIMES.get(kind, {}))


def with_options(scenario: str | RateScenario, options: dict[str, Any]) -> RateScenario:
    """A scenario with some fields replaced.

    Raises:
        ValueError: unknown scenario or field, or a value that is not allowed.
    """
    spec = lookup_rate(scenario) if isinstance(scenario, str) else scenario
    field_names = [f.name for f in fields(RateScenario)]
    for name in options:
        if name not in field_names:
            raise unknown_name("rate scenario option", name, field_names)
    return replace(spec, **options)


def make_rate(
    scenario: str | RateScenario,
    *,
    actions: str | Factor = "continuous",
    columns: tuple[str, ...] = ("change", "error"),
    history: int = 2,
    target: float = 0.064,
    offset: float = 1.5,
    **overrides: object,
) -> RateEnv:
    """Make a functional environment whose agents are flows.

    Args:
        scenario: name of a registered scenario, or a `RateScenario`.
        actions: `continuous` (the factor), `discrete` (one of `FACTORS`), or a codec.
        columns: what an agent sees of each event, of `env.COLUMNS`.
        history: events that it sees.
        target: target of the reward, see `env`.
        offset: inflation that costs nothing, see `env`.
        **overrides: fields of `RateScenario`, e.g. `duration_us=1e4`.

    Raises:
        ValueError: an unknown name, or a value that is not allowed.
    """
    spec = with_options(scenario, overrides)
    check_value("actions", actions, Kind((str, "factor"), "continuous, discrete, or a codec"))
    if not isinstance(columns, tuple | list) or not columns:
        raise bad_value("columns", columns, f"a tuple of names, of {', '.join(COLUMNS)}")
    for name in columns:
        if name not in COLUMNS:
            raise unknown_name("column", name, COLUMNS)
    check_value("history", history, Whole(low=1))
    check_value("target", target, Real(above=0.0))
    check_value("offset", offset, Real(low=0.0))
    sim = spec.simulator()
    horizon = max(round(spec.duration_us / sim.interval_us), 1)
    if horizon > INT32:
        allowed = f"at most {INT32} steps of {sim.interval_us:g} us"
        raise bad_value("duration_us", spec.duration_us, allowed)
    if sim.transport.kind != "rate-agent":
        kind = f"{sim.transport.kind}:{sim.transport.name}"
        raise bad_value("transport", kind, "rate-agent:PRESET: others set their rates themselves")
    return RateEnv(
        name=scenario if isinstance(scenario, str) else "custom",
        sim=sim,
        action=factor_codec(actions),
        columns=tuple(columns),
        history=int(history),
        target=float(target),
        offset=float(offset),
        horizon=horizon,
        ecn=spec.ecn,
    )

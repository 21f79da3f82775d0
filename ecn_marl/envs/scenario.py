"""What defines an experiment, except what agents see and set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from ecn_marl._checks import OPTIONS, TEXT, Each, Flag, Kind, Real, Whole, check
from ecn_marl._errors import bad_value
from ecn_marl.envs.episode import HostGroup
from ecn_marl.envs.objectives import Part
from ecn_marl.sim.clocks import MAX_TICK
from ecn_marl.sim.config import NETWORK, SOURCE, TrafficClass
from ecn_marl.sim.network.topology import parse_topology
from ecn_marl.sim.traffic.sources import as_sources
from ecn_marl.sim.transports import Transport

CLASS = Kind((TrafficClass, Mapping), "a TrafficClass, or a dict of its fields")


@dataclass(frozen=True)
class Scenario:
    """Everything that defines an experiment, except what agents see and set.

    Every field can be overridden in `make`. The simulator checks the fields that it shares.

    Attributes:
        topology: the network, or its short form such as `star:16` (25 Gb/s, 100 between switches,
            1 µs, as in `ecn-marl replay`; see `make` for other links).
        traffic: traffic sources, one or several, or texts or dicts that name them, see
            `sim.traffic.sources`.
        transport: senders, e.g. `dcqcn:hpcc-paper`, or a `Transport` of your own.
        dt_us: substep, µs; `auto` for the longest that is certified for the senders and the
            network, and a `tick_steps` to go with it, see `sim.clocks.choose_clock`.
        tick_steps: substeps per tick.
        interval_us: tuning interval, µs.
        slots: flows in progress at most; `auto` for what the traffic needs (`sim.traffic.sizing`).
        max_steps: intervals per episode.
        buffer_mib: shared buffer per switch, MiB.
        pfc: whether PFC pauses upstream links.
        pfc_alpha: share of the free buffer at which PFC pauses; None for 1/8, more on faster links.
        loss_recovery: `selective`, `go-back-n` or `irn`, see `sim.core.recovery`.
        load_balancing: who chooses among equal-cost paths: `ecmp` (each flow once), `flowlet` (each
            flowlet, see `sim.core.flowlets`) or `spray` (each packet, see `sim.core.ways`).
        flowlet_gap_us: pause between two packets of a flow that begins a flowlet, µs.
        ack_priority: whether ACKs ride in a class of their own.
        bins: number of bins of the slowdown histogram, for each size class.
        initial: thresholds at the start of an episode.
        action_options: options of the action codec, e.g. `{"alpha_kb": 20}`.
        reward_options: options of the reward, e.g. `{"utilisation_weight": 0.7}`.
        memory_us: how far back feedback can reach, µs, see `SimConfig`.
        slowdown_weights: weights of the slowdowns of mice, medium flows and elephants in the reward
            `slowdown`. In built-in scenarios they make all size classes count alike under SECN1,
            and an interval under SECN1 earns -1 on average.
        objective: the parts of J, `Part`s; empty for the benchmark's, see `envs.objectives`.
        phased_by: number of the source, a `Graph`, whose steps are the phases that the oracle is
            told; None for those of a timeline.
        margins_us: warm-up and cool-down, µs. Flows that begin within them are not measured. Each
            is at most a quarter of the episode.
        host_groups: groups of hosts that differ in role or place on the timeline.
        classes: traffic classes (or dicts of their fields, `transport` in its short form), each
            with senders, a queue at every port and a weight; empty for one class. All queues of a
            port have the thresholds that its agent sets.
        class_of: traffic class of each source; empty for the first.
        placement: groups of hosts (their numbers) that change places in every episode, e.g.
            `((0, 1, 2, 3),)`, see `sim.traffic.placement`; empty for hosts that stay. They belong
            to one host group, or to none.
        jitter_us: NIC processing adds up to this to every feedback delay, µs.
        softness: width over which the marking curve is rounded, bytes; 0 for plain RED.
        mark_quantum: step of marking probabilities, see `SimConfig`.
        failing: arguments of `sim.core.failures.fail_links`, e.g.
            `{"share": 0.1, "at_us": 5000.0}`; empty if no link fails.
        features: default features.
        reward: default reward.
        benchmark: whether policies are compared on it. Plain traffic is for tests and timings.
        superseded: why the scenario was taken out of the benchmark; empty if it was not.
        reward_reference: what rewards are relative to, e.g. `static:best`: it earns 0 in an
            episode, the oracle 1. `POLICY@FILE.json` for your own file, empty for none; see
            `envs.reward_reference`.
    """

    topology: Annotated[Any, NETWORK]
    traffic: Annotated[Any, Each(SOURCE, least=1)]
    transport: str | Transport = "dcqcn:hpcc-paper"
    dt_us: Annotated[float | str, Real(above=0.0, high=1e4, unit="µs", words=("auto",))] = "auto"
    tick_steps: Annotated[int, Whole(low=1, high=MAX_TICK)] = 4
    interval_us: Annotated[float, Real(above=0.0, high=1e9, unit="µs")] = 100.0
    slots: Annotated[int | str, Whole(low=1, words=("auto",))] = "auto"
    max_steps: Annotated[int, Whole(low=1)] = 200
    buffer_mib: float = 32.0
    pfc: bool = True
    pfc_alpha: float | None = None
    loss_recovery: str = "selective"
    load_balancing: str = "ecmp"
    flowlet_gap_us: float = 50.0
    ack_priority: bool = False
    bins: int = 160
    initial: Annotated[str, TEXT] = "secn1"
    action_options: Annotated[dict[str, Any], OPTIONS] = field(default_factory=dict)
    reward_options: Annotated[dict[str, float], OPTIONS] = field(default_factory=dict)
    memory_us: float = 256.0
    slowdown_weights: Annotated[tuple[float, float, float], Each(Real(low=0.0), 3)] = (1.0,) * 3
    objective: Annotated[tuple[Part, ...], Each(Kind((Part,), "a Part"))] = ()
    phased_by: Annotated[int | None, Whole(low=0, none=True)] = None
    margins_us: Annotated[tuple[float, float], Each(Real(low=0.0, unit="µs"), 2)] = (0.0, 0.0)
    host_groups: Annotated[tuple[HostGroup, ...], Each(Kind((HostGroup,), "a HostGroup"))] = ()
    classes: Annotated[tuple[Any, ...], Each(CLASS)] = ()
    class_of: Annotated[tuple[int, ...], Each(Whole(low=0))] = ()
    placement: Annotated[tuple[tuple[int, ...], ...], Each(Each(Whole(low=0), least=2))] = ()
    jitter_us: float = 0.0
    softness: float = 0.0
    mark_quantum: float = 0.0
    failing: Annotated[dict[str, Any], OPTIONS] = field(default_factory=dict)
    features: str = "acc"
    reward: str = "acc"
    benchmark: Annotated[bool, Flag()] = False
    superseded: Annotated[str, TEXT] = ""
    reward_reference: Annotated[str, TEXT] = ""

    def __post_init__(self) -> None:
        """Check what the simulator does not check, and that nothing superseded is benchmarked."""
        object.__setattr__(self, "traffic", as_sources(self.traffic))
        if isinstance(self.topology, str):
            made = parse_topology(self.topology, gbps=25.0, uplink_gbps=100.0, delay_us=1.0)
            object.__setattr__(self, "topology", made)
        check(self)
        self._check_roles()
        if self.benchmark and self.superseded:
            raise bad_value("benchmark", self.benchmark, "False in a superseded scenario")

    def _check_roles(self) -> None:
        """Refuse hosts that would change places with those of another role."""
        role = {host: group.name for group in self.host_groups for host in group.hosts}
        named = dict(enumerate(self.topology.hosts))
        for places in self.placement:
            roles = {role.get(named.get(host, "")) for host in places}
            if len(roles) > 1:
                allowed = "hosts of one of `host_groups` in a group, or host_groups=()"
                raise bad_value("placement", self.placement, allowed)


PRIORITIES = {"latency": 0.3, "throughput": 0.7}
"""Weights of utilisation by what an operator puts first: PET's beta_1 for Web Search and for Data
Mining (§5.2), which are ACC's omega_1; the queue term gets the rest. The units of PET's queue term
are those of `ecn_marl.envs.rewards`: 1 up to a mean queue of 1 KB, 1 KB / queue above."""

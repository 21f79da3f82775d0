"""A network with links of other delay and rate."""

from __future__ import annotations

from dataclasses import replace

from ecn_marl.sim.network.topology import Port, Topology


def with_links(
    topology: Topology,
    *,
    delay_us: float | None = None,
    gbps: float | None = None,
    uplink_gbps: float | None = None,
) -> Topology:
    """The same network with links of other delay and rate; None leaves what there is.

    Args:
        topology: the network.
        delay_us: one-way propagation delay of every link, µs.
        gbps: rate of the links of hosts, Gb/s.
        uplink_gbps: rate of the links between switches, Gb/s.
    """

    def changed(port: Port) -> Port:
        rate = gbps if port.kind == "host" else uplink_gbps
        return replace(
            port,
            gbps=port.gbps if rate is None else float(rate),
            delay_us=port.delay_us if delay_us is None else float(delay_us),
        )

    n = topology.n_hosts
    values = {"delay": delay_us, "Gb/s": gbps, "Gb/s up": uplink_gbps}
    texts = [f"{x:g} {name}" for name, x in values.items() if x is not None]
    return replace(
        topology,
        name=f"{topology.name} ({', '.join(texts)})" if texts else topology.name,
        ports=tuple(changed(port) for port in topology.ports),
        nic_gbps=topology.nic_gbps if gbps is None else (float(gbps),) * n,
        nic_delay_us=topology.nic_delay_us if delay_us is None else (float(delay_us),) * n,
    )

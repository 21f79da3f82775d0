"""Registered scenarios, one short file each."""

from ecn_marl.envs.registry import register
from ecn_marl.envs.scenarios import (
    demand_phases,
    fabric,
    incast,
    mixed_rtt,
    moving_tenants,
    pet_fabric,
    pet_websearch,
    restore_serve,
    rpc_shuffle,
    shuffle_serve,
    websearch,
    websearch_star,
)

register("websearch-v0", websearch.scenario)
register("incast-v0", incast.scenario)
register("pet-websearch-v0", pet_websearch.scenario)
register("demand-phases-v0", demand_phases.scenario)
register("rpc-shuffle-v0", rpc_shuffle.scenario)
register("websearch-star-v0", websearch_star.scenario)
register("restore-serve-v0", restore_serve.scenario)
register("moving-tenants-v0", moving_tenants.scenario)
register("shuffle-serve-v0", shuffle_serve.scenario)
register("mixed-rtt-v0", mixed_rtt.scenario)
register("fabric-v0", fabric.scenario)
register("pet-fabric-v0", pet_fabric.scenario)

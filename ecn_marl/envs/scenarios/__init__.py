"""Registered scenarios, one short file each."""

from collections.abc import Callable
from functools import partial, update_wrapper

from ecn_marl.envs.registry import add
from ecn_marl.envs.scenario import Scenario
from ecn_marl.envs.scenarios import (
    acc_heterogeneous,
    acc_incast,
    acc_messages,
    acc_offline,
    acc_storage,
    acc_tcp,
    acc_training,
    all_reduce,
    decode_cache,
    fabric,
    haecn_fabric,
    hot_experts,
    incast,
    lost_link,
    mixed_rtt,
    moving_tenants,
    near_far,
    pet_fabric,
    pet_failures,
    pet_load,
    pet_many_to_one,
    pet_queues,
    pet_switching,
    pet_websearch,
    restore_files,
    restore_serve,
    shuffle_serve,
    storage_train,
    two_jobs,
    websearch,
    websearch_load,
    websearch_star,
    wide_restore,
)


def _with(factory: Callable[..., Scenario], *values: object) -> Callable[[], Scenario]:
    """A factory with its arguments; it keeps its docstring, which pages show."""
    return update_wrapper(partial(factory, *values), factory)


add("websearch-v0", websearch.scenario)
add("incast-v0", incast.scenario)
add("pet-websearch-v0", pet_websearch.scenario)
add("websearch-star-v0", websearch_star.scenario)
add("restore-serve-v0", restore_serve.scenario)
add("moving-tenants-v0", moving_tenants.scenario)
add("shuffle-serve-v0", shuffle_serve.scenario)
add("mixed-rtt-v0", mixed_rtt.scenario)
add("fabric-v0", fabric.scenario)
add("restore-files-v0", restore_files.scenario)
add("pet-fabric-v0", pet_fabric.scenario)

# AI fabrics: jobs' steps count, see `envs.objectives`.
add("storage-train-v0", storage_train.scenario)
add("storage-train-full-v0", storage_train.full)
add("decode-cache-v0", decode_cache.scenario)
add("decode-cache-full-v0", decode_cache.full)
add("wide-restore-v0", wide_restore.scenario)
add("wide-restore-full-v0", wide_restore.full)
add("two-jobs-v0", two_jobs.scenario)
add("two-jobs-full-v0", two_jobs.full)
add("hot-experts-v0", hot_experts.scenario)
add("hot-experts-full-v0", hot_experts.full)
add("lost-link-v0", lost_link.scenario)
add("lost-link-full-v0", lost_link.full)
add("all-reduce-v0", all_reduce.scenario)

# Arrivals at random: two distances, and a control.
add("near-far-v0", near_far.scenario)
add("websearch-load-v0", websearch_load.scenario)

# Of the papers, see `ecn_marl.experiments.papers`: full size, and small.
add("pet-websearch-small-v0", pet_load.websearch_small, "pet")
add("pet-datamining-v0", pet_load.datamining, "pet")
add("pet-datamining-small-v0", pet_load.datamining_small, "pet")
add("pet-switching-v0", pet_switching.full, "pet")
add("pet-switching-small-v0", pet_switching.small, "pet")
add("pet-failures-v0", pet_failures.full, "pet")
add("pet-failures-small-v0", pet_failures.small, "pet")
add("pet-many-to-one-v0", pet_many_to_one.full, "pet")
add("pet-many-to-one-small-v0", pet_many_to_one.small, "pet")
add("pet-two-queues-v0", pet_queues.full, "pet")
add("pet-two-queues-small-v0", pet_queues.small, "pet")
add("acc-heterogeneous-v0", acc_heterogeneous.full, "acc")
add("acc-heterogeneous-small-v0", acc_heterogeneous.small, "acc")
add("acc-messages-v0", acc_messages.full, "acc")
add("acc-messages-small-v0", acc_messages.small, "acc")
add("acc-storage-v0", acc_storage.full, "acc")
add("acc-storage-small-v0", acc_storage.small, "acc")
add("acc-training-v0", acc_training.full, "acc")
add("acc-training-small-v0", acc_training.small, "acc")
add("acc-offline-v0", acc_offline.full, "acc")
add("acc-offline-small-v0", acc_offline.small, "acc")
for _small, _suffix in ((False, ""), (True, "-small")):
    for _n in acc_incast.SMALL_DEGREES if _small else acc_incast.DEGREES:
        add(f"acc-incast-{_n}{_suffix}-v0", _with(acc_incast.scenario, _n, _small), "acc")
    for _n in (2, 7):
        add(f"acc-tcp-{_n}{_suffix}-v0", _with(acc_tcp.scenario, _n, _small), "acc")
    for _n in haecn_fabric.LINKS:
        add(f"haecn-bursty-{_n}{_suffix}-v0", _with(haecn_fabric.bursty, _n, _small), "haecn")
        add(f"haecn-gradual-{_n}{_suffix}-v0", _with(haecn_fabric.gradual, _n, _small), "haecn")

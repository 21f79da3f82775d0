"""Batches of environments on several devices.

A batch of environments is split over a mesh with one axis, `env`. Every device runs its own loop
over its share, and devices exchange nothing. XLA's CPU backend keeps about one core busy with such
a loop, so on a CPU use one host device per core:

    host_devices(2)                         # before anything has run
    mesh = env_mesh()
    step = per_device(vmapped_step, mesh, shared=(2,))
    state = shard_envs(state, mesh)         # leading axes split over the devices
    state = step(keys, state, params)
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Protocol, runtime_checkable

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.stages import Lowered
from jaxtyping import PyTree

from ecn_marl._errors import bad_value
from ecn_marl.lanes.settings import cores

LOST = 75
"""Exit code of a process that has lost another one of its training: EX_TEMPFAIL, try again."""

_SEVERED = re.compile("gloo|nccl|connection|socket closed|heartbeat|coordination", re.IGNORECASE)
"""What errors of exchanges between processes say. JAX has no type of its own for them."""

AXIS = "env"
"""Name of the mesh axis that environments are split over."""

FLAG = "xla_force_host_platform_device_count"
"""Another way to have several host devices, in the environment variable XLA_FLAGS."""


@runtime_checkable
class Jitted(Protocol):
    """What `jax.jit` returns. Its own type, `jax.stages.Wrapped`, cannot be checked at run time."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Call the compiled function."""

    def lower(self, *args: Any, **options: Any) -> Lowered:
        """Lower it for arguments of these shapes and types."""


def host_devices(n: int) -> None:
    """Let the CPU backend have `n` devices; to be called before JAX runs anything.

    Args:
        n: number of host devices. Accelerators are not affected.

    Raises:
        ValueError: `n` is below 1, or JAX has started with fewer.
    """
    if n < 1:
        raise bad_value("devices", n, "an integer >= 1")
    if FLAG not in os.environ.get("XLA_FLAGS", ""):  # JAX does not allow both settings
        with suppress(RuntimeError):  # JAX has already started
            jax.config.update("jax_num_cpu_devices", n)
            return
    have = len(jax.devices("cpu"))
    if have < n:
        allowed = f"at most {have}: JAX has already started with {have} host devices"
        raise bad_value("devices", n, allowed)


def parse_processes(spec: str) -> tuple[str, int, int]:
    """Reads `HOST:PORT,N,I`: where process 0 listens, the number of processes, and which this is.

    Raises:
        ValueError: it is something else.
    """
    address, *numbers = spec.split(",")
    if ":" in address and len(numbers) == 2 and all(x.isdecimal() for x in numbers):
        processes, index = (int(x) for x in numbers)
        if index < processes:
            return address, processes, index
    raise bad_value("distributed", spec, "HOST:PORT,N,I with I from 0 to N-1: 10.0.0.1:1234,2,0")


def join_processes(address: str, processes: int, index: int) -> int:
    """Join other processes, on this host or others, whose devices become one mesh.

    To be called before JAX runs anything, by every process. On a CPU every process has one device:
    with more, programs that exchange data have been seen to wait for each other forever.

    Args:
        address: `HOST:PORT` at which process 0 listens.
        processes: number of processes.
        index: which of them this is, from 0.

    Returns:
        The index.
    """
    jax.distributed.initialize(address, processes, index)
    return index


@contextmanager
def ends_with_others(advice: str) -> Iterator[None]:
    """End this process with one line where another one of its training is lost.

    The error alone would not end it: JAX waits a minute for the lost process, and then aborts with
    pages of its own messages.

    Args:
        advice: what to do then.
    """
    try:
        yield
    except (RuntimeError, ValueError, OSError) as error:
        if jax.process_count() == 1 or not _SEVERED.search(str(error)):
            raise
        others = f"another of the {jax.process_count()} processes of this training is lost"
        print(f"ecn-marl: {others}: {advice}", file=sys.stderr, flush=True)
        os._exit(LOST)


def env_mesh(n: int | None = None) -> Mesh:
    """A mesh of the default backend's devices with the axis `env`.

    Args:
        n: devices to use, the first ones; None for all.

    Raises:
        ValueError: there are not as many devices.
    """
    devices = jax.devices()
    n = len(devices) if n is None else n
    if not 1 <= n <= len(devices):
        raise bad_value("devices", n, f"1 to {len(devices)}, the {devices[0].platform} devices")
    return Mesh(np.array(devices[:n]), (AXIS,))


def fitting_devices(envs: int, devices: int) -> int:
    """The most devices, at most `devices`, that `envs` environments can be split evenly over."""
    return max(n for n in range(1, devices + 1) if envs % n == 0)


def shard_envs(tree: PyTree, mesh: Mesh) -> PyTree:
    """A tree of arrays with their leading axis, the environments, split over the devices.

    Raises:
        ValueError: the environments cannot be split evenly.
    """
    for leaf in jax.tree.leaves(tree):
        envs = leaf.shape[0] if leaf.ndim else 0
        if not envs or envs % mesh.size:
            allowed = f"a leading axis that {mesh.size} devices divide evenly"
            raise bad_value("shape", leaf.shape, allowed)
    return jax.device_put(tree, NamedSharding(mesh, PartitionSpec(AXIS)))


def state_shardings(state: PyTree, mesh: Mesh, per_env: tuple[str, ...], axis: int = 0) -> PyTree:
    """Shardings of a training state: environments are split, all else is on every device.

    Args:
        state: a pytree dataclass of arrays or shapes.
        mesh: from `env_mesh`.
        per_env: its fields whose leaves have an axis of environments.
        axis: which axis that is; 1 behind an axis of seeds.

    Returns:
        The same tree with a sharding for every leaf.

    Raises:
        ValueError: the environments cannot be split evenly.
    """
    replicated = NamedSharding(mesh, PartitionSpec())
    split = NamedSharding(mesh, PartitionSpec(*(None,) * axis, AXIS))

    def place(path: tuple[object, ...], leaf: jax.Array | jax.ShapeDtypeStruct) -> NamedSharding:
        name = getattr(path[0], "name", getattr(path[0], "key", None))
        if name not in per_env:
            return replicated
        if leaf.shape[axis] % mesh.size:
            raise bad_value("devices", mesh.size, f"a divisor of the {leaf.shape[axis]} envs")
        return split

    return jax.tree_util.tree_map_with_path(place, state)


def per_device(
    function: Callable[..., PyTree],
    mesh: Mesh,
    *,
    shared: tuple[int, ...] = (),
    donate: tuple[int, ...] = (),
) -> Jitted:
    """A compiled function of batches that every device runs on its share of the environments.

    Devices exchange nothing, so loops in `function` may have different lengths on each. Results for
    an environment are those of `function` on the whole batch.

    Args:
        function: its arguments and results are trees with a leading axis of environments, which do
            not depend on each other.
        mesh: from `env_mesh`.
        shared: positions of arguments that every device gets whole.
        donate: positions of arguments whose memory the results may take.

    Returns:
        A jitted function; its results are split over the devices as `shard_envs` does it.
    """
    split, replicated = PartitionSpec(AXIS), PartitionSpec()

    def run(*args: object) -> PyTree:
        # Mapped here, as the number of specifications must be that of the arguments.
        specs = tuple(replicated if i in shared else split for i in range(len(args)))
        mapped = jax.shard_map(
            function,
            mesh=mesh,
            in_specs=specs,
            out_specs=split,
            check_vma=False,  # calls of `ecn_marl.lanes` do not say what differs between devices
        )
        return mapped(*args)

    # Without explicit shardings, arrays without elements are returned unsplit and do not fit the
    # next call.
    return jax.jit(run, donate_argnums=donate, out_shardings=NamedSharding(mesh, split))


__all__ = [
    "AXIS",
    "Jitted",
    "cores",
    "ends_with_others",
    "env_mesh",
    "fitting_devices",
    "host_devices",
    "join_processes",
    "parse_processes",
    "per_device",
    "shard_envs",
    "state_shardings",
]

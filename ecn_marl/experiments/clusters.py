"""Executors of clusters: tasks on Ray, and as jobs of SLURM.

What a task makes is in a folder that all machines share, or what it returns. A worker or node that
is lost costs its tasks only: they begin again elsewhere, up to `RETRIES` times. A training then
goes on from its last checkpoint, and ends with the same bits. So a cluster changes nothing but the
time that a comparison takes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from ecn_marl._errors import bad_value
from ecn_marl._imports import import_extension, imported

PATHS = "PYTHONPATH"
"""Environment variable: where workers import from, the same folders as this process."""

LOCAL = "local"
"""Address of a Ray cluster of this machine alone, made for the comparison."""

RETRIES = 5
"""How often a task begins again after its worker or node was lost."""

JOBS = 64
"""Largest number of jobs that wait or run at a time in SLURM."""

JOB_LOGS = ".ecn-marl-jobs"
"""Folder for the files of SLURM's jobs, in the working directory: all machines see it."""


def call(extensions: Sequence[str], fn: Callable[..., Any], args: Sequence[Any]) -> Any:
    """Run a task in another process, which first imports what was imported where it was made."""
    for name in extensions:
        import_extension(name)
    return fn(*args)


def _paths() -> str:
    return os.pathsep.join(path for path in sys.path if path)


class RayExecutor(Executor):
    """Tasks of a Ray cluster."""

    def __init__(self, ray: Any, cpus: float, gpus: float) -> None:
        """Set up for a cluster that this process is connected to.

        Args:
            ray: the package.
            cpus: cores that a task takes.
            gpus: GPUs that a task takes.
        """
        self._task = ray.remote(max_retries=RETRIES, num_cpus=cpus, num_gpus=gpus)(call)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """See `Executor.submit`."""
        ref = self._task.remote(imported(), partial(fn, **kwargs), args)
        ended: Future[Any] = Future()
        ref.future().add_done_callback(partial(_settle, ended))
        return ended


def _settle(ended: Future[Any], of_ray: Future[Any]) -> None:
    """Give a future the result of Ray's, or its error without Ray's wrapping."""
    if not ended.set_running_or_notify_cancel():
        return  # cancelled meanwhile
    error = of_ray.exception()
    if error is None:
        ended.set_result(of_ray.result())
    else:
        ended.set_exception(getattr(error, "cause", None) or error)


@contextmanager
def on_ray(address: str, options: Mapping[str, float | str]) -> Iterator[Executor]:
    """Tasks on a Ray cluster.

    Args:
        address: of the cluster, as `ray.init` takes it; `local` or empty for one of this machine.
        options: `cpus` and `gpus` of a task, 1 and 0 by default.

    Raises:
        ValueError: Ray is not installed, an unknown option, or no cluster answers.
    """
    ray = _package("ray", "ray")
    for name, value in options.items():
        if name not in ("cpus", "gpus") or isinstance(value, str):
            raise bad_value("ray", f"{name}={value}", "numbers for cpus and gpus")
    began = not ray.is_initialized()
    if began:
        _connect(ray, address or LOCAL)
    try:
        yield RayExecutor(ray, float(options.get("cpus", 1)), float(options.get("gpus", 0)))
    finally:
        if began:
            ray.shutdown()


def _connect(ray: Any, address: str) -> None:
    """Connect to a cluster, or begin one here; its workers import from where this process does."""
    there = {"include_dashboard": False} if address == LOCAL else {"address": address}
    # By default Ray's workers have a low priority: beside other work on the machine they starve.
    os.environ.setdefault("RAY_worker_niceness", "0")
    try:
        ray.init(**there, log_to_driver=False, runtime_env={"env_vars": {PATHS: _paths()}})
    except (ConnectionError, ValueError, RuntimeError) as error:
        allowed = f"{LOCAL}, or the address of a cluster that runs ({error})"
        raise bad_value("ray", address, allowed) from None


class SlurmExecutor(ThreadPoolExecutor):
    """Tasks as jobs of SLURM: a thread waits for each."""

    def __init__(self, submitit: Any, parameters: Mapping[str, float | str]) -> None:
        """Set up.

        Args:
            submitit: the package.
            parameters: of `submitit.AutoExecutor`; `cluster=local` runs jobs on this machine.

        Raises:
            ValueError: a parameter that is not known or not allowed, or no SLURM.
        """
        super().__init__(JOBS)
        given = dict(parameters)
        cluster, folder = given.pop("cluster", "slurm"), Path(JOB_LOGS).absolute()
        try:
            self._jobs = submitit.AutoExecutor(str(folder), cluster=cluster)
            self._jobs.update_parameters(name="ecn-marl", **given)
        except (RuntimeError, NameError, TypeError, ValueError) as error:
            allowed = f"parameters of submitit.AutoExecutor, where SLURM is installed ({error})"
            raise bad_value("slurm", dict(parameters), allowed) from None
        self._lost = submitit.core.utils.UncompletedJobError
        self._waiting: set[Any] = set()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """See `Executor.submit`."""
        return super().submit(self._wait, imported(), partial(fn, **kwargs), args)

    def _wait(self, extensions: Sequence[str], fn: Callable[..., Any], args: Sequence[Any]) -> Any:
        """Run a job, and again if it was lost."""
        for left in reversed(range(RETRIES + 1)):
            job = self._jobs.submit(_kept_error, extensions, fn, args)
            self._waiting.add(job)
            try:
                result, error = job.result()
            except self._lost:
                if not left:
                    raise
                continue
            finally:
                self._waiting.discard(job)
            if error is not None:
                raise error
            return result

    def stop(self) -> None:
        """Cancel all jobs, and all that were not submitted yet."""
        self.shutdown(wait=False, cancel_futures=True)
        for job in list(self._waiting):
            job.cancel(check=False)


def _kept_error(
    extensions: Sequence[str], fn: Callable[..., Any], args: Sequence[Any]
) -> tuple[Any, ValueError | None]:
    """A task's result, or what is wrong with its input: submitit would hand over its text only."""
    try:
        return call(extensions, fn, args), None
    except ValueError as error:
        return None, error


@contextmanager
def on_slurm(address: str, options: Mapping[str, float | str]) -> Iterator[Executor]:
    """Tasks as jobs of SLURM.

    Args:
        address: not used: SLURM knows its own.
        options: parameters of `submitit.AutoExecutor`, such as `slurm_partition` and `timeout_min`.

    Raises:
        ValueError: submitit is not installed, or see `SlurmExecutor`.
    """
    del address
    pool, before = SlurmExecutor(_package("submitit", "slurm"), options), os.environ.get(PATHS)
    os.environ[PATHS] = _paths()  # jobs get the environment of this process
    try:
        yield pool
        pool.shutdown()
    except BaseException:
        pool.stop()
        raise
    finally:
        if before is None:
            del os.environ[PATHS]
        else:
            os.environ[PATHS] = before


def _package(name: str, extra: str) -> Any:
    """A package of an extra.

    Raises:
        ValueError: it is not installed.
    """
    try:
        return __import__(name)
    except ImportError:
        allowed = f"installed (an extra: pip install 'ecn-marl[{extra}]')"
        raise bad_value(name, "not installed", allowed) from None

"""Tune static ECN thresholds by gradient descent through the simulator, beside a grid search.

Long flows join one after the other at a 25 Gb/s port, each at line rate. Their senders are the
mean-field model of DCQCN and the corners of the marking curve are rounded, so the whole episode is
a differentiable function of `(kmin, kmax, pmax)`:

    cost = 1 - w utilisation - (1 - w) D(queue),    D(q) = 1 - log2(1 + q / 5 KB) / 10

averaged over intervals of 100 µs. `D` follows the staircase of ACC's reward (SIGCOMM'21, section 3;
`ecn_marl.envs.rewards`), one step down for every doubling of the queue, without the steps.

The grid costs one episode per setting, all in one `vmap`. Adam costs an episode and its gradient
per step; the cost has more than one valley, so it starts at four settings, also in one `vmap`. The
best of both is then replayed with DCQCN as NICs implement it, with timers and sampled CNPs, which
is what the mean-field model averages over.

Prints a table: cost, utilisation and mean queue of SECN1, of the best setting of the grid and of
the one found by descent, the mean cost of each with sampled CNPs, and the seconds of both searches
(with and without compilation). About a minute on one core.

With default options descent ends at a cost of 0.1018, the grid of 216 settings at 0.1026 (one of
1000 at 0.1019) and SECN1 at 0.144. With sampled CNPs both searches end at 0.13, equal within noise,
against 0.18. Descent can miss the best setting: at `--weight 0.9` the best of the grid lies in a
valley that no start leads to, and descent ends 4 % above it. Three thresholds are few enough for a
grid; gradients pay where there are many, as with one setting per port.

    python examples/tune_by_gradient.py
    python examples/tune_by_gradient.py --weight 0.7 --delay-us 40
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ecn_marl.sim import Ecn, Schedule, Simulator, schedule, star
from ecn_marl.sim.transports import parse_transport
from ecn_marl.sim.units import KB

SECN1 = (5.0, 200.0, 0.01)
STARTS = (SECN1, (100.0, 400.0, 0.2), (20.0, 80.0, 0.5), (5.0, 1000.0, 0.1))
"""KB, KB, 1: where the descents start (SECN1, SECN2, a short and a long ramp)."""

INTERVAL_US = 100.0
QUEUE_SCALE_KB = 5.0
QUEUE_STEPS = 10.0


class Setting(NamedTuple):
    """Thresholds in KB and a probability; scalars, or `[N]` for a batch."""

    kmin: Any
    kmax: Any
    pmax: Any


class Outcome(NamedTuple):
    """Results of an episode: cost, mean utilisation, mean queue (KB)."""

    cost: Any
    utilisation: Any
    queue_kb: Any


class Result(NamedTuple):
    """Results of `main`: costs at the start, of the grid and of descent; the settings."""

    start: float
    grid: float
    descent: float
    grid_setting: Setting
    descent_setting: Setting


def episode(args: argparse.Namespace, source: str, softness: float) -> Callable[..., Outcome]:
    """The cost of a setting as a function, for one model of DCQCN's senders.

    Args:
        args: what `parse` returns.
        source: `mean_field` or `timers`.
        softness: width over which the marking curve is rounded, bytes.

    Returns:
        A pure function of a `Setting` (and of the seed of the CNPs, if these are sampled);
        differentiable with `mean_field` and a softness.
    """
    n, dt = args.flows, args.dt_us
    sim = Simulator(
        star(n + 1, gbps=25.0, delay_us=args.delay_us / 4.0),
        (Schedule(dt, n),),
        parse_transport(f"dcqcn:paper,source={source}"),
        dt_us=dt,
        tick_steps=5,
        interval_steps=round(INTERVAL_US / dt),
        slots=n,
        bins=0,
        pfc=False,
        ack_priority=True,  # else feedback waits for whole substeps, which have no gradient
        memory_us=args.delay_us + 10.0,
        softness=softness,
    )
    flows = {
        "src": np.arange(1, n + 1),
        "dst": np.zeros(n, int),
        "size_B": np.full(n, 10**9),
        "start_ns": np.arange(n) * args.gap_ms * 1e6,
    }
    params = sim.default_params(traffic=(schedule(flows, dt),))
    intervals = round((n * args.gap_ms + args.more_ms) * 1e3 / INTERVAL_US)
    ports = sim.topology.n_ports

    def run(setting: Setting, seed: Any = 0) -> Outcome:
        state = sim.init(jax.random.key(seed), params)
        kmin, kmax, pmax = (jnp.broadcast_to(x, (ports,)) for x in setting)
        ecn = Ecn(kmin * KB, kmax * KB, pmax)

        # Store the state between intervals only; the backward pass recomputes it within one.
        @jax.checkpoint
        def interval(state: Any, _: None) -> Any:
            state, stats = sim.interval(state, params, ecn)
            return state, (stats.utilisation[0], stats.queue_mean[0] / KB)

        _, (used, queue) = jax.lax.scan(interval, state, None, length=intervals)
        shortness = 1.0 - jnp.log2(1.0 + queue / QUEUE_SCALE_KB) / QUEUE_STEPS
        cost = 1.0 - jnp.mean(args.weight * used + (1.0 - args.weight) * shortness)
        return Outcome(cost, used.mean(), queue.mean())

    return run


def allowed(x: jax.Array) -> Setting:
    """Map any three numbers to `0 < kmin < kmax`, `0 < pmax < 1`; steps in `x` are relative."""
    kmin = jnp.exp(x[0])
    return Setting(kmin, kmin + jnp.exp(x[1]), jax.nn.sigmoid(x[2]))


def coordinates(setting: Sequence[float]) -> jax.Array:
    """Inverse of `allowed`."""
    kmin, kmax, pmax = setting
    return jnp.log(jnp.array([kmin, kmax - kmin, pmax / (1.0 - pmax)]))


def search_grid(run: Callable[..., Outcome], points: int) -> tuple[Setting, float, float]:
    """Best of `points`³ settings, log-spaced; and seconds, with and without compilation."""
    axes = (
        np.geomspace(1, 100, points),
        np.geomspace(10, 1000, points),
        np.geomspace(0.01, 1, points),
    )
    kmin, width, pmax = (jnp.asarray(x.ravel()) for x in np.meshgrid(*axes, indexing="ij"))
    grid = Setting(kmin, kmin + width, pmax)
    search = jax.jit(jax.vmap(lambda setting: run(setting).cost))
    seconds = []
    for _ in range(2):  # the first call compiles
        begin = time.perf_counter()
        costs = np.asarray(search(grid))
        seconds.append(time.perf_counter() - begin)
    best = int(costs.argmin())
    return Setting(*(float(x[best]) for x in grid)), seconds[0], seconds[1]


def descend(run: Callable[..., Outcome], steps: int, rate: float) -> tuple[Setting, float, float]:
    """Adam on the transformed thresholds from all starts; the best point met, seconds as above."""
    adam = optax.adam(optax.cosine_decay_schedule(rate, steps))

    def total(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        costs = jax.vmap(lambda x: run(allowed(x)).cost)(x)
        return costs.sum(), costs  # every row's gradient is its own

    @jax.jit
    def step(x: jax.Array, moments: Any) -> tuple[jax.Array, Any, jax.Array]:
        (_, costs), slope = jax.value_and_grad(total, has_aux=True)(x)
        update, moments = adam.update(slope, moments)
        return optax.apply_updates(x, update), moments, costs

    begin = time.perf_counter()
    x = jnp.stack([coordinates(start) for start in STARTS])
    moments = adam.init(x)
    jax.block_until_ready(step(x, moments))  # compiles; its result is not used
    compiled = time.perf_counter()
    best, lowest = x[0], np.inf
    for _ in range(steps):
        previous = x
        x, moments, costs = step(x, moments)
        if costs.min() < lowest:
            best, lowest = previous[costs.argmin()], float(costs.min())
    end = time.perf_counter()
    return Setting(*(float(v) for v in allowed(best))), end - begin, end - compiled


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    p = argparse.ArgumentParser(description="Static thresholds by gradient descent.")
    p.add_argument("--flows", type=int, default=8, help="flows that join one after the other")
    p.add_argument("--gap-ms", type=float, default=1.0, help="time between two of them")
    p.add_argument("--more-ms", type=float, default=4.0, help="time after the last gap")
    p.add_argument("--delay-us", type=float, default=8.0, help="feedback delay without queues")
    p.add_argument("--dt-us", type=float, default=2.0, help="substep")
    p.add_argument("--weight", type=float, default=0.5, help="weight of utilisation")
    p.add_argument("--softness-kb", type=float, default=2.0, help="rounding of the marking curve")
    p.add_argument("--grid", type=int, default=6, help="points per axis of the grid")
    p.add_argument("--steps", type=int, default=60, help="steps of the descent")
    p.add_argument("--rate", type=float, default=0.2, help="learning rate at the first step")
    p.add_argument("--seeds", type=int, default=16, help="episodes with sampled CNPs")
    return p.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> Result:
    """Run both searches and print their results.

    Args:
        argv: command line, that of the process if None.
    """
    args = parse(argv)
    run = episode(args, "mean_field", args.softness_kb * KB)
    on_grid, *grid_s = search_grid(run, args.grid)
    descended, *descent_s = descend(run, args.steps, args.rate)
    smooth, sampled = jax.jit(run), jax.jit(jax.vmap(episode(args, "timers", 0.0), (None, 0)))
    rows = {"SECN1": Setting(*SECN1), "grid": on_grid, "descent": descended}
    print("            kmin    kmax   pmax |   cost   util.  queue KB | cost, sampled CNPs")
    costs = {}
    for name, setting in rows.items():
        o, s = smooth(setting), sampled(setting, jnp.arange(args.seeds))
        costs[name] = float(o.cost)
        print(
            f"{name:8} {setting.kmin:7.1f} {setting.kmax:7.1f} {setting.pmax:6.3f} | {o.cost:.4f}"
            f"  {o.utilisation:.4f} {o.queue_kb:9.1f} | {s.cost.mean():.4f}"
        )
    searches = {
        f"grid, {args.grid**3} episodes": grid_s,
        f"descent, {len(STARTS)} x {args.steps} steps": descent_s,
    }
    for name, (all_s, compiled_s) in searches.items():
        print(f"{name}: {all_s:.1f} s ({compiled_s:.1f} s once compiled)")
    return Result(costs["SECN1"], costs["grid"], costs["descent"], on_grid, descended)


if __name__ == "__main__":
    main()

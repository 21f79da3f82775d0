"""Tables of the decision problem: scenarios, features, actions, rewards."""

from __future__ import annotations

import inspect
import json
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np

from generated.markdown import fields_of, markdown


def scenarios() -> str:
    """The scenarios but those of papers and superseded ones; the benchmark's first."""
    import ecn_marl
    from ecn_marl.envs.registry import PAPERS, benchmark, lookup

    first = benchmark()
    others = (name for name in ecn_marl.scenarios() if name not in {*first, *PAPERS})
    return _scenario_table([*first, *(name for name in others if not lookup(name).superseded)])


def paper_scenarios() -> str:
    """The scenarios of the papers' figures."""
    from ecn_marl.envs.registry import PAPERS, scenarios

    return _scenario_table([name for name in scenarios() if name in PAPERS])


def _scenario_table(names: Sequence[str]) -> str:
    """Scenarios with their network and clocks, and what they ask of a policy."""
    import ecn_marl
    from ecn_marl.envs.registry import lookup
    from generated.learners import label

    rows = []
    for name in names:
        env = ecn_marl.make(name)
        net, sim = env.sim.topology, env.sim
        rates = ", ".join(f"{r:g}" for r in sorted({p.gbps for p in net.ports}))
        rows.append(
            (
                f"`{name}`",
                "yes" if lookup(name).benchmark else "",
                net.name,
                net.n_hosts,
                env.num_agents,
                rates,
                f"{sim.transport.kind}:{sim.transport.name}",
                f"{sim.dt_us:g} / {sim.tick_us:g} / {env.interval_us:g}",
                env.horizon,
                label(name),
            )
        )
    head = ("scenario", "benchmark", "network", "hosts", "agents", "ports, Gb/s", "senders")
    return markdown((*head, "substep / tick / Δt, µs", "intervals", "asks for"), rows)


def superseded() -> str:
    """Scenarios that are no longer used to compare policies, with the reason."""
    import ecn_marl
    from ecn_marl.envs.registry import lookup

    reasons = {name: lookup(name).superseded for name in ecn_marl.scenarios()}
    return "\n".join(f"* `{name}`: {reason}." for name, reason in reasons.items() if reason)


def feature_sets() -> str:
    """Columns of the feature sets."""
    from ecn_marl.envs.features import FEATURE_SETS, feature_set

    rows = [
        (f"`{s.name}`", ", ".join(f"`{n}`" for n in s.names), s.width, s.history, s.obs_dim)
        for s in map(feature_set, FEATURE_SETS)
    ]
    return markdown(("features", "columns, in this order", "w", "k", "k·w"), rows)


def features() -> str:
    """Every feature: its definition, the counters it needs, where it comes from."""
    from ecn_marl.envs.features import FEATURES

    rows = [
        (f"`{name}`", f.help, ", ".join(f"`{n}`" for n in f.needs), f.source or "ours")
        for name, f in FEATURES.items()
    ]
    return markdown(("feature", "definition", "counters", "source"), rows)


def telemetry() -> str:
    """Options of telemetry."""
    from ecn_marl.envs.telemetry import Telemetry

    defaults = Telemetry()
    rows = [
        (f"`{name}`", f"{getattr(defaults, name)}", text)
        for name, text in fields_of(Telemetry.__doc__ or "").items()
    ]
    return markdown(("option", "default", "meaning"), rows)


def queue_examples() -> str:
    """What queues look like to an agent, and what they earn."""
    from ecn_marl.envs.features import FeatureScale, log_size
    from ecn_marl.envs.rewards import RewardParams, queue_level

    kb = np.array([0, 1, 5, 5.1, 10, 20, 50, 100, 200, 400, 1000, 2560, 2600, 10240], np.float32)
    one = jnp.ones(kb.size)
    scale, params = FeatureScale.create(one), RewardParams.create()
    size = jnp.asarray(kb * 1000)
    feature = log_size(size, scale)
    faster = log_size(size, FeatureScale.create(4.0 * one))
    level = queue_level(size, params.queue_scale * one, params.queue_steps)
    short = params.queue_floor / np.maximum(kb * 1000, params.queue_floor)
    rows = [
        (f"{q:g}", f"{a:.3f}", f"{b:.3f}", f"{n:.1f}", f"{1 - n:.1f}", f"{s:.4f}")
        for q, a, b, n, s in zip(kb, feature, faster, level, short, strict=True)
    ]
    head = ("queue, KB", "`queue` at 25 Gb/s", "`queue` at 100 Gb/s")
    return markdown((*head, "`queue_level`", "D(L)", "La"), rows)


def actions() -> str:
    """The action codecs and what they span."""
    from ecn_marl.envs.actions import BoxAction, DiscreteAction, MultiDiscreteAction

    multi, one, box = MultiDiscreteAction(), DiscreteAction(), BoxAction()
    e = [multi.alpha_kb * 2**n for n in range(multi.levels)]
    levels = f"E(n) = {multi.alpha_kb:g}·2ⁿ = {e[0]:g} … {e[-1]:g} KB"
    pmax = f"{multi.pmax[0]:g}, {multi.pmax[1]:g}, {multi.pmax[2]:g} … {multi.pmax[-1]:g}"
    rows = [
        (
            "`multidiscrete`",
            f"int32 `[3]`, {' × '.join(str(n) for n in multi.nvec)} choices",
            f"Kmin = E(n), Kmax = E(min(n + 1 + gap, {multi.levels - 1})), {levels}; Pmax of "
            f"{pmax}",
        ),
        (
            "`discrete`",
            f"int32 scalar, {one.n} choices",
            "a whole setting from the list below",
        ),
        (
            "`box`",
            "float32 `[3]` in [-1, 1]",
            f"log scales: Kmin {box.kmin_kb[0]:g} … {box.kmin_kb[1]:g} KB; Kmax/Kmin from "
            f"{box.min_ratio:g} to where Kmax = {box.kmax_kb:g} KB; Pmax {box.pmax[0]:g} … "
            f"{box.pmax[1]:g}",
        ),
    ]
    return markdown(("actions", "one agent's action", "meaning at 25 Gb/s"), rows)


def template() -> str:
    """The list behind `discrete` actions."""
    from ecn_marl.envs.actions import DiscreteAction

    listed = DiscreteAction().template
    rows: list[tuple[str, ...]] = []
    for i in range(0, len(listed), 3):
        cells = [f"{k + i}: ({a:g}, {b:g}, {p:g})" for k, (a, b, p) in enumerate(listed[i : i + 3])]
        rows.append(tuple(cells))
    return markdown(("index: (Kmin KB, Kmax KB, Pmax)", "", ""), rows)


def static_settings() -> str:
    """The named static settings."""
    from ecn_marl.envs.actions import STATIC_ECN

    rows = [(f"`static:{n}`", f"{a:g}", f"{b:g}", f"{p:g}") for n, (a, b, p) in STATIC_ECN.items()]
    return markdown(("setting", "Kmin, KB", "Kmax, KB", "Pmax"), rows)


def reward_options() -> str:
    """Options of the rewards."""
    from ecn_marl.envs.rewards import OPTIONS, RewardParams

    defaults = inspect.signature(RewardParams.create).parameters
    rows = [
        (f"`{n}`", f"{defaults[n].default:g}", allowed) for n, (_, _, allowed) in OPTIONS.items()
    ]
    return markdown(("option", "default", "allowed"), rows)


def reward_references() -> str:
    """What rewards can be relative to: the files that ship."""
    from ecn_marl.envs.reward_reference import SHIPPED
    from ecn_marl.render.tables import entry_title

    rows = []
    for file in sorted(SHIPPED.glob("*.json")):
        references = json.loads(file.read_text())
        for entry in references["entries"]:
            title = entry_title(entry, references["entries"])
            for name, headroom in entry["headroom"].items():
                low, high = headroom["low"], headroom["high"]
                interval = f"{headroom['value']:.4g} [{low:.4g}, {high:.4g}]"
                row = (references["scenario"], title, name, entry["oracle"])
                deviation = f"{headroom['spread']:.2f}"
                rows.append((*(f"`{cell}`" for cell in row), interval, deviation))
    head = ("scenario", "reward", "reference", "oracle", "headroom", "spread")
    return markdown(head, rows)


def info() -> str:
    """What `info` holds after a step."""
    from ecn_marl.sim.core.stats import SIZES
    from ecn_marl.sim.simulator import PortStats
    from ecn_marl.sim.state import COUNTS

    rows = []
    for name, text in fields_of(PortStats.__doc__ or "").items():
        if name.startswith("class_") and name not in COUNTS:
            continue  # environments have a single traffic class
        key = ", ".join(f"`{n}`" for n in (SIZES if name == "class_bytes" else (name,)))
        rows.append((key, text.replace(", `[P, 3]`", ""), "on request" if name in COUNTS else ""))
    setting = "thresholds that were in force; bytes, bytes, probability"
    rows += [("`kmin`, `kmax`, `pmax`", setting, "")]
    return markdown(("key", "per agent, over the interval", "counted"), rows)

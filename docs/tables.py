"""Writes the tables of the documentation that follow from the code.

    python docs/tables.py            # rewrite the tables in README.md and docs/**/*.md
    python docs/tables.py --check    # fail if one is out of date

A table stands between `<!-- table: NAME -->` and `<!-- end -->`; NAME is a function below.
"""

from __future__ import annotations

import argparse
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from ecn_marl._errors import bad_value

HERE = Path(__file__).parent
RESULTS = HERE.parent / "results"
FIRST = "restore-serve-v0"
"""The scenario whose results the README shows."""

BLOCK = re.compile(r"(<!-- table: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def markdown(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(c).replace("|", "\\|") for c in r) + " |" for r in lines)


def fields_of(docstring: str) -> dict[str, str]:
    """Names and descriptions of the `Attributes` of a docstring."""
    text = inspect.cleandoc(docstring)
    part = text.split("Attributes:\n", 1)[1]
    found: dict[str, str] = {}
    name = ""
    for line in part.splitlines():
        start = re.match(r" {4}(\w+): (.*)", line)
        if start:
            name = start[1]
            found[name] = start[2]
        elif line.startswith(" " * 8) and name:
            found[name] += " " + line.strip()
    return found


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
    """Scenarios with their network and clocks."""
    import ecn_marl
    from ecn_marl.envs.registry import lookup

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
            )
        )
    head = ("scenario", "benchmark", "network", "hosts", "agents", "ports, Gb/s", "senders")
    return markdown((*head, "substep / tick / Δt, µs", "intervals"), rows)


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
    seen = log_size(size, scale)
    faster = log_size(size, FeatureScale.create(4.0 * one))
    level = queue_level(size, params.queue_scale * one, params.queue_steps)
    short = params.queue_floor / np.maximum(kb * 1000, params.queue_floor)
    rows = [
        (f"{q:g}", f"{a:.3f}", f"{b:.3f}", f"{n:.1f}", f"{1 - n:.1f}", f"{s:.4f}")
        for q, a, b, n, s in zip(kb, seen, faster, level, short, strict=True)
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
        found = json.loads(file.read_text())
        for entry in found["entries"]:
            title, room = entry_title(entry, found["entries"]), entry["headroom"]
            for name, one in room.items():
                ends = f"{one['value']:.4g} [{one['low']:.4g}, {one['high']:.4g}]"
                row = (found["scenario"], title, name, entry["oracle"])
                rows.append((*(f"`{cell}`" for cell in row), ends, f"{one['spread']:.2f}"))
    head = ("scenario", "reward", "reference", "oracle", "headroom", "spread")
    return markdown(head, rows)


def info() -> str:
    """What `info` holds after a step."""
    from ecn_marl.sim.simulator import PortStats
    from ecn_marl.sim.state import COUNTS
    from ecn_marl.sim.stats import SIZES

    rows = []
    for name, text in fields_of(PortStats.__doc__ or "").items():
        if name.startswith("class_") and name not in COUNTS:
            continue  # environments have a single traffic class
        key = ", ".join(f"`{n}`" for n in (SIZES if name == "class_bytes" else (name,)))
        rows.append((key, text.replace(", `[P, 3]`", ""), "on request" if name in COUNTS else ""))
    setting = "thresholds that were in force; bytes, bytes, probability"
    rows += [("`kmin`, `kmax`, `pmax`", setting, "")]
    return markdown(("key", "per agent, over the interval", "counted"), rows)


def preset_names() -> str:
    """Names of all presets, their timers, and where they are from."""
    from ecn_marl.sim.transports import parse_transport, transports
    from ecn_marl.sim.transports.names import ALIASES, SOURCES

    rows = []
    for text in transports():
        kind, name = text.split(":")
        second = [
            f"`{kind}:{alias}`" for alias, old in ALIASES.get(kind, {}).items() if old == name
        ]
        timers = "once per round trip"
        if kind == "dcqcn":
            p: Any = parse_transport(text).default_params()
            timers = f"{p.decrease_us:g} / {p.alpha_us:g} / {p.increase_us:g} µs"
            timers += f", CNPs {p.cnp_interval_us:g} µs" if p.cnp_interval_us else ""
        if kind == "rate-agent":
            timers = "those of the agent"
        rows.append((f"`{text}`", ", ".join(second), timers, SOURCES[text]))
    return markdown(("preset", "field name", "timers", "from"), rows)


def dcqcn_presets() -> str:
    """Constants of the DCQCN presets beside their names in the HPCC simulator."""
    from ecn_marl.sim.transports.base import MBPS
    from ecn_marl.sim.transports.dcqcn import PRESETS

    names = {
        "decrease_us": ("RATE_DECREASE_INTERVAL", 1.0, "µs"),
        "alpha_us": ("ALPHA_RESUME_INTERVAL", 1.0, "µs"),
        "g": ("EWMA_GAIN", 1.0, ""),
        "increase_us": ("RP_TIMER", 1.0, "µs"),
        "byte_counter": ("– (not there)", 1.0, "B"),
        "recovery_steps": ("FAST_RECOVERY_TIMES", 1.0, ""),
        "ai": ("RATE_AI", 1.0 / MBPS, "Mb/s"),
        "hai": ("RATE_HAI", 1.0 / MBPS, "Mb/s"),
        "min_rate": ("MIN_RATE", 1.0 / MBPS, "Mb/s"),
        "alpha_init": ("– (1)", 1.0, ""),
        "clamp_target": ("CLAMP_TARGET_RATE", 1.0, ""),
        "cut_at_first_cnp": ("– (0)", 1.0, ""),
        "cnp_interval_us": ("– (0)", 1.0, "µs"),
    }
    rows = []
    for field, (key, factor, unit) in names.items():
        values = [getattr(p, field) * factor for p in PRESETS.values()]
        shown = [f"1/{1 / v:.0f}" if field == "g" else f"{v:.6g}" for v in values]
        rows.append((f"`{field}`" + (f", {unit}" if unit else ""), key, *shown))
    return markdown(("constant", "ns-3 (HPCC)", *(f"`{n}`" for n in PRESETS)), rows)


def primitives() -> str:
    """What `ecn_marl.lanes` compiles, by the table of its primitives."""
    from ecn_marl.lanes.compat import CALLS
    from ecn_marl.lanes.lower import primitives_table

    table = primitives_table()
    kinds = {"f": "float32", "i": "int32", "u": "uint32", "b": "bool", "k": "keys"}
    parts = []
    for group in sorted({record.group for record in table.values() if record.group}):
        rows = []
        for name, record in table.items():
            if record.group != group:
                continue
            types = ", ".join(kinds[kind] for kind in record.kinds)
            how = "" if record.emit else inspect.cleandoc(record.lower.__doc__).splitlines()[0]
            cells = (f"`{name}`", types, record.limits, *([how] if how else []))
            rows.append(cells)
        head = ("primitive", "types", "left to XLA")
        head = (*head, "what becomes of it") if len(rows[0]) > 3 else head
        parts.append(f"### {group}\n\n{markdown(head, rows)}")
    calls = ", ".join(f"`{name}`" for name in CALLS)
    return "\n\n".join([*parts, f"Inlined: {calls}."])


def size_tables() -> str:
    """Flow-size tables: mean and shares."""
    from ecn_marl.sim.sizes import TABLES, size_table

    rows = []
    for name in TABLES:
        table = size_table(name)
        size, cdf = np.asarray(table.size, float), np.asarray(table.cdf, float)
        mean = float(np.sum(np.diff(cdf) * 0.5 * (size[1:] + size[:-1])))
        small, medium = (float(np.interp(x, size, cdf)) for x in (1e5, 1e6))
        rows.append((f"`{name}`", f"{mean / 1e3:,.1f}", f"{small:.1%}", f"{medium:.1%}"))
    return markdown(("table", "mean, KB", "up to 100 KB", "up to 1 MB"), rows)


def commands() -> str:
    """The command line, every command with its options."""
    import typer

    from ecn_marl.cli import app

    group: Any = typer.main.get_command(app)
    parts = []
    for name, command in group.commands.items():
        arguments = [p for p in command.params if p.param_type_name == "argument"]
        usage = " ".join(a.metavar or a.name.upper() for a in arguments)
        line = " ".join(part for part in ("ecn-marl", name, usage, "[OPTIONS]") if part)
        parts.append(f"## {name}\n\n    {line}\n")
        parts.append(inspect.cleandoc(command.help or "") + "\n")
        rows = []
        for p in command.params:
            if p.name == "help":
                continue
            label = p.metavar or (p.name.upper() if p in arguments else "")
            flags = label if p in arguments else " ".join((", ".join(p.opts), label)).strip()
            rows.append((f"`{flags}`", _default(p), p.help or ""))
        parts.append(markdown(("option", "default", "what it does"), rows) + "\n")
    return "\n".join(parts)


def measured() -> dict[str, dict[str, Any]]:
    """What `results.json` files in `results/` hold of each scenario; empty without such files.

    Raises:
        ValueError: two files hold results of one scenario.
    """
    found: dict[str, dict[str, Any]] = {}
    for file in sorted(RESULTS.rglob("results.json")):
        for scenario, result in json.loads(file.read_text()).get("scenarios", {}).items():
            if scenario in found:
                raise bad_value("results", str(file), f"one file with results of {scenario}")
            found[scenario] = result
    return found


def results() -> str:
    """The table of the README: the default scenario."""
    from ecn_marl.render.bench_table import ranked, readme_row

    found = measured().get(FIRST)
    if found is None:
        return f"*No results of `{FIRST}` are recorded in this checkout.*"
    rows = [row for row in ranked(found["policies"]) if not row["invalid"]]
    head = ("policy", "J", "score", "short flows: mean / p99", "long flows", "seeds")
    cells = [readme_row(row) for row in rows]
    first = f"`{FIRST}`, {found['episodes']} episodes, {_streams(rows)}."
    return f"{first}\n\n{markdown(head, cells)}"


def leaderboard() -> str:
    """All results, scenario by scenario, with counts and costs."""
    from ecn_marl.render.bench_table import scenario_tables

    parts = []
    for scenario, found in sorted(measured().items()):
        parts += [f"## {scenario}", *scenario_tables(found), _commits(found["policies"])]
    return (
        "\n\n".join(part for part in parts if part) or "*No results are recorded in this checkout.*"
    )


def rate_bench() -> str:
    """Learners of rates and senders with own rules beside the paper ADPG: small scenarios."""
    return _rate_bench("adpg.json")


def rate_bench_sizes() -> str:
    """ADPG alone, in the scenarios of the paper up to 1024 flows."""
    return _rate_bench("adpg-1024.json")


def _rate_bench(name: str) -> str:
    from ecn_marl.render.rate_bench_table import rate_bench_tables

    file = RESULTS / name
    if not file.is_file():
        return "*No results of `bench adpg` are recorded in this checkout.*"
    return rate_bench_tables(json.loads(file.read_text())).rstrip()


def papers_pet() -> str:
    """The claims of PET beside what is measured."""
    return _paper("pet")


def papers_acc() -> str:
    """The claims of ACC beside what is measured."""
    return _paper("acc")


def papers_haecn() -> str:
    """The claims of HAECN beside what is measured."""
    return _paper("haecn")


def _paper(name: str) -> str:
    """The claims of a paper, from the folder of results that `bench all` wrote."""
    from ecn_marl.render.papers import claims_markdown

    file = RESULTS / "papers" / "results.json"
    found = json.loads(file.read_text())["papers"] if file.is_file() else []
    for one in found:
        if one["paper"] == name:
            protocol = one["protocol"]
            size = "small suite" if protocol["small"] else "full size"
            seeds = f"{protocol['seeds']} seeds, {protocol['episodes']} episodes"
            return f"{size.capitalize()}, {seeds}.\n\n{claims_markdown(one)}"
    return f"*No results of `bench {name}` are recorded in this checkout.*"


def reliability() -> str:
    """Counts of the campaign of `tests/robustness`, as its last run wrote them."""
    found = json.loads((HERE.parent / "tests" / "robustness" / "counts.json").read_text())
    names = ("tried", "refused", "sound", "accepted", "raw", "hang", "silent")
    rows = [
        [name, *(f"{counts[column]:,}" for column in names)]
        for name, counts in found["families"].items()
    ]
    total = [sum(counts[column] for counts in found["families"].values()) for column in names]
    rows.append(["**all**", *(f"**{n:,}**" for n in total)])
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    text = f"One run of {found['minutes']:g} minutes ({found['machine']}; {versions}):\n\n"
    text += markdown(["family", *names], rows)
    if memory := found["memory"]:
        text += (
            f"\n\n{memory['scenarios']} scenarios in one process, each a program of its own, took "
            f"at most {memory['most_mb']} MB ({memory['first_mb']} MB with the first alone)."
        )
    return text


def _streams(rows: Sequence[dict[str, Any]]) -> str:
    """Which episodes rows were scored on."""
    names = dict.fromkeys(str(row["meta"].get("stream", "unnamed")) for row in rows)
    return f"stream: {' and '.join(names)}"


def _commits(rows: Iterable[dict[str, Any]]) -> str:
    """Commits that rows were scored at."""
    names = sorted({str(row["meta"]["commit"])[:12] for row in rows if "commit" in row["meta"]})
    return f"Scored at commit {', '.join(f'`{name}`' for name in names)}." if names else ""


def _default(parameter: Any) -> str:
    """The default of an option, as the help shows it."""
    shown = parameter.show_default
    if isinstance(shown, str):
        return shown
    value = parameter.default
    if parameter.required:
        return "required"
    if value is None or value is False or callable(value) or value == ():
        return ""
    return "on" if value is True else f"{value:g}" if isinstance(value, float) else str(value)


TABLES: dict[str, Callable[[], str]] = {
    f.__name__.replace("_", "-"): f
    for f in (
        scenarios,
        paper_scenarios,
        superseded,
        feature_sets,
        features,
        telemetry,
        queue_examples,
        actions,
        template,
        static_settings,
        reward_options,
        reward_references,
        info,
        dcqcn_presets,
        preset_names,
        primitives,
        size_tables,
        commands,
        results,
        leaderboard,
        rate_bench,
        rate_bench_sizes,
        papers_pet,
        papers_acc,
        papers_haecn,
        reliability,
    )
}
"""Tables by name."""


def renewed(text: str) -> str:
    """A page with all its tables written anew."""
    return BLOCK.sub(lambda m: f"{m[1]}\n{TABLES[m[2]]()}\n\n{m[3]}", text)


def pages() -> list[Path]:
    """All pages of the documentation, and the README."""
    return [HERE.parent / "README.md", *sorted(HERE.rglob("*.md"))]


def main(argv: Sequence[str] | None = None) -> int:
    """Rewrites or checks the tables.

    Args:
        argv: command line, that of the process if None.
    """
    parser = argparse.ArgumentParser(description="Tables of the documentation.")
    parser.add_argument("--check", action="store_true", help="write nothing, exit with 1 if stale")
    args = parser.parse_args(argv)
    stale = []
    for page in pages():
        text = page.read_text()
        new = renewed(text)
        if new != text:
            stale.append(str(page.relative_to(HERE.parent)))
            if not args.check:
                page.write_text(new)
    if stale:
        print("out of date:" if args.check else "written:", ", ".join(stale))
    return 1 if args.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())

"""Tables of the simulator and of what compiles it: presets of senders, flow sizes, primitives."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np

from generated.markdown import markdown


def preset_names() -> str:
    """Names of all presets, their timers, for which link rate they are, and where from."""
    from ecn_marl.sim.transports import parse_transport, transports
    from ecn_marl.sim.transports.names import describe

    rows = []
    for text in transports():
        kind, name = text.split(":")
        second, rate, source = describe(kind, name)
        timers = "once per round trip"
        if kind == "dcqcn":
            p: Any = parse_transport(text).default_params()
            timers = f"{p.decrease_us:g} / {p.alpha_us:g} / {p.increase_us:g} µs"
            timers += f", CNPs {p.cnp_interval_us:g} µs" if p.cnp_interval_us else ""
        if kind == "rate-agent":
            timers = "those of the agent"
        rate = rate.replace("gbps=", "`gbps=`")
        rows.append((f"`{text}`", f"`{second}`" if second else "", timers, rate, source))
    return markdown(("preset", "field name", "timers", "link rate", "from"), rows)


def flags() -> str:
    """What each flag says, and what cures it."""
    from ecn_marl._flags import BITS, FLAGS
    from ecn_marl.baselines.evaluation.completion import SHARES

    share = {name: row.label.removeprefix("of ") for row in SHARES for name in row.flags}
    rows = [
        (f"`{f.name}`", str(BITS[f.name]), f.event, share.get(f.name, "any episode"), f.cure)
        for f in FLAGS
    ]
    head = ("flag", "bit", "what happened", "refused above 0.1 % of", "cure")
    return markdown(head, rows)


def regimes() -> str:
    """Regimes in which the fluid is off, that tables of results name."""
    from ecn_marl._regimes import REGIMES

    return markdown(("regime", "where", "what is off"), [(f"`{n}`", w, e) for n, w, e in REGIMES])


def dcqcn_presets() -> str:
    """Constants of the DCQCN presets beside their names in the HPCC simulator."""
    from ecn_marl.sim.transports.dcqcn import PRESETS
    from ecn_marl.sim.units import MBPS

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


def size_tables() -> str:
    """Flow-size tables: mean and shares."""
    from ecn_marl.sim.traffic.sizes import TABLES, size_table

    rows = []
    for name in TABLES:
        table = size_table(name)
        size, cdf = np.asarray(table.size, float), np.asarray(table.cdf, float)
        mean = float(np.sum(np.diff(cdf) * 0.5 * (size[1:] + size[:-1])))
        small, medium = (float(np.interp(x, size, cdf)) for x in (1e5, 1e6))
        rows.append((f"`{name}`", f"{mean / 1e3:,.1f}", f"{small:.1%}", f"{medium:.1%}"))
    return markdown(("table", "mean, KB", "up to 100 KB", "up to 1 MB"), rows)


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

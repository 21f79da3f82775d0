"""Tables of what was measured: the files of `results/`, and the campaign of faults."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ecn_marl._errors import bad_value
from generated.markdown import markdown

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
DASH = "–"

UNFOLD = "<details markdown>\n<summary>Size classes, flows and costs of every policy</summary>"
"""Start of what a page shows when asked; GitHub and the site's `md_in_html` both know it."""


def measured() -> dict[str, dict[str, Any]]:
    """What `results.json` files in `results/` hold of each scenario; empty without such files.

    Raises:
        ValueError: two files hold results of one scenario.
    """
    by_scenario: dict[str, dict[str, Any]] = {}
    for file in sorted(RESULTS.rglob("results.json")):
        for scenario, result in json.loads(file.read_text()).get("scenarios", {}).items():
            if scenario in by_scenario:
                raise bad_value("results", str(file), f"one file with results of {scenario}")
            by_scenario[scenario] = result
    return by_scenario


def leaderboard() -> str:
    """All results by scenario: figure and scores; ratios, counts and costs to unfold."""
    from ecn_marl.render.bench_table import scenario_tables

    parts = []
    for scenario, result in sorted(measured().items()):
        blocks = scenario_tables(result)
        second = next(i for i, block in enumerate(blocks) if i > 0 and block.startswith("|"))
        parts += [f"## {scenario}", _figure(scenario), *blocks[:second]]
        parts += [UNFOLD, *blocks[second:], "</details>", _commits(result["policies"])]
    return (
        "\n\n".join(part for part in parts if part) or "*No results are recorded in this checkout.*"
    )


def _figure(scenario: str) -> str:
    """The figure of completion times that `ecn-marl report` drew beside the results."""
    file = RESULTS / scenario / "figures" / f"{scenario}_ratios.png"
    if not file.is_file():
        return ""
    path = f"../{file.relative_to(RESULTS.parent)}"
    return f"![Score and completion times in {scenario}, with intervals]({path})"


def rate_bench() -> str:
    """Learners of rates and senders with own rules beside the paper ADPG: small scenarios."""
    return _rate_bench("adpg.json")


def rate_bench_sizes() -> str:
    """ADPG alone, in the scenarios of the paper up to 1024 flows."""
    return _rate_bench("adpg-1024.json")


def rate_bench_large() -> str:
    """ADPG, and senders with own rules, with 2048 flows and more."""
    return _rate_bench("adpg-large.json")


def _rate_bench(name: str) -> str:
    from ecn_marl.render.rate_bench_table import rate_bench_tables

    file = RESULTS / name
    if not file.is_file():
        return "*No results of `bench adpg` are recorded in this checkout.*"
    return rate_bench_tables(json.loads(file.read_text())).rstrip()


def ai_fabrics() -> str:
    """What can be gained in the scenarios of AI fabrics, by `spread` and `headroom`."""
    rows = []
    for file in sorted((RESULTS / "ai-fabrics").glob("*-spread.json")):
        spread = json.loads(file.read_text())
        name = spread["scenario"]
        measured = json.loads(file.with_name(f"{name}-headroom.json").read_text())
        policies = {row["name"]: row for row in measured["policies"]}
        best = ", ".join(f"{x:g}" for x in spread["settings"][0]["setting"])
        rows.append(
            [
                f"`{name}`",
                f"{spread['settings'][0]['J']:.2f}, ({best})",
                f"{spread['worst']:.2f}",
                f"{100 * spread['near']:.0f} %",
                f"{spread['apart']:.2f}",
                *(_gain(policies[x]["gain"]) for x in ("oracle", "static:ports", "rule")),
            ]
        )
    head = ("scenario", "lowest J, setting", "worst", "near", "apart", "oracle, %")
    return markdown((*head, "`static:ports`, %", "rule, %"), rows)


def senders_of_fabrics() -> str:
    """By sender: the lowest J of nine static settings, and the largest over it."""
    found = json.loads((RESULTS / "ai-fabrics" / "senders.json").read_text())["J"]
    senders = list(next(iter(found.values())))
    rows = []
    for scenario in sorted(found):
        cells = []
        for sender in senders:
            j = {name: x for name, x in found[scenario][sender].items() if x is not None}
            best = min(j, key=j.__getitem__)
            ratio = max(j.values()) / j[best]
            at = f", ({best.replace(',', ', ')})" if ratio >= 1.01 else ""
            cells.append(f"{j[best]:.2f}, {ratio:.2f}{at}")
        rows.append([f"`{scenario}`", *cells])
    return markdown(("scenario", *(f"`{sender}`" for sender in senders)), rows)


def _gain(gain: Mapping[str, float]) -> str:
    value, low, high = (100.0 * gain[name] for name in ("value", "low", "high"))
    return f"{value:+.1f} [{low:+.1f}, {high:+.1f}]".replace("-", "−")


def papers_pet() -> str:
    """The claims of PET beside what is measured."""
    return _paper("pet")


def papers_pet_own() -> str:
    """Learners of PET's cells beside the best static settings under their own rewards."""
    return _own("pet")


def papers_acc_own() -> str:
    """The same of ACC."""
    return _own("acc")


def papers_haecn_own() -> str:
    """The same of HAECN."""
    return _own("haecn")


def papers_readings() -> str:
    """The same of the choices that PET and ACC leave open."""
    return _own("readings")


def _own(name: str) -> str:
    """Learners of a suite beside the best static settings under their own rewards."""
    from ecn_marl.render.papers import own_markdown

    suite = _suite(name)
    return own_markdown(suite) if suite else _missing(name)


def _suite(name: str) -> dict[str, Any] | None:
    """A suite of the folder of results that `bench all` wrote; None if it is not there."""
    file = RESULTS / "papers" / "results.json"
    suites = json.loads(file.read_text())["papers"] if file.is_file() else []
    return next((suite for suite in suites if suite["paper"] == name), None)


def _missing(name: str) -> str:
    return f"*No results of `bench {name}` are recorded in this checkout.*"


def papers_choices() -> str:
    """What PET, ACC and HAECN leave open, what their best readings take, what others give."""
    from ecn_marl.experiments.papers import rows

    suite = _suite("readings")
    measured = suite["cells"][0]["rows"] if suite else {}
    table = [
        [
            f"{row.name.partition(':')[0].upper()}: {choice.what}",
            choice.paper,
            choice.published,
            choice.reading,
            "<br>".join(_gives(text, measured.get(n)) for n, text in choice.rows.items()),
        ]
        for row in (rows.PET_READING, rows.ACC_READING, rows.HAECN_READING)
        for choice in row.choices
    ]
    head = ["value", "the paper", "as published", "best reading", "another choice gives"]
    return markdown(head, table)


def _gives(text: str, row: dict[str, Any] | None) -> str:
    """What a choice gives: the mean queue, and what is missing to the best static setting."""
    if row is None:
        return f"{text}: not measured"
    queue, own = row["figures"]["queue"], row["own"]
    interval = f"[{queue['low']:.3g}, {queue['high']:.3g}]"
    missing = f"{own['margin']['value']:+.4f}".replace("-", "−")
    return f"{text}: {queue['value']:.3g} KB {interval}, own reward {missing}"


def papers_acc() -> str:
    """The claims of ACC beside what is measured."""
    return _paper("acc")


def papers_haecn() -> str:
    """The claims of HAECN beside what is measured."""
    return _paper("haecn")


def _paper(name: str) -> str:
    """The claims of a paper, from the folder of results that `bench all` wrote."""
    from ecn_marl.render.papers import claims_markdown

    suite = _suite(name)
    if suite is None:
        return _missing(name)
    protocol = suite["protocol"]
    size = "small suite" if protocol["small"] else "full size"
    seeds = f"{protocol['seeds']} seeds, {protocol['episodes']} episodes"
    return f"{size.capitalize()}, {seeds}.\n\n{claims_markdown(suite)}"


def reliability() -> str:
    """Counts of the campaign of `tests/robustness`, as its last run wrote them."""
    campaign = json.loads((ROOT / "tests" / "robustness" / "counts.json").read_text())
    names = ("tried", "refused", "sound", "accepted", "raw", "hang", "silent")
    rows = [
        [name, *(f"{counts[column]:,}" for column in names)]
        for name, counts in campaign["families"].items()
    ]
    total = [sum(counts[column] for counts in campaign["families"].values()) for column in names]
    rows.append(["**all**", *(f"**{n:,}**" for n in total)])
    versions = ", ".join(f"{name} {version}" for name, version in campaign["versions"].items())
    text = f"One run of {campaign['minutes']:g} minutes ({campaign['machine']}; {versions}):\n\n"
    text += markdown(["family", *names], rows)
    if memory := campaign["memory"]:
        text += (
            f"\n\n{memory['scenarios']} scenarios in one process, each a program of its own, took "
            f"at most {memory['most_mb']} MB ({memory['first_mb']} MB with the first alone)."
        )
    return text


def _commits(rows: Iterable[dict[str, Any]]) -> str:
    """Commits that rows were scored at."""
    names = sorted({str(row["meta"]["commit"])[:12] for row in rows if "commit" in row["meta"]})
    return f"Scored at commit {', '.join(f'`{name}`' for name in names)}." if names else ""

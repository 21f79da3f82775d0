"""`ecn-marl speed --cold`: its times add up, and no cache is used."""

from __future__ import annotations

import json

import pytest
from commands import failure, run

from ecn_marl.speed import cold, first_step, report

SUMMARY = {"median", "min", "max", "iqr"}


@pytest.mark.slow
def test_a_cold_start_adds_up_and_leaves_no_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    monkeypatch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")  # little is run, much is compiled
    messages = []
    (row,) = cold.measure(("incast-v0",), 1, messages.append)
    assert messages == ["incast-v0, cold start 1 of 1"]
    parts = [row[name]["median"] for name in ("import_s", "reset_s", "step_s")]
    assert all(part > 0 for part in parts)
    assert row["first_s"]["median"] == pytest.approx(sum(parts), abs=1e-3)
    assert row["first_cpu_s"]["median"] > 1  # XLA has compiled
    assert list(tmp_path.iterdir()) == []
    for unit in ("steps", "frames"):
        # Other processes slow the clock on the wall only; one thread waits where XLA's work.
        assert 1 < row[f"{unit}_per_s"]["median"] < 1e5
    assert row["steps_per_s"]["median"] > row["frames_per_s"]["median"]


def test_the_command_shows_medians_and_measures_nothing_else(tmp_path, monkeypatch):
    times = iter([7.0, 5.0, 6.0, 9.0, 8.0])

    def start(scenario: str, runs: int) -> dict[str, float]:
        assert (scenario, runs) == ("incast-v0", 5)
        first = next(times)
        names = ("steps_per_s", "steps_per_cpu_s", "frames_per_s", "frames_per_cpu_s")
        parts = {"import_s": 1.0, "reset_s": 1.5, "step_s": first - 2.5, "first_s": first}
        return parts | {"first_cpu_s": 4.0} | dict.fromkeys(names, 321.0)

    monkeypatch.setattr(cold, "_start", start)
    file = tmp_path / "cold.json"
    result = run("speed", "--cold", "--scenario", "incast-v0", "--out", file)
    assert result.exit_code == 0, result.output
    tree = json.loads(file.read_text())
    assert tree["environments"] == [] and "scaling" not in tree
    (row,) = tree["cold"]
    assert set(row["first_s"]) == SUMMARY and row["processes"] == 5
    assert row["first_s"] == {"median": 7.0, "min": 5.0, "max": 9.0, "iqr": 2.0}
    for text in ("Medians of 5 processes", "incast-v0", "5.0–9.0", "321", "compilation cache"):
        assert text in result.stdout


def test_json_is_printed_instead_of_tables(monkeypatch):
    monkeypatch.setattr(report, "run", lambda request, show: {"cold": []})
    result = run("speed", "--cold", "--scenario", "incast-v0", "--json")
    assert result.exit_code == 0 and json.loads(result.stdout) == {"cold": []}


def test_rates_count_what_is_timed(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(first_step.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(first_step.time, "process_time", lambda: clock[0] / 2)

    def pass_(seconds: float) -> None:
        clock[0] += seconds

    rates = first_step._rate(lambda _: pass_(0.25), 8, lambda _: pass_(100.0))
    assert rates == pytest.approx((4.0, 8.0))


def test_unknown_scenarios_are_refused_at_once():
    assert "websearch-v0" in failure("speed", "--cold", "--scenario", "websearch")

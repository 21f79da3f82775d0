"""Progress bars: `compiling` until the first progress, and lines that fit any terminal."""

from __future__ import annotations

import io
import time

import pytest
from rich.console import Console

from ecn_marl.render import bars

NOTE = "J 6.02, return -22.1, 949 steps/s"


def shown(width: int, done: float, note: str = NOTE) -> str:
    """A bar as a terminal of some width shows it, without colours."""
    file = io.StringIO()
    console = Console(file=file, width=width, force_terminal=True, color_system=None)
    bar = bars.bar_of("steps", console)
    bar.update(bar.add_task("train ippo", total=20_480, note=""), completed=done, note=note)
    console.print(bar.get_renderable())
    (line,) = file.getvalue().splitlines()
    return line.rstrip()


@pytest.mark.parametrize("width", [60, 80, 110])
def test_a_bar_that_has_not_moved_says_that_it_compiles(width):
    line = shown(width, 0, "")
    assert line.startswith("train ippo") and line.endswith("compiling … 0:00")
    assert "/20,480" not in line and "-:--" not in line


@pytest.mark.parametrize("width", [60, 80, 110])
def test_a_bar_fits_its_terminal(width):
    line = shown(width, 10_240)
    assert len(line) <= width
    assert "train ippo" in line and "10,240/20,480 steps" in line and "0:00" in line
    assert ("━" in line) == (width >= 80)
    assert ("949 steps/s" in line) == (width >= 110), "the note is what gives way"
    assert width >= 110 or line.endswith("…")


def test_without_a_terminal_it_says_so_in_lines(capsys, monkeypatch):
    monkeypatch.setattr(bars, "SILENCE_S", (0.02, 30.0))
    with bars.progress("train ippo", "steps", 20) as update:
        for _ in range(200):
            time.sleep(0.02)
            if first_lines := capsys.readouterr().err:
                break
        update(10, "return 1.0")
        update(20)
    assert first_lines == "train ippo: compiling … 0:00\n"
    lines = "train ippo: 10/20 steps return 1.0\ntrain ippo: 20/20 steps\n"
    assert capsys.readouterr().err == lines


def test_slow_work_is_reported_before_its_first_tenth_is_done(capsys, monkeypatch):
    monkeypatch.setattr(bars, "SILENCE_S", (30.0, 0.1))
    with bars.progress("train ippo", "%", 100) as update:
        update(1)
        time.sleep(0.15)
        update(2)
        update(3)
    assert capsys.readouterr().err == "train ippo: 2/100 %\n"


def test_nothing_is_said_where_something_moves_at_once_or_nothing_is_wanted(capsys, monkeypatch):
    monkeypatch.setattr(bars, "SILENCE_S", (0.05, 0.05))
    for options in ({"quiet": True}, {"lines": False}, {}):
        with bars.progress("play", "episodes", 100, **options) as update:
            update(1)
            time.sleep(0.15)
    assert capsys.readouterr().err == ""


def test_clock():
    assert [bars.clock(x) for x in (0.4, 61, 3725)] == ["0:00", "1:01", "1:02:05"]

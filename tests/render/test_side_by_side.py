"""Two policies side by side: the film, and players that move together."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from small_episode import INTERVALS, SCENARIO, SEED

from ecn_marl.baselines.static import Static
from ecn_marl.envs.registry import make
from ecn_marl.render import comparison, player
from ecn_marl.render.axes import busiest, returns
from ecn_marl.render.episode import Side, record
from ecn_marl.render.flow_plot import FlowPlot
from ecn_marl.render.queues import series


def side(label: str, setting: str, **options) -> Side:
    env = make(SCENARIO, **options)
    params = env.default_params
    return Side(label, env, record(env, params, Static(env, params, setting), SEED))


@pytest.fixture(scope="module")
def shallow():
    return side("shallow", "5,60,1")


@pytest.fixture(scope="module")
def sides(shallow):
    """Shallow thresholds, and deep ones that decide half as often."""
    return shallow, side("deep", "640,2560,1", interval_us=200.0)


@pytest.mark.thorough
def test_film_shows_both_at_the_same_times(sides):
    pictures = list(comparison.frames(*sides))
    assert len(pictures) == INTERVALS // 2  # the longer interval is the film's
    middle = pictures[0].shape[1] // 2
    for before, after in pairwise(pictures):
        changed = (before != after).any(-1)[60:]  # below the clock
        assert changed[:, :middle].any() and changed[:, middle:].any()
    left, right = pictures[-1][60:, :middle], pictures[-1][60:, middle : 2 * middle]
    assert (left != right).any(-1).mean() > 0.01


def test_slowdowns_are_those_of_flows_that_have_finished(shallow):
    side = shallow
    port = 0
    flows = FlowPlot(Figure(), (0.1, 0.1, 0.8, 0.8), side, port, 10.0)
    done = [flow for flow in side.episode.flows if flow.end_us is not None]
    assert len(done) == len(flows.slowdown) > 3
    np.testing.assert_allclose(sorted(flows.slowdown), sorted(flow.slowdown for flow in done))
    assert (np.diff(flows.end_ms) >= 0).all()
    assert flows.short.all()  # 100 KB
    early = flows.slowdown[flows.end_ms <= 0.6]
    flows.show(0.6)
    shown = flows.dots["short"].get_ydata()
    np.testing.assert_array_equal(shown, early)
    assert 0 < len(early) < len(done)
    assert f"mean {early.mean():.1f}, p99" in flows.texts["short"].get_text()
    assert flows.texts["long"].get_text() == "larger: none yet"
    np.testing.assert_array_equal(series(side, port).queue, side.episode.ticks[:, :, port].ravel())
    np.testing.assert_allclose(returns(side)[-1], side.episode.info["reward"].mean(1).sum())


def test_other_episodes_are_refused(shallow):
    shorter = shallow.episode
    cut = replace(shorter, info={name: x[:6] for name, x in shorter.info.items()})
    with pytest.raises(ValueError, match=r"--beside = 'cut' is not allowed: .*1\.2 ms.*0\.6 ms"):
        player.content([shallow, shallow._replace(label="cut", episode=cut)], 0, ".gif", 10)


BROWSER = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chrome")


@pytest.mark.skipif(BROWSER is None, reason="no chromium or chrome is installed")
def test_players_move_together(sides, tmp_path: Path):
    html = player.content(sides, SEED, ".html", 10).decode()
    probe = """<script>
    addEventListener("load", () => {
      const [one, two] = players.map(p => p.contentDocument), out = {};
      const clock = page => page.getElementById("clock").textContent;
      const port = page => page.getElementById("port-name").textContent;
      const time = one.getElementById("time");
      out.start = [clock(one), clock(two)];
      const data = page => JSON.parse(page.getElementById("episode").textContent);
      out.tops = [one, two].map(page => data(page).axes.queue_kb[0]);
      const shown = () => players.map(p => p.classList.contains("shown"));
      out.shown = [shown()]; tabs[0].click(); out.shown.push(shown());
      time.value = 6; time.dispatchEvent(new Event("input"));
      setTimeout(() => {
        out.slid = [clock(one), clock(two)];
        two.querySelector('[data-port="1"]').dispatchEvent(new MouseEvent("click"));
        setTimeout(() => {
          out.chosen = [port(one), port(two), clock(one)];
          const pre = document.createElement("pre"); pre.id = "probe";
          pre.textContent = JSON.stringify(out); document.body.replaceChildren(pre);
        }, 300);
      }, 300);
    });
    </script></body>"""
    file = tmp_path / "page.html"
    file.write_text(html.replace("</body>", probe), "utf-8")
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    command += [f"--user-data-dir={tmp_path}/profile", "--virtual-time-budget=8000"]
    shown = subprocess.run([*command, file.as_uri()], capture_output=True, text=True, timeout=120)
    output = re.search(r'<pre id="probe">(.*?)</pre>', shown.stdout, re.S)
    assert output, shown.stdout[-500:] + shown.stderr[-500:]
    out = json.loads(output[1].replace("&gt;", ">"))
    # Both open on the same port and moment: the longest queue of the two together.
    port, ms = busiest(sides)
    assert port == 0 and out["tops"][0] == out["tops"][1] >= 2560
    ends = [round(np.ceil(ms / every - 1e-6)) for every in (0.1, 0.2)]
    assert out["start"] == [
        f"{end * every:.1f} of 1.2 ms, interval {end}"
        for end, every in zip(ends, (0.1, 0.2), strict=True)
    ]
    assert out["shown"] == [[False, True], [True, False]]
    assert out["slid"] == ["0.7 of 1.2 ms, interval 7", "0.8 of 1.2 ms, interval 4"]
    # An interval of the second player ends at 0.8 ms; the first follows to there.
    assert out["chosen"] == ["switch0->host1"] * 2 + ["0.8 of 1.2 ms, interval 8"]

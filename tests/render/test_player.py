"""The player: its page has the data of the episode, and works in a browser."""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
from dataclasses import fields
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image
from small_episode import INTERVALS, SCENARIO, SEED
from typer.testing import CliRunner

from ecn_marl.baselines.evaluation.episodes import evaluation_keys
from ecn_marl.baselines.static import Static
from ecn_marl.cli import app
from ecn_marl.envs.ecn import EcnEnv
from ecn_marl.envs.episode import ACCOUNTS
from ecn_marl.envs.registry import make, scenarios
from ecn_marl.render import player
from ecn_marl.render.axes import common_axes
from ecn_marl.render.episode import Side, record
from ecn_marl.sim.metrics import counted
from ecn_marl.sim.traffic.sizes import SLOWDOWN_UNIT


class Phased(EcnEnv):
    """An environment whose ports change phases every four intervals, neighbours in turn."""

    @property
    def phase_names(self):
        return ("calm", "busy")

    def phase(self, state, params):
        return (state.steps // 4 + jnp.arange(self.num_agents)) % 2


@pytest.fixture(scope="module")
def env():
    plain = make(SCENARIO)
    return Phased(**{field.name: getattr(plain, field.name) for field in fields(plain)})


@pytest.fixture(scope="module")
def episode(env):
    return record(env, env.default_params, Static(env, env.default_params, "5,60,1"), SEED)


@pytest.fixture(scope="module")
def plain(env):
    """The same episode by `EcnEnv.step_ecn` alone: infos `[T, A]`, and its last state."""
    params = env.default_params
    ecn = env.static_ecn("5,60,1", params)

    def run(key):
        reset_key, _ = jax.random.split(key)

        def step(state, _):
            _, state, _, _, _, info = env.step_ecn(reset_key, state, ecn, params)
            return state, info

        return jax.lax.scan(step, env.reset(reset_key, params)[1], None, length=INTERVALS)

    state, info = jax.device_get(jax.jit(run)(evaluation_keys(SEED, 1)[0]))
    return info, state


@pytest.fixture(scope="module")
def html(env, episode):
    side = Side("5,60,1 </script><b> __SCRIPT__", env, episode)
    return player.page(player.episode_data(side, SEED, common_axes([side])))


class _Page(HTMLParser):
    """The text of the JSON element, and every address that is named."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.data, self.links, self._inside = "", [], False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self._inside = attributes.get("id") == "episode"
        self.links += [attributes[name] for name in ("src", "href", "action") if name in attributes]

    def handle_data(self, data):
        self.data += data if self._inside else ""

    def handle_endtag(self, tag):
        self._inside = False


def test_page_holds_the_series_of_the_episode(env, html, plain):
    data = json.loads(_Page(html).data)
    info, _ = plain
    assert data["policy"] == "5,60,1 </script><b> __SCRIPT__" and data["seed"] == SEED
    assert [p["name"] for p in data["ports"]] == list(env.sim.topology.port_names)
    assert data["hosts"] == list(env.sim.topology.hosts)
    assert info["queue_mean"].max() > 1e4 and info["marked_bytes"].sum() > 0
    for name in ("queue", "queue_mean", "kmin", "kmax"):
        np.testing.assert_allclose(data["intervals"][name], info[name], rtol=1e-5, atol=0.51)
    for name in ("pmax", "utilisation", "paused"):
        np.testing.assert_allclose(data["intervals"][name], info[name], atol=1e-4)
    np.testing.assert_allclose(data["intervals"]["reward"], info["reward"], rtol=1e-4)
    marked = np.array(data["intervals"]["marked"]) * info["tx_bytes"]
    np.testing.assert_allclose(marked, info["marked_bytes"], atol=2e-4 * info["tx_bytes"].max())
    ticks = np.array(data["ticks"])
    assert ticks.shape == (INTERVALS, 5, 3)
    np.testing.assert_allclose(ticks[:, -1], info["queue"], rtol=1e-5, atol=0.51)


def test_axes_end_where_the_episode_does_and_the_page_opens_on_its_longest_queue(html, plain):
    data = json.loads(_Page(html).data)
    axes, info = data["axes"], plain[0]
    ticks = np.array(data["ticks"])
    assert axes["port"] == 0, "all flows of the incast go to host0"
    at = int(np.argmax(ticks[:, :, 0]))
    np.testing.assert_allclose(axes["ms"], (at + 1) / 50)  # 5 ticks in 100 µs
    highest = np.maximum(ticks.max((0, 1)), info["kmax"].max(0)) / 1e3
    np.testing.assert_allclose(axes["queue_kb"], highest, rtol=1e-4)
    np.testing.assert_allclose(axes["returns"][1], info["reward"].mean(1).sum(), rtol=1e-4)
    assert axes["reward"][0][1] >= info["reward"][:, 0].max() * 0.9999 and axes["reward"][0][0] == 0
    slowest = max((f[5] - f[3]) / f[4] for f in data["flows"] if f[5] is not None)
    np.testing.assert_allclose(axes["slowdown"], max(slowest, 2.0), rtol=1e-3)


def test_phases_of_the_page_are_those_of_the_ports(html):
    data = json.loads(_Page(html).data)
    assert data["phases"] == ["calm", "busy"]
    want = [[(t // 4 + p) % 2 for p in range(3)] for t in range(INTERVALS)]
    assert data["phase"] == want


def test_flows_of_the_page_are_those_that_the_simulator_counted(env, html, plain):
    data = json.loads(_Page(html).data)
    _, state = plain
    flows = data["flows"]
    done = [f for f in flows if f[5] is not None]
    assert len(flows) == int(state.sim.totals.started) >= 4
    assert len(done) == int(state.sim.totals.finished.sum()) >= 2
    accounts = data["accounts"]
    assert set(accounts) == set(ACCOUNTS)
    assert (accounts["started"], accounts["finished"]) == (len(flows), len(done))
    assert accounts["unfinished"] == len(flows) - len(done)
    slowdowns = [(end - start) / ideal for _, _, _, start, ideal, end, _ in done]
    counted_slowdowns = counted(state.sim.totals.slowdown, SLOWDOWN_UNIT)
    np.testing.assert_allclose(sum(slowdowns), counted_slowdowns.sum(), rtol=1e-3)
    for src, dst, size, start, ideal, end, path in flows:
        assert path == [data["hosts"].index(data["ports"][path[0]]["peer"])] == [dst] != [src]
        assert size == 100_000 and 0 <= start < INTERVALS * 100
        assert end is None or end - start >= 0.99 * ideal > 30


def test_active_flows_send_what_they_have(env, html, plain):
    data = json.loads(_Page(html).data)
    info, _ = plain
    flows, active = data["flows"], data["active"]
    assert len(active) == INTERVALS
    sent = dict.fromkeys(range(len(flows)), 0.0)
    left = {}
    for t, rows in enumerate(active):
        for f, unsent, gbps in rows:
            start, end = flows[f][3], flows[f][5]
            assert start < (t + 1) * 100 and (end is None or end >= t * 100)
            sent[f] += gbps * 125 * 100
            left[f] = unsent
        # Every flow that crosses a port at the end of an interval has a row in it.
        for port in range(3):
            crossing = [f for f, *_ in rows if port in flows[f][6]]
            assert len(crossing) >= info["n_flows"][t, port]
    assert set(left) == set(range(len(flows)))
    for f, flow in enumerate(flows):
        wire = flow[2] + 48 * 100
        np.testing.assert_allclose(sent[f] + left[f], wire, atol=100)
        if flow[5] is not None:
            assert left[f] == 0


def test_page_is_self_contained(html):
    assert _Page(html).links == []
    outside = re.findall(r"(?:https?:)?//[\w.-]+\.\w+[^\s\"']*|@import|url\(", html)
    assert set(outside) <= {"http://www.w3.org/2000/svg"}  # a name, not fetched
    assert "default-src 'none'" in html
    assert html.count("</script>") == 2


def test_gif_has_a_frame_per_interval_that_moves(env, episode):
    drawn = list(player.frames(Side("5,60,1", env, episode)))
    image = Image.open(io.BytesIO(player.gif(iter(drawn), 20)))
    assert image.n_frames == INTERVALS and image.info["duration"] == 50
    pictures = []
    for i in range(INTERVALS):
        image.seek(i)
        pictures.append(np.asarray(image.convert("RGB")).astype(int))
    assert pictures[0].shape == drawn[0].shape
    assert np.abs(pictures[0] - drawn[0]).mean() < 4  # 256 colours
    top, right = 50, 850  # more than the clock moves
    assert all((a != b)[top:630, :right].any() for a, b in pairwise(pictures))
    # Below: the return moves in every frame, points come as flows finish.
    assert all((a != b)[630:, right:].any() for a, b in pairwise(drawn))
    ends = {int(flow.end_us // 100) for flow in episode.flows if flow.end_us is not None}
    came = {t + 1 for t, (a, b) in enumerate(pairwise(drawn)) if (a != b)[630:, 60:480].any()}
    assert came == ends - {0} and came


@pytest.mark.skipif(not shutil.which("ffmpeg"), reason="ffmpeg is not installed")
def test_film_has_a_frame_per_interval(env, episode, tmp_path: Path):
    film = tmp_path / "film.mp4"
    film.write_bytes(player.mp4(player.frames(Side("5,60,1", env, episode)), 10))
    raw = ["-f", "rawvideo", "-pix_fmt", "gray", "-"]
    command = ["ffmpeg", "-v", "error", "-i", str(film), *raw]
    out = subprocess.run(command, capture_output=True, check=True, timeout=60).stdout
    assert len(out) == INTERVALS * (630 + 198) * 1080


def test_film_without_ffmpeg_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("matplotlib.animation.FFMpegWriter.isAvailable", classmethod(lambda _: 0))
    with pytest.raises(ValueError, match="ffmpeg is not installed"):
        player.check_format("--out", Path("episode.mp4"))
    assert player.check_format("--out", Path("episode.GIF")) == ".gif"


@pytest.mark.parametrize(
    ("name", "policy", "reason"),
    [
        ("episode.avi", "static:secn1", r"--out = '.*episode.avi' is not allowed: .*\.html, \.gif"),
        ("episode", "static:secn1", r"--out = .* ends in"),
        ("none/episode.html", "static:secn1", "directory that exists"),
        ("episode.html", "static:secn9", "secn9"),
        ("episode.html", "no-such-run", "policy = 'no-such-run' is not allowed"),
    ],
)
def test_errors_are_one_line_and_leave_no_file(tmp_path: Path, name, policy, reason):
    result = CliRunner().invoke(app, ["play", policy, "--out", str(tmp_path / name)])
    assert result.exit_code == 2
    assert re.search(reason, result.stderr) and result.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_play_writes_the_page_whole_or_not_at_all(
    env, episode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("ecn_marl.render.episode.record", lambda *_: episode)
    out = tmp_path / "episode.html"
    command = ["play", "static:secn1", "--scenario", "incast-v0", "--out", str(out)]
    # The recorded episode is another network's; the command only has to pass it on.
    monkeypatch.setattr("ecn_marl.experiments.policies.Arena.env", lambda *_: env)
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.stderr
    data = json.loads(_Page(out.read_text("utf-8")).data)
    assert data["policy"].startswith("SECN1") and len(data["active"]) == INTERVALS
    line = result.stdout.splitlines()[1]
    assert line.startswith("SECN1") and line.endswith("late_feedback 0")
    assert f"offered {data['accounts']['offered']:.0f}, started" in line
    before = out.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device", str(out))

    monkeypatch.setattr("os.replace", full)
    assert CliRunner().invoke(app, command).exit_code == 2
    assert out.read_bytes() == before and list(tmp_path.iterdir()) == [out]


def test_demo_plays_what_ships_and_opens_it(
    env, episode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The best static setting beside a policy that ships."""
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    monkeypatch.setattr("ecn_marl.render.episode.record", lambda *_: episode)
    monkeypatch.setattr("ecn_marl.experiments.policies.Arena.env", lambda *_: env)
    monkeypatch.setattr("ecn_marl.experiments.policies.Arena.controller", lambda *_: None)
    out = tmp_path / "demo.html"
    result = CliRunner().invoke(app, ["demo", "--out", str(out)])
    assert result.exit_code == 0, result.stderr
    assert opened == [out.resolve().as_uri()]
    labels = [line.partition(":")[0] for line in result.stdout.splitlines()[1:]]
    assert labels == ["best static", "MAPPO restore-serve-mappo"]
    command = ["demo", "--scenario", "websearch-v0", "--no-open", "--out", str(out)]
    refused = CliRunner().invoke(app, command)
    assert refused.exit_code == 2 and len(opened) == 1
    known = refused.stderr.strip().partition("ships for: ")[2].split(", ")
    assert "restore-serve-v0" in known and not set(known).difference(scenarios())


BROWSER = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chrome")


def opened(html: str, probe: str, folder: Path, *options: str) -> dict:
    """The JSON that a script at the end of a page writes to an element `probe`."""
    assert BROWSER is not None
    file = folder / "page.html"
    file.write_text(html.replace("</body>", probe), "utf-8")
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", *options]
    command += [f"--user-data-dir={folder}/profile", "--virtual-time-budget=4000"]
    shown = subprocess.run([*command, file.as_uri()], capture_output=True, text=True, timeout=120)
    output = re.search(r'<pre id="probe">(.*?)</pre>', shown.stdout, re.S)
    assert output, shown.stdout[-500:] + shown.stderr[-500:]
    out: dict = json.loads(
        output[1].replace("&gt;", ">").replace("&lt;", "<").replace("&amp;", "&")
    )
    return out


@pytest.mark.skipif(BROWSER is None, reason="no chromium or chrome is installed")
def test_page_on_a_phone_in_the_dark(html, tmp_path: Path):
    """Nothing is wider than the page, letters keep their size, and colours are the dark ones."""
    probe = """<script>
    const out = { page: document.documentElement.scrollWidth, inner: innerWidth };
    out.scale = [...document.querySelectorAll("svg")].map(
      s => s.getBoundingClientRect().width / s.viewBox.baseVal.width);
    out.empty = document.querySelectorAll(".link")[1].getAttribute("stroke");
    out.body = getComputedStyle(document.body).backgroundColor;
    const pre = document.createElement("pre"); pre.id = "probe";
    pre.textContent = JSON.stringify(out); document.body.replaceChildren(pre);
    </script></body>"""
    out = opened(html, probe, tmp_path, "--window-size=390,800", "--force-dark-mode")
    assert out["page"] <= out["inner"] <= 600
    np.testing.assert_allclose(out["scale"], 1.0, atol=0.02)
    assert out["empty"] == "rgb(59,67,76)" and out["body"] == "rgb(15, 19, 24)"


@pytest.mark.skipif(BROWSER is None, reason="no chromium or chrome is installed")
def test_page_in_a_browser(html, env, tmp_path: Path):
    """A script at the end of the page opens, plays and clicks; the page shows the right values."""
    data = json.loads(_Page(html).data)
    busy = int(np.argmax([row[0] for row in data["intervals"]["queue"]]))
    probe = """<script>
    const errors = [], out = {};
    window.addEventListener("error", e => errors.push(e.message));
    out.start = [$("clock").textContent, $("queue-line").getAttribute("points").split(" ").length];
    const box = $("queue").viewBox.baseVal;
    const places = $("kmax-line").getAttribute("points").split(" ");
    out.kmax = [places.map(place => Number(place.split(",")[1])), 0, box.height];
    const table = () => [...document.querySelectorAll("#flows tr")].map(
      r => [...r.children].map(c => c.textContent));
    const strokes = () => [...document.querySelectorAll(".link")].map(
      l => l.getAttribute("stroke"));
    $("time").value = BUSY; $("time").dispatchEvent(new Event("input"));
    out.slid = [$("clock").textContent, $("facts").textContent, table(), strokes()];
    document.querySelector('[data-port="1"]').dispatchEvent(new MouseEvent("click"));
    out.clicked = [$("port-name").textContent, table(), $("flows-title").textContent];
    $("ports").value = "2"; $("ports").dispatchEvent(new Event("change"));
    out.picked = $("port-name").textContent;
    $("all-flows").click(); out.all = table(); $("all-flows").click();
    $("speed").value = "60"; $("play").click();
    setTimeout(() => { out.played = [now, $("play").textContent]; out.errors = errors;
      out.ended = [$("finished").textContent, $("earned").textContent,
        $("done-short").getAttribute("d").split("M").length - 1];
      const pre = document.createElement("pre"); pre.id = "probe";
      pre.textContent = JSON.stringify(out); document.body.replaceChildren(pre); }, 1500);
    </script></body>"""
    out = opened(html, probe.replace("BUSY", str(busy)), tmp_path)
    assert out["errors"] == []
    opens = round(np.ceil(data["axes"]["ms"] * 10 - 1e-6))
    assert out["start"] == [f"{opens / 10:.1f} of 1.2 ms, interval {opens}", INTERVALS * 5]
    kmax, top, bottom = out["kmax"]
    assert {round(y, 1) for y in kmax} == {round(kmax[0], 1)} and top < kmax[0] < bottom
    done = [(f[5] - f[3]) / f[4] for f in data["flows"] if f[5] is not None]
    rewards = np.mean(data["intervals"]["reward"], 1)
    mean, p99 = np.mean(done), np.quantile(done, 0.99)
    texts = [f"{len(done)} finished, mean {mean:.2f}, p99 {p99:.1f}", "larger: none finished yet"]
    assert out["ended"][0].endswith("".join(texts)), out["ended"]
    assert f"return so far {rewards.sum():.4f}" in out["ended"][1]
    assert f"this interval {rewards[-1]:.4f}" in out["ended"][1]
    assert out["ended"][2] == len(done)
    clock, facts, rows, strokes = out["slid"]
    assert clock == f"{(busy + 1) / 10:.1f} of 1.2 ms, interval {busy + 1}"
    assert facts.endswith(f"phase {data['phases'][data['phase'][busy][0]]}")
    accounts = re.search(r"queue ([\d.,]+) KB", facts)
    assert accounts
    queue = data["intervals"]["queue"][busy][0]
    np.testing.assert_allclose(float(accounts[1].replace(",", "")), queue / 1e3, atol=0.051)
    assert len(rows) == sum(0 in data["flows"][f][6] for f, *_ in data["active"][busy]) > 0
    src, dst, size, *_ = data["flows"][data["active"][busy][0][0]]
    assert [f"host{src}", f"host{dst}", f"{size / 1e3:,.1f}"] in [row[:3] for row in rows]
    assert strokes[1] == strokes[2] == "rgb(221,226,232)" != strokes[0]
    hint = "0 flows through switch0->host1 in this interval: press Play or move the slider"
    assert out["clicked"] == ["switch0->host1", [], hint]
    assert out["picked"] == "switch0->host2"
    assert len(out["all"]) == len(data["active"][busy])
    assert out["played"] == [INTERVALS - 1, "Play"]

"""The window of `render_mode="human"`: its frames, its speed, and errors without a screen."""

from __future__ import annotations

import importlib.util
import os
import pickle
import shutil
import subprocess
import sys
import time

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import offscreen
import pytest
from playing import sampled

import ecn_marl
from ecn_marl.envs.parallel import EcnParallelEnv
from ecn_marl.render.window import Window

OPTIONS = {"features": "pet", "reward": "pet"}


@pytest.fixture(autouse=True)
def screen():
    backend = matplotlib.get_backend()
    matplotlib.use("module://offscreen")
    offscreen.windows.clear()
    yield
    matplotlib.use(backend)


@pytest.fixture
def human():
    env = ecn_marl.parallel_env("incast-v0", "human", 4, **OPTIONS)
    env.metadata["render_fps"] = 1e3
    yield env
    env.close()


def shown(window: offscreen.Manager) -> np.ndarray:
    return np.asarray(window.canvas.buffer_rgba())[..., :3]


def test_every_step_is_on_the_screen(human: EcnParallelEnv):
    twin = ecn_marl.parallel_env("incast-v0", "rgb_array", 4, **OPTIONS)
    human.reset(seed=3)
    twin.reset(seed=3)
    (window,) = offscreen.windows
    frames = [twin.render()]
    np.testing.assert_array_equal(shown(window), frames[-1])
    while human.agents:
        actions = sampled(human)
        human.step(actions)
        twin.step(actions)
        frames.append(twin.render())
        np.testing.assert_array_equal(shown(window), frames[-1])
        assert (frames[-1] != frames[-2]).any()
    assert human.render() is None
    assert len(frames) == 5 and offscreen.windows == [window] and window.on_screen
    assert window.title == human.metadata["name"]


def test_close_takes_the_window_away_and_reset_brings_another(human: EcnParallelEnv):
    human.close()
    human.reset(seed=0)
    human.close()
    human.close()
    assert [w.on_screen for w in offscreen.windows] == [False]
    human.reset()
    assert [w.on_screen for w in offscreen.windows] == [False, True]


def test_each_environment_has_its_own_window(human: EcnParallelEnv):
    other = ecn_marl.parallel_env("incast-v0", "human", 4, **OPTIONS)
    human.reset(seed=0)
    other.reset(seed=1)
    human.close()
    assert [w.on_screen for w in offscreen.windows] == [False, True]
    other.close()


def test_a_window_closed_by_hand_stays_closed_and_steps_go_on(human: EcnParallelEnv):
    human.reset(seed=0)
    offscreen.windows[0].destroy()
    while human.agents:
        human.step(sampled(human))
    human.reset()
    assert [w.on_screen for w in offscreen.windows] == [False]


def test_clones_open_windows_of_their_own(human: EcnParallelEnv):
    human.reset(seed=0)
    clone = pickle.loads(pickle.dumps(human))
    actions = sampled(human)
    clone.step(actions)
    human.step(actions)
    assert len(offscreen.windows) == 2
    np.testing.assert_array_equal(*map(shown, offscreen.windows))
    clone.close()
    assert offscreen.windows[0].on_screen


def test_figures_of_the_user_are_left_alone(human: EcnParallelEnv):
    user_figure = plt.figure()
    try:
        human.reset(seed=0)
        assert plt.gcf() is user_figure and plt.get_fignums() == [user_figure.number]
        human.close()
        assert plt.get_fignums() == [user_figure.number]
    finally:
        plt.close(user_figure)


def test_frames_come_no_faster_than_they_may():
    frame = np.zeros((8, 8, 3), np.uint8)
    window = Window("pace", frame.shape, 20)
    start = time.monotonic()
    for _ in range(4):
        window.show(frame)
    took = time.monotonic() - start
    window.close()
    assert took >= 3 / 20
    assert offscreen.windows[0].canvas.looks > 8  # it answers while it waits


def test_a_resized_window_is_filled():
    frame = np.random.default_rng(0).integers(0, 255, (60, 100, 3), np.uint8)
    window = Window("resized", frame.shape, 1e3)
    (manager,) = offscreen.windows
    window.show(frame)
    np.testing.assert_array_equal(shown(manager), frame)
    manager.canvas.figure.set_size_inches(3.0, 1.8)
    window.show(frame)
    assert shown(manager).shape == (180, 300, 3)
    blocks = frame.repeat(3, 0).repeat(3, 1)
    np.testing.assert_array_equal(shown(manager)[1::3, 1::3], blocks[1::3, 1::3])
    window.close()


def test_backends_without_windows_are_refused(human: EcnParallelEnv, monkeypatch):
    monkeypatch.setenv("DISPLAY", ":0")
    matplotlib.use("Agg")
    with pytest.raises(
        RuntimeError, match=r"'human' .* backend Agg .* MPLBACKEND unset, .*'rgb_array'"
    ):
        human.reset(seed=0)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere there is always a screen")
@pytest.mark.parametrize("backend", [None, "TkAgg"])
def test_without_a_screen_one_error_says_what_to_do(backend: str | None):
    code = """
import numpy as np
from ecn_marl.render.window import Window
Window("none", (8, 8), 20)
"""
    names = {"DISPLAY", "WAYLAND_DISPLAY", "MPLBACKEND"}
    environment = {k: v for k, v in os.environ.items() if k not in names}
    if backend is not None:
        environment["MPLBACKEND"] = backend
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120
    )
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 1
    for part in ("RuntimeError: ", "no screen", "DISPLAY", "xvfb-run", "'rgb_array'", "'ansi'"):
        assert part in last


REAL = """
import numpy as np, time
from PIL import ImageGrab
from ecn_marl.render.window import Window
frame = np.random.default_rng(0).integers(0, 255, (120, 200, 3), np.uint8).repeat(3, 0).repeat(3, 1)
def seen():
    return np.asarray(ImageGrab.grab(xdisplay="").convert("RGB")).astype(int)
empty = seen()
window = Window("real", frame.shape, 1e3)
for picture in (frame, frame[::-1]):
    window.show(picture)
    # Without a window manager the window stands in the corner; 96 dots per inch: pixel for pixel.
    error = np.abs(seen()[:360, :600] - picture).mean()
    assert error < 1.0, error
window.close()
assert (seen() == empty).all()
"""


@pytest.mark.skipif(
    not shutil.which("xvfb-run") or not importlib.util.find_spec("tkinter"),
    reason="needs a virtual screen (xvfb-run) and Tk",
)
def test_a_real_window_on_a_virtual_screen():
    environment = os.environ | {"MPLBACKEND": "TkAgg"}
    screen = "-screen 0 800x600x24 -dpi 96"
    subprocess.run(
        ["xvfb-run", "-a", "-s", screen, sys.executable, "-c", REAL],
        env=environment,
        check=True,
        timeout=120,
    )

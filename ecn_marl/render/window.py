"""A window that shows frames, opened by the matplotlib backend in use."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import numpy as np
from jaxtyping import UInt8
from matplotlib.artist import Artist
from matplotlib.backend_bases import RendererBase
from PIL import Image

SLICE_S = 0.01
"""Longest time between two checks of the window's events, s."""

NEAR = 0.2
"""Screens whose pixel ratio is within this of 1 show frames pixel for pixel."""


class Window:
    """A window that pyplot does not manage, so that pyplot's current figure does not change.

    Attributes:
        open: whether the window is open; False once the user has closed it.
    """

    def __init__(self, title: str, shape: tuple[int, ...], fps: float) -> None:
        """Open a window.

        Args:
            title: of the window.
            shape: height and width of the frames, pixels.
            fps: frames per second at most; `show` waits.

        Raises:
            RuntimeError: no window can be opened here.
        """
        self._manager = _manager(title, shape)
        canvas = self._manager.canvas
        self._picture = _Picture(np.full((*shape[:2], 3), 255, np.uint8))
        canvas.figure.add_artist(self._picture)
        self._pause_s = 1.0 / fps
        self._due = 0.0
        self.open = True
        canvas.mpl_connect("close_event", self._closed)
        self._manager.show()
        canvas.flush_events()  # the pixel ratio of the screen is known only after this
        if abs(canvas.device_pixel_ratio - 1.0) < NEAR:
            self._manager.resize(shape[1], shape[0])

    def _closed(self, _: object) -> None:
        self.open = False

    def show(self, frame: UInt8[np.ndarray, "height width 3"]) -> None:
        """Show a frame; does nothing once the window is closed.

        Returns when the frame is on the screen, at least `1 / fps` after the last one.
        """
        canvas = self._manager.canvas
        while self.open and (left := self._due - time.monotonic()) > 0:
            canvas.flush_events()
            time.sleep(min(left, SLICE_S))
        if not self.open:
            return
        self._due = time.monotonic() + self._pause_s
        self._picture.frame = frame
        canvas.draw()
        canvas.flush_events()

    def close(self) -> None:
        """Close the window, if it is open."""
        if self.open:
            self.open = False
            self._manager.destroy()


class _Picture(Artist):
    """A frame that fills its figure. `imshow` would take several times as long."""

    def __init__(self, frame: np.ndarray) -> None:
        super().__init__()
        self.frame = frame

    def draw(self, renderer: RendererBase) -> None:
        figure = self.get_figure()
        assert figure is not None
        size = int(figure.bbox.width), int(figure.bbox.height)
        image = Image.fromarray(self.frame).convert("RGBA")
        if image.size != size:  # a window that was resized, or a screen of many dots per inch
            image = image.resize(size, Image.Resampling.BILINEAR)
        context = renderer.new_gc()
        # Renderers count rows from below.
        renderer.draw_image(context, 0, 0, np.asarray(image)[::-1])
        context.restore()


def _manager(title: str, shape: tuple[int, ...]) -> Any:
    """A manager of one empty figure, from the backend that matplotlib uses."""
    import matplotlib
    import matplotlib.pyplot as plt
    from matplotlib.backend_bases import FigureManagerBase

    size = shape[1] / 100, shape[0] / 100
    try:
        # No tool bar: it would zoom into plots, and there is none.
        with matplotlib.rc_context({"toolbar": "None"}):
            manager = plt.new_figure_manager(0, figsize=size, dpi=100)
    except Exception as error:  # each toolkit has its own: TclError, ImportError, RuntimeError
        raise _no_window(str(error)) from error
    if type(manager).show is FigureManagerBase.show:
        manager.destroy()
        raise _no_window("it draws to files only")
    manager.set_window_title(title)
    return manager


def _no_window(reason: str) -> RuntimeError:
    """The error where there is no screen, or nothing to draw windows with."""
    import matplotlib

    screen = sys.platform != "linux" or any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY")))
    if screen:
        cause, advice = (
            f"matplotlib's backend {matplotlib.get_backend()} opens none ({reason})",
            "install a toolkit (Tk: python3-tk; Qt: pip install PyQt6), leave MPLBACKEND unset, or",
        )
    else:
        cause, advice = "there is no screen (DISPLAY is not set)", "run it under xvfb-run, or"
    return RuntimeError(
        f"render_mode='human' needs a window, and {cause}: {advice} use render_mode='rgb_array' "
        "(render() returns the picture) or 'ansi', or watch a replay by `ecn-marl play`"
    )

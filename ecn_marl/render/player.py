"""Shows a recorded episode: as a page with a time slider, a GIF or a film."""

from __future__ import annotations

import io
import json
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ecn_marl._errors import bad_value
from ecn_marl._files import without_nan
from ecn_marl.envs.episode import ACCOUNTS, FLOWLETS
from ecn_marl.render import comparison
from ecn_marl.render.axes import common_axes
from ecn_marl.render.episode import Episode, Side
from ecn_marl.render.flow_plot import strips
from ecn_marl.render.layout import DARK_STOPS, EMPTY, STOPS, node_places, port_lines
from ecn_marl.sim.core.queues import Ecn
from ecn_marl.sim.network.topology import GBPS
from ecn_marl.sim.traffic.sizes import SIZE_CLASSES

if TYPE_CHECKING:  # loaded for films only
    from PIL.Image import Image

SUFFIXES = (".html", ".gif", ".mp4")

_MARK, _STYLE, _SCRIPT = "__EPISODE__", "__STYLE__", "__SCRIPT__"


def check_format(option: str, path: Path) -> str:
    """Suffix of a file to write, `.html`, `.gif` or `.mp4`.

    Raises:
        ValueError: another suffix, or a film without ffmpeg.
    """
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise bad_value(option, str(path), f"a file that ends in {', '.join(SUFFIXES)}")
    if suffix == ".mp4":
        from matplotlib.animation import FFMpegWriter

        if not FFMpegWriter.isAvailable():
            raise bad_value(option, str(path), "a .html or .gif file, as ffmpeg is not installed")
    return suffix


def episode_data(side: Side, seed: int, axes: Mapping[str, object]) -> dict[str, Any]:
    """Everything that the page shows, in JSON's types.

    Bytes are rounded to whole ones, shares to 1e-4, times to 0.01 µs, rates to 1 Mb/s, rewards to
    five digits.

    Args:
        side: the episode, its environment and policy.
        seed: of the evaluation stream.
        axes: limits of the page's axes, and the port and time at which it opens: see
            `common_axes`.

    Returns:
        `scenario`, `policy`, `seed`, `interval_us`, `axes`; `phases`, their names, and `phase`, an
        index of each port `[T][A]`; `short_bytes`, size of the largest short flow; `colours`,
        `dark_colours` and `empty`, see `layout`; `hosts`,
        names by number; `nodes` and `ports` with their places; `ticks`: queue, bytes, `[T][K][A]`;
        `intervals`: `queue`, `queue_mean`, `kmin`, `kmax` (bytes), `pmax`, `utilisation`, `marked`,
        `paused` (shares), `reward`, each `[T][A]`; `accounts`: counts of flows by outcome, see
        `EcnEnv.accounts`; `flows`: `[src, dst, size, start_us, ideal_us, end_us,
        path]` each; `active`: for each interval `[flow, wire bytes to send, Gb/s]` of the flows in
        progress.
    """
    env, episode = side.env, side.episode
    net, info = env.sim.topology, episode.info
    places = node_places(net)
    marked = info["marked_bytes"] / np.maximum(info["tx_bytes"], 1.0)
    bytes_ = {name: _rounded(info[name], 0) for name in ("queue", "queue_mean", "kmin", "kmax")}
    shares = {name: _rounded(info[name], 4) for name in ("pmax", "utilisation", "paused")}
    return {
        "scenario": env.name,
        "policy": side.label,
        "seed": seed,
        "interval_us": env.interval_us,
        "axes": axes,
        "phases": env.phase_names,
        "phase": episode.phase.tolist(),
        "short_bytes": SIZE_CLASSES[0],
        "colours": STOPS,
        "dark_colours": DARK_STOPS,
        "empty": EMPTY,
        "hosts": net.hosts,
        "nodes": [
            {"name": name, "x": round(x, 4), "y": round(y, 4), "host": name in net.hosts}
            for name, (x, y) in places.items()
        ],
        "ports": [
            {**env.port_info(i), "line": np.round(line, 4).ravel().tolist()}
            for i, line in enumerate(port_lines(net))
        ],
        "ticks": _rounded(episode.ticks, 0),
        "intervals": bytes_
        | shares
        | {"marked": _rounded(np.clip(marked, 0, 1), 4), "reward": _digits(info["reward"])},
        "accounts": accounts(episode),
        "flows": [
            [
                *(f.src, f.dst, round(f.size), round(f.start_us, 2), round(f.ideal_us, 3)),
                *(None if f.end_us is None else round(f.end_us, 2), f.path),
            ]
            for f in episode.flows
        ],
        "active": [
            [[a.flow, round(a.unsent), round(a.rate / GBPS, 3)] for a in rows]
            for rows in episode.active
        ],
    }


def accounts(episode: Episode) -> dict[str, float]:
    """Counts of the flows of the whole episode by outcome, see `EcnEnv.accounts`."""
    info = episode.info
    return {name: float(info[name][-1, 0]) for name in (*ACCOUNTS, *FLOWLETS) if name in info}


def _rounded(values: np.ndarray, digits: int) -> list[Any]:
    rounded = np.round(np.asarray(values, np.float64), digits)
    nested: list[Any] = (rounded.astype(np.int64) if digits == 0 else rounded).tolist()
    return nested


def _digits(values: np.ndarray) -> list[list[float]]:
    """Numbers with five significant digits."""
    return [[float(f"{x:.5g}") for x in row] for row in np.asarray(values, np.float64)]


def page(data: Mapping[str, object]) -> str:
    """A self-contained page, from `episode_data`."""
    folder = files("ecn_marl.render") / "templates"
    template, style, script = (
        (folder / name).read_text("utf-8") for name in ("player.html", "player.css", "player.js")
    )
    text = json.dumps(without_nan(data), separators=(",", ":"), allow_nan=False)
    # `</script>` in a name would end the script element that holds the data.
    parts = {_STYLE: style, _SCRIPT: script, _MARK: text.replace("<", "\\u003c")}
    # In one pass, so that a policy's name that reads like a mark stays text.
    return re.sub("|".join(parts), lambda mark: parts[mark[0]], template)


def frames(side: Side) -> Iterator[np.ndarray]:
    """A picture of every interval, uint8 `[height, width, 3]`.

    The upper part is a frame of `render()`. The lower part shows flows and return, see `flow_plot`.
    """
    from ecn_marl.render.frames import draw

    info = side.episode.info
    past: list[dict[str, np.ndarray]] = []
    for t, strip in enumerate(strips(side)):
        interval = {name: values[t] for name, values in info.items()}
        past.append(interval)
        ecn = Ecn(interval["kmin"], interval["kmax"], interval["pmax"])
        yield np.concatenate([draw(side.env, interval["queue"], ecn, past, t + 1), strip])


def gif(pictures: Iterator[np.ndarray], fps: int) -> bytes:
    """A GIF that repeats, with one palette for all pictures so that colours do not flicker."""
    from PIL.Image import Dither, fromarray

    palette: Image | None = None
    images = []
    for picture in pictures:
        image = fromarray(picture)
        if palette is None:
            palette = _palette(picture)
        images.append(image.quantize(palette=palette, dither=Dither.NONE))
    file = io.BytesIO()
    images[0].save(
        file,
        format="GIF",
        save_all=True,
        append_images=images[1:],
        duration=max(round(1000 / fps), 20),  # many viewers slow down frames of less than 20 ms
        loop=0,
    )
    return file.getvalue()


def _palette(picture: np.ndarray) -> Image:
    """256 colours: fixed ones, all colours of queues, and those of the first picture."""
    from matplotlib.colors import LinearSegmentedColormap
    from PIL.Image import Dither, fromarray, new

    from ecn_marl.render.layout import TOP_LEVEL
    from ecn_marl.render.picture import BAND, INK, KMAX_COLOUR, KMIN_COLOUR, TRACES

    stops = [(at / TOP_LEVEL, colour) for at, colour in STOPS]
    queue = LinearSegmentedColormap.from_list("queue", stops)(np.linspace(0, 1, 96))
    flat = [BAND, INK, KMIN_COLOUR, KMAX_COLOUR, *TRACES, "#ffffff"]
    shades = np.array([[int(c[i : i + 2], 16) for i in (1, 3, 5)] for c in flat])
    # Mixtures with white, for the smoothed edges of lines and letters.
    shades = np.concatenate([shades, (shades + 255) // 2, (3 * shades + 255) // 4])
    first = fromarray(picture).quantize(120, dither=Dither.NONE).getpalette() or []
    ramp = np.round(queue[:, :3] * 255).astype(int)
    colours = np.concatenate([shades, ramp, np.reshape(first, (-1, 3))])[:256]
    image = new("P", (1, 1))
    image.putpalette(colours.astype(np.uint8).ravel().tolist())
    return image


def mp4(pictures: Iterator[np.ndarray], fps: int) -> bytes:
    """A film, written by ffmpeg."""
    from matplotlib.animation import FFMpegWriter
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    # Browsers and many players cannot decode h264 with full colour, which ffmpeg takes for RGB.
    writer = FFMpegWriter(fps=fps, codec="h264", extra_args=["-pix_fmt", "yuv420p"])
    with tempfile.TemporaryDirectory() as folder:
        film = Path(folder) / "episode.mp4"
        first = next(pictures)
        height, width = first.shape[:2]
        dpi = 128  # a power of two: inches times dpi are exact, so that no pixels are cut off
        figure = Figure(figsize=(width / dpi, height / dpi), dpi=dpi)
        FigureCanvasAgg(figure)
        image = figure.figimage(first)
        with writer.saving(figure, str(film), dpi):
            writer.grab_frame()
            for picture in pictures:
                image.set_data(picture)
                writer.grab_frame()
        return film.read_bytes()


def content(sides: Sequence[Side], seed: int, suffix: str, fps: int) -> bytes:
    """The episode of a policy, or of two beside each other, as a file with this suffix.

    Raises:
        ValueError: see `comparison.check_same`.
    """
    if len(sides) == 2:
        comparison.check_same(*sides)
    if suffix == ".html":
        axes = common_axes(sides)
        pages = [page(episode_data(side, seed, axes)) for side in sides]
        if len(sides) == 1:
            return pages[0].encode()
        return comparison.page(pages, [side.label for side in sides]).encode()
    pictures = comparison.frames(*sides) if len(sides) == 2 else frames(sides[0])
    return (gif if suffix == ".gif" else mp4)(pictures, fps)

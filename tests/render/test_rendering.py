"""Frames: queues, thresholds and marks in them, and the cost of drawing."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import matplotlib
import numpy as np
import pytest
from matplotlib.colors import to_rgb

import ecn_marl
from ecn_marl.render import frames, layout
from ecn_marl.render.picture import SHOWN, Painter, scene
from ecn_marl.sim.core.queues import Ecn
from ecn_marl.sim.network.topology import Topology, dumbbell, leaf_spine, parking_lot, star


@pytest.fixture(scope="module")
def core():
    return ecn_marl.make("websearch-v0")


def test_time_axes_are_no_longer_than_the_episode(core):
    """40 intervals of an episode of 40; 200 of a long one."""
    for horizon, shown in ((40, 40), (1000, 200)):
        axis = Painter(replace(core, horizon=horizon)).trace_axis
        assert axis.get_xlim() == (-shown * core.interval_us / 1e3, 0.0)


def past(n: int, intervals: int, queue: float = 0.0, marked: float = 0.0):
    """Infos of equal intervals."""
    row = {
        "queue_mean": np.full(n, queue),
        "utilisation": np.full(n, 0.5),
        "tx_bytes": np.full(n, 1e5),
        "marked_bytes": np.full(n, marked * 1e5),
    }
    return [row] * intervals


def frame(core, queue=0.0, kmin=5e3, kmax=2e5, intervals=3, marked=0.0, steps=3):
    n = core.num_agents
    ecn = Ecn(np.full(n, kmin), np.full(n, kmax), np.full(n, 0.5))
    queues = np.broadcast_to(np.asarray(queue, float), (n,))
    return frames.draw(core, queues, ecn, past(n, intervals, marked=marked), steps)


def test_frames_have_one_shape_and_depend_on_their_scene_alone(core):
    small = frame(core, 1e3)
    shapes = {(f.shape, f.dtype) for f in (small, frame(core, 5e7), frame(core, 0.0, intervals=0))}
    assert shapes == {((630, 1080, 3), np.dtype(np.uint8))}
    np.testing.assert_array_equal(frame(core, 1e3), small)
    frames._painter.cache_clear()
    np.testing.assert_array_equal(frame(core, 1e3), small)


@pytest.mark.parametrize(
    "change", [{"queue": 9e4}, {"kmin": 2e4}, {"kmax": 4e5}, {"marked": 0.5}, {"steps": 4}]
)
def test_everything_shown_changes_the_frame(core, change):
    base = {"queue": 5e4}
    before, after = frame(core, **base), frame(core, **base | change)
    where = np.argwhere((before != after).any(-1))
    assert len(where) > 20
    if "steps" in change:  # the clock, upper right
        assert where[:, 0].max() < 50 and where[:, 1].min() > 800


def test_one_port_is_coloured_by_its_queue(core):
    n = core.num_agents
    painter = Painter(core)
    low, high = np.full(n, 5e3), np.full(n, 2e5)
    place = np.array(painter.lines.get_segments()[9])
    middle = painter.lines.axes.transData.transform(place.mean(0))
    row, column = painter.figure.bbox.height - middle[1], middle[0]
    colours = []
    for kb in (0, 4, 150, 400):
        queue = np.zeros(n)
        queue[9] = 1e3 * kb
        picture = painter.draw(scene(queue, low, high, past(n, 1), 1))
        colours.append(picture[int(row), int(column)] / 255)
        want = painter.cmap(layout.level(queue, low, high)[9] / layout.TOP_LEVEL)[:3]
        np.testing.assert_allclose(colours[-1], want, atol=0.02)
    blue, amber, red = colours[1:]
    assert blue[2] > blue[0] and amber[0] > amber[2] and red.sum() < 0.6 * amber.sum()


@pytest.mark.parametrize("scenario", ["websearch-v0", "restore-serve-v0", "pet-websearch-v0"])
def test_links_are_whole_from_node_to_node(scenario):
    """Lines end at the boxes and hosts that they join; the directions of a link lie apart."""
    core = ecn_marl.make(scenario)
    net, painter = core.sim.topology, Painter(core)
    page = painter.lines.axes.transData.transform
    places = layout.node_places(net)
    lines = {
        (port.switch, port.peer): page(line)
        for port, line in zip(net.ports, painter.lines.get_segments(), strict=True)
    }
    for (switch, peer), line in lines.items():
        for end, node in zip(line, (switch, peer), strict=True):
            off = np.abs(end - page(places[node]))
            if node in net.hosts:
                assert np.linalg.norm(off) <= 5
            else:
                assert max(off) <= 40 and min(off) <= 13, "more than a box from its switch"
        if peer not in net.hosts:
            gaps = np.linalg.norm(line - lines[peer, switch][::-1], axis=1)
            assert (gaps > 1.5).all() and (gaps < 6.1).all()


def test_level_is_one_at_kmin_and_two_at_kmax():
    queue = np.array([0.0, 5e3, 102.5e3, 200e3, 300e3, 1e9])
    full = layout.level(queue, np.full(6, 5e3), np.full(6, 200e3))
    np.testing.assert_allclose(full, [0, 1, 1.5, 2, 2.5, 2.5])
    # Where marking starts at 0, less than a packet is still shown as empty.
    full = layout.level(np.array([0.0, 999.0, 1e3]), np.zeros(3), np.full(3, 1e4))
    np.testing.assert_allclose(full, [0, 0, 1.1])


def test_colours_darken_between_thresholds():
    def lightness(colour: str) -> float:
        return float(np.dot(to_rgb(colour), (0.2126, 0.7152, 0.0722)))

    for stops, darker in ((layout.STOPS, True), (layout.DARK_STOPS, False)):
        assert [at for at, _ in stops] == [at for at, _ in layout.STOPS]
        for (a, first), (b, second) in pairwise(stops):
            assert a <= b
            if a < b:
                assert (lightness(second) < lightness(first)) == darker


@pytest.mark.parametrize("net", [star(9), dumbbell(3, 2), parking_lot(3), leaf_spine(4, 3, 2)])
def test_nodes_and_ports_are_apart_and_inside(net: Topology):
    places = layout.node_places(net)
    assert set(places) == {*net.hosts, *net.switches}
    spots = np.array(list(places.values()))
    assert (spots >= 0).all() and (spots <= 1).all()
    gaps = np.linalg.norm(spots[:, None] - spots, axis=-1) + np.eye(len(spots))
    assert gaps.min() > 0.05
    lines = layout.port_lines(net)
    for port, (start, end) in zip(net.ports, lines, strict=True):
        np.testing.assert_allclose([start, end], [places[port.switch], places[port.peer]])


def test_both_directions_of_a_link_are_drawn_from_end_to_end():
    net = dumbbell(2, 2)
    lines = np.zeros((net.n_ports, 2, 2))
    trunk = [i for i, port in enumerate(net.ports) if port.kind != "host"]
    lines[:, 1] = (50.0, 0.0)
    lines[trunk[1]] = lines[trunk[0], ::-1]  # the other way
    apart = layout.side_by_side(net, lines, 6.0)
    np.testing.assert_allclose(apart[trunk[0]], [(0, -3), (50, -3)])  # right of the way: below
    np.testing.assert_allclose(apart[trunk[1]], [(50, 3), (0, 3)])
    hosts = np.setdiff1d(np.arange(net.n_ports), trunk)
    np.testing.assert_array_equal(apart[hosts], lines[hosts])


@pytest.mark.parametrize(("value", "top"), [(0, 100), (100, 100), (101, 200), (3e3, 5e3)])
def test_axes_end_at_round_numbers(value, top):
    assert layout.axis_top(value) == top


def test_longest_queues_get_the_rows_of_a_large_network():
    core = ecn_marl.make("incast-v0", topology=star(40))
    queue = np.arange(40) * 1e3
    frame(core, queue)
    painter = frames._painter(core)
    names = [f"switch0->host{i}" for i in range(40 - SHOWN, 40)]
    assert painter.names[painter.order].tolist() == names


@pytest.mark.skipif(
    tuple(map(int, matplotlib.__version__.split(".")[:2])) < (3, 11),
    reason="the tolerance is for text as matplotlib 3.11 draws it",
)
def test_rows_of_a_large_network_are_named_as_those_of_a_small_one():
    """Names kept as pixels are at the places where matplotlib draws text, in any order."""
    small = ecn_marl.make("incast-v0", topology=star(SHOWN))
    large = ecn_marl.make("incast-v0", topology=star(SHOWN + 8))
    for busy in (np.arange(SHOWN), np.arange(8, SHOWN + 8), np.arange(SHOWN)):
        queue = np.zeros(SHOWN + 8)
        queue[busy] = 1e4
        pictures = [frame(small, 1e4), frame(large, queue)]
        areas = [255.0 - picture[60:352, 440:542].mean(-1) for picture in pictures]
        error = np.abs(areas[0] - areas[1]).mean() / areas[0].mean()
        assert areas[0].mean() > 5
        if busy[0] == 0:
            assert error < 0.25, error  # a third of a pixel here and there
        else:
            assert error > 0.25


@pytest.mark.parametrize("scenario", ["websearch-v0", "pet-websearch-v0"])
def test_the_page_is_drawn_once_and_a_frame_costs_the_same_with_432_ports(scenario, monkeypatch):
    """What makes frames fast; `ecn-marl speed` measures frames per second."""
    core = ecn_marl.make(scenario)
    n = core.num_agents
    rng = np.random.default_rng(0)
    rows = [
        {
            "queue_mean": rng.uniform(3e5, 4e5, n),
            "utilisation": rng.uniform(0, 1, n),
            "tx_bytes": np.full(n, 1e5),
            "marked_bytes": rng.uniform(0, 1e5, n),
        }
        for _ in range(25)
    ]
    ecn = Ecn(np.full(n, 5e3), np.full(n, 2e5), np.full(n, 0.5))
    painter = Painter(core)
    assert len(painter.moving) < 25, "artists of a frame, whatever the number of ports"
    pages = []
    page = painter.canvas.draw
    monkeypatch.setattr(painter.canvas, "draw", lambda: pages.append(page()))
    drawn = [painter.draw(scene(x["queue_mean"], ecn.kmin, ecn.kmax, rows, 1)) for x in rows]
    assert len(pages) == 1
    assert len({f.tobytes() for f in drawn}) == len(rows)

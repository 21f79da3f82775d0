"""GOAL schedules: what they mean as graphs, there and back, and each refused line."""

from __future__ import annotations

import gzip

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ecn_marl.errors import InvalidInput
from ecn_marl.sim import (
    Graph,
    Simulator,
    all_to_all,
    ring_all_reduce,
    scaled_ecn,
    star,
    tree_all_reduce,
)
from ecn_marl.sim.formats.goal import goal_text, read_goal
from ecn_marl.sim.traffic.graphs import Node

PING_PONG = """num_ranks 2 // two hosts
rank 0 {
 l1: calc 500 cpu 0
 l2: send 100000b to 1 tag 3 cpu 0 nic 0
 l2 requires l1
 l3: recv 50000b from 1 tag 4
 send 7b to 1
}
/* the other one
   answers after 2 us */
rank 1 {
 l1: recv 100000b from 0 tag 3
 l2: calc 2000
 l2 requires l1
 l3: send 50000b to 0 tag 4
 l3 requires l2
}
"""


def read(tmp_path, text):
    path = tmp_path / "x.goal"
    path.write_text(text)
    return read_goal(path)


def test_computation_is_delay_and_receives_are_dependencies(tmp_path):
    goal = read(tmp_path, PING_PONG)
    assert goal.ranks == 2 and goal.notes == ()
    assert goal.nodes == (
        Node("0:1", 0, 1, 7),  # waits for nothing
        Node("0:0", 0, 1, 100_000, 0.5),
        Node("1:0", 1, 0, 50_000, 2.0, ("0:0",)),
    )
    (tmp_path / "x.goal.gz").write_bytes(gzip.compress(PING_PONG.encode()))
    assert read_goal(tmp_path / "x.goal.gz") == goal


def test_dissemination_as_schedgen_writes_it(tmp_path):
    """Round k of rank i sends to i + 2^k, once it has heard of round k - 1; 8 ranks, 3 rounds."""
    n, rounds = 8, 3
    blocks = []
    for i in range(n):
        lines = []
        for k in range(rounds):
            lines.append(f"l{2 * k + 1}: send 1b to {(i + 2**k) % n} tag 0")
            if k:
                lines.append(f"l{2 * k + 1} requires l{2 * k}")
            lines.append(f"l{2 * k + 2}: recv 1b from {(i - 2**k) % n} tag 0")
        blocks.append(f"rank {i} {{\n" + "\n".join(lines) + "\n}")
    goal = read(tmp_path, f"num_ranks {n}\n\n" + "\n\n".join(blocks))
    assert len(goal.nodes) == n * rounds
    for node in goal.nodes:
        k = int(np.log2((node.dst - node.src) % n))
        if not k:
            assert node.after == ()
            continue
        (before,) = node.after
        assert before == f"{(node.src - 2 ** (k - 1)) % n}:{k - 1}"


def test_begins_together_with_another(tmp_path):
    """`irequires`: when the other has begun, so it waits for what that waits for."""
    text = """num_ranks 2
    rank 0 {
    a: recv 5b from 1
    b: send 6b to 1
    b requires a
    c: send 7b to 1
    c irequires b
    }
    rank 1 {
    send 5b to 0
    }"""
    nodes = {node.bytes: node for node in read(tmp_path, text).nodes}
    assert nodes[6].after == nodes[7].after == ("1:0",)


def test_what_a_graph_does_not_have_is_noted(tmp_path):
    text = """num_ranks 3
    rank 0 {
    a: recv 5b from 1
    b: recv 5b from 2
    c: calc 3000
    c requires a
    d: send 9b to 1
    d requires b
    d requires c
    }
    rank 1 {
    send 5b to 0
    }
    rank 2 {
    send 5b to 0
    }"""
    goal = read(tmp_path, text)
    (node,) = (node for node in goal.nodes if node.bytes == 9)
    assert set(node.after) == {"1:0", "2:0"} and node.delay_us == 3.0
    assert len(goal.notes) == 1 and goal.notes[0].startswith("1 flows wait")


@st.composite
def graphs(draw):
    """Flows among four hosts that wait for earlier ones of their sender."""
    nodes = []
    for i in range(draw(st.integers(1, 8))):
        src = draw(st.integers(0, 3))
        dst = (src + draw(st.integers(1, 3))) % 4
        known = [n.id for n in nodes if src in (n.src, n.dst)]
        after = draw(st.lists(st.sampled_from(known), unique=True)) if known else []
        delay = draw(st.integers(0, 5000)) / 1e3
        nodes.append(Node(f"n{i}", src, dst, draw(st.integers(1, 10**6)), delay, tuple(after)))
    return tuple(nodes)


@given(nodes=graphs())
def test_there_and_back(nodes, tmp_path_factory):
    goal = read(tmp_path_factory.mktemp("goal"), goal_text(nodes, 4))
    assert goal.notes == () and len(goal.nodes) == len(nodes)
    counts = dict.fromkeys(range(4), 0)
    names = {}
    for node in nodes:
        names[node.id] = f"{node.src}:{counts[node.src]}"
        counts[node.src] += 1
    found = {node.id: node for node in goal.nodes}
    for node in nodes:
        own = found[names[node.id]]
        assert (own.src, own.dst, own.bytes) == (node.src, node.dst, node.bytes)
        assert set(own.after) == {names[x] for x in node.after}
        assert own.delay_us == pytest.approx(node.delay_us, abs=1e-9)


@pytest.mark.parametrize("build", [ring_all_reduce, tree_all_reduce, all_to_all])
def test_collectives_there_and_back(build, tmp_path):
    nodes = build((0, 1, 2, 3), 400_000)
    goal = read(tmp_path, goal_text(nodes, 4))
    assert sorted((n.src, n.dst, n.bytes, len(n.after)) for n in goal.nodes) == sorted(
        (n.src, n.dst, n.bytes, len(n.after)) for n in nodes
    )


def test_a_schedule_runs(tmp_path):
    """On packets: .5 µs, 104.8 KB at 25 Gb/s, 2 µs, 52.4 KB back; at most a tick more each."""
    pytest.importorskip("numba", reason="extra packets is not installed")
    from ecn_marl.packets import packet_simulator

    traffic = (Graph(read(tmp_path, PING_PONG).nodes),)
    cfg = {"dt_us": 1.0, "slots": 4, "interval_steps": 100, "flow_log": 16}
    sim = packet_simulator(Simulator(star(2), traffic, **cfg))
    params = sim.default_params()
    ecn = scaled_ecn(params.net, 400.0, 1600.0, 0.2)
    state, _ = sim.collect(sim.init(jax.random.key(0), params), params, ecn)
    log = sim.finished(state)
    ends = log.whole["end_step"] * 1.0 + log.real["tail"]
    by_size = dict(zip(log.real["payload"].astype(int).tolist(), ends.tolist(), strict=True))
    there = 0.5 + 104_800 / 3125.0 + 4.0
    back = there + 2.0 + 52_400 / 3125.0 + 4.0
    assert there - 0.5 < by_size[100_000] < there + 2 * sim.tick_us + 2.0
    assert back - 0.5 < by_size[50_000] < back + 4 * sim.tick_us + 4.0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty: expected num_ranks"),
        ("rank 0 {\n}", "line 1: .*num_ranks N first"),
        ("num_ranks 2\nrank 2 {\n}", "line 2: .*below num_ranks"),
        ("num_ranks 2\nrank 0 {\nsend 5b to 1", "line 3: .*at the end of a rank"),
        ("num_ranks 2\nrank 0 {\n}\nrank 0 {\n}", "line 4: .*each rank once"),
        ("num_ranks 2\nrank 0 {\nsend 5 to 1\n}", "line 3: .*SIZEb to RANK"),
        ("num_ranks 2\nrank 0 {\nsend 5b to 0\n}", "line 3: .*another rank"),
        ("num_ranks 2\nrank 0 {\nsend 0b to 1\n}", "line 3: .*whole number >= 1"),
        ("num_ranks 2\nrank 0 {\nsend 5b to 1 colour 3\n}", "line 3: .*tag N"),
        ("num_ranks 2\nrank 0 {\nput 5b to 1\n}", "line 3: .*send, recv or calc"),
        ("num_ranks 2\nrank 0 {\nrecv 5b from -1\n}", "line 3: .*any source"),
        ("num_ranks 2\nrank 0 {\nrecv 5b from 1\n}", "line 3: .*a send of its own"),
        ("num_ranks 2\nrank 0 {\nsend 5b to 1\n}\nrank 1 {\nrecv 6b from 0\n}", "line 6: .*size"),
        ("num_ranks 2\nrank 0 {\na: calc 1\na: calc 2\n}", "line 4: .*label of its own"),
        ("num_ranks 2\nrank 0 {\na: calc 1\na requires b\n}", "line 4: .*label of this rank"),
        ("num_ranks 2\nrank 0 {\na: calc 1\na requires a\n}", "line 3: .*no cycle"),
        ("num_ranks 2\nrank 0 {\ncalc 5\n}", "no send"),
        (
            "num_ranks 2\nrank 0 {\na: send 1b to 1\nb: recv 1b from 1\na requires b\n}\n"
            "rank 1 {\na: send 1b to 0\nb: recv 1b from 0\na requires b\n}",
            "cycle",
        ),
    ],
)
def test_each_refused_line_is_named(text, words, tmp_path):
    with pytest.raises(ValueError, match=words):
        read(tmp_path, text)


def test_a_file_that_is_cut_off_is_named(tmp_path):
    """A download that broke off, and one that lost its middle."""
    whole = gzip.compress(PING_PONG.encode())
    for number, content in enumerate((whole[:-6], whole[:20] + whole[40:])):
        path = tmp_path / f"{number}.goal.gz"
        path.write_bytes(content)
        with pytest.raises(InvalidInput, match=rf"{number}\.goal\.gz.*: not readable as text"):
            read_goal(path)


def test_what_no_rank_can_know_is_refused():
    nodes = (Node("a", 0, 1, 5), Node("b", 2, 0, 5, 0.0, ("a",)))
    with pytest.raises(ValueError, match="flows from or to host 2"):
        goal_text(nodes, 3)
    with pytest.raises(ValueError, match="below the 2 ranks"):
        goal_text((nodes[0], Node("b", 2, 0, 5)), 2)

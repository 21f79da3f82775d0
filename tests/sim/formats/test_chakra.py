"""Chakra traces: what they mean as graphs, and each refused node."""

from __future__ import annotations

import gzip
import json
import time

import pytest

from ecn_marl.errors import InvalidInput
from ecn_marl.sim import Graph, all_to_all, ring_all_reduce
from ecn_marl.sim.formats.chakra import read_chakra
from ecn_marl.sim.traffic.graphs import Node


def attributes(**values):
    """As protobuf's JSON has them: the value under the name of its type, 64 bits as text."""
    return [{"name": name, "int64Val": str(value)} for name, value in values.items()]


def computation(number, us, *needs):
    return {
        **{"id": str(number), "name": "comp", "type": "COMP_NODE"},
        **{"durationMicros": str(us), "dataDeps": [str(x) for x in needs]},
    }


def message(number, kind, size, peer, *needs, tag=0):
    where = "comm_dst" if kind == "SEND" else "comm_src"
    return {
        **{"id": str(number), "type": f"COMM_{kind}_NODE", "ctrlDeps": [str(x) for x in needs]},
        "attr": attributes(comm_size=size, comm_tag=tag, **{where: peer}),
    }


def collective(number, kind, size, *needs, group=""):
    return {
        **{"id": str(number), "type": "COMM_COLL_NODE", "dataDeps": [str(x) for x in needs]},
        "attr": [
            *attributes(comm_type=kind, comm_size=size),
            {"name": "pg_name", "stringVal": group},
        ],
    }


def read(folder, *ranks):
    """The schedule of some traces, written as `chakra_jsonizer` writes them."""
    paths = []
    for rank, nodes in enumerate(ranks):
        path = folder / f"trace.{rank}.json"
        objects = [{"version": "0.0.4"}, *nodes]
        path.write_text("".join(json.dumps(x, indent=2) for x in objects))
        paths.append(path)
    return read_chakra(paths)


PING = (
    computation(1, 5),
    message(2, "SEND", 100_000, 1, 1, tag=3),
    message(3, "RECV", 50_000, 1, tag=4),
)
PONG = (
    message(0, "RECV", 100_000, 0, tag=3),
    computation(1, 2, 0),
    message(2, "SEND", 50_000, 0, 1, tag=4),
)


def test_computation_is_delay_and_receives_are_dependencies(tmp_path):
    schedule = read(tmp_path, PING, PONG)
    assert schedule.ranks == 2 and schedule.notes == ()
    assert schedule.nodes == (
        Node("0:0", 0, 1, 100_000, 5.0),
        Node("1:0", 1, 0, 50_000, 2.0, ("0:0",)),
    )
    # The same with the schema's own names, as a list, zipped.
    text = json.dumps([{**PONG[0]}, *PONG[1:]]).replace("dataDeps", "data_deps")
    text = text.replace("ctrlDeps", "ctrl_deps").replace("durationMicros", "duration_micros")
    (tmp_path / "1.json.gz").write_bytes(gzip.compress(text.encode()))
    assert read_chakra([tmp_path / "trace.0.json", tmp_path / "1.json.gz"]) == schedule


def shape(nodes):
    """Sources, destinations, sizes and waits by the hosts of what is waited for."""
    by_id = {node.id: node for node in nodes}
    waits = [sorted((by_id[x].src, by_id[x].dst) for x in node.after) for node in nodes]
    rows = zip(nodes, waits, strict=True)
    return sorted((n.src, n.dst, n.bytes, n.delay_us, wait) for n, wait in rows)


@pytest.mark.parametrize(("kind", "build"), [(0, ring_all_reduce), (6, all_to_all)])
def test_collectives_are_those_of_the_text_books(tmp_path, kind, build):
    """Four ranks: the same flows, which wait for the same ones."""
    ranks = [[collective(7, kind, 400_000)] for _ in range(4)]
    schedule = read(tmp_path, *ranks)
    assert shape(schedule.nodes) == shape(build(range(4), 400_000))
    Graph(schedule.nodes)


def test_a_rank_goes_on_when_its_part_of_a_collective_is_over(tmp_path):
    """Reduce-scatter of two ranks, then computation and a message to a third outside of it."""
    first = [
        collective(1, 7, 10_000, group="a"),
        computation(2, 9, 1),
        message(3, "SEND", 77, 2, 2),
    ]
    schedule = read(
        tmp_path, first, [collective(1, 7, 10_000, group="a")], [message(1, "RECV", 77, 0)]
    )
    by_size = {(n.src, n.bytes): n for n in schedule.nodes}
    assert set(by_size) == {(0, 5000), (1, 5000), (0, 77)}
    last = by_size[0, 77]
    assert set(last.after) == {by_size[0, 5000].id, by_size[1, 5000].id} and last.delay_us == 9.0


def test_a_broadcast_goes_down_a_tree(tmp_path):
    nodes = read(tmp_path, *[[collective(1, 5, 900)] for _ in range(4)]).nodes
    assert shape(nodes) == [
        (0, 1, 900, 0.0, []),
        (0, 2, 900, 0.0, []),
        (1, 3, 900, 0.0, [(0, 1)]),
    ]


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        ([[], PONG], "no node"),
        ([[{**PING[0], "id": "x"}], PONG], "id .*'x'.*whole number"),
        ([[PING[0], PING[0]], PONG], "id .*1.*an id of its own"),
        ([[computation(1, 5, 9)], PONG], "dependency .*9.*id of a node of this rank"),
        ([[message(1, "SEND", 5, 7)], PONG], "comm_dst .*7.*another rank, below 2"),
        ([[message(1, "SEND", 0, 1)], PONG], "comm_size .*whole number >= 1"),
        ([[message(1, "RECV", 5, 1)], PONG], "recv .*a send of its own"),
        ([[{"id": "1", "type": "COMM_SEND_NODE"}], PONG], "comm_dst .*COMM_SEND_NODE"),
        ([[{**PING[0], "dataDeps": 1}], PONG], "dataDeps .*1 .*a list"),
        ([[{**PING[0], "attr": "x"}], PONG], "attr .*'x'.*a list"),
        ([[{**PING[0], "attr": ["x"]}], PONG], "attr .*an object with a name and a value"),
        ([[collective(1, 1, 8)], [collective(1, 1, 8)]], "comm_type .*ALL_REDUCE"),
        ([[collective(1, 0, 8)], [collective(1, 0, 9)]], "ALL_REDUCE of 8 bytes, as rank 0"),
        ([[collective(1, 0, 8), collective(2, 0, 8)], [collective(1, 0, 8)]], "2 in the group"),
        (
            [[computation(1, 5, 2), computation(2, 5, 1)], [computation(1, 5)]],
            "no cycle: it waits for itself",
        ),
    ],
)
def test_refused(tmp_path, ranks, words):
    with pytest.raises(ValueError, match=f"(?s){words}"):
        read(tmp_path, *ranks)


def test_lists_may_be_null(tmp_path):
    """As some writers have it where a message has none."""
    bare = [{**x, "dataDeps": None} for x in PING]
    assert read(tmp_path, bare, PONG) == read(tmp_path, [{**x, "dataDeps": []} for x in PING], PONG)


def test_reading_takes_time_in_proportion_to_the_file(tmp_path):
    """Every object is decoded at the end of the one before; the text is not copied for it."""
    nodes = "\n".join(json.dumps(computation(i, 1) | {"name": 400 * "x"}) for i in range(20_000))
    path = tmp_path / "0.json"
    path.write_text(f"\n\n{nodes}\n ?")
    began = time.process_time()
    with pytest.raises(InvalidInput, match=r"0\.json, line 20003: node"):
        read_chakra([path])
    # In time with the square of the file: minutes.
    assert time.process_time() - began < 10


def test_a_file_that_is_cut_off_is_named(tmp_path):
    path = tmp_path / "0.json.gz"
    path.write_bytes(gzip.compress("".join(json.dumps(x) for x in PING).encode())[:-6])
    with pytest.raises(InvalidInput, match=r"0\.json\.gz: not readable as text"):
        read_chakra([path, path])


def test_what_is_no_json_is_named_by_line(tmp_path):
    path = tmp_path / "x.json"
    path.write_text('{"version": "0.0.4"}\n{"id": "1", "type": \n')
    with pytest.raises(ValueError, match=r"x.json, line 2: .*JSON"):
        read_chakra([path, path])
    with pytest.raises(ValueError, match="a file for each rank"):
        read_chakra([])

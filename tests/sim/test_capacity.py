"""No byte arrives before it is sent: no set of flows is through a link before it can be."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onepath import cases, runner

from ecn_marl.sim import star
from ecn_marl.sim.capacity import Crossings, worst
from ecn_marl.sim.sizes import HEADER, PAYLOAD

PROGRAMS = [
    ("star", "dcqcn:hpcc-paper", 2.0),
    ("star", "hpcc", 1.0),
    ("leaf-spine", "dcqcn:hpcc-run", 2.0),
    ("leaf-spine", "dcqcn:hpcc-paper", 5.0),
    ("leaf-spine", "timely", 1.0, "flowlet"),
    ("fat-tree", "dctcp", 2.0),
    ("fat-tree", "dcqcn:hpcc-paper", 2.0, "spray"),
]

NEAR_US = 0.01
"""float32 of the times and bytes of a run, with some 1e5 roundings of 1e-3 bytes and 1e-6 µs."""


@pytest.mark.parametrize("program", PROGRAMS, ids=" ".join(map(str, PROGRAMS)).split("\n")[:0] or None)
@given(data=st.data())
def test_no_set_of_flows_is_ahead_of_a_link(program, data):
    case = data.draw(cases(program[0], program[2]))
    found = runner(*program).worst(case)
    assert found.early_us < NEAR_US, found

"""The same random cases in the fluid and packet by packet: completion times stay within bounds.

`make differential` runs more of them and writes the table of docs/validation.md.
"""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packetcases import NETWORKS, balance, cases, runner
from tiers import tiers

SENDERS = ("dcqcn:hpcc-paper", "dctcp:hpcc")


@pytest.mark.parametrize(
    ("network", "transport"),
    tiers(product(NETWORKS, SENDERS), ("leaf-spine", SENDERS[0])),
)
@settings(max_examples=10)
@given(data=st.data())
def test_both_backends_finish_the_same_flows_in_nearly_the_same_time(network, transport, data):
    """All flows finish on both; their mean time within a factor of 2, or some packets.

    Single flows of short lists differ by what a mark at the wrong moment costs, so bounds are wide;
    the table of the campaign says how wide the errors are by regime.
    """
    case = data.draw(cases(network, largest=100_000))
    n = len(case.flows["src"])
    ends = {}
    for packets in (True, False):
        run = runner(network, transport, packets=packets)
        state, _ = run.run(case)
        ends[packets] = run.fct(state)[:n]
        assert np.isfinite(ends[packets]).all()
        if packets:
            offered, parts = balance(state)
            assert offered == parts["delivered"]
    slowest = min(*case.nic, *case.port)
    slack = n * 1048 * 8e-3 / slowest + 2.0
    assert ends[False].mean() < 2.0 * ends[True].mean() + slack
    assert ends[True].mean() < 2.0 * ends[False].mean() + slack

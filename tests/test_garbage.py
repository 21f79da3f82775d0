"""Collecting garbage seldom, and as before afterwards."""

from __future__ import annotations

import gc

import pytest

from ecn_marl._garbage import SELDOM, seldom_collected


@pytest.fixture
def thresholds():
    before = gc.get_threshold()
    yield gc.set_threshold
    gc.set_threshold(*before)


@pytest.mark.parametrize(
    ("own", "within"),
    [((700, 10, 10), SELDOM), ((0, 10, 10), (0, 10, 10)), ((10**6, 5, 5), (10**6, 10, 10))],
    ids=["default", "off", "rarer still"],
)
def test_thresholds_come_back(thresholds, own, within):
    thresholds(*own)

    @seldom_collected()
    def compile_and_fail():
        assert gc.get_threshold() == within
        raise KeyError

    with pytest.raises(KeyError):
        compile_and_fail()
    assert gc.get_threshold() == own

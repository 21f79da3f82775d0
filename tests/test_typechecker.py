"""Arguments of functions are checked against their signatures, in their first calls."""

from __future__ import annotations

import numpy as np
import pytest
from jaxtyping import Float, TypeCheckError
from typechecker import CHECKED_CALLS, check, first_calls

from ecn_marl.sim import theory


def test_functions_of_the_package_are_checked():
    with pytest.raises(TypeCheckError):
        theory.hpcc_fixed_point("wide", 2, 10.0, 80.0)


def test_first_calls_are_checked_and_later_ones_cost_nothing():
    @first_calls(typechecker=check)
    def total(x: Float[np.ndarray, "n"]) -> float:
        return float(x.sum())

    right, wrong = np.ones(3), np.ones((3, 1))
    for _ in range(CHECKED_CALLS - 1):
        assert total(right) == 3.0
    with pytest.raises(TypeCheckError):
        total(wrong)
    assert total(wrong) == 3.0


def test_a_function_that_is_defined_again_goes_on_counting():
    def define():
        @first_calls(typechecker=check)
        def double(x: int) -> int:
            return 2 * x

        return double

    for _ in range(CHECKED_CALLS):
        assert define()(2) == 4
    assert not hasattr(define(), "__wrapped__"), "the function itself"

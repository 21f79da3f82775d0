"""Cases of a parametrised law: some in every run, the others in `make thorough`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def tiers(cases: Iterable[Any], *usual: Any) -> list[Any]:
    """Cases for `pytest.mark.parametrize`: those that are not in `usual` are `thorough`.

    A tuple is values of several names.
    """
    cases = list(cases)
    missing = [case for case in usual if case not in cases]
    assert not missing, f"no such cases: {missing}"
    marks = {False: (), True: (pytest.mark.thorough,)}
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)), marks=marks[case not in usual]
        )
        for case in cases
    ]

"""Examples of property tests: the same ones for everyone, or fresh ones on request.

`make test` draws the same examples on every machine, on any number of workers, in any order of the
tests. `make fresh` draws others every time (`--hypothesis-profile fresh`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from hypothesis import HealthCheck, Phase, settings
from hypothesis.internal.conjecture import providers


def repeat_draws() -> None:
    """Sets up the profiles and loads that of the suite."""
    settings.register_profile(
        "suite",
        deadline=None,
        max_examples=40,
        suppress_health_check=[HealthCheck.too_slow],
        derandomize=True,
        database=None,
    )
    settings.register_profile(
        "fresh", settings.get_profile("suite"), derandomize=False, print_blob=True
    )
    settings.register_profile(  # a failure is enough there; the smallest one takes minutes to find
        "mutation", settings.get_profile("suite"), phases=[Phase.explicit, Phase.generate]
    )
    settings.load_profile("suite")
    # Hypothesis also tries constants of every module that happens to be imported by then, so that
    # examples depend on which tests ran before, in the same process. There is no setting for it.
    providers.is_local_module_file = lambda _: False


def examples(error: BaseException, given_by_pytest: Iterable[str]) -> list[str]:
    """The examples that hypothesis says have failed, as decorators to paste above the test.

    Args:
        error: what the test raised; hypothesis adds notes, `Failing test case: test(...)`.
        given_by_pytest: arguments that are no part of an example: parameters and fixtures.

    Returns:
        `@example(...)` of each; none where values are drawn while the test runs or are too long to
        be printed, which hypothesis' own `@reproduce_failure` repeats.
    """
    calls = re.findall(
        r"^(?:Failing|Falsifying) [\w ]+: \w+\(\n(.*?)^\)", notes(error), re.M | re.S
    )
    names = tuple(f"    {name}=" for name in given_by_pytest)
    found = []
    for call in calls:
        arguments = re.split(r"^(?= {4}\w)", call, flags=re.M)
        drawn = "".join(a for a in arguments if not a.startswith(names))
        if drawn and "=data(" not in drawn and "..." not in drawn:
            found.append(f"@example(\n{drawn})")
    return found


def notes(error: BaseException) -> str:
    """All notes of an error, and of those in its group."""
    inner = getattr(error, "exceptions", ())
    return "\n".join([*getattr(error, "__notes__", ()), *map(notes, inner)])

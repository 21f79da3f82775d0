"""Examples of property tests: the same ones for everyone, or fresh ones on request.

`make test` draws the same examples on every machine, on any number of workers, in any order of the
tests. `make fresh` draws others every time (`--hypothesis-profile fresh`).
"""

from __future__ import annotations

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

"""The hierarchy of errors, their messages, and that errors can be pickled."""

from __future__ import annotations

import inspect
import pickle
import subprocess
import sys

import numpy as np
import pytest

import ecn_marl
from ecn_marl import errors
from ecn_marl._errors import bad_value, unknown_name
from ecn_marl._memory import check_memory, in_words, machine_bytes

KINDS = {
    "InvalidInput": ValueError,
    "InvalidValue": ValueError,
    "TooLarge": ValueError,
    "UnknownName": ValueError,
    "DamagedFile": ValueError,
    "DamagedCheckpoint": ValueError,
    "FolderInUse": OSError,
    "ForkedProcess": RuntimeError,
    "TrainingDiverged": RuntimeError,
    "BrokenInvariant": RuntimeError,
}


def test_every_error_is_a_built_in_one_too():
    classes = {name for name, kind in vars(errors).items() if inspect.isclass(kind)}
    assert classes == {*KINDS, "EcnMarlError", "VersionWarning"}
    assert ecn_marl.errors is errors
    for name, built_in in KINDS.items():
        assert issubclass(getattr(errors, name), built_in)
        assert issubclass(getattr(errors, name), errors.EcnMarlError)
        assert name in errors.__doc__


def test_messages_and_attributes_cross_processes():
    invalid = pickle.loads(pickle.dumps(bad_value("load", -1.0, "a number > 0")))
    assert type(invalid) is errors.InvalidValue
    assert (invalid.field, invalid.value, invalid.allowed) == ("load", -1.0, "a number > 0")
    assert str(invalid) == "load = -1.0 is not allowed: expected a number > 0"
    unknown = pickle.loads(pickle.dumps(unknown_name("scenario", "websaerch", ["websearch"])))
    assert type(unknown) is errors.UnknownName
    assert "did you mean 'websearch'" in str(unknown)


def test_a_value_of_many_lines_is_shown_in_one():
    message = str(bad_value("rates", np.ones((40, 40)), "a number"))
    assert "\n" not in message
    assert len(message) < 400


def test_what_the_machine_cannot_hold():
    check_memory("slots", 1, machine_bytes(), "it")
    with pytest.raises(errors.TooLarge, match=r"slots = 9 .* it would take about .*this machine"):
        check_memory("slots", 9, 2.0 * machine_bytes(), "it")
    assert [in_words(x) for x in (5, 1536, 3 * 2**30)] == ["5 bytes", "1.5 KiB", "3 GiB"]
    assert in_words(2.0**70).endswith("EiB")


def test_importing_errors_costs_nothing():
    code = (
        "import sys; from ecn_marl.errors import EcnMarlError; "
        "assert not {'numpy', 'jax', 'scipy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)

"""WRED profiles of switches: written, applied as a switch does, and read again."""

from __future__ import annotations

import json

import jax.numpy as jnp
import jsonpatch
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ecn_marl
from ecn_marl.envs.settings import SwitchSetting, parse_ecn
from ecn_marl.envs.telemetry import Telemetry
from ecn_marl.errors import InvalidInput
from ecn_marl.sim import star
from ecn_marl.sim.core.queues import Ecn
from ecn_marl.sim.formats import nvue, sonic
from ecn_marl.sim.formats.wred import WredProfile

CONFIG = {
    "WRED_PROFILE": {
        "AZURE_LOSSLESS": {
            "ecn": "ecn_all",
            "wred_green_enable": "true",
            "green_min_threshold": "500000",
            "green_max_threshold": "900000",
            "green_drop_probability": "5",
        }
    },
    "QUEUE": {"Ethernet0|3": {}},
}
FIELDS = CONFIG["WRED_PROFILE"]["AZURE_LOSSLESS"]
NAMES = st.text(st.sampled_from("AZ_/~|0"), min_size=1, max_size=8)


@st.composite
def thresholds(draw):
    """Kmin and Kmax in bytes, Pmax."""
    kmin = draw(st.floats(0.0, 1e7, width=32))
    return kmin, kmin + draw(st.floats(0.5, 1e7, width=32)), draw(st.floats(1e-4, 1.0))


# Tuples, as the type checker that tests run under draws random numbers where objects are made.
PROFILES = st.tuples(st.integers(1, 10**7), st.integers(1, 10**7), st.integers(1, 100)).map(
    lambda x: (min(x[:2]), max(x[:2]), x[2])
)


def written(folder, content):
    """A file with a configuration."""
    path = folder / "config_db.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


@given(name=NAMES, before=PROFILES, after=PROFILES)
def test_patches_lead_from_one_profile_to_the_other_in_safe_steps(
    tmp_path_factory, name, before, after
):
    folder = tmp_path_factory.mktemp("config")
    before, after = WredProfile(*before), WredProfile(*after)
    config = jsonpatch.apply_patch(CONFIG, sonic.added(name, before))
    assert sonic.read_profiles(written(folder, config))[name] == before
    for patch in sonic.changed(name, before, after):
        assert len(patch) == 1
        config = jsonpatch.apply_patch(config, patch)
        entry = config["WRED_PROFILE"][name]
        assert int(entry["green_min_threshold"]) <= int(entry["green_max_threshold"])
    assert sonic.read_profiles(written(folder, config))[name] == after


@given(before=PROFILES, after=PROFILES)
def test_commands_change_the_same_numbers_in_the_same_order(before, after):
    before, after = WredProfile(*before), WredProfile(*after)
    patches = sonic.changed("x", before, after)
    lines = nvue.changed("x", 3, before, after)
    assert [line.split()[-1] for line in lines] == [patch[0]["value"] for patch in patches]


@given(setting=thresholds(), cell=st.integers(1, 512))
def test_profiles_round_as_the_telemetry_of_an_environment_does(setting, cell):
    kmin, kmax, pmax = setting
    profile = WredProfile.of(kmin, kmax, pmax, cell)
    assert profile.kmin % cell == profile.kmax % cell == 0 and profile.kmin < profile.kmax
    limits = Telemetry(pmax_percent=True, quantum_kb=cell / 1000.0)
    ecn = Ecn(*(jnp.full((1,), x, jnp.float32) for x in setting))
    found = limits.limited(ecn, star(2))
    limited = [float(x[0]) for x in (found.kmin, found.kmax, found.pmax)]
    # float32 rounds a half the other way now and then: one cell, or one percent.
    np.testing.assert_allclose(profile[:2], limited[:2], rtol=1e-6, atol=cell * 1.001)
    assert profile.percent == pytest.approx(100.0 * limited[2], abs=1.001)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"green_min_threshold": "1000000"}, "0 < smallest <= largest"),
        ({"green_max_threshold": "many"}, "green_max_threshold"),
        ({"green_drop_probability": "0"}, "green_drop_probability"),
        ({"green_drop_probability": None}, "green_drop_probability"),
        ({"ecn": "ecn_none"}, "a profile that marks"),
    ],
)
def test_profiles_that_cannot_be_used_name_file_profile_and_field(tmp_path, change, message):
    config = {"WRED_PROFILE": {"AZURE_LOSSLESS": {**FIELDS, **change}}}
    with pytest.raises(ValueError, match=message) as error:
        parse_ecn(f"@{written(tmp_path, config)}")
    assert "config_db.json: WRED_PROFILE|AZURE_LOSSLESS" in str(error.value)


def test_files_without_the_profile_are_refused(tmp_path):
    for content in ([], {}, {"WRED_PROFILE": {}}):
        with pytest.raises(InvalidInput, match="no profile"):
            parse_ecn(f"@{written(tmp_path, content)}")
    path = written(tmp_path, {"WRED_PROFILE": {"one": FIELDS, "two": FIELDS}})
    with pytest.raises(ValueError, match=r"#PROFILE behind the file, one of one, two"):
        parse_ecn(f"@{path}")
    with pytest.raises(ValueError, match="did you mean 'two'"):
        parse_ecn(f"@{path}#twoo")
    assert parse_ecn(f"@{path}#two") == (500.0, 900.0, 0.05)
    with pytest.raises(FileNotFoundError):
        parse_ecn(f"@{tmp_path / 'none.json'}")


def test_a_profile_is_the_same_bytes_on_ports_of_any_rate(tmp_path):
    name = f"@{written(tmp_path, CONFIG)}"
    env = ecn_marl.make("websearch-v0")
    rates = np.asarray(env.default_params.sim.net.port_rate)
    assert len(set(rates)) > 1
    ecn = env.static_ecn(name, env.default_params)
    np.testing.assert_array_equal(ecn.kmin, 500e3)
    np.testing.assert_array_equal(ecn.kmax, 900e3)
    np.testing.assert_allclose(ecn.pmax, 0.05)
    assert isinstance(parse_ecn(name), SwitchSetting)

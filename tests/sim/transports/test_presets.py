"""Senders by their short forms: published constants, options, errors."""

from __future__ import annotations

from dataclasses import fields, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from senders import CONSTANTS, MBPS
from twins import TWINS

from ecn_marl.sim.feedback import Feedback
from ecn_marl.sim.transports import Timely, Transport, parse_transport, transports
from ecn_marl.sim.transports.names import ALIASES, RATES, SOURCES, describe

PUBLISHED = {
    # Alizadeh et al., SIGCOMM'10, §3.2, with the first window of RFC 6928.
    "dctcp:sigcomm10": {"g": 1 / 16, "ai_bytes": 1000, "ai_rate": 0, "initial": 10_000},
    # The HPCC simulator's senders at 25 Gb/s; rates in Mb/s.
    "dctcp:hpcc": {"g": 1 / 16, "ai_rate": 615 * MBPS, "initial": 0, "min_rate": 100 * MBPS},
    "timely:hpcc": {
        "ewma": 0.875,
        "beta": 0.8,
        "t_low": 50,
        "t_high": 500,
        "min_rtt": 20,
        "ai": 25 * MBPS,
        "hai": 125 * MBPS,
        "patience": 5,
        "segment": 0,
        "min_rate": 100 * MBPS,
        "share": 1,
    },
    "hpcc:hpcc": {"eta": 0.95, "ai": 10 * MBPS, "max_stage": 0, "min_rate": 100 * MBPS},
    # Li et al., SIGCOMM'19, §5.1.
    "hpcc:sigcomm19": {"eta": 0.95, "max_stage": 5},
    # Zhu et al., CoNEXT'16, Table 2 and §4.3.
    "timely:conext16": {"beta": 0.8, "t_low": 50, "t_high": 500, "ai": 10 * MBPS, "segment": 16e3},
    "timely:patched": {"beta": 0.008, "t_low": 50, "t_high": 500, "ai": 10 * MBPS, "segment": 16e3},
    # htsim: base 20 µs, per hop base / 6.55, flow scaling up to 5 base between 0.1 and 100 packets.
    "swift:htsim": {
        "base": 20,
        "per_hop": 20 / 6.55,
        "fs_range": 100,
        "fs_min": 0.1,
        "fs_max": 100,
        "ai": 1,
        "beta": 0.8,
        "max_cut": 0.5,
    },
    "reno:rfc5681": {"initial": 10_000, "ai_bytes": 1000, "keep": 0.5},
    "rate-agent:line-rate": {"share": 1},
}


@pytest.mark.parametrize("text", PUBLISHED)
def test_preset_constants(text):
    params = parse_transport(text).default_params()
    for name, value in PUBLISHED[text].items():
        assert getattr(params, name) == pytest.approx(value, rel=1e-12), name


@pytest.mark.parametrize("text", transports())
def test_short_forms(text):
    made = parse_transport(text)
    kind, _, name = text.partition(":")
    assert isinstance(made, Transport)
    assert (made.kind, made.name) == (kind, name)
    assert made == parse_transport(text)
    assert hash(made) == hash(parse_transport(text))
    assert all(np.isscalar(x) for x in jax.tree.leaves(made.default_params()))


NAMES = [(f"{k}:{new}", f"{k}:{old}") for k, pairs in ALIASES.items() for new, old in pairs.items()]


@pytest.mark.parametrize(("second", "first"), NAMES)
def test_second_names_mean_the_same_senders(second, first):
    """With options too, in the short form and where senders are built directly."""
    assert first in transports()
    assert second not in transports()
    for options in ("", ",min_rate=2.5"):
        one, other = parse_transport(second + options), parse_transport(first + options)
        assert one == other
        assert hash(one) == hash(other)
        assert (one.name, repr(one)) == (other.name, repr(other))
    kind, name = type(parse_transport(first)), second.partition(":")[2]
    assert kind(name) == kind(first.partition(":")[2])


def test_second_names_of_the_fluid_model():
    found = parse_transport("dcqcn:sigcomm15,source=mean_field")
    assert found == parse_transport("dcqcn:paper,source=mean_field")
    assert found.name == "paper"


def test_every_preset_says_where_it_is_from_and_for_which_rate():
    assert set(SOURCES) == set(RATES) == set(transports())
    for text, rate in RATES.items():
        constants = parse_transport(text).default_params()
        assert all(hasattr(constants, name) for name in rate.scaled)
    assert describe("dcqcn", "hpcc-run")[:2] == (
        "dcqcn:ns3-4us",
        "25 Gb/s; gbps= scales ai and hai",
    )
    assert describe("mine", "x") == ("", "not stated", "added by `register_transport`")


BY_RATE = {
    # HPCC's simulator, `simulation/run.py`: AI and HAI, Mb/s, for `--bw`, Gb/s.
    "dcqcn:hpcc-run": lambda bw: {"ai": 5 * bw / 25, "hai": 50 * bw / 25},
    "dcqcn:ns3-50us": lambda bw: {"ai": 5 * bw / 25, "hai": 50 * bw / 25},
    "timely:hpcc": lambda bw: {"ai": 10 * bw / 10, "hai": 50 * bw / 10},
    "hpcc:hpcc": lambda bw: {"ai": 10 * bw / 25},
    "hpcc:sigcomm19": lambda bw: {"ai": 10 * bw / 25},
}


@pytest.mark.parametrize("text", BY_RATE)
@pytest.mark.parametrize("gbps", [10, 25, 50, 100, 400])
def test_constants_that_the_source_scales_with_the_bandwidth(text, gbps):
    plain = parse_transport(text).default_params()
    scaled = parse_transport(f"{text},gbps={gbps}").default_params()
    expected = {name: x * MBPS for name, x in BY_RATE[text](gbps).items()}
    for field in fields(plain):
        value = expected.get(field.name, getattr(plain, field.name))
        assert getattr(scaled, field.name) == pytest.approx(value, rel=1e-12), field.name
    if gbps == 25:
        assert scaled == plain


def test_a_constant_that_is_given_is_not_scaled():
    senders = parse_transport("dcqcn:hpcc-run,gbps=100,ai=3")
    assert (senders.default_params().ai, senders.default_params().hai) == (3.0, 200 * MBPS)
    fluid = parse_transport("dcqcn:hpcc-paper,gbps=40,source=mean_field").default_params()
    assert fluid.ai == pytest.approx(8 * MBPS)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "dcqcn:paper,gbps=100",
            "gbps = 100.0 .* no such option of paper.*hpcc-run and hpcc-paper",
        ),
        ("swift:htsim,gbps=100", "no such option of htsim, whose source does not scale"),
        ("dcqcn:hpcc-run,gbps=0", "gbps = 0.0 .* a number > 0 .* Gb/s"),
        ("dcqcn:hpcc-run,gbps=nan", "gbps = nan"),
    ],
)
def test_rates_that_do_not_fit(text, message):
    with pytest.raises(ValueError, match=message):
        parse_transport(text)


def test_a_flow_recovers_at_the_pace_of_its_link():
    """After a second flow has left, additive increase: four times as fast at four times the AI."""
    line, after = jnp.full(1, 12500.0), {}
    for text in ("dcqcn:hpcc-run", "dcqcn:hpcc-run,gbps=100"):
        senders = parse_transport(text)
        constants = senders.default_params()
        state = senders.start(senders.init(1), constants, jnp.ones(1, bool), line, 12.0)
        state = replace(
            state, rate=line / 2, target=line / 2, has_had_cnp=jnp.ones(1, bool),
            to_increase=jnp.full(1, constants.increase_us), timer_stage=jnp.ones(1, jnp.int32),
        )  # fmt: skip
        quiet = Feedback(sent=jnp.zeros(1), cnp=jnp.zeros(1, bool))
        for _ in range(150):  # one increase of the timer, 300 µs
            state = senders.update(state, constants, quiet, 2.0)
        after[text] = float(state.target[0]) - 6250.0
    assert after["dcqcn:hpcc-run"] == pytest.approx(5 * MBPS)
    assert after["dcqcn:hpcc-run,gbps=100"] == pytest.approx(20 * MBPS)


def test_a_wrong_name_is_told_the_second_ones_too():
    with pytest.raises(ValueError, match=r"did you mean .*'ns3-50us'"):
        parse_transport("dcqcn:ns3-50")


@pytest.mark.parametrize("text", TWINS)
def test_options(text):
    """Every constant can be set in the short form, and nothing else changes."""
    plain = parse_transport(text).default_params()
    names = [f.name for f in fields(plain)]
    assert set(names) == set(CONSTANTS[text.partition(":")[0]])
    for name in names:
        value = 0.9375 * getattr(plain, name) or 0.5
        made = parse_transport(f"{text},{name}={value!r}")
        assert made != parse_transport(text)
        assert getattr(made.default_params(), name) == value
        others = [n for n in names if n != name]
        assert all(getattr(made.default_params(), n) == getattr(plain, n) for n in others)
    both = parse_transport(f"{text},{names[0]}=0.5,{names[-1]}=0.75")
    assert both == parse_transport(f"{text},{names[-1]}=0.75,{names[0]}=0.5"), "in any order"


def test_an_option_reaches_the_sender():
    made = parse_transport("timely:hpcc,beta=0.5")
    assert made == Timely.of("hpcc", beta=0.5)
    assert made.default_params().beta == 0.5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dctpc:hpcc", "unknown transport 'dctpc': did you mean .*'dctcp'"),
        ("", "unknown transport ''"),
        ("timely", "transport = 'timely' is not allowed: expected timely:PRESET, e.g. timely:hpcc"),
        ("dctcp:sigcom", "unknown DCTCP preset 'sigcom': did you mean 'sigcomm10'"),
        ("timely:patchd", "unknown TIMELY preset 'patchd': did you mean 'patched'"),
        ("hpcc:x", "unknown HPCC preset 'x': .*known: hpcc, ns3, sigcomm19"),
        ("swift:google", "unknown SWIFT preset 'google': .*known: htsim"),
        ("reno:cubic", "unknown reno preset 'cubic'"),
        ("rate-agent:x", "unknown rate-agent preset 'x'"),
        ("timely:hpcc,betta=0.5", "unknown TIMELY constant 'betta': did you mean 'beta'"),
        ("dctcp:hpcc,windowed=1", "unknown DCTCP constant 'windowed'"),
        ("timely:hpcc,beta", "transport option = 'beta' is not allowed: expected NAME=NUMBER"),
        ("timely:hpcc,beta=much", "transport option = 'beta=much' is not allowed"),
        ("hpcc:hpcc,source=mean_field", "transport option = 'source=mean_field' is not allowed"),
        ("timely:hpcc,beta=-0.5", "beta = -0.5 is not allowed: expected a number > 0 and <= 1"),
        ("timely:hpcc,beta=1.5", "beta = 1.5 is not allowed: expected a number > 0 and <= 1"),
        ("timely:hpcc,ewma=nan", "ewma = nan is not allowed"),
        ("timely:hpcc,segment=-1", "segment = -1.0 is not allowed: expected a number >= 0"),
        ("timely:hpcc,t_low=500", "t_low = 500.0 is not allowed: expected less than t_high = 500"),
        ("dctcp:sigcomm10,g=0", "g = 0.0 is not allowed: expected a number > 0 and <= 1"),
        ("dctcp:sigcomm10,alpha_init=2", "alpha_init = 2.0 is not allowed: .* >= 0 and <= 1"),
        ("hpcc:hpcc,eta=1.05", "eta = 1.05 is not allowed"),
        ("swift:htsim,max_cut=1.5", "max_cut = 1.5 is not allowed"),
        ("swift:htsim,fs_min=100", "fs_min = 100.0 is not allowed: .*less than fs_max = 100"),
        ("reno:rfc5681,keep=1.5", "keep = 1.5 is not allowed"),
        ("rate-agent:line-rate,share=0", "share = 0.0 is not allowed"),
    ],
)
def test_errors(text, message):
    with pytest.raises(ValueError, match=message):
        parse_transport(text)

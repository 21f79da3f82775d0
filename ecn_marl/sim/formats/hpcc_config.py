"""`config.txt` of the HPCC simulator and ConWeave's: `KEY value ...`, a key per line.

    CC_MODE 1
    RATE_AI 50Mb/s
    KMAX_MAP 2 25000000000 400 100000000000 1600     a count, then rate in bits/s and KB
    BUFFER_SIZE 32                                   MiB

Notes in braces after a value are left out. The last of several lines of a key counts.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

from ecn_marl._errors import bad_value
from ecn_marl.errors import InvalidInput
from ecn_marl.sim.core.queues import LARGEST_KB, checked_thresholds
from ecn_marl.sim.formats.lines import CONFIG, check_kind, number, plain, rate, text_lines, whole
from ecn_marl.sim.network.topology import Topology
from ecn_marl.sim.traffic.trace import Place

Pairs = tuple[tuple[float, float], ...]
"""Values by link rate: (Gb/s, value)."""

Value = float | Pairs | tuple[float, ...] | str

DRAIN_MS = 60.0
"""Simulated time after `FLOWGEN_STOP_TIME`, ms. ConWeave's simulator then goes on until all flows
are done, for 10 s at most."""


def _number(place: Place, key: str, words: list[str]) -> float:
    return float(number(place, key, _only(place, key, words, 1)[0]))


def _flag(place: Place, key: str, words: list[str]) -> float:
    value = _number(place, key, words)
    if value not in (0.0, 1.0):
        raise place.error(key, words[0], "0 or 1")
    return value


def _rate(place: Place, key: str, words: list[str]) -> float:
    return float(rate(place, key, _only(place, key, words, 1)[0]) / 10**6)


def _triple(place: Place, key: str, words: list[str]) -> tuple[float, ...]:
    return tuple(float(number(place, key, x)) for x in _only(place, key, words, 3))


def _map(place: Place, key: str, words: list[str]) -> Pairs:
    """A count, then pairs of a rate in bits/s and a value."""
    n = whole(place, key, words[0])
    form = f"a count, then as many pairs of a rate in bits/s and a value: {n} pairs"
    if len(words) != 2 * n + 1:
        raise place.error(key, " ".join(words), form)
    numbers = [number(place, key, word) for word in words[1:]]
    return tuple(
        (float(bits / Decimal(10**9)), float(value))
        for bits, value in zip(numbers[::2], numbers[1::2], strict=True)
    )


def _only(place: Place, key: str, words: list[str], count: int) -> list[str]:
    """The words of a value that has `count` of them."""
    if len(words) != count:
        raise place.error(key, " ".join(words), f"{count} value{'s' * (count > 1)}")
    return words


Reader = Callable[[Place, str, list[str]], Value]

READERS: dict[str, Reader] = {
    **dict.fromkeys(("KMIN_MAP", "KMAX_MAP", "PMAX_MAP"), _map),
    **dict.fromkeys(("RATE_AI", "RATE_HAI", "MIN_RATE", "DCTCP_RATE_AI"), _rate),
    **dict.fromkeys(
        (
            *("ENABLE_QCN", "ENABLE_PFC", "ENABLE_IRN", "USE_DYNAMIC_PFC_THRESHOLD"),
            *("CLAMP_TARGET_RATE", "HAS_WIN", "VAR_WIN", "GLOBAL_T", "FAST_REACT", "MULTI_RATE"),
            *("SAMPLE_FEEDBACK", "RATE_BOUND", "ACK_HIGH_PRIO"),
        ),
        _flag,
    ),
    **dict.fromkeys(
        (
            *("CC_MODE", "LB_MODE", "ALPHA_RESUME_INTERVAL", "RATE_DECREASE_INTERVAL", "RP_TIMER"),
            *("EWMA_GAIN", "FAST_RECOVERY_TIMES", "U_TARGET", "MI_THRESH", "BUFFER_SIZE"),
            *("PACKET_PAYLOAD_SIZE", "L2_ACK_INTERVAL", "ERROR_RATE_PER_LINK"),
            *("SIMULATOR_STOP_TIME", "FLOWGEN_START_TIME", "FLOWGEN_STOP_TIME"),
        ),
        _number,
    ),
    "LINK_DOWN": _triple,
}
"""How the values of keys are read that matter here: flags, numbers, rates (Mb/s), maps."""

WITHOUT_EFFECT = (
    *("TOPOLOGY_FILE", "FLOW_FILE", "FLOW_INPUT_FILE", "TRACE_FILE", "TRACE_OUTPUT_FILE"),
    *("FCT_OUTPUT_FILE", "PFC_OUTPUT_FILE", "CNP_OUTPUT_FILE", "ENABLE_TRACE", "RANDOM_SEED"),
    *("QLEN_MON_FILE", "QLEN_MON_START", "QLEN_MON_END", "VOQ_MON_FILE", "VOQ_MON_DETAIL_FILE"),
    *("UPLINK_MON_FILE", "CONN_MON_FILE", "EST_ERROR_MON_FILE", "SW_MONITORING_INTERVAL"),
    *("PAUSE_TIME", "DATA_RATE", "LINK_DELAY", "L2_CHUNK_SIZE", "L2_BACK_TO_ZERO", "INT_MULTI"),
    *("PINT_LOG_BASE", "PINT_PROB", "LOAD", "CONWEAVE_TX_EXPIRY_TIME"),
    *("CONWEAVE_REPLY_TIMEOUT_EXTRA", "CONWEAVE_PATH_PAUSE_TIME"),
    *("CONWEAVE_EXTRA_VOQ_FLUSH_TIME", "CONWEAVE_DEFAULT_VOQ_WAITING_TIME"),
)
"""Keys that change nothing here: names of files, monitors, and what only senders, losses or load
balancers need that are not simulated, which other keys ask for."""


class Rule(NamedTuple):
    """What a key has to be to be simulated as it is.

    Attributes:
        value: the value.
        words: what else is asked for.
        modes: `CC_MODE`s for which it matters; empty for all.
    """

    value: Value
    words: str
    modes: tuple[int, ...] = ()


RULES = {
    "ERROR_RATE_PER_LINK": Rule(0.0, "random loss"),
    "LINK_DOWN": Rule((0.0, 0.0, 0.0), "a link that fails"),
    "USE_DYNAMIC_PFC_THRESHOLD": Rule(1.0, "PFC at a fixed threshold"),
    "PACKET_PAYLOAD_SIZE": Rule(1000.0, "another payload than 1000 B"),
    "L2_ACK_INTERVAL": Rule(1.0, "an ACK for several packets"),
    "RATE_BOUND": Rule(1.0, "senders without a rate limiter"),
    "GLOBAL_T": Rule(1.0, "windows by each pair's own RTT", (3, 8)),
    "MULTI_RATE": Rule(0.0, "a rate per hop", (3,)),
    "SAMPLE_FEEDBACK": Rule(0.0, "telemetry of some packets only", (3,)),
    "FAST_REACT": Rule(1.0, "a reaction per round trip", (3,)),
    "ENABLE_IRN": Rule(0.0, "IRN's selective retransmission"),
    "LB_MODE": Rule(0.0, "load balancing other than ECMP"),
}
"""Values that are simulated as they are. Others are taken for these, and named in the notes."""


@dataclass(frozen=True)
class HpccConfig:
    """What a `config.txt` says.

    Attributes:
        values: values by key: numbers, rates in Mb/s, maps as pairs of Gb/s and value; those of
            keys that have no effect here as text.
        path: the file.
        lines: line of each key.
    """

    values: Mapping[str, Value]
    path: Path = field(default=Path("config.txt"), compare=False)
    lines: Mapping[str, int] = field(default_factory=dict, compare=False)

    def number(self, key: str, default: float | None = None) -> float:
        """The value of a key that is a number.

        Args:
            key: the key.
            default: its value in a file without it; None if it has to be there.

        Raises:
            InvalidInput: it is missing, and has no default.
        """
        value = self.values.get(key, default)
        if value is None:
            raise InvalidInput(f"{self.path}: no {key}; expected a line with it")
        assert isinstance(value, float)
        return value

    def error(self, key: str, value: object, allowed: str) -> InvalidInput:
        """The error for a value that is not allowed."""
        return Place(self.path, self.lines.get(key, 1)).error(key, value, allowed)

    @property
    def mode(self) -> int:
        """`CC_MODE`: which senders."""
        return int(self.number("CC_MODE", 1.0))

    def ecn(self, topology: Topology) -> dict[float, tuple[float, float, float]]:
        """Thresholds of the ports of a network, KB, by their rates in Gb/s.

        Raises:
            InvalidInput: a rate of the network is missing, or no thresholds.
        """
        rates = sorted({port.gbps for port in topology.ports})
        if not self.number("ENABLE_QCN", 1.0):
            return dict.fromkeys(rates, (LARGEST_KB, LARGEST_KB, 1.0))
        return {gbps: self._thresholds(gbps) for gbps in rates}

    def _thresholds(self, gbps: float) -> tuple[float, float, float]:
        """Kmin, Kmax (KB) and Pmax at a rate, Gb/s."""
        found = []
        for key in ("KMIN_MAP", "KMAX_MAP", "PMAX_MAP"):
            pairs = self.values.get(key)
            if pairs is None:
                raise InvalidInput(f"{self.path}: no {key}; expected a line with it")
            assert isinstance(pairs, tuple)
            table = dict(x for x in pairs if isinstance(x, tuple))
            if gbps not in table:
                allowed = f"a value for {gbps * 1e9:.0f} too, the rate of a port"
                raise self.error(key, [f"{x * 1e9:.0f}" for x in table], allowed)
            found.append(table[gbps])
        try:
            return checked_thresholds(found, f"Kmin, Kmax and Pmax at {gbps:g} Gb/s")
        except ValueError as error:
            lines = ", ".join(str(self.lines.get(f"{x}_MAP", 1)) for x in ("KMIN", "KMAX", "PMAX"))
            raise InvalidInput(f"{self.path}, lines {lines}: {error}") from None

    def settings(self, topology: Topology, origin_ns: int) -> dict[str, Any]:
        """Fields of `replay.Settings` that it fixes, but for the senders.

        Args:
            topology: the network.
            origin_ns: time 0 of the flows in that simulator, ns.

        Raises:
            InvalidInput: see `ecn`; or the end is before the first flow.
        """
        fields: dict[str, Any] = {"ecn": self.ecn(topology), "pfc": True}
        fields["pfc"] = bool(self.number("ENABLE_PFC", 1.0))
        if "BUFFER_SIZE" in self.values:
            fields["buffer_mib"] = self.number("BUFFER_SIZE")
        for key, drain_ms in (("SIMULATOR_STOP_TIME", 0.0), ("FLOWGEN_STOP_TIME", DRAIN_MS)):
            if key in self.values:
                duration = self.number(key) * 1e3 - origin_ns / 1e6 + drain_ms
                if duration <= 0:
                    allowed = f"more than the first start, {origin_ns / 1e9:g} s"
                    raise self.error(key, self.number(key), allowed)
                # In units of 10 µs, as a replay has it; the small number is for rounding errors.
                fields["duration_ms"] = math.ceil(duration * 100 - 1e-6) / 100
                break
        return fields

    def left_out(self) -> list[str]:
        """What it asks for and is not simulated, and keys that are not known."""
        notes = []
        for key, rule in RULES.items():
            value = self.values.get(key, rule.value)
            if value != rule.value and (not rule.modes or self.mode in rule.modes):
                notes.append(f"not simulated: {rule.words} ({_text(key, value)})")
        if window := self._window():
            notes.append(f"not simulated: {window} (HAS_WIN, VAR_WIN)")
        unknown = [key for key in self.values if key not in READERS and key not in WITHOUT_EFFECT]
        if unknown:
            notes.append(f"keys that are not known: {', '.join(unknown)}")
        return notes

    def _window(self) -> str:
        """A window that it asks for and its senders do not have, in words; empty if none."""
        has, follows = self.number("HAS_WIN", 1.0), self.number("VAR_WIN", 0.0)
        if self.mode in (3, 8):
            return "" if has and follows else "these senders without a window that follows the rate"
        if self.mode == 7:
            return "TIMELY with a window" if has else ""
        return "a window of fixed size" if has and not follows else ""


def read_config(path: str | Path) -> HpccConfig:
    """Read a `config.txt`.

    Raises:
        InvalidInput: a file of another kind, or a value that is not allowed; the message names the
            file, the line, and what is expected.
        OSError: the file cannot be opened.
    """
    path = Path(path)
    check_kind(path, CONFIG, "KEY value")
    values: dict[str, Value] = {}
    lines: dict[str, int] = {}
    for place, words in text_lines(path):
        key, *rest = " ".join(words).partition("{")[0].split() or words
        if not rest:
            raise place.error("line", " ".join(words), "KEY value")
        reader = READERS.get(key)
        values[key] = " ".join(rest) if reader is None else reader(place, key, rest)
        lines[key] = place.line
    return HpccConfig(values, path, lines)


def write_config(config: HpccConfig, file: io.TextIOBase) -> None:
    """Write a `config.txt`.

    Args:
        config: what to write.
        file: a text file.

    Raises:
        ValueError: a value that is none of its key.
    """
    file.writelines(f"{_text(key, value)}\n" for key, value in config.values.items())


def _entry(x: float | tuple[float, float]) -> str:
    """A number, or a link rate in bits/s and its value."""
    return f"{round(x[0] * 1e9)} {plain(x[1])}" if isinstance(x, tuple) else plain(x)


def _text(key: str, value: Value) -> str:
    """A line of the file."""
    reader = READERS.get(key)
    if isinstance(value, str):
        words = value
    elif isinstance(value, tuple):
        count = (str(len(value)),) if reader is _map else ()
        words = " ".join((*count, *(_entry(x) for x in value)))
    elif isinstance(value, float | int):
        words = plain(value) + "Mb/s" * (reader is _rate)
    else:
        raise bad_value(key, value, "a number, text, or a tuple of numbers")
    return f"{key} {words}"

"""A trained policy to be used where there is neither JAX nor a simulator; it needs numpy only.

    policy = ecn_marl.load_policy("policy.npz")
    policy.features                                   # what an observation holds, oldest first
    kmin_kb, kmax_kb, pmax = policy.thresholds(obs, gbps=100)

    action, memory = policy.step(obs, memory)         # with a memory; None as an episode begins
    kmin_kb, kmax_kb, pmax = policy.thresholds_of(action, gbps=100)

`files` has what a file holds. Policies of flows that set their rates are `rate_policy.RatePolicy`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from ecn_marl._errors import bad_value
from ecn_marl.baselines.exporting.messages import averages, exchange

GRU = ("recurrent", "recurrent_bias")
"""Arrays of a policy with a memory, see `Policy.gru`."""

BASE_GBPS = 25.0
"""Port rate to which thresholds in KB refer; they are proportional to the rate."""

ACTIVATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, 0.0),
}


class Thresholds(NamedTuple):
    """ECN settings, floats or arrays."""

    kmin_kb: float | np.ndarray
    """Queue at which marking starts, KB (1000 B)."""
    kmax_kb: float | np.ndarray
    """Queue above which every packet is marked, KB."""
    pmax: float | np.ndarray
    """Marking probability at kmax."""


@dataclass(frozen=True, repr=False)
class Policy:
    """A greedy policy: the most likely action, or that of the highest value.

    Attributes:
        header: its training, observations and actions, see `export_policy`.
        layers: weights `[in, out]` and biases `[out]` of its network; one network per port if they
            have one more axis in front. Where ports exchange messages, every second layer is one
            (`messages.exchange`). With a memory, the last but one is the GRU's part of the
            features, of its reset gate, update gate and candidate.
        settings: Kmin KB, Kmax KB, Pmax of every discrete action of a 25 Gb/s port, in the order of
            its components; no rows if actions are continuous.
        gru: the GRU's weights of the memory `[units, 3 units]`, and the candidate's bias `[units]`;
            with an axis of ports as the layers. None without a memory.
        norms: scale and offset of every hidden layer, whose inputs of the activation are normalised
            first (Ba et al. 2016, "Layer Normalization"); empty where they are not.
    """

    header: Mapping[str, Any]
    layers: Sequence[tuple[np.ndarray, np.ndarray]]
    settings: np.ndarray
    gru: tuple[np.ndarray, np.ndarray] | None = None
    norms: Sequence[tuple[np.ndarray, np.ndarray]] = ()

    def __repr__(self) -> str:
        """One line: its algorithm, scenario and shapes."""
        nets = "one network for all ports" if self.shared else "a network per port"
        nets += ", which exchange messages" if self.message else ""
        outputs = self.layers[-1][0].shape[-1]
        name, scenario = self.header["algorithm"], self.header["scenario"]
        memory = f"a memory of {self.units}, " if self.units else ""
        sizes = f"{self.obs_dim} inputs, {memory}{outputs} outputs"
        return f"<Policy of {name} for {scenario}: {sizes}, {nets}>"

    @property
    def obs_dim(self) -> int:
        """Length of an observation."""
        return int(self.layers[0][0].shape[-2])

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the features of one interval; an observation has `history` such blocks."""
        return tuple(self.header["features"]["names"])

    @property
    def shared(self) -> bool:
        """Whether all ports have the same network."""
        return self.layers[0][0].ndim == 2

    @property
    def message(self) -> int:
        """Numbers of a message between ports; 0 where they exchange none, and each acts alone."""
        return int(self.header["network"].get("message", 0))

    @cached_property
    def averages(self) -> np.ndarray:
        """Whom every port hears, see `messages.averages`."""
        return averages(self.header["ports"])

    def among(self, ports: Sequence[Mapping[str, Any]]) -> Policy:
        """The same policy in another network.

        Args:
            ports: `name`, `gbps`, `switch` and `peer` of every port, as `header["ports"]` has them.

        Raises:
            ValueError: a policy with a network per port, and another number of ports; a port
                without one of these fields.
        """
        needed = ("name", "gbps", *(("switch", "peer") if self.message else ()))
        for number, port in enumerate(ports):
            if missing := [name for name in needed if name not in port]:
                raise bad_value(f"ports[{number}]", dict(port), f"also {', '.join(missing)}")
        if not self.shared and len(ports) != len(self.header["ports"]):
            raise bad_value("ports", len(ports), f"{len(self.header['ports'])}: a network each")
        return replace(self, header={**self.header, "ports": [dict(port) for port in ports]})

    @property
    def units(self) -> int:
        """Numbers that a port remembers; 0 for a policy without a memory."""
        return 0 if self.gru is None else int(self.gru[1].shape[-1])

    @property
    def make_options(self) -> dict[str, Any]:
        """Options of `ecn_marl.make` and its faces for environments that suit the policy.

        These are `features`, `history`, `actions`, `action_options` and `interval_us` (µs).
        """
        return {
            "features": self.features,
            "history": self.header["features"]["history"],
            "actions": self.header["actions"]["codec"],
            "action_options": dict(self.header["actions"]["options"]),
            "interval_us": self.header["interval_us"],
        }

    def outputs(self, obs: ArrayLike, port: int | None = None) -> np.ndarray:
        """Outputs of the network: logits, values of actions, or means.

        Args:
            obs: observation `[obs_dim]`, or a batch `[..., obs_dim]`. Without `port`, a policy
                with a network per port needs `[..., ports, obs_dim]`, as does one whose ports
                exchange messages.
            port: number of the port, from 0.

        Raises:
            ValueError: an observation of another length, no such port, a port of a policy whose
                ports exchange messages, or a policy with a memory.
        """
        self._check_no_memory()
        self._check_port(port)
        return self._run(_array(obs), port, None)[0]

    def _check_port(self, port: int | None) -> None:
        ports = len(self.header["ports"])
        if port is not None and not 0 <= port < ports:
            raise bad_value("port", port, f"0 to {ports - 1}")

    def _check_no_memory(self) -> None:
        if self.gru is not None:
            allowed = "none here: a policy with a memory acts by step(obs, memory)"
            raise bad_value("memory", f"{self.units} numbers per port", allowed)

    def _run(
        self, x: np.ndarray, port: int | np.ndarray | None, memory: Any
    ) -> tuple[np.ndarray, Any]:
        """Outputs of the network for one port, for a port of each row, or for all; the memory."""
        if x.shape[-1:] != (self.obs_dim,):
            raise bad_value("obs shape", x.shape, f"(..., {self.obs_dim})")
        ports = len(self.header["ports"])
        if self.message and port is not None:
            raise bad_value("port", port, "None: ports exchange messages, so all act at once")
        all_at_once = self.message > 0 or not self.shared
        if all_at_once and port is None and x.shape[-2:-1] != (ports,):
            one = "" if self.message else ", or one observation and its port"
            raise bad_value("obs shape", x.shape, f"(..., {ports}, {self.obs_dim}){one}")
        chosen = slice(None) if self.shared or port is None else port
        activation = ACTIVATIONS[self.header["network"]["activation"]]
        if self.message:
            return exchange(x, self.layers, self.averages, activation), memory
        last = len(self.layers) - 1
        for i, (weight, bias) in enumerate(self.layers):
            x = _product(x, weight[chosen]) + bias[chosen]
            if self.gru is not None and i == last - 1:
                x = memory = self._remember(x, memory, chosen)
            elif i < last:
                if self.norms:
                    x = _normalised(x, *(part[chosen] for part in self.norms[i]))
                x = activation(x)
        return x, memory

    def _remember(self, given: np.ndarray, memory: Any, chosen: Any) -> np.ndarray:
        """The memory after an interval, `[..., units]`, as `rl.recurrent.gru` computes it."""
        assert self.gru is not None
        weight, bias = (x[chosen] for x in self.gru)
        shape = (*given.shape[:-1], self.units)
        before = np.zeros(shape, np.float32) if memory is None else np.asarray(memory, np.float32)
        if before.shape != shape:
            raise bad_value("memory shape", before.shape, f"{shape}, or None as an episode begins")
        reset, update, candidate = np.split(given, 3, -1)
        of_reset, of_update, of_candidate = np.split(_product(before, weight), 3, -1)
        keep = _sigmoid(update + of_update)
        new = np.tanh(candidate + _sigmoid(reset + of_reset) * (of_candidate + bias))
        after: np.ndarray = keep * before + (1.0 - keep) * new
        return after

    def __call__(self, obs: ArrayLike | Mapping[str, ArrayLike], port: int | None = None) -> Any:
        """Actions for observations, as the environment takes them.

        Args:
            obs: as in `outputs`, or a PettingZoo dict, agent -> observation `[obs_dim]`.
            port: as in `outputs`; a dict names the ports itself.

        Returns:
            int32 (`discrete` without an axis of its own, `multidiscrete` `[..., 3]`), or float32
            `[..., 3]` for `box`. For a dict, a dict: agent -> action.

        Raises:
            ValueError: an observation of another length; no such port; an agent that is no port of
                a policy with a network per port.
        """
        self._check_no_memory()
        return self.step(obs, None, port)[0]

    def step(
        self,
        obs: ArrayLike | Mapping[str, ArrayLike],
        memory: Any = None,
        port: int | None = None,
    ) -> tuple[Any, Any]:
        """Actions for the observations of an interval, and the memory for the next one.

        Args:
            obs: as in `__call__`; a dict has the same agents in every interval.
            memory: what the call before returned; None as an episode begins.
            port: as in `outputs`.

        Returns:
            Actions as `__call__` returns them, and the memory, float32 `[..., units]`; None of a
            policy without one.

        Raises:
            ValueError: as `__call__`, or a memory of other ports.
        """
        if isinstance(obs, Mapping):
            if not obs:
                return {}, memory
            if self.message:
                obs = self._of_all(obs)
            out, memory = self._run(*self._rows(obs), memory)
            return dict(zip(obs, self._chosen(out), strict=True)), memory
        self._check_port(port)
        out, memory = self._run(_array(obs), port, memory)
        return self._chosen(out), memory

    def _chosen(self, out: np.ndarray) -> np.ndarray:
        """The most likely actions of outputs."""
        head = self.header["network"]["head"]
        if head["kind"] == "tanh_mean":
            return np.tanh(out[..., : head["dim"]])
        logits = np.split(out, np.cumsum(head["sizes"])[:-1], axis=-1)
        chosen = np.stack([logit.argmax(-1) for logit in logits], -1).astype(np.int32)
        return chosen[..., 0] if head["scalar"] else chosen

    def _of_all(self, obs: Mapping[str, Any]) -> dict[str, Any]:
        """A PettingZoo dict in the order of the ports, which have to be all there."""
        ports = [f"port_{i}" for i in range(len(self.header["ports"]))]
        if set(obs) != set(ports):
            raise bad_value("agents", list(obs), f"{', '.join(ports)}: ports hear each other")
        return {port: obs[port] for port in ports}

    def _rows(self, obs: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray | None]:
        """Observations of a PettingZoo dict as rows, and their ports where these matter."""
        for agent, agent_obs in obs.items():
            if np.shape(agent_obs) != (self.obs_dim,):
                raise bad_value(f"obs shape of {agent}", np.shape(agent_obs), f"({self.obs_dim},)")
        rows = np.stack(list(obs.values()))
        if self.shared:
            return rows, None
        ports = {f"port_{i}": i for i in range(len(self.header["ports"]))}
        for agent in obs:
            if agent not in ports:
                raise bad_value("agent", agent, f"port_0 … port_{len(ports) - 1}: a network each")
        return rows, np.asarray([ports[agent] for agent in obs])

    def thresholds(
        self, obs: ArrayLike, port: int | None = None, gbps: float | None = None
    ) -> Thresholds:
        """ECN settings for observations.

        Args:
            obs: as in `outputs`.
            port: as in `outputs`.
            gbps: rate of the port, Gb/s; that of `port` in the scenario if None, else 25.
        """
        return self.thresholds_of(self(_array(obs), port), port, gbps)

    def thresholds_of(
        self, action: np.ndarray, port: int | None = None, gbps: float | None = None
    ) -> Thresholds:
        """ECN settings for actions, as `step` returns them.

        Args:
            action: actions `[...]` or `[..., 3]`.
            port: as in `outputs`.
            gbps: rate of the port, Gb/s; that of `port` in the scenario if None, else 25.
        """
        self._check_port(port)
        if gbps is None:
            gbps = BASE_GBPS if port is None else self.header["ports"][port]["gbps"]
        head = self.header["network"]["head"]
        if head["kind"] == "tanh_mean":
            kmin, kmax, pmax = _box(action, self.header["actions"]["options"])
        else:
            index = action[..., None] if head["scalar"] else action
            row = np.ravel_multi_index(tuple(np.moveaxis(index, -1, 0)), tuple(head["sizes"]))
            kmin, kmax, pmax = np.moveaxis(self.settings[row], -1, 0)
        scale = float(gbps) / BASE_GBPS
        return Thresholds(kmin * scale, kmax * scale, pmax)


def _array(obs: Any) -> np.ndarray:
    """Observations as an array; those of a dict have no order of their own."""
    if isinstance(obs, Mapping):
        raise bad_value("obs", list(obs), "an array here: policy(obs) and step(obs) take dicts")
    return np.asarray(obs, np.float32)


def _product(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """`x @ weight`, or with a matrix for each row."""
    return x @ weight if weight.ndim == 2 else np.einsum("...ai,aio->...ao", x, weight)


NORM_EPSILON = 1e-6
"""Added to the variance where layers are normalised, as Flax does."""


def _normalised(x: np.ndarray, scale: np.ndarray, offset: np.ndarray) -> np.ndarray:
    """Inputs of a layer's activation, normalised over the layer."""
    centred = x - x.mean(-1, keepdims=True)
    deviation = np.sqrt((centred**2).mean(-1, keepdims=True) + NORM_EPSILON)
    result: np.ndarray = centred / deviation * scale + offset
    return result


def _sigmoid(x: np.ndarray) -> np.ndarray:
    # By tanh, which does not overflow.
    return 0.5 * (1.0 + np.tanh(0.5 * x))


def _box(action: np.ndarray, options: Mapping[str, Any]) -> tuple[Any, ...]:
    """Kmin KB, Kmax KB, Pmax of `box` actions `[..., 3]`: all on log scales, see `BoxAction`."""
    fraction = (np.clip(action.astype(np.float64), -1.0, 1.0) + 1.0) / 2.0
    (low, high), (rare, sure) = options["kmin_kb"], options["pmax"]
    ratio, top = options["min_ratio"], options["kmax_kb"]
    kmin = low * np.exp(fraction[..., 0] * math.log(high / low))
    widest = np.maximum(np.log(top / (kmin * ratio)), 0.0)
    kmax = kmin * ratio * np.exp(fraction[..., 1] * widest)
    return kmin, kmax, rare * np.exp(fraction[..., 2] * math.log(sure / rare))

"""Exported policies in an environment: `FILE.npz`, or `pretrained:NAME` for one that ships.

The file's header has the network's observations, interval and actions; `view_of` gives them as
options of `ecn_marl.make`. The network is the one that `Policy` runs with numpy.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from ecn_marl._errors import bad_value
from ecn_marl._files import with_lists
from ecn_marl._imports import restore_imports
from ecn_marl.baselines.exporting.export import head_header
from ecn_marl.baselines.exporting.files import PRETRAINED, policy_file, read_policy
from ecn_marl.baselines.exporting.policy import GRU, NORM_EPSILON, Policy
from ecn_marl.baselines.exporting.rate_policy import RatePolicy
from ecn_marl.baselines.gnn import MessagePassing, Neighbours
from ecn_marl.baselines.rl.distributions import Head, head_for
from ecn_marl.baselines.rl.networks import network_flops
from ecn_marl.baselines.rl.recurrent import Recurrent, Remembering
from ecn_marl.envs.agents import check_ports_act
from ecn_marl.envs.interface import PortEnvironment
from ecn_marl.envs.registry import lookup

SUFFIX = ".npz"

ACTIVATIONS = {"tanh": jnp.tanh, "relu": jax.nn.relu}
"""The same functions as `policy.ACTIVATIONS`, in JAX."""


def is_exported(policy: str) -> bool:
    """Whether the name of a policy is that of a file; a folder `….npz` is a run."""
    if policy.startswith(PRETRAINED):
        return True
    return policy.endswith(SUFFIX) and not Path(policy).is_dir()


def read_exported(policy: str) -> Policy:
    """The policy of a file.

    Args:
        policy: `FILE.npz` or `pretrained:NAME`.

    Raises:
        ValueError: no such file or name (with the nearest ones), or a file of another kind.
    """
    file = policy_file(policy)
    if not file.is_file():
        raise bad_value("policy", policy, "a file that `ecn-marl export` has written")
    loaded = read_policy(file)
    if isinstance(loaded, RatePolicy):
        raise bad_value("policy", policy, "a policy of ports here: this one is of flows, for rates")
    restore_imports(loaded.header.get("imports") or {}, f"policy {policy}", trusted=False)
    try:
        view_of(loaded), episodes_of(loaded), loaded.header["network"]["head"]
    except (KeyError, TypeError):
        allowed = "a file whose header has the scenario, features, actions, interval and network"
        raise bad_value("policy", policy, allowed) from None
    return loaded


def digest(policy: str) -> str:
    """SHA-256 of the file of a policy; the file behind a name may change."""
    return hashlib.sha256(policy_file(policy).read_bytes()).hexdigest()


def view_of(policy: Policy) -> dict[str, Any]:
    """Observations, actions and interval of the policy, as options of `ecn_marl.make`."""
    return policy.make_options


def episodes_of(policy: Policy) -> tuple[str, dict[str, Any]]:
    """The scenario that the policy was trained in, and options of `ecn_marl.make` for its episodes.

    Options that belong to the policy's view are left out, and `max_steps` counts intervals of the
    scenario, as in `envs.registry.in_view`.
    """
    header, view = policy.header, view_of(policy)
    trained_with = dict(header.get("options", {}))
    options = {name: x for name, x in trained_with.items() if name not in view}
    if "max_steps" in options:
        scenario_us = lookup(header["scenario"]).interval_us
        options["max_steps"] = round(options["max_steps"] * view["interval_us"] / scenario_us)
    return str(header["scenario"]), options


def exported_controller(
    env: PortEnvironment, policy: Policy, name: str = "policy"
) -> Exported | Remembering:
    """A controller that runs an exported network; the most likely action of every port.

    Args:
        env: functional environment, made with the options of `view_of`.
        policy: the policy.
        name: its name in errors.

    Raises:
        ValueError: see `check_fits`, or messages where agents are not ports.
    """
    if policy.message:
        check_ports_act(env, "messages between ports")
    check_fits(env, policy, name)
    if policy.gru is None:
        layers, norms = jax.tree.map(jnp.asarray, (list(policy.layers), list(policy.norms)))
        head, activation = head_for(env.action), policy.header["network"]["activation"]
        among = _among(env, policy) if policy.message else None
        return Exported((layers, norms), head, activation, policy.shared, among, name)
    *hidden, units, outputs = (int(w.shape[-1]) for w, _ in policy.layers)
    net = Recurrent(tuple(hidden), units // 3, outputs, normalised=bool(policy.norms))
    params: dict[str, Any] = {
        f"Dense_{i}": {"kernel": jnp.asarray(w), "bias": jnp.asarray(b)}
        for i, (w, b) in enumerate(policy.layers)
    }
    params |= {name: jnp.asarray(x) for name, x in zip(GRU, policy.gru, strict=True)}
    params |= {
        f"LayerNorm_{i}": {"scale": jnp.asarray(scale), "bias": jnp.asarray(offset)}
        for i, (scale, offset) in enumerate(policy.norms)
    }
    head = head_for(env.action)
    return Remembering(net, head, {"params": params}, env.num_agents, policy.shared)


def _among(env: PortEnvironment, policy: Policy) -> MessagePassing:
    """The network of a policy whose ports exchange messages, among those of an environment."""
    *inner, (_, bias) = policy.layers
    hidden = tuple(int(b.shape[-1]) for _, b in inner[::2])
    neighbours = Neighbours.of(env.sim.topology)
    return MessagePassing(hidden, int(bias.shape[-1]), neighbours, policy.message)


def check_fits(env: PortEnvironment, policy: Policy, name: str = "policy") -> None:
    """Check that a policy fits an environment.

    Args:
        env: functional environment, made with the options of `view_of`.
        policy: the policy.
        name: its name in errors.

    Raises:
        ValueError: an environment with other observations, actions or intervals, or with another
            number of ports than the policy has networks; an unknown activation.
    """
    header = policy.header
    network = header["network"]
    options = {key: getattr(env.action, key) for key in env.action.options()}
    offered = (tuple(env.feature.names), env.feature.history, round(env.interval_us, 3))
    features = header["features"]
    expected = (tuple(features["names"]), features["history"], round(header["interval_us"], 3))
    if offered != expected or env.obs_dim != policy.obs_dim:
        allowed = f"features, history and interval (µs) {expected}, what {name} was trained with"
        raise bad_value("observations", offered, allowed)
    if head_header(head_for(env.action)) != network["head"] or not _same(
        options, header["actions"]
    ):
        allowed = f"{header['actions']['codec']} actions with the options of {name}"
        raise bad_value("actions", env.action, allowed)
    ports = policy.layers[0][0].shape[0]
    if not policy.shared and ports != env.num_agents:
        allowed = f"one with {ports} ports: {name} has a network for each"
        raise bad_value("scenario", f"{env.name} ({env.num_agents} ports)", allowed)
    if network["activation"] not in ACTIVATIONS:
        allowed = f"one of {', '.join(ACTIVATIONS)}"
        raise bad_value(f"activation of {name}", network["activation"], allowed)


@dataclass(frozen=True)
class Exported:
    """A policy without a memory as a controller, see `exported_controller`.

    Attributes:
        actor: weights and bias of every layer, and scale and offset of every norm, as `Policy` has
            them.
        head: how outputs become actions.
        activation: name of the activation.
        shared: whether all ports have the same network.
        among: the network of a policy whose ports exchange messages, among the neighbours of the
            environment; None if each port acts alone.
        name: its name.
    """

    actor: PyTree
    head: Head
    activation: str
    shared: bool
    among: MessagePassing | None = None
    name: str = field(default="policy", compare=False)

    def __repr__(self) -> str:
        """One line: its name, and the size of its network."""
        return f"<Exported {self.name}: layers of {', '.join(map(str, self.widths))}>"

    @property
    def widths(self) -> list[int]:
        """Length of an observation, and outputs of every layer."""
        layers = self.actor[0]
        return [int(w.shape[-2]) for w, _ in layers] + [int(layers[-1][0].shape[-1])]

    def outputs(self, obs: Float[Array, "*b agents obs"]) -> Float[Array, "*b agents outputs"]:
        """Outputs of the network for every port."""
        layers, norms = self.actor
        if self.among is not None:
            params = {f"Dense_{i}": {"kernel": w, "bias": b} for i, (w, b) in enumerate(layers)}
            return jnp.asarray(self.among.apply({"params": params}, obs))
        x = obs
        for i, (weight, bias) in enumerate(layers):
            product = x @ weight if self.shared else jnp.einsum("...ai,aio->...ao", x, weight)
            x = product + bias
            if i < len(layers) - 1:
                if norms:
                    scale, offset = norms[i]
                    x = jax.nn.standardize(x, epsilon=NORM_EPSILON) * scale + offset
                x = ACTIVATIONS[self.activation](x)
        return x

    def __call__(self, key: jax.Array, obs: Float[Array, "*b agents obs"]) -> Array:
        """Actions for observations."""
        return self.head.mode(self.outputs(obs))

    def costs(self) -> dict[str, float]:
        """What a decision costs: one inference."""
        first, *others = self.widths
        if self.among is None:
            flops = network_flops(others[:-1], first, others[-1])
        else:
            flops = self.among.flops(first)
        return {"inferences_per_decision": 1.0, "flops_per_decision": float(flops)}


def _same(options: Mapping[str, object], actions: Mapping[str, object]) -> bool:
    """Whether options of a codec are those of a header, where lists stand for tuples."""
    return bool(with_lists(options) == with_lists(actions["options"]))

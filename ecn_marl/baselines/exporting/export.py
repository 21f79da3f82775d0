"""Export of a trained policy to one file (`policy.py`)."""

from __future__ import annotations

from dataclasses import fields
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from ecn_marl._errors import bad_value, unknown_name
from ecn_marl.baselines.exporting.policy import ACTIVATIONS, GRU, Policy
from ecn_marl.baselines.rl.distributions import Head
from ecn_marl.envs.agents import check_ports_act
from ecn_marl.envs.ecn import EcnEnv
from ecn_marl.sim.network.topology import KB

ACTIVATION = "tanh"
"""Activation of `networks.Mlp`."""


def export_policy(
    env: EcnEnv,
    head: Head,
    actor: PyTree,
    *,
    algorithm: str,
    activation: str = ACTIVATION,
    message: int = 0,
    **about: object,
) -> Policy:
    """A greedy policy without JAX; for a Q-network, the action of the highest value.

    Args:
        env: environment that it was trained in.
        head: how outputs of the network become actions.
        actor: parameters of an `Mlp` or of a `Recurrent`, or pairs of weights and biases, first
            layer first; own networks of the ports have a leading axis of agents.
        algorithm: name of the trainer.
        activation: between the layers, one of `policy.ACTIVATIONS`.
        message: numbers of a message if ports exchange some, see `gnn.MessagePassing`.
        **about: anything else for the header.

    Raises:
        ValueError: a policy that is not one network from a port's observation to its action.
    """
    check_ports_act(env, "a policy to be exported")
    if env.per_queue:
        raise bad_value("per_queue", env.per_queue, "False for a policy to be exported")
    if activation not in ACTIVATIONS:
        raise unknown_name("activation", activation, ACTIVATIONS)
    gru, norms, actor = _parts(actor)
    layers = _dense_layers(actor)
    if layers is None or layers[0][0].shape[-2] != env.obs_dim:
        allowed = "a trainer whose policy is one network from a port's observation to its action"
        raise bad_value("algorithm", algorithm, allowed)
    options = {name: getattr(env.action, name) for name in env.action.options()}
    header = {
        "algorithm": algorithm,
        "scenario": env.name,
        "interval_us": env.interval_us,
        "features": {
            "set": env.feature.name,
            "names": list(env.feature.names),
            "history": env.feature.history,
        },
        "normalisation": _normalisation(env),
        "actions": {"codec": env.action.name, "options": options},
        "network": {
            "layers": [int(w.shape[-1]) for w, _ in layers],
            "activation": activation,
            "head": head_header(head),
            **({} if gru is None else {"memory": int(gru[1].shape[-1])}),
            **({"normalised": True} if norms else {}),
            **({"message": message} if message else {}),
        },
        "ports": ports_header(env, neighbours=message > 0),
        **about,
    }
    return Policy(header, layers, _settings(env, head), gru, norms)


def ports_header(env: EcnEnv, neighbours: bool) -> list[dict[str, Any]]:
    """Name and rate of every port; with its neighbours, its switch and the node it leads to."""
    wanted = {"name": "name", "gbps": "rate_gbps"}
    if neighbours:
        wanted |= {"switch": "switch", "peer": "peer"}
    ports = [env.port_info(i) for i in range(env.num_agents)]
    return [{name: port[key] for name, key in wanted.items()} for port in ports]


def head_header(head: Head) -> dict[str, Any]:
    """How outputs become a greedy action, in the form of the header."""
    if head.dim:
        return {"kind": "tanh_mean", "dim": head.dim}
    return {"kind": "argmax", "sizes": list(head.sizes), "scalar": head.scalar}


def _normalisation(env: EcnEnv) -> dict[str, float]:
    """Scales of the features (`FeatureScale`), bytes, for a 25 Gb/s port."""
    scale = env.default_params.scale
    names = [f.name for f in fields(scale) if f.name != "port_scale"]
    return {name: float(getattr(scale, name)) for name in names}


Pair = tuple[np.ndarray, np.ndarray]
"""Weights and biases, or scales and offsets."""


def _parts(actor: PyTree) -> tuple[Pair | None, tuple[Pair, ...], PyTree]:
    """The GRU of a `Recurrent` (None of other networks), the norms, and what is left of them."""
    params = dict(actor.get("params") or {}) if isinstance(actor, dict) else {}

    def array(x: Any) -> np.ndarray:
        return np.asarray(x, np.float32)

    gru: Pair | None = None
    if set(GRU) <= set(params):
        weight, bias = (array(params.pop(name)) for name in GRU)
        gru = weight, bias
    count = sum(name.startswith("LayerNorm_") for name in params)
    norms = [params.pop(f"LayerNorm_{i}") for i in range(count)]
    if gru is None and not norms:
        return None, (), actor
    pairs = tuple((array(norm["scale"]), array(norm["bias"])) for norm in norms)
    return gru, pairs, {**actor, "params": params}


def _dense_layers(actor: PyTree) -> tuple[tuple[np.ndarray, np.ndarray], ...] | None:
    """Weights and biases, given or those of an `Mlp`; None for anything else.

    The standardisation of the features is folded into the first layer.
    """
    if isinstance(actor, list | tuple):
        pairs = jax.device_get([tuple(pair) for pair in actor])
        return tuple((np.asarray(w, np.float32), np.asarray(b, np.float32)) for w, b in pairs)
    params = dict(actor.get("params") or {}) if isinstance(actor, dict) else {}
    centre, gain = (params.pop(name, None) for name in ("centre", "gain"))
    names = [f"Dense_{i}" for i in range(len(params))]
    if not params or set(names) != set(params):
        return None
    dense = [jax.device_get(params[name]) for name in names]
    layers = [(np.asarray(x["kernel"]), np.asarray(x["bias"])) for x in dense]
    if centre is not None:
        weight, bias = layers[0]
        weight = weight * np.asarray(gain)[..., None]
        layers[0] = (weight, bias - np.einsum("...i,...io->...o", np.asarray(centre), weight))
    return tuple(layers)


def _settings(env: EcnEnv, head: Head) -> np.ndarray:
    """Thresholds of every discrete action at 25 Gb/s: KB, KB, probability, `[actions, 3]`."""
    if head.dim:
        return np.zeros((0, 3), np.float32)
    choices = np.asarray(list(product(*map(range, head.sizes))), np.int32)
    actions = jnp.asarray(choices[:, 0] if head.scalar else choices)
    ecn = env.action.decode(actions, jnp.ones(len(choices), jnp.float32))
    return np.stack([ecn.kmin / KB, ecn.kmax / KB, ecn.pmax], -1)

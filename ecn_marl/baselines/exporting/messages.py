"""Ports that exchange messages, in an exported policy; needs numpy only.

What `baselines.gnn.MessagePassing` computes, with the averages as matrices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np


def averages(ports: Sequence[Mapping[str, Any]]) -> np.ndarray:
    """Matrices that average messages: what a port hears of its switch, behind and ahead of it.

    Args:
        ports: `switch` and `peer` (the node that it leads to) of every port, by name.

    Returns:
        `[3, P, P]`: of the ports of its switch, of those that lead to its switch, and of those of
        the switch that it leads to. Rows sum to 1, or to 0 where there are none.
    """
    switch, peer = (np.array([port[name] for port in ports]) for name in ("switch", "peer"))
    heard = np.stack(
        [
            switch[:, None] == switch[None],
            switch[:, None] == peer[None],
            peer[:, None] == switch[None],
        ]
    )
    weights: np.ndarray = (heard / np.maximum(heard.sum(-1, keepdims=True), 1)).astype(np.float32)
    return weights


def exchange(
    x: np.ndarray,
    layers: Sequence[tuple[np.ndarray, np.ndarray]],
    weights: np.ndarray,
    activation: Callable[[np.ndarray], np.ndarray],
) -> np.ndarray:
    """Outputs of all ports, `[..., P, outputs]`.

    Args:
        x: observations `[..., P, obs_dim]`.
        layers: a hidden layer, then a message and a hidden layer for every round, and the outputs.
        weights: see `averages`.
        activation: of hidden layers and messages.
    """
    *inner, (weight, bias) = layers
    for i, (w, b) in enumerate(inner):
        y = activation(x @ w + b)
        # Every second layer is a message; what is heard is put beside what a port knows.
        x = np.concatenate((x, *(part @ y for part in weights)), -1) if i % 2 else y
    return x @ weight + bias

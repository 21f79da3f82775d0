"""Networks of rate policies in int8, after training; numpy only.

Symmetric scales as in Wu et al., "Integer quantization for deep learning inference", 2020, which
Tessler et al. 2021 follow (appendix D): weights with a scale per output, activations with one scale
per layer, observations with one per column. Ranges are calibrated on recorded observations, to
minimise the change of the factors: first one limit for all columns, with the ranges of activations
under it, then each range alone. Percentiles are no substitute: while flows start, one event in ten
has an error of 20 to 150, where tanh has long been flat. Zero stays zero, so without biases a flow
on target keeps its rate, as in float.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ecn_marl._errors import bad_value
from ecn_marl.baselines.exporting.rate_policy import CODE, FRACTION, dense, int8

LIMITS = tuple(2.0 ** (k / 2) for k in range(-2, 25))
"""Candidates for the limit of all columns, 0.5 to 4096."""

CHANGES = (0.5, 0.7, 1.0, 1.4, 2.0)
"""Candidates for the factor of each range after that."""

SWEEPS = 2
"""Passes over the ranges, each chosen with the others fixed."""

CALIBRATION = 4096
"""Observations for the calibration of ranges."""

SATURATED = 4.0
"""Largest output before tanh that gets a code of its own: tanh(4) = 0.9993."""

LARGEST_SHIFT = 24
"""More bits would not change outputs of 7 bits."""

LARGEST_BIAS = 2**30
"""In units of sums; sums of weights alone stay far below it."""

Layers = Sequence[tuple[np.ndarray, np.ndarray]]
"""Weights `[in, out]` and biases `[out]`, first layer first."""


def quantise(
    layers: Layers, limits: tuple[float, float], obs: np.ndarray
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """A network of ReLU layers and tanh in int8.

    Args:
        layers: the network.
        limits: middle and half width of the range of factors.
        obs: recorded observations, `[N, obs]`.

    Returns:
        Arrays for `rate_policy.int8`, and for the header: scales (units per int8 step) of the
        observations, weights and activations, and the mean and largest difference from the factors
        of the float network on these observations.

    Raises:
        ValueError: no observations, or some that are not finite.
    """
    x = np.asarray(obs, np.float32)
    if x.ndim != 2 or not len(x) or not np.isfinite(x).all():
        raise bad_value("observations", x.shape, "[N, obs] finite numbers, N >= 1")
    # The search quantises the network for every candidate; a sample is enough to compare them.
    sample = x[:: -(-len(x) // CALIBRATION)]
    arrays, scales = _quantised(layers, limits, _calibrate(layers, limits, sample))
    reference = dense(np, dense_arrays(layers, limits), x)
    error = np.abs(int8(np, arrays, x) - reference).astype(np.float64)
    differences = {"mean_difference": error.mean(), "largest_difference": error.max()}
    about = {name: float(value) for name, value in differences.items()}
    return arrays, {**scales, **about, "observations": len(x)}


def dense_arrays(layers: Layers, limits: tuple[float, float]) -> dict[str, np.ndarray]:
    """The float network as `rate_policy.dense` reads it."""
    arrays = {"range": np.asarray(limits, np.float32)}
    for i, (weight, bias) in enumerate(layers):
        arrays |= {f"w{i}": weight.astype(np.float32), f"b{i}": bias.astype(np.float32)}
    return arrays


def _calibrate(layers: Layers, limits: tuple[float, float], obs: np.ndarray) -> np.ndarray:
    """Ranges of all columns of the observations, then of the output of every layer."""
    reference = dense(np, dense_arrays(layers, limits), obs)

    def error(ranges: np.ndarray) -> float:
        quantised = int8(np, _quantised(layers, limits, ranges)[0], obs)
        return float(np.abs(quantised - reference).mean(dtype=np.float64))

    ranges = min((_within(layers, obs, limit) for limit in LIMITS), key=error)
    for i in [*range(len(ranges))] * SWEEPS:
        tried = [ranges.copy() for _ in CHANGES]
        for candidate, change in zip(tried, CHANGES, strict=True):
            candidate[i] *= change
        ranges = min(tried, key=error)
    return ranges


def _within(layers: Layers, obs: np.ndarray, limit: float) -> np.ndarray:
    """Largest absolute values of columns up to a limit, and of the layers' outputs for these."""
    clipped = np.clip(obs, -limit, limit)
    columns = np.abs(clipped).max(0)
    outputs = [np.abs(x).max() for x in _activations(layers, clipped)]
    outputs[-1] = min(outputs[-1], SATURATED)
    ranges = np.array([*columns, *outputs], np.float64)
    # A column that is always 0 would have a step of 0.
    return np.where(ranges > 0.0, ranges, 1.0)


def _quantised(
    layers: Layers, limits: tuple[float, float], ranges: np.ndarray
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The network in int8 with given ranges, and its scales."""
    inputs = layers[0][0].shape[0]
    column, steps = ranges[:inputs] / CODE, ranges[inputs:] / CODE
    arrays: dict[str, Any] = {"inverse": (1.0 / column).astype(np.float32)}
    scales: dict[str, Any] = {"observation_scales": column.tolist(), "weight_scales": []}
    input_step: np.ndarray = column[:, None]  # the observations' scale is folded into the weights
    for i, ((weight, bias), output_step) in enumerate(zip(layers, steps, strict=True)):
        folded = weight.astype(np.float64) * input_step
        # An output whose weights are all 0 would have a scale of 0.
        scale = np.where(folded.any(0), np.abs(folded).max(0), 1.0) / CODE
        codes = np.rint(folded / scale).astype(np.int8)
        offset = np.rint(bias.astype(np.float64) / scale).clip(-LARGEST_BIAS, LARGEST_BIAS)
        offset = offset.astype(np.int64)
        factor, shift = _multipliers(scale / output_step, codes, offset)
        arrays |= {f"w{i}": codes, f"b{i}": offset.astype(np.int32)}
        arrays |= {f"m{i}": factor, f"shift{i}": np.int32(shift)}
        scales["weight_scales"].append(scale.tolist())
        input_step = output_step
    scales["activation_scales"] = steps.tolist()
    table = limits[0] + limits[1] * np.tanh(np.arange(-CODE, CODE + 1) * steps[-1])
    arrays["table"] = np.rint(table / FRACTION).astype(np.int32)
    return arrays, scales


def _multipliers(
    ratio: np.ndarray, codes: np.ndarray, offset: np.ndarray
) -> tuple[np.ndarray, int]:
    """Fixed-point factors of a layer's sums and their shift, the largest that stays in int32."""
    bound = CODE * np.abs(codes.astype(np.int64)).sum(0) + np.abs(offset)
    for shift in range(LARGEST_SHIFT, 0, -1):
        # Where even the smallest shift overflows, nearly every sum is out of range of the codes.
        factor, largest = np.rint(ratio * 2.0**shift), (2**31 - 1 - 2 ** (shift - 1)) // (bound + 1)
        if (factor <= largest).all():
            break
    return np.minimum(factor, largest).astype(np.int32), shift


def _activations(layers: Layers, obs: np.ndarray) -> list[np.ndarray]:
    """Outputs of every layer, `[N, out]`; the last before tanh."""
    outputs, x = [], obs.astype(np.float64)
    for i, (weight, bias) in enumerate(layers):
        x = x @ weight + bias
        if i < len(layers) - 1:
            x = np.maximum(x, 0.0)
        outputs.append(x)
    return outputs

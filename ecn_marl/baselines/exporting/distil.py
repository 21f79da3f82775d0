"""A policy of rates as a regression tree, grown on recorded observations; numpy only.

CART (Breiman et al. 1984): every node splits where the squared error of two means is least, with at
least `MIN_ROWS` observations on both sides. All leaves have the same depth. A node without such a
split sends everything to the left.
"""

from __future__ import annotations

import numpy as np

from ecn_marl._errors import bad_value

DEEPEST = 12
"""Deepest tree: 4096 leaves."""

MIN_ROWS = 8
"""Observations on either side of a split."""


def check_depth(depth: int) -> None:
    """Raise a ValueError for a depth that is not allowed."""
    if not 1 <= depth <= DEEPEST:
        raise bad_value("depth", depth, f"1 to {DEEPEST}")


def grow(obs: np.ndarray, factor: np.ndarray, depth: int) -> dict[str, np.ndarray]:
    """Fit a tree.

    Args:
        obs: observations, `[N, obs]`.
        factor: factors of the rate that the policy chooses, `[N]`.
        depth: comparisons per decision.

    Returns:
        Arrays for `rate_policy.tree`.

    Raises:
        ValueError: a depth that is not allowed, or no observations.
    """
    check_depth(depth)
    x, y = np.asarray(obs, np.float32), np.asarray(factor, np.float64)
    if x.ndim != 2 or not len(x) or y.shape != x.shape[:1]:
        raise bad_value("observations", x.shape, "[N, obs], and [N] factors, N >= 1")
    inner, leaves = 2**depth - 1, 2**depth
    feature = np.zeros(inner, np.int32)
    threshold = np.full(inner, np.inf, np.float32)
    value = np.zeros(2 * leaves - 1)
    rows = {0: np.arange(len(x))}
    for node in range(inner + leaves):
        members = rows.pop(node)
        # A node without observations is never reached; it gets the value of its parent.
        value[node] = y[members].mean() if len(members) else value[(node - 1) // 2]
        if node >= inner:
            continue
        column, limit = _split(x[members], y[members])
        feature[node], threshold[node] = column, limit
        right = x[members, column] > limit
        rows[2 * node + 1], rows[2 * node + 2] = members[~right], members[right]
    return {
        "feature": feature,
        "threshold": threshold,
        "value": value[inner:].astype(np.float32),
    }


def _split(x: np.ndarray, y: np.ndarray) -> tuple[int, np.float32]:
    """Column and threshold with the least squared error; an infinite threshold if there is none.

    The squared error of two means is least where sum(left)^2 / n + sum(right)^2 / m is largest.
    """
    # Equal factors leave gains of rounding errors, which are no reason to split.
    best, chosen = 1e-12, (0, np.float32(np.inf))
    n = len(y)
    if n < 2 * MIN_ROWS:
        return chosen
    # Sums of centred factors on both sides are opposite, which `gain` below relies on.
    centred = y - y.mean()
    left_n = np.arange(1, n)
    for column in range(x.shape[1]):
        # Stable, so that sums, and with them the tree, do not depend on how ties are sorted.
        order = np.argsort(x[:, column], kind="stable")
        values, sums = x[order, column], np.cumsum(centred[order])[:-1]
        gain = sums**2 * (1.0 / left_n + 1.0 / (n - left_n))
        allowed = (values[1:] > values[:-1]) & (left_n >= MIN_ROWS) & (n - left_n >= MIN_ROWS)
        gain = np.where(allowed, gain, 0.0)
        at = int(gain.argmax())
        if gain[at] > best:
            # The lower value itself, not the middle: float32 could round that up to the higher one.
            best, chosen = float(gain[at]), (column, values[at])
    return chosen

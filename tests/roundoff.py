"""Unit roundoffs: every operation is off by at most u of its result.

So a sum of n terms of one sign is off by at most (n - 1) u of itself, a product of n factors by
(n - 1) u, each to first order in u.
"""

U = 2.0**-24
"""Of float32."""

U64 = 2.0**-53
"""Of float64."""

TINY = 2.0**-126
"""XLA flushes smaller numbers of float32 to 0."""

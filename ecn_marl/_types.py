"""The type of pytree fields.

Fields of pytree dataclasses are arrays in computations, numpy or Python numbers in parameters, and
anything while a tree is transformed (axis numbers, shardings, `None`). So they are typed `Leaf`,
and their shapes are in the class's docstring. Functions are typed by shape.
"""

from __future__ import annotations

from typing import Any

Leaf = Any
"""An array, or its substitute while a pytree is transformed."""

__all__ = ["Leaf"]

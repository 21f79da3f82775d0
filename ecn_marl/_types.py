"""The type of pytree fields.

Fields of pytree dataclasses are arrays when code computes with them, but anything while a tree is
transformed (axis numbers, shardings, `None`) and numpy or Python numbers in parameters. So they are
typed `Leaf`, and their shapes stand in the class's docstring; functions are typed by shape.
"""

from __future__ import annotations

from typing import Any

Leaf = Any
"""An array, or what stands in its place while a pytree is transformed."""

__all__ = ["Leaf"]

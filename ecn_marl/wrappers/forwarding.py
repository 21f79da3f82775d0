"""What all wrappers share: they have every attribute of the wrapped environment."""

from __future__ import annotations

from typing import Any


class Forwarding:
    """A base without fields for dataclasses whose field `env` is the wrapped environment."""

    def __getattr__(self, name: str) -> Any:
        """Attributes of the wrapped environment."""
        # Copying and unpickling look names up before `env` is set, which would recurse for ever.
        if name.startswith("__") or name == "env":
            raise AttributeError(name)
        return getattr(self.env, name)

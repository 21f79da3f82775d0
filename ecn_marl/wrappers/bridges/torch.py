"""Arrays of JAX as tensors of PyTorch and back, without a copy, through DLPack.

With these a training loop in PyTorch steps the functional environment without leaving the device:

    obs, state = reset(keys, params)                # jitted, vmapped
    action = policy(to_torch(obs))
    obs, state, reward, *_ = step(keys, state, to_jax(action), params)
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import PyTree


def to_torch(tree: PyTree) -> PyTree:
    """A pytree of JAX arrays as one of tensors on the same device.

    Tensors share the arrays' memory and keep it alive. JAX assumes that it does not change: clone a
    tensor before writing to it in place.

    Raises:
        ImportError: PyTorch is not installed.
    """
    from_dlpack = import_module("torch").from_dlpack
    # JAX computes asynchronously, and PyTorch would read memory that is not written yet.
    return jax.tree.map(lambda x: from_dlpack(jax.block_until_ready(x)), tree)


def to_jax(tree: PyTree) -> PyTree:
    """A pytree of tensors as one of JAX arrays on the same device.

    Tensors that need a gradient are detached. Integers of 64 bits, which PyTorch samples, become
    those of 32 bits that the environments take; that is a copy. Everything else shares the
    tensors' memory: do not write to them while the arrays are in use.
    """

    def convert(x: Any) -> jax.Array:
        # JAX imports compact strides only.
        tensor = x.detach().contiguous()
        if str(tensor.dtype) == "torch.int64":
            tensor = tensor.int()
        return jnp.from_dlpack(tensor)

    return jax.tree.map(convert, tree)

"""DLPack between JAX and PyTorch: values, dtypes and, where documented, shared memory."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ecn_marl.wrappers.bridges.torch import to_jax, to_torch

torch = pytest.importorskip("torch")


def test_to_torch_shares_memory():
    tree = {"obs": jnp.arange(6.0).reshape(2, 3), "done": jnp.array([True, False])}
    tensors = to_torch(tree)
    assert tensors["obs"].dtype == torch.float32 and tensors["done"].dtype == torch.bool
    np.testing.assert_array_equal(tensors["obs"].numpy(), tree["obs"])
    np.testing.assert_array_equal(tensors["done"].numpy(), tree["done"])
    assert tensors["obs"].data_ptr() == tree["obs"].unsafe_buffer_pointer()


def test_to_jax_shares_memory_of_floats_and_narrows_integers():
    # 64-byte alignment, which JAX needs to take memory over on a CPU.
    buffer = torch.arange(64, dtype=torch.float32)
    offset = (-buffer.data_ptr() % 64) // 4
    aligned = buffer[offset : offset + 32].requires_grad_(True)
    array = to_jax(aligned)
    np.testing.assert_array_equal(array, aligned.detach().numpy())
    assert array.unsafe_buffer_pointer() == aligned.data_ptr()
    actions = torch.tensor([[3, 1], [0, 2]]).T
    assert actions.dtype == torch.int64
    action = to_jax({"action": actions})["action"]
    assert isinstance(action, jax.Array) and action.dtype == jnp.int32
    np.testing.assert_array_equal(action, [[3, 0], [1, 2]])

"""The optimiser of all trainers: Adam after clipping by norm, with a learning rate that may fall.

Adam: Kingma and Ba 2015. A rate that falls over a training run ("annealing") lets the policy
converge; with a constant one the scores of checkpoints vary to the end.
"""

from __future__ import annotations

import jax
import optax

FINAL_RATE = 0.01
"""Final learning rate, as a fraction of the first."""


def adam(
    lr: float, max_grad_norm: float, anneal_steps: int = 0, shared: bool = True
) -> optax.GradientTransformation:
    """Adam after clipping by norm; for parameters with a leading axis of agents, one for each.

    Args:
        lr: learning rate at the start.
        max_grad_norm: gradients are scaled down to this norm.
        anneal_steps: gradient steps over which the rate falls linearly to `FINAL_RATE` of `lr`,
            where it stays; 0 for a rate that does not fall.
        shared: whether all agents have the same parameters, without such an axis.
    """
    rate: float | optax.Schedule = lr
    if anneal_steps:
        rate = optax.linear_schedule(lr, FINAL_RATE * lr, anneal_steps)
    # Clipped first, so that one large gradient does not fill Adam's averages for many steps.
    transform = optax.chain(optax.clip_by_global_norm(max_grad_norm), optax.adam(rate, eps=1e-5))
    if shared:
        return transform
    # Mapped over agents, so that each one's gradient is clipped by its own norm.
    return optax.GradientTransformation(jax.vmap(transform.init), jax.vmap(transform.update))

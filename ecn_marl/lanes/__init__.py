"""One environment per lane: programs of one environment as vector code for this processor.

XLA's CPU backend runs a batch of environments operation by operation: every look-up or scatter ends
a fused loop, and most time goes into moving arrays. Here the same program, traced by JAX, is
compiled (by LLVM) with one environment in each lane of the processor's vectors, its loops fused
across look-ups and scatters, its state updated in place, and the batch shared among threads. No
physics is written twice.

    step = lanes.mapped(env.step)       # the same function of one environment ...
    jax.vmap(step, (0, 0, 0, None))     # ... but fast in batches, on a CPU
"""

from ecn_marl.lanes.mapping import LANES, Unsupported, available, mapped, off, vmap

__all__ = ["LANES", "Unsupported", "available", "mapped", "off", "vmap"]

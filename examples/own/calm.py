# calm.py: a reward of your own, utilisation less the queue
import jax.numpy as jnp

import ecn_marl


def calm(stats, params, port_scale, interval_us):
    """Utilisation, less the mean queue in units of 50 KB at 25 Gb/s."""
    return stats.utilisation - jnp.minimum(stats.queue_mean / (50e3 * port_scale), 1.0)


ecn_marl.register_reward("calm", calm)

# queue_peak.py: a feature of your own, how far the largest queue is above the mean
import jax.numpy as jnp

import ecn_marl
from ecn_marl.envs.features import Feature, log_size


def queue_peak(stats, ecn, scale):
    """How far the largest queue of the interval is above its mean; 0 to 1."""
    return jnp.clip(log_size(stats.queue_max, scale) - log_size(stats.queue_mean, scale), 0.0, 1.0)


ecn_marl.register_features("queue_peak", Feature(queue_peak, help="largest queue over its mean"))
ecn_marl.register_features("acc-and-peak", "acc,queue_peak")

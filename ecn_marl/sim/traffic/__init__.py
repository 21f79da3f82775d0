"""Where flows come from.

A source is a class with the methods of `base.Source`; `sources` has them by name. Some are open
loops (`poisson`, `incast`, `phased_incast`, `jobs`, `streams`, `schedules`), in others flows
follow from others (`loops`, `graphs`, `collectives`, by `tickets`), `flow_groups` may be endless.
`sizes` has measured tables and counters of bytes, `sizing` how many flows fit.
"""

from ecn_marl.sim.traffic.base import Offer, SizedSource, Source, anonymous_offer, program_of

__all__ = ["Offer", "SizedSource", "Source", "anonymous_offer", "program_of"]

"""Flows as agents: each sets its own rate, and learns of nothing but its own round trips.

`env` is the functional environment, `actions` what an agent sets, `scenarios` the workloads by name
with `make_rate`, `measure` how well a congestion control does on them (any of
`sim.transports`, too), `parallel` the PettingZoo face.
"""

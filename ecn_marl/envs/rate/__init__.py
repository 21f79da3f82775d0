"""Flows as agents: each sets its own rate and observes only its own round trips.

`env` is the functional environment and `actions` has its actions. `scenarios` has the workloads by
name and `make_rate`. `measure` evaluates a congestion control on them, those of `sim.transports`
too. `parallel` is the PettingZoo face.
"""

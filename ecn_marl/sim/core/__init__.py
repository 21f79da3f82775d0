"""What a byte meets in the network, substep by substep, and what flows carry with them.

A byte's way: `nic`, `hops` (all levels of `queues`), `sink`; signals go back in `feedback`.
`substep` puts them together. `lifecycle` has the stages of a flow and its slot, `arrivals` gives
slots, `tick` has what is constant for a few substeps, `stats` and `counts` what ports did. `pfc`
pauses links, `failures` takes them away, `recovery` sends again what was lost.
"""

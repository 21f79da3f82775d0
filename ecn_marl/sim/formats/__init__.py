"""Files of other simulators, one module per format.

| module | file | of |
|---|---|---|
| `hpcc_flows` | `flow.txt`: a count, then `src dst pg port size start` | HPCC; ConWeave (no port) |
| `hpcc_topology` | `topology.txt`: nodes, switches, links | HPCC, ConWeave |
| `hpcc_config` | `config.txt`: `KEY value ...` | HPCC, ConWeave |
| `hpcc_fct` | `fct.txt`, written | HPCC |
| `cdf` | flow sizes: `size percent` or `size,fraction` | traffic generators |
| `goal` | schedules of sends, receives, computations: a graph of flows | LogGOPSim and its kin |
| `chakra` | execution traces as JSON, one of every rank: a graph of flows | MLCommons, ASTRA-sim |

`hpcc_senders` finds the preset that a `config.txt` has the constants of, `case` reads the files of
an experiment together, `schedules` makes graphs of flows, `lines` knows lines, units, and what kind
of file a file is.

    case = read_case("flow.txt", "topology.txt", "config.txt")
    result = replay(case.flows, case.topology, Settings(**case.settings))

A line that is refused is named by file and number, with what was expected there. What a file asks
for and the simulator does not have (e.g. random loss) is in `case.notes`.

HPCC: Li et al., SIGCOMM'19, and its ns-3 simulator. ConWeave: Song et al., SIGCOMM'23.
"""

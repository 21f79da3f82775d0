"""Measurements of speed: `ecn-marl speed`.

timing         runs, warm-up, spread, rates
machine        what it ran on
programs       the programs that are timed: environments, training
sweep          time against environments, ports, flow slots and substeps
peers          other simulators: JaxMARL, a recorded packet-level simulator, our replay beside it
stages, floor  where the time goes, and the least it could be
report         all of it as one tree (JSON) and as tables
"""

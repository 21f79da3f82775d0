"""Measurements of speed: `ecn-marl speed`.

timing         runs, warm-up, summaries, rates
machine        the machine that it ran on
programs       the programs that are timed: environments, training
sweep          time against environments, ports, flow slots and substeps
peers          other simulators: JaxMARL, a recorded packet-level simulator, our replay beside it
stages, floor  time of each stage, and the least possible time
report         everything as one tree (JSON) and as tables
"""

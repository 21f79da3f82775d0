"""Run-time type checker of the suite: beartype, int taken for float as type checkers do."""

from beartype import BeartypeConf, beartype

check = beartype(conf=BeartypeConf(is_pep484_tower=True))

CHECK_LANES = "LANES_CHECK_TYPES"
"""Environment variable: if set, functions of `ecn_marl.lanes` are checked like all others."""

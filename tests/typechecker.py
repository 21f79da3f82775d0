"""Run-time type checker of the suite: beartype, int taken for float as type checkers do."""

from beartype import BeartypeConf, beartype

check = beartype(conf=BeartypeConf(is_pep484_tower=True))

"""`python -m ecn_marl.cli`."""

from ecn_marl.cli import main

main()

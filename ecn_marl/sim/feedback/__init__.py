"""Feedback to the senders: marks, acknowledgements, round-trip times, in-network telemetry.

A transport names the signals it needs; the others are neither computed nor stored.

* `CNP`: single sampled marks, in a shift register per flow (one bit per substep).
* `ACKS`: packets, marked packets and lost bytes that the sender learns of, one ACK per packet.
* `PROBE`: the round-trip time of one packet per round trip, the one sent when the last came back.
* `TELEMETRY`: queue and bytes sent of every port on the way, as the ACK brings them (HPCC's INT).
* `FIELD`: marking probability and own rate one feedback delay ago (the fluid models' signals).

Each has a module here with its state and what a substep does to it. All but the first read a
history of the last `depth` substeps: an ACK that arrives now left the last queue one return delay
(propagation, ACK queues) ago. Shared modules: `signals` (names, inputs and outputs), `packets`
(which packets are on the way, which arrive and are marked), `echo` (all signals together).
"""

from ecn_marl.sim.feedback.acks import unheard_losses
from ecn_marl.sim.feedback.echo import Echo, Notify, empty_echo, kept, listen, lose, restart
from ecn_marl.sim.feedback.packets import room
from ecn_marl.sim.feedback.signals import (
    ACKS,
    CNP,
    FIELD,
    FINE,
    PROBE,
    TELEMETRY,
    Feedback,
    Line,
    Observed,
)

__all__ = [
    "ACKS",
    "CNP",
    "FIELD",
    "FINE",
    "PROBE",
    "TELEMETRY",
    "Echo",
    "Feedback",
    "Line",
    "Notify",
    "Observed",
    "empty_echo",
    "kept",
    "listen",
    "lose",
    "restart",
    "room",
    "unheard_losses",
]

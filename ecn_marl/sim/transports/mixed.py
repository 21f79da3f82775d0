"""Flows of different senders side by side, e.g. RDMA under DCQCN beside TCP under DCTCP."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int, PyTree

from ecn_marl._types import Leaf
from ecn_marl.sim.feedback import Feedback
from ecn_marl.sim.transports.base import Bound, Transport


@struct.dataclass
class MixedState:
    """Which member each slot belongs to, `[F]`, and the members' states (each of all slots)."""

    kind: Leaf
    members: tuple[PyTree, ...]


@dataclass(frozen=True)
class Mixed:
    """Senders of several kinds, chosen by the traffic class of a flow.

    Every member keeps a state for every slot; only those of its own flows are used. All packets
    carry the longest of the members' headers.

    Attributes:
        members: the senders of each class.
    """

    kind: ClassVar[str] = "mixed"

    members: tuple[Transport, ...]

    @property
    def name(self) -> str:
        """Names of the members."""
        return "+".join(f"{m.kind}:{m.name}" for m in self.members)

    @property
    def header(self) -> float:
        """Longest header of the members, bytes."""
        return max(m.header for m in self.members)

    @property
    def latched(self) -> bool:
        """Whether any member's rates wait for the packet under way; then all do."""
        return any(m.latched for m in self.members)

    def bound_dt(self, line: float) -> Bound:
        """Longest substep that all members tolerate; `line`: rate of the fastest NIC, bytes/µs."""
        bounds = [m.bound_dt(line) for m in self.members if hasattr(m, "bound_dt")]
        return min(bounds, default=Bound(math.inf, "nothing in these senders"))

    @property
    def needs(self) -> frozenset[str]:
        """All that any member needs."""
        return frozenset().union(*(m.needs for m in self.members))

    def default_params(self) -> tuple[PyTree, ...]:
        """Constants of each member."""
        return tuple(m.default_params() for m in self.members)

    def init(
        self, slots: int, dtype: jax.typing.DTypeLike = jnp.float32, levels: int = 1
    ) -> MixedState:
        """State of `slots` idle flows on ways of at most `levels` queues."""
        states = tuple(m.init(slots, dtype, levels) for m in self.members)
        return MixedState(jnp.zeros((slots,), jnp.int32), states)

    def assign(self, state: MixedState, kind: Int[Array, " flows"]) -> MixedState:
        """Say which member each slot belongs to, `[F]`."""
        return replace(state, kind=kind)

    def start(
        self,
        state: MixedState,
        params: tuple[PyTree, ...],
        new: Bool[Array, " flows"],
        line: Float[Array, " flows"],
        base_rtt: Float[Array, ""] | float,
    ) -> MixedState:
        """Start flows, each under its member, see `Transport.start`."""
        states = tuple(
            m.start(s, p, new & (state.kind == i), line, base_rtt)
            for i, (m, s, p) in enumerate(zip(self.members, state.members, params, strict=True))
        )
        return replace(state, members=states)

    def _choose(self, state: MixedState, values: list[Array]) -> Array:
        """Each slot's value from its member's, `[F]`."""
        return jnp.select([state.kind == i for i in range(len(values))], values)

    def rate(self, state: MixedState) -> Float[Array, " flows"]:
        """Rate that each sender allows, bytes/µs, `[F]`."""
        rates = [m.rate(s) for m, s in zip(self.members, state.members, strict=True)]
        return self._choose(state, rates)

    def window(self, state: MixedState) -> Float[Array, " flows"] | None:
        """Payload bytes each flow may have on the way, `[F]`; None if no member has windows."""
        windows = [m.window(s) for m, s in zip(self.members, state.members, strict=True)]
        if all(w is None for w in windows):
            return None
        free = jnp.full(state.kind.shape, 1e9, jnp.result_type(float))
        return self._choose(state, [free if w is None else w for w in windows])

    def notify(
        self,
        state: MixedState,
        params: tuple[PyTree, ...],
        marked: Bool[Array, " flows"],
        dt: float,
    ) -> tuple[MixedState, Bool[Array, " flows"]]:
        """Let the receivers of each member decide which marks leave as CNPs, see `Transport`."""
        states, cnps = list(state.members), marked
        for i, member in enumerate(self.members):
            notify: Callable[..., tuple[PyTree, Array]] | None = getattr(member, "notify", None)
            if notify is not None:
                states[i], sent = notify(states[i], params[i], marked, dt)
                # Members that do not pace return `marked` itself, and need no selection.
                cnps = cnps if sent is marked else jnp.where(state.kind == i, sent, cnps)
        return replace(state, members=tuple(states)), cnps

    def update(
        self, state: MixedState, params: tuple[PyTree, ...], heard: Feedback, dt: float
    ) -> MixedState:
        """Advance all senders by one substep, see `Transport.update`."""
        states = tuple(
            m.update(s, p, heard, dt)
            for m, s, p in zip(self.members, state.members, params, strict=True)
        )
        return replace(state, members=states)

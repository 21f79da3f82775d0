"""The block cipher behind JAX's random numbers."""

from __future__ import annotations

from ecn_marl.lanes.elementwise import Writer
from ecn_marl.lanes.graph import U32

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
"""Of the Threefry-2x32 block cipher (Salmon et al., SC'11, table 2)."""


def threefry(w: Writer, k0: str, k1: str, x0: str, x1: str) -> tuple[str, str]:
    """Twenty rounds of Threefry-2x32."""
    t = w.type(U32)

    def add(a: str, b: str) -> str:
        return w.emit(f"add {t} {a}, {b}")

    k2 = w.emit(f"xor {t} {w.emit(f'xor {t} {k0}, {k1}')}, {w.number(0x1BD11BDA, U32)}")
    keys = (k0, k1, k2)
    x0, x1 = add(x0, k0), add(x1, k1)
    for turn in range(5):
        for by in ROTATIONS[turn % 2]:
            x0 = add(x0, x1)
            # A funnel shift of a word with itself is a rotation; LLVM has no other.
            x1 = w.call("llvm.fshl", U32, x1, x1, w.number(by, U32))
            x1 = w.emit(f"xor {t} {x1}, {x0}")
        x0 = add(x0, keys[(turn + 1) % 3])
        x1 = add(add(x1, keys[(turn + 2) % 3]), w.number(turn + 1, U32))
    return x0, x1

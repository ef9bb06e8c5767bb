"""The gateway that a unit belongs to: of all that there are the one with the greatest hash of unit and gateway.

So with one gateway more, only units move that go to it, and with one less, only its own: nothing has to be remembered,
and all who know the same gateways agree.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import Final

_MASK: Final = (1 << 64) - 1


def fingerprint(unit: bytes) -> int:
    """64 bits that stand for a unit; the same in every process and release.

    Args:
        unit: Its name, whatever it is made of.
    """
    return int.from_bytes(blake2b(unit, digest_size=8).digest(), "big")


def chosen(unit: int, node_ids: Iterable[int]) -> int:
    """The number of the gateway that a unit belongs to.

    Args:
        unit: Its `fingerprint`.
        node_ids: The gateways' numbers, at least one, in any order.
    """
    return max((_mixed(unit ^ _mixed(node_id)), node_id) for node_id in node_ids)[1]


def _mixed(bits: int) -> int:
    """Other bits, each of which depends on all of these (the finalizer of splitmix64)."""
    bits = (bits + 0x9E3779B97F4A7C15) & _MASK
    bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & _MASK
    return bits ^ (bits >> 31)

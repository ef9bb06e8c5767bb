"""Which partition of Kafka's own topics stands for a group or a transactional id: its leader coordinates that."""

from __future__ import annotations

from enum import Enum
from functools import reduce
from typing import Final

_UNITS: Final = "utf-16-be"
_MASK: Final = (1 << 32) - 1
_SIGN: Final = 1 << 31


class CoordinatorType(Enum):
    """What is coordinated."""

    GROUP = "group"
    """Groups, by the partitions of `__consumer_offsets`."""
    TRANSACTION = "transactional id"
    """Transactional ids, by those of `__transaction_state`."""


def partition_for(key: str, partitions: int) -> int:
    """The partition that Kafka keeps a group or a transactional id in.

    That is the absolute value of Java's `String.hashCode()`, or 0 where it has none, modulo the number of partitions
    (Kafka's `GroupMetadataManager.partitionFor` and `TransactionStateManager.partitionFor`).

    Args:
        key: The id of the group, or the transactional id.
        partitions: How many there are, at least one.
    """
    units = memoryview(key.encode(_UNITS, "surrogatepass"))
    found = reduce(
        lambda sofar, at: (31 * sofar + (units[at] << 8 | units[at + 1])) & _MASK, range(0, len(units), 2), 0
    )
    if found >= _SIGN:
        found = (1 << 32) - found
    return (0 if found == _SIGN else found) % partitions

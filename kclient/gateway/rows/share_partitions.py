"""The rows of share groups (KIP-932): what a group has delivered of a partition, and of which topics there are such."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from kclient.gateway.rows.numbers import NumberRow
from kclient.htp.rows import GREATEST, GREATEST_EPOCH, dump, object_of_format, seal, unsealed, whole
from kclient.records.bounds import INT16_MAX

_FORMAT: Final = 1
UNKNOWN: Final = -1
"""The start offset of a partition of which nothing was read yet: `share.auto.offset.reset` says where to begin."""
AVAILABLE, ACKNOWLEDGED, ARCHIVED = 0, 2, 4
"""The states of records that are stored, with Kafka's numbers. Locks (1) are not: who led them before gave them up."""
_STATES: Final = frozenset({AVAILABLE, ACKNOWLEDGED, ARCHIVED})

SHARED_TOPIC: Final = NumberRow("epoch")
"""A topic of a share group: how often an administrator has moved start offsets of its partitions."""


class StateBatch(NamedTuple):
    """Neighbouring records that are in the same state, and were delivered equally often."""

    first: int
    """Offset of the first record."""
    last: int
    """Offset of the last record, inclusive."""
    state: int
    """`AVAILABLE`, `ACKNOWLEDGED` or `ARCHIVED`."""
    deliveries: int
    """How often they were delivered."""


class SharedRow(NamedTuple):
    """What a share group has delivered of a partition."""

    epoch: int
    """How often an administrator has moved the start offset (Kafka's state epoch)."""
    leader_epoch: int
    """Of the partition's leader that has written this; 0 if it was an administrator, as on Kafka."""
    start: int
    """The first offset that is not done with (Kafka's share-partition start offset); `UNKNOWN` until it is chosen."""
    complete: int
    """How many records from `start` on are done with: acknowledged or archived (KIP-1226)."""
    batches: tuple[StateBatch, ...] = ()
    """The records from `start` on that are not as at first, in order; those in between, and behind, are `AVAILABLE`
    and were never delivered."""

    def encode(self) -> bytes:
        """The row."""
        return seal(
            dump(
                {
                    "format": _FORMAT,
                    "epoch": self.epoch,
                    "leader_epoch": self.leader_epoch,
                    "start": self.start,
                    "complete": self.complete,
                    "batches": self.batches,
                }
            )
        )

    @classmethod
    def decode(cls, row: bytes) -> SharedRow:
        """What a row says. Raises `ValueError` if it says nothing sensible."""
        fields = object_of_format(unsealed(row), _FORMAT)
        try:
            start = whole(fields["start"], UNKNOWN)
            return cls(
                whole(fields["epoch"], 0, GREATEST_EPOCH),
                whole(fields["leader_epoch"], 0, GREATEST_EPOCH),
                start,
                whole(fields["complete"]),
                tuple(_batches(fields["batches"], start)),
            )
        except (LookupError, TypeError) as error:
            raise ValueError(f"{row[:200]!r}: {error!r}") from error


def merged(batches: Iterable[StateBatch]) -> Iterator[StateBatch]:
    """Batches in order, neighbours that say the same as one."""
    before: StateBatch | None = None
    for batch in batches:
        if before is not None and before.last + 1 == batch.first and before[2:] == batch[2:]:
            before = before._replace(last=batch.last)
            continue
        if before is not None:
            yield before
        before = batch
    if before is not None:
        yield before


def _batches(rows: list[list[Any]], start: int) -> Iterator[StateBatch]:
    least = max(start, 0)
    for first, last, state, deliveries in rows:
        batch = StateBatch(
            whole(first, least), whole(last, first, GREATEST), whole(state), whole(deliveries, 0, INT16_MAX)
        )
        if batch.state not in _STATES or start == UNKNOWN:
            raise ValueError(f"records from {first} on cannot be in state {state}")
        yield batch
        least = batch.last + 1

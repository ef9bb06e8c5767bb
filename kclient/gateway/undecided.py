"""Appends of which nobody knows whether they are stored, and what reading back finds of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from kclient.errors import KafkaError
from kclient.gateway.batch_headers import StoredHeader

if TYPE_CHECKING:
    from kclient.gateway.append import Append
    from kclient.gateway.log import PartitionLog


class SeenHeader(StoredHeader, Protocol):
    """What is compared of a stored batch's header, beside what the log reads."""

    @property
    def crc(self) -> int: ...


class Undecided:
    """The appends that were under way when the outcome of one was not known; they are withdrawn from their log.

    A batch that is read back is one of them if it has its base offset and leader epoch, its length and its checksum.
    The first two would do where the store keeps its word: an epoch belongs to one leader, which gives an offset again
    only when it was told that what had it is not stored, and no more under this epoch. Length and checksum, which
    covers the producer and its sequence number too, hold the store to it.

    Args:
        log: Of the partition.
    """

    __slots__ = ("_appends", "_by_offset", "_stored", "epoch")

    def __init__(self, log: PartitionLog) -> None:
        self.epoch: int = log.leader_epoch
        """Under which they were sent."""
        self._appends = log.withdraw()
        self._by_offset = {append.base_offset: append for append in self._appends}
        self._stored: set[int] = set()

    def __len__(self) -> int:
        return len(self._appends)

    def saw(self, header: SeenHeader) -> None:
        """A batch was read back, under a newer epoch."""
        append = self._by_offset.get(header.base_offset)
        if (
            append is not None
            and header.partition_leader_epoch == self.epoch
            and header.length == append.length
            and header.crc == append.crc
        ):
            self._stored.add(append.base_offset)

    def decide(self, log: PartitionLog, error: Callable[[Append], KafkaError]) -> list[Append]:
        """Everything was read back: what was not seen is lost. All of them, oldest first, to be told."""
        lost = [append for append in self._appends if append.base_offset not in self._stored]
        for append in self._appends:
            if append.base_offset in self._stored:
                log.found(append)
        for append in reversed(lost):  # what a producer has to begin with is the first that it has lost
            log.lost(append, error(append))
        return self._appends

    def give_up(self, error: KafkaError) -> None:
        """The partition ends: nobody finds out any more."""
        for append in self._appends:
            append.fail(error)
            append.tell()

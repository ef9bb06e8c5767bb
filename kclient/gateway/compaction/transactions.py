"""What a compaction makes of transactions: which batches are of aborted ones, and which markers nobody needs."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kclient.records import BatchHeader, EndMarker


class CleanedTransactions:
    """Follows the transactions of a log from one batch to the next, as Kafka's cleaner does.

    A marker is of no use to anybody once no batch of its transaction is left. Batches come in the order of the log.

    Args:
        aborted: Producer id and first offset of each aborted transaction with records among the batches that come.
    """

    __slots__ = ("_aborted", "_committed", "_due")

    def __init__(self, aborted: Iterable[tuple[int, int]]) -> None:
        self._due = [(first, producer_id) for producer_id, first in aborted]
        heapify(self._due)
        self._aborted: dict[int, bool] = {}
        """The producers whose aborted transaction has begun and not ended: whether a batch of it has come."""
        self._committed: set[int] = set()
        """Those of whom a batch of another transaction has come."""

    def take_batch(self, header: BatchHeader) -> bool:
        """A batch with data has come; whether it belongs to an aborted transaction."""
        self._begin_until(header.last_offset)
        if not header.is_transactional:
            return False
        if header.producer_id in self._aborted:
            self._aborted[header.producer_id] = True
            return True
        self._committed.add(header.producer_id)
        return False

    def take_control(self, header: BatchHeader, marker: EndMarker | None) -> bool:
        """A control batch has come; whether nobody needs it.

        Args:
            header: The batch's.
            marker: What it says of the end of a transaction; None for one that says something else.
        """
        self._begin_until(header.last_offset)
        if not header.count:
            return True  # its marker has gone before
        if marker is None:
            return False
        if marker.committed:
            needed = header.producer_id in self._committed
            self._committed.discard(header.producer_id)
            return not needed
        return not self._aborted.pop(header.producer_id, False)

    def _begin_until(self, offset: int) -> None:
        while self._due and self._due[0][0] <= offset:
            _, producer_id = heappop(self._due)
            self._aborted.setdefault(producer_id, False)

"""The transactions of a log: where the open ones begin, and which were aborted.

Which producer has an open transaction its window tells (`producer_windows`). Here is what readers of committed
records need: how far the log is stable, and what of it to leave out (`aborted`). And here is what keeps a batch from
beginning a transaction that nobody would end.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final, NamedTuple

from kclient.errors import InvalidTxnStateError
from kclient.gateway.aborted import AbortedTransactions, AbortedTxn, ChunkBounds

_NOT_COUNTED: Final = 1 << 60
"""More bytes than there are."""


class EndedTransaction(NamedTuple):
    """A transaction whose end is on its way into the log, or there."""

    first_offset: int
    committed: bool


class Verification:
    """That a coordinator is asked whether a partition is in a producer's transaction; see `LogTransactions.verify`."""

    __slots__ = ("producer_epoch", "producer_id", "waiting")

    def __init__(self, producer_id: int, producer_epoch: int) -> None:
        self.producer_id: int = producer_id
        self.producer_epoch: int = producer_epoch
        self.waiting: int = 0
        """Batches that wait for the answer."""


class LogTransactions:
    """The transactions of one log.

    Args:
        begun: Where the open ones begin.
        aborted: Where aborted ones are told of.
    """

    __slots__ = ("_verifications", "aborted", "held_back", "unstable")

    def __init__(self, begun: Iterable[int] = (), aborted: Iterable[ChunkBounds] = ()) -> None:
        self.aborted: AbortedTransactions = AbortedTransactions(aborted)
        self.unstable: OrderedDict[int, None] = OrderedDict.fromkeys(sorted(begun))
        """Where the transactions begin whose ends are not durable, in order."""
        self.held_back: int = _NOT_COUNTED if self.unstable else 0
        """Bytes that are visible and were not stable when they were counted; some of them may be by now."""
        self._verifications: dict[int, Verification] = {}

    def begin(self, offset: int) -> None:
        """A transaction begins at an offset, behind all others."""
        self.unstable[offset] = None

    def undo(self, offset: int) -> None:
        """What was to be at an offset is not: a transaction that began there does not."""
        self.unstable.pop(offset, None)

    def decided(self, producer_id: int, ended: EndedTransaction, offset: int) -> None:
        """The end of a transaction is durable, at an offset."""
        self.unstable.pop(ended.first_offset, None)
        if not ended.committed:
            # what begins behind it may still be undone, and its offset be given again
            stable = min(next(iter(self.unstable), offset + 1), offset + 1)
            self.aborted.add(AbortedTxn(producer_id, ended.first_offset, offset, stable))

    def stable_offset(self, high_watermark: int) -> int:
        """Everything below is durable and decided."""
        return min(next(iter(self.unstable), high_watermark), high_watermark)

    def visible(self, size: int, *, decided: bool) -> int:
        """So many bytes became visible; how many became stable at most, which is more where some had to wait for it.

        Args:
            size: Bytes.
            decided: Whether the end of a transaction was among them.
        """
        if not self.unstable:
            stable, self.held_back = size + self.held_back, 0
            return stable
        self.held_back += size
        return self.held_back if decided else size

    # Which batches may begin a transaction (KIP-890)

    def verify(self, producer_id: int, producer_epoch: int) -> Verification:
        """Stands for the word of the coordinator on a batch that would begin a transaction, until that is known.

        It is void when a transaction of the producer has ended meanwhile: a batch that was delayed must not begin
        another. Whoever asks for one gives it back by `verified`.
        """
        known = self._verifications.get(producer_id)
        if known is None or known.producer_epoch != producer_epoch:
            known = self._verifications[producer_id] = Verification(producer_id, producer_epoch)
        known.waiting += 1
        return known

    def verified(self, verification: Verification) -> None:
        """The batch was appended, or refused."""
        verification.waiting -= 1
        if not verification.waiting and self._verifications.get(verification.producer_id) is verification:
            del self._verifications[verification.producer_id]

    def check(self, producer_id: int, verification: Verification | None) -> None:
        """Raise `InvalidTxnStateError` for a batch that may not begin a transaction."""
        if verification is None or self._verifications.get(producer_id) is not verification:
            raise InvalidTxnStateError(f"the partition is in no open transaction of producer id {producer_id}")

    def void(self, producer_id: int, next_epoch: int | None = None) -> None:
        """A transaction of a producer ends: what its coordinator says of it is said of another.

        Args:
            producer_id: Of the producer.
            next_epoch: What is verified under this epoch is of a later transaction, and stays; None if that is unknown.
        """
        known = self._verifications.get(producer_id)
        if known is not None and known.producer_epoch != next_epoch:
            del self._verifications[producer_id]

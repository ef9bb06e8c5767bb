"""What logs remember of producers, and no more of it than there may be."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from kclient.errors import InvalidProducerEpochError, OutOfOrderSequenceError

if TYPE_CHECKING:
    from kclient.gateway.batch_headers import Header, Marker
    from kclient.memory_ledger import MemoryAccount

_PART: Final = 20
"""One log may remember one part in so many of the producers that all may."""
FOREIGN: Final = 1 << 62
"""Ids from here on were invented by a client: they must not use up what there is to give out."""
_SURE: Final = 16
"""So many producers each log remembers in any case."""
_TRIED: Final = 8
"""So many are looked at, to forget one of them."""
NO_TRANSACTION: Final = -1
SEQUENCES: Final = 2**31
"""Sequence numbers start again at 0 after 2^31 - 1."""
_PRODUCER: Final = 850
"""About how many bytes of memory a producer takes with its last batches."""


class Remembered(NamedTuple):
    """One batch in a producer's window."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    timestamp: int
    """The batch's log append time, or -1 where the producer's timestamps were kept."""


class ProducerWindow(NamedTuple):
    """What is remembered of one producer id."""

    epoch: int
    batches: tuple[Remembered, ...]
    seen_ms: int
    """When it last appended, in milliseconds since the epoch: an idle producer is forgotten."""
    transaction_start: int = NO_TRANSACTION
    """The first offset of its open transaction: while it has one it is not forgotten."""
    coordinator_epoch: int = -1
    """Of the coordinator that ended its last transaction; an older one must not end another."""

    @property
    def next_sequence(self) -> int:
        """The sequence the next batch has to start with."""
        return (self.batches[-1].last_sequence + 1) % SEQUENCES if self.batches else 0


class FirstBatch(NamedTuple):
    """What a producer that is not known begins with."""

    epoch: int
    sequence: int
    seen_ms: int
    """When it came, in milliseconds since the epoch."""

    def precedes(self, epoch: int, sequence: int) -> bool:
        """Whether a batch of the same epoch comes behind it; one before it was refused where nobody took notice."""
        return epoch == self.epoch and 0 < (sequence - self.sequence) % SEQUENCES < SEQUENCES // 2


def begins_epoch(producer_id: int, epoch: int, first: int, newest: int) -> bool:
    """Whether a batch begins an epoch of its producer.

    Raises:
        InvalidProducerEpochError: It is of an older one than the newest.
        OutOfOrderSequenceError: It begins one, and not at its first sequence number.
    """
    if epoch < newest:
        raise InvalidProducerEpochError(
            f"producer id {producer_id} appended with epoch {epoch}, the newest seen is {newest}"
        )
    if epoch > newest and first != 0:
        raise OutOfOrderSequenceError(
            f"producer id {producer_id} begins epoch {epoch} at sequence {first} instead of 0"
        )
    return epoch > newest


def check_first(producer_id: int, epoch: int, first: int, begins: FirstBatch) -> None:
    """See to it that a producer that is not known begins with what was refused.

    Raises:
        InvalidProducerEpochError: The batch is of an older epoch.
        OutOfOrderSequenceError: It comes behind what was refused.
    """
    if not begins_epoch(producer_id, epoch, first, begins.epoch) and begins.precedes(epoch, first):
        raise OutOfOrderSequenceError(
            f"producer id {producer_id} appended sequence {first}, expected {begins.sequence}"
        )


def goes_on(window: ProducerWindow | None, header: Header) -> bool:
    """Whether a batch belongs to the open transaction of its producer: one of an older epoch is not its own."""
    return window is not None and window.transaction_start >= 0 and window.epoch == header.producer_epoch


def after_end(window: ProducerWindow | None, header: Header, marker: Marker, now_ms: int) -> ProducerWindow:
    """A producer's window behind the end of its transaction, which may raise its epoch (KIP-890)."""
    batches = window.batches if window is not None and window.epoch == header.producer_epoch else ()
    return ProducerWindow(header.producer_epoch, batches, now_ms, NO_TRANSACTION, marker.coordinator_epoch)


class ProducerLimit:
    """How many producers all logs of a gateway remember together (`producer.id.cache.size`).

    Args:
        most: So many.
        memory: Where they count.
    """

    __slots__ = ("_count", "_memory", "each", "greatest", "most")

    def __init__(self, most: int = 100_000, memory: MemoryAccount | None = None) -> None:
        self.most: int = most
        self.each: int = max(most // _PART, _SURE)
        """As many as one log may remember."""
        self._count = 0
        self._memory = memory
        self.greatest: int = -1
        """The greatest id of a producer that any of them has ever remembered, -1 for none."""

    @property
    def count(self) -> int:
        """So many they remember now."""
        return self._count

    @count.setter
    def count(self, count: int) -> None:
        if self._memory is not None:
            self._memory.add(_PRODUCER * (count - self._count))
        self._count = count

    def seen(self, producer_id: int) -> None:
        """A log has met a producer."""
        if self.greatest < producer_id < FOREIGN:
            self.greatest = producer_id


class ProducerWindows:
    """The producers that one log remembers, the longest silent ones first.

    A client can use as many producer ids as it likes. Where there are too many, the one that has been silent for
    longest is forgotten, as all are in the end (`producer.id.expiration.ms`): if it still appends, it may go on; a
    batch that it repeats then is not recognised. One with an open transaction is never forgotten: nobody could tell
    any more where that began.
    """

    __slots__ = ("_limit", "_windows")

    def __init__(self, limit: ProducerLimit, windows: Mapping[int, ProducerWindow] | None = None) -> None:
        self._limit = limit
        self._windows: dict[int, ProducerWindow] = dict(windows or {})
        limit.count += len(self._windows)
        for producer_id in self._windows:
            limit.seen(producer_id)

    def __len__(self) -> int:
        return len(self._windows)

    def get(self, producer_id: int) -> ProducerWindow | None:
        """What is remembered of a producer."""
        return self._windows.get(producer_id)

    def put(self, producer_id: int, window: ProducerWindow) -> None:
        """Remember something of a producer."""
        windows = self._windows
        if windows.pop(producer_id, None) is None:
            limit = self._limit
            limit.count += 1
            limit.seen(producer_id)
            count = len(windows)
            if count >= limit.each or (limit.count > limit.most and count >= _SURE):
                self._forget_one()
        windows[producer_id] = window  # the last one

    def _forget_one(self) -> None:
        """The longest silent one without an open transaction, if there is any among the first few."""
        windows = self._windows
        for producer_id in list(islice(windows, _TRIED)):
            if windows[producer_id].transaction_start == NO_TRANSACTION:
                self.pop(producer_id)
                return
            windows[producer_id] = windows.pop(producer_id)  # it is busy: looked at last the next time

    def pop(self, producer_id: int) -> None:
        """Forget a producer."""
        if self._windows.pop(producer_id, None) is not None:
            self._limit.count -= 1

    def forget(self, before_ms: int, busy: Collection[int]) -> int:
        """Forget those that have been silent since a time, are not busy and have no open transaction; how many."""
        idle = [
            key
            for key, window in self._windows.items()
            if window.seen_ms < before_ms and window.transaction_start == NO_TRANSACTION and key not in busy
        ]
        for key in idle:
            self.pop(key)
        return len(idle)

    def copy(self) -> dict[int, ProducerWindow]:
        """All that is remembered."""
        return dict(self._windows)

    def clear(self) -> None:
        """Forget all."""
        self._limit.count -= len(self._windows)
        self._windows.clear()


class RefusedProducers:
    """Producers that one log does not know and whose first batch could not be stored: what each has to begin with.

    More of theirs may be on the way behind that batch, and must not be taken before it. As many are kept as windows,
    and they count with them.
    """

    __slots__ = ("_begins", "_limit")

    def __init__(self, limit: ProducerLimit) -> None:
        self._limit = limit
        self._begins: dict[int, FirstBatch] = {}

    def __len__(self) -> int:
        return len(self._begins)

    def get(self, producer_id: int) -> FirstBatch | None:
        """What this producer has to begin with; None where that is its own business."""
        return self._begins.get(producer_id)

    def put(self, producer_id: int, begins: FirstBatch) -> None:
        """The first batch of a producer was refused."""
        self.pop(producer_id)
        count, limit = len(self._begins), self._limit
        if count >= limit.each or (limit.count >= limit.most and count >= _SURE):
            self.pop(next(iter(self._begins)))
        self._begins[producer_id] = begins
        limit.count += 1

    def pop(self, producer_id: int) -> None:
        """It has begun."""
        if self._begins.pop(producer_id, None) is not None:
            self._limit.count -= 1

    def items(self) -> list[tuple[int, FirstBatch]]:
        """All of them, those that were refused longest ago first."""
        return list(self._begins.items())

    def forget(self, before_ms: int) -> None:
        """Forget those that were refused before a time."""
        for producer_id, begins in self.items():
            if begins.seen_ms < before_ms:
                self.pop(producer_id)

    def clear(self) -> None:
        """Forget all."""
        self._limit.count -= len(self._begins)
        self._begins.clear()

"""What one fetch brought of one partition, on its way to the user."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

from kclient.errors import CorruptRecordError, RecordDeserializationError, RecordTooLargeError
from kclient.records import iter_headers

if TYPE_CHECKING:
    from collections.abc import Callable

    from kclient.consumer.fetch.budget import Frame
    from kclient.consumer.partition_state import PartitionState
    from kclient.errors import KafkaError
    from kclient.types import Buffer, TopicPartition

    DecodeSome: TypeAlias = Callable[..., tuple[list[Any], int | None, int]]

ENOUGH: Final = 16 * 1024 * 1024
"""Bytes of records, decompressed, behind which no further batch is opened before these were handed out: a megabyte that
was fetched may hold a gigabyte of zeros. As many as were fetched may always be open, so that pieces are few. One Arrow
record batch is made of so many bytes as they were fetched, unless a single fetch has more."""


class CompletedFetch:
    """Record batches of a partition that wait to be handed out, or the error that came instead.

    It counts for one version of the partition's position: after a seek it is worth nothing.
    """

    __slots__ = (
        "aborted",
        "broken",
        "data",
        "end",
        "epoch",
        "error",
        "frame",
        "index",
        "next_offset",
        "opened",
        "records",
        "rest",
        "size",
        "start_offset",
        "state",
        "version",
    )

    def __init__(self, state: PartitionState, data: Buffer = b"") -> None:
        self.state: PartitionState = state
        self.version: int = state.version
        self.data: Buffer = data
        self.size: int = len(data)
        self.frame: Frame | None = None
        """The response whose memory it holds; None for an error."""
        self.start_offset: int = state.fetch_offset
        """The offset that was asked for; the first batch may begin before it."""
        self.next_offset: int = state.fetch_offset
        """The offset behind the last batch, or of the broken record before it."""
        self.end: int = state.fetch_offset
        """The offset behind the last batch, whatever is broken."""
        self.epoch: int | None = state.fetch_epoch
        """Leader epoch of the last batch."""
        self.aborted: list[tuple[int, int]] | None = None
        self.records: list[Any] | None = None
        """The records, once decoded; of many those that are handed out next."""
        self.rest: int | None = None
        """The offset behind `records` where there are more to decode."""
        self.opened: int = 0
        """Bytes after decompression that `records` are of."""
        self.index: int = 0
        """How many of them were handed out."""
        self.broken: bool = False
        """Whether there is a broken record at `next_offset`, which ends the fetch early."""
        self.error: KafkaError | None = None
        """What to raise, or to act on, when it is this fetch's turn."""

    @classmethod
    def of(cls, state: PartitionState, data: Buffer, aborted: list[tuple[int, int]] | None) -> Self:
        """What was fetched at the partition's `fetch_offset`.

        Raises:
            CorruptRecordError: The batches make no sense.
            RecordTooLargeError: Not one batch is complete.
        """
        completed = cls(state, data)
        completed.aborted = aborted
        last = None
        for position, header in iter_headers(data):
            # Offsets lie outside the checksums, so only their order tells of damage there.
            if last is not None and header.base_offset <= last.last_offset:
                raise CorruptRecordError(
                    f"The batch at offset {header.base_offset} follows one that ends at {last.last_offset}",
                    offset=header.base_offset,
                    position=position,
                )
            last = header
        if last is None:
            raise RecordTooLargeError(
                f"The batch at offset {state.fetch_offset} is larger than max.partition.fetch.bytes; raise it"
            )
        if last.next_offset <= state.fetch_offset:
            raise CorruptRecordError(
                f"The broker returned only records before offset {state.fetch_offset}, which was asked for",
                offset=state.fetch_offset,
            )
        completed.next_offset = completed.end = last.next_offset
        completed.epoch = None if last.partition_leader_epoch < 0 else last.partition_leader_epoch
        return completed

    @classmethod
    def failure(
        cls, state: PartitionState, error: KafkaError, go_on_at: int | None = None, epoch: int | None = None
    ) -> Self:
        """A completed fetch that stands for an error, and for where to go on if it is not to be raised."""
        completed = cls(state)
        completed.error = error
        if go_on_at is not None:
            completed.next_offset = go_on_at
            completed.epoch = epoch
        return completed

    @property
    def left(self) -> int:
        """Bytes from the batch on at which the partition goes on."""
        return self.size - self._begin()

    def cut(self) -> None:
        """Keep these only, in memory of their own."""
        self.data = bytes(memoryview(self.data)[self._begin() :])
        self.size = len(self.data)

    def _begin(self) -> int:
        if self.aborted:
            return 0  # where a transaction ends says whether what comes later is aborted too
        place = self.state.position
        return next((begin for begin, header in iter_headers(self.data) if header.last_offset >= place), 0)

    def place_behind(self, count: int) -> tuple[int, int | None]:
        """Offset and leader epoch of the position, once the next `count` records are handed out."""
        assert self.records is not None
        if self.index + count < len(self.records):
            last = self.records[self.index + count - 1]
            return last.offset + 1, last.leader_epoch
        if self.rest is not None:
            return self.rest, self.epoch_before(self.rest)
        return self.next_offset, self.state.epoch if self.broken else self.epoch

    def epoch_before(self, offset: int) -> int | None:
        """Leader epoch of the last batch that ends before the offset."""
        found = self.state.epoch
        for _, header in iter_headers(self.data):
            if header.last_offset >= offset:
                break
            found = None if header.partition_leader_epoch < 0 else header.partition_leader_epoch
        return found

    def go_on(self) -> None:
        """What was decoded has been handed out, up to the partition's position: the rest is decoded next."""
        self.records, self.rest, self.index, self.opened = None, None, 0, 0

    def forget_broken(self) -> None:
        """As columns, which nobody deserializes, it may be whole; if not, that is found again."""
        if self.broken:
            self.next_offset = self.end
            self.broken = False
            self.go_on()

    def decode(self, decode_some: DecodeSome, enough: int | None = None, **options: Any) -> None:
        """Make the next records; if one is broken, those before it: the error is raised when those are handed out.

        Args:
            decode_some: Of the package `records`.
            enough: Bytes after decompression behind which no further batch is opened; None for the usual.
            options: Passed on: deserializers, whether to check checksums.

        Raises:
            KafkaError: The very first record is broken, or the broken place is unknown.
        """
        topic, partition = self.state.tp
        start = max(self.start_offset, self.state.position)
        if enough is None:
            enough = max(ENOUGH, self.size)

        def decode(end: int | None) -> tuple[list[Any], int | None, int]:
            return decode_some(
                self.data, topic, partition, enough, start_offset=start, end_offset=end, aborted=self.aborted, **options
            )

        error: CorruptRecordError | RecordDeserializationError | None = None
        try:
            while True:  # twice; more often where a deserializer fails at one record now, and at another then
                try:
                    self.records, self.rest, self.opened = decode(None if error is None else error.offset)
                    break
                except (CorruptRecordError, RecordDeserializationError) as found:
                    end = found.offset
                    if end is None or end <= start or (error is not None and end >= (error.offset or 0)):
                        raise with_partition(found, self.state.tp) from found.__cause__
                    error = found
            if error is None:
                return
            if not self.records:
                raise with_partition(error, self.state.tp) from error.__cause__
            assert error.offset is not None
            self.broken = True
            self.next_offset = error.offset  # the rest is fetched again, and raises, when this is used up
        finally:
            error = None  # so that no cycle keeps the traceback


def with_partition(error: KafkaError, tp: TopicPartition) -> KafkaError:
    """The error of a broken batch with the partition that the decoder does not know, and how to go on."""
    if not isinstance(error, CorruptRecordError) or error.topic is not None:
        return error
    remedy = "" if error.offset is None else "; seek past it to go on without it"
    return CorruptRecordError(
        f"{tp}: {error.message}{remedy}",
        topic=tp.topic,
        partition=tp.partition,
        offset=error.offset,
        position=error.position,
    )

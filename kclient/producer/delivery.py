"""The handles that users hold on records that they sent."""

from __future__ import annotations

from bisect import bisect_right
from time import monotonic
from typing import TYPE_CHECKING, Any

import anyio

from kclient.arguments import AS_LONG_AS_IT_TAKES, check_timeout
from kclient.producer.batch import BatchState
from kclient.records import LazyDelivery

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

    from kclient.errors import KafkaError
    from kclient.producer.batch import ProducerBatch
    from kclient.types import RecordMetadata


class Delivery(LazyDelivery):
    """A record on its way: await it (or, in blocking code, call `result`) to learn where it was stored.

    It is only a batch and an index, so that keeping a handle per record costs next to nothing. Cancelling the
    wait cancels only the wait.
    """

    __slots__ = ()

    batch: ProducerBatch
    """Private: the batch that the record was put into."""
    index: int
    """Private: its index there."""

    def __repr__(self) -> str:
        batch, index = self.batch.locate(self.index)
        return f"<Delivery {batch.tp} {batch.state.name} index {index}>"

    def __await__(self) -> Generator[Any, Any, RecordMetadata]:
        return self._wait().__await__()

    async def _wait(self) -> RecordMetadata:
        await wait_for_batch(self.batch, self.index)
        self.batch.outcomes.run_callbacks()
        return self.outcome()

    def done(self) -> bool:
        """Whether the record's fate is known."""
        return self.batch.locate(self.index)[0].done

    def exception(self) -> KafkaError | None:
        """Why the record could not be delivered; None if it was, or is still on its way."""
        batch, index = self.batch.locate(self.index)
        if batch.state is not BatchState.FAILED:
            return None
        batch.observe(index)
        return batch.error_of(index)

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Wait for the outcome, in blocking code; in async code `await` the delivery.

        Args:
            timeout: Seconds to wait at most; None waits as long as `delivery.timeout.ms` lets it take.

        Raises:
            KafkaTimeoutError: The record is still on its way.
            IllegalStateError: The producer is not a blocking one and the record is still on its way.
            KafkaError: The record could not be delivered.
        """
        if timeout is not None:
            check_timeout(timeout, AS_LONG_AS_IT_TAKES)
        self.batch.outcomes.block_on(self.batch, self.index, timeout)
        self.batch.outcomes.run_callbacks()
        return self.outcome()

    def outcome(self) -> RecordMetadata:
        """Private: the outcome, once it is known."""
        batch, index = self.batch.locate(self.index)
        if batch.state is BatchState.FAILED:
            batch.observe(index)
            error = batch.error_of(index)
            assert error is not None
            raise error
        return batch.metadata(index)


class Deliveries:
    """The deliveries of `send_batch`, in the order of the values: a sequence of `Delivery`, and awaitable."""

    __slots__ = ("_length", "_segments", "_starts")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._segments: list[tuple[ProducerBatch, int]] = []
        self._length = 0

    def add(self, batch: ProducerBatch, first: int, count: int) -> None:
        """The next `count` values went into this batch, from index `first` on."""
        self._starts.append(self._length)
        self._segments.append((batch, first))
        self._length += count

    def extend(self, more: Deliveries) -> None:
        """Those of another call follow."""
        for start, (batch, first) in zip(more._starts, more._segments, strict=True):
            self._starts.append(self._length + start)
            self._segments.append((batch, first))
        self._length += more._length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, position: int) -> Delivery:
        if position < 0:
            position += self._length
        if not 0 <= position < self._length:
            raise IndexError(position)
        segment = bisect_right(self._starts, position) - 1
        batch, first = self._segments[segment]
        return Delivery(batch, first + position - self._starts[segment])

    def __iter__(self) -> Iterator[Delivery]:
        return (self[position] for position in range(self._length))

    def __await__(self) -> Generator[Any, Any, list[RecordMetadata]]:
        return self._wait().__await__()

    async def _wait(self) -> list[RecordMetadata]:
        await wait_for_batches([batch for batch, _ in self._segments])
        for batch, _ in self._segments[:1]:
            batch.outcomes.run_callbacks()
        return [delivery.outcome() for delivery in self]

    def done(self) -> bool:
        """Whether the fate of every record is known."""
        return all(batch.done for batch, _ in self._segments)

    def result(self, timeout: float | None = None) -> list[RecordMetadata]:
        """Wait for all outcomes, in blocking code; see `Delivery.result`."""
        check_timeout(timeout, AS_LONG_AS_IT_TAKES)
        deadline = None if timeout is None else monotonic() + timeout
        return [delivery.result(None if deadline is None else max(deadline - monotonic(), 0.0)) for delivery in self]


async def wait_for_batch(batch: ProducerBatch, index: int = 0) -> None:
    """Wait until the fate of a record of the batch is known."""
    batch, index = batch.locate(index)
    while not batch.done:
        await _wait_for_change(batch)
        batch, index = batch.locate(index)


async def wait_for_batches(batches: Sequence[ProducerBatch]) -> None:
    """Wait until the fate of every record of the batches is known."""
    for batch in batches:
        while not batch.done:
            if batch.state is BatchState.SPLIT:
                await wait_for_batches([child for _, child in batch.splits])
            else:
                await _wait_for_change(batch)


async def _wait_for_change(batch: ProducerBatch) -> None:
    if batch.outcomes.check_loop is not None:
        batch.outcomes.check_loop()
    event = anyio.Event()
    if batch.add_waiter(event.set):
        try:
            await event.wait()
        finally:
            batch.remove_waiter(event.set)

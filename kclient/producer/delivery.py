"""The handles that users hold on records that they sent."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Sequence
from contextvars import copy_context
from itertools import islice
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeAlias

from kclient.arguments import AS_LONG_AS_IT_TAKES, check_plain_callback, check_timeout
from kclient.concurrency import Gate
from kclient.errors import IllegalStateError
from kclient.producer.batch import ProducerBatch
from kclient.producer.done_callbacks import DoneCallback
from kclient.producer.states import BatchState
from kclient.records import LazyDelivery

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from contextvars import Context

    from kclient.errors import KafkaError
    from kclient.records import Appended
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
        self.batch.reports.run_callbacks()
        return self._outcome()

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
        self.batch.reports.block_on(self.batch, self.index, timeout)
        self.batch.reports.run_callbacks()
        return self._outcome()

    def cancelled(self) -> bool:
        """False: only the wait for a delivery can be cancelled."""
        return False

    def add_done_callback(self, function: Callable[[Delivery], object], *, context: Context | None = None) -> None:
        """Have the asyncio event loop of this thread call a function once the fate is known, as `asyncio.Future` does.

        So `asyncio.wait` takes deliveries, those of a blocking producer, too:
        `done, pending = await asyncio.wait(deliveries, timeout=1.0)`.

        Args:
            function: Called with the delivery, soon after its fate is known, or soon if it is known already.
            context: The context in which it is called; by default a copy of the caller's.

        Raises:
            IllegalStateError: No event loop of asyncio runs in this thread.
            TypeError: The function cannot be called, or is a coroutine function, which nobody would await.
        """
        if function is None:
            raise TypeError("function is a function to be called, not None")
        check_plain_callback(function, "function")
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            raise IllegalStateError(
                "Callbacks of a delivery are called by asyncio's event loop, and none runs here: "
                "give on_delivery to send, await the delivery, or call result in blocking code"
            ) from None
        DoneCallback(self.batch, self.index, function, self, loop, copy_context() if context is None else context)()

    def remove_done_callback(self, function: Callable[[Delivery], object]) -> int:
        """Undo `add_done_callback`, unless the function is about to be called.

        Returns:
            How often it was to be called.
        """
        batch, index = self.batch.locate(self.index)
        return batch.remove_done_callback(index, function)

    def _outcome(self) -> RecordMetadata:
        """The outcome, once it is known."""
        batch, index = self.batch.locate(self.index)
        if batch.state is BatchState.FAILED:
            batch.observe(index)
            error = batch.error_of(index)
            assert error is not None
            raise error
        return batch.metadata(index)


_Segment: TypeAlias = tuple[Sequence[ProducerBatch], Sequence[int], bytes | None]
"""Values in order: their batches, the index of the first in each, and which batch each is in (None: the only one)."""


class Deliveries:
    """The deliveries of `send_batch` or `send_arrow`, in their order: a sequence of `Delivery`, and awaitable."""

    __slots__ = ("_length", "_segments", "_starts", "_unsure")

    def __init__(self) -> None:
        self._unsure = False
        """Whether more values may have been appended than were added here: they are just being."""
        self._starts: list[int] = []
        self._segments: list[_Segment] = []
        self._length = 0

    def _add(self, batch: ProducerBatch, first: int, count: int) -> None:
        """The next `count` values went into this batch, from index `first` on."""
        if self._segments:
            batches, indexes, owners = self._segments[-1]
            if owners is None and batches[0] is batch and indexes[0] + self._length - self._starts[-1] == first:
                self._length += count
                return
        self._starts.append(self._length)
        self._segments.append(((batch,), (first,), None))
        self._length += count

    def _add_rows(self, appended: Appended) -> None:
        """The next values went into several batches, as `Appender.append_rows` tells."""
        batches, indexes, owners = appended
        if len(batches) == 1:
            self._add(batches[0], indexes[0], len(owners))
        elif batches:
            self._starts.append(self._length)
            self._segments.append((batches, indexes, owners))
            self._length += len(owners)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, position: int) -> Delivery:
        if position < 0:
            position += self._length
        if not 0 <= position < self._length:
            raise IndexError(position)
        segment = bisect_right(self._starts, position) - 1
        batches, indexes, owners = self._segments[segment]
        position -= self._starts[segment]
        if owners is None:
            return Delivery(batches[0], indexes[0] + position)
        owner = owners[position]
        return Delivery(batches[owner], indexes[owner] + owners.count(owner, 0, position))

    def __iter__(self) -> Iterator[Delivery]:
        ends = [*self._starts[1:], self._length]
        for start, end, (batches, indexes, owners) in zip(self._starts, ends, self._segments, strict=False):
            places = list(indexes)
            for owner in owners or bytes(end - start):
                yield Delivery(batches[owner], places[owner])
                places[owner] += 1

    def __await__(self) -> Generator[Any, Any, list[RecordMetadata]]:
        return self._wait().__await__()

    async def _wait(self) -> list[RecordMetadata]:
        await wait_for_batches(list(self._batches()))
        for batch in islice(self._batches(), 1):  # all are of one producer
            batch.reports.run_callbacks()
        return [delivery._outcome() for delivery in self]

    def done(self) -> bool:
        """Whether the fate of every record is known."""
        return all(batch.done for batch in self._batches())

    def _batches(self) -> Iterator[ProducerBatch]:
        return (batch for batches, _, _ in self._segments for batch in batches)

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
    batch.reports.check_loop()
    gate = Gate()
    if batch.add_waiter(gate.open):
        try:
            await gate.wait()
        finally:
            batch.remove_waiter(gate.open)

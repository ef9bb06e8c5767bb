"""What the async and the blocking processor offer alike: everything that waits for nobody."""

from __future__ import annotations

import inspect
import time
from collections.abc import Iterable, Mapping
from contextlib import contextmanager
from math import isnan
from typing import TYPE_CHECKING, cast

from kclient.errors import IllegalStateError
from kclient.processing.actions import as_output
from kclient.processing.failures import Raise
from kclient.processing.loop import ClientCalls, ProcessingLoop
from kclient.processing.settings import COMMIT_INTERVAL, MAX_RETRIES, RETRY_TIMEOUT, processing_settings
from kclient.producer import ProducerRecord

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kclient.consumer.base import ConsumerBase
    from kclient.metrics.metric import Metrics
    from kclient.processing.actions import Collect
    from kclient.processing.failures import OnError
    from kclient.processing.progress import ProcessingProgress
    from kclient.producer.base import ProducerBase
    from kclient.tracing.spans import Processing

RAISE = Raise()


class ProcessorBase:
    """The part of a processor that is the same for async and blocking code."""

    _clock = staticmethod(time.monotonic)

    def __init__(
        self,
        consumer: ConsumerBase,
        producer: ProducerBase,
        calls: ClientCalls,
        *,
        batch: bool = False,
        concurrency: int = 1,
        commit_interval: float = COMMIT_INTERVAL,
        on_error: OnError = RAISE,
        max_retries: int = MAX_RETRIES,
        retry_timeout: float = RETRY_TIMEOUT,
    ) -> None:
        self._settings = processing_settings(
            consumer.config,
            producer.config,
            batch=batch,
            concurrency=concurrency,
            commit_interval=commit_interval,
            on_error=on_error,
            max_retries=max_retries,
            retry_timeout=retry_timeout,
        )
        self._reads_from = consumer
        self._loop = ProcessingLoop(consumer, calls, self._settings, self._clock, self._listen)
        self._has_run = False

    def __repr__(self) -> str:
        loop = getattr(self, "_loop", None)  # there is none where an argument was wrong, and a traceback shows locals
        return f"<{type(self).__name__} {loop.state.name if loop is not None else 'not made'}>"

    def stop(self) -> None:
        """Have `run` return: after the record that is being processed, once what is complete is committed.

        Any thread may call it, also a signal handler, and the function itself. Before `run` it makes that return at
        once.
        """
        loop = self._loop
        loop.wakers.append(None)  # before the look at `polling`; whoever finds it waits for what follows
        try:
            loop.stopping = True
            self._wake()
            if loop.polling:
                loop.woken = True
                self._reads_from.wakeup()
        finally:
            loop.wakers.pop()

    def _wake(self) -> None:
        """End a rest."""
        raise NotImplementedError

    def _listen(self) -> bool:
        """Be told of rebalances before the user's listener; returns whether that was not so, in a group."""
        raise NotImplementedError

    @property
    def progress(self) -> ProcessingProgress:
        """The figures by now; any thread may ask."""
        return self._loop.progress.snapshot(_most_behind(self._reads_from.metrics()))

    def _begin(self) -> None:
        if self._has_run:
            raise IllegalStateError("A processor runs once: make a new one; the clients may be the same")
        self._has_run = True


def _most_behind(metrics: Metrics) -> int:
    """The lag of the partition that has the greatest now."""
    lags = (metric.value for name, metric in metrics.items() if name.name == "records-lag")
    return max((int(lag) for lag in lags if isinstance(lag, float) and not isnan(lag)), default=0)


@contextmanager
def spans_of(consumer: ConsumerBase, step: Collect) -> Iterator[None]:
    """The span of what a function is given, for the length of a block; what is sent afterwards belongs to it, too."""
    block = cast("Processing", consumer.processing(step.argument))
    with block:
        step.context = block.again()
        yield


def outputs_of(result: object) -> list[ProducerRecord]:
    """What a function returned, where that needs no awaiting, as a list.

    Raises:
        TypeError: It is neither None, a record, nor an iterable of records.
    """
    if result is None:
        return []
    if isinstance(result, ProducerRecord):
        return [result]
    if isinstance(result, Iterable) and not isinstance(result, str | bytes | bytearray | Mapping):
        iterator = iter(result)
        try:
            return [as_output(record) for record in iterator]
        finally:
            if inspect.isgenerator(iterator):
                iterator.close()  # what it holds, such as a lock, may be needed to try the record again
    return [as_output(result)]

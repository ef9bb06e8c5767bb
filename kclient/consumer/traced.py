"""The parts of a consumer that make spans while tracing is on, and the choice between these and the others.

What `poll` hands out is a span when the call is over, so that the deserializers' time is in it; a poll that hands out
nothing is none. Of an iteration each record is one, when it is handed out.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from kclient.consumer.fetch.collector import FetchCollector, InterceptedFetchCollector
from kclient.consumer.group.committer import Committer, TracedCommitter
from kclient.consumer.polling import Polling
from kclient.consumer.records import ConsumerRecords
from kclient.errors import ClosedError, IllegalStateError, KafkaError, WakeupError

if TYPE_CHECKING:
    from collections.abc import Callable

    from kclient.consumer.actions import Script
    from kclient.records import ConsumerRecord
    from kclient.tracing.spans import ClientTracing


class PollSpans:
    """Makes spans of what is handed out.

    Args:
        tracing: Makes spans.
    """

    def __init__(self, tracing: ClientTracing) -> None:
        self.tracing: ClientTracing = tracing
        """What it was given."""
        self._began: int | None = None

    def poll(self, script: Script) -> Script:
        """Carry out a poll."""
        self._began = began = self.tracing.now()
        try:
            found = yield from script
        except (ClosedError, IllegalStateError, WakeupError):  # the caller's doing
            raise
        except KafkaError as error:
            self.tracing.not_received(began, error)
            raise
        if isinstance(found, ConsumerRecords):
            if len(found):  # perhaps there are only ends of partitions
                self.tracing.received(began, found)
        elif hasattr(found, "num_rows"):
            self.tracing.received_rows(began, found.num_rows)
        return found

    def next_record(self, record: ConsumerRecord | None) -> ConsumerRecord | None:
        """A record of an iteration is handed out, for the first of which a poll may have waited."""
        if record is not None:
            began, self._began = self._began, None
            self.tracing.received(began or self.tracing.now(), [record], batch=False)
        return record


class _TracedPolling(Polling):
    def __init__(self, spans: PollSpans, **parts: Any) -> None:
        super().__init__(**parts)
        self.tracing = spans.tracing
        self._spans = spans

    def poll(self, deadline: float, take: Callable[[], Any]) -> Script:
        """As without tracing."""
        return self._spans.poll(super().poll(deadline, take))


class _TracedCollector(FetchCollector):
    def __init__(self, spans: PollSpans, **parts: Any) -> None:
        super().__init__(**parts)
        self._spans = spans

    def next_record(self) -> ConsumerRecord | None:
        """As without tracing."""
        return self._spans.next_record(super().next_record())


class _TracedInterceptedCollector(_TracedCollector, InterceptedFetchCollector):
    """Shows records to interceptors first."""


def collector_of(spans: PollSpans | None, *, intercepted: bool) -> Callable[..., FetchCollector]:
    """What makes the collector of a consumer."""
    if spans is None:
        return InterceptedFetchCollector if intercepted else FetchCollector
    return partial(_TracedInterceptedCollector if intercepted else _TracedCollector, spans)


def polling_of(spans: PollSpans | None) -> Callable[..., Polling]:
    """What makes the polls of a consumer."""
    return Polling if spans is None else partial(_TracedPolling, spans)


def committer_of(tracing: ClientTracing | None) -> Callable[..., Committer]:
    """What makes the committer of a consumer."""
    return Committer if tracing is None else partial(TracedCommitter, tracing)

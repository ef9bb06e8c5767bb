"""The parts of a share consumer that make spans while tracing is on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kclient.consumer.share.collector import ShareCollector
from kclient.consumer.share.polling import SharePolling

if TYPE_CHECKING:
    from collections.abc import Callable

    from kclient.consumer.actions import Script
    from kclient.consumer.traced import PollSpans
    from kclient.records import ConsumerRecord


class TracedShareCollector(ShareCollector):
    """One of which each record of an iteration is a span.

    Args:
        spans: Makes them.
        parts: As for `ShareCollector`.
    """

    def __init__(self, spans: PollSpans, **parts: Any) -> None:
        super().__init__(**parts)
        self._spans = spans

    def next_record(self) -> ConsumerRecord | None:
        """As without tracing."""
        return self._spans.next_record(super().next_record())


class TracedSharePolling(SharePolling):
    """One whose polls and commits are spans.

    Args:
        spans: Makes them.
        parts: As for `SharePolling`.
    """

    def __init__(self, spans: PollSpans, **parts: Any) -> None:
        super().__init__(**parts)
        self._spans = spans
        self._tracing = spans.tracing

    def poll(self, deadline: float, take: Callable[[], Any]) -> Script:
        """As without tracing."""
        return self._spans.poll(super().poll(deadline, take))

    def commit(self, timeout: float) -> Script:
        """As without tracing; where there was nothing to tell there is no span."""
        began = self._tracing.now()
        try:
            results = yield from super().commit(timeout)
        except BaseException as error:
            self._tracing.settling({}, began).end(error)
            raise
        if results:
            errors = [error for error in results.values() if error is not None]
            self._tracing.settling(results, began).end(errors[0] if errors else None)
        return results

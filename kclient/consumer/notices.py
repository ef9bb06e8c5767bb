"""What the user is told by `poll`, `commit` and `close`: errors, callbacks, interceptors, and that it is over."""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, Any

from kclient.cluster import ClientState
from kclient.consumer.actions import Call, Script, Told
from kclient.errors import ClosedError, UnknownTopicOrPartitionError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kclient.consumer.interfaces import ConsumerInterceptor
    from kclient.errors import KafkaError
    from kclient.serialization import Deserializer
    from kclient.types import OffsetAndMetadata, TopicPartition

logger: logging.Logger = logging.getLogger("kclient.consumer")


class PendingErrors:
    """What the next poll has to raise. To be called under the lock.

    Args:
        on_error: Called when there is one more; wakes who waits.
    """

    def __init__(self, on_error: Callable[[], None]) -> None:
        self._errors: deque[KafkaError] = deque()
        self._on_error = on_error

    def __bool__(self) -> bool:
        return bool(self._errors)

    def add(self, error: KafkaError) -> None:
        """Have the poll that waits raise an error, or the next, unless it has one to raise already."""
        if not self._errors:
            self._errors.append(error)
            self._on_error()

    def raise_first(self) -> None:
        """Raise what has to be raised, if anything has."""
        if self._errors:
            raise self._errors.popleft()

    def forget(self, settled: Callable[[KafkaError], bool] = lambda _: True) -> None:
        """Do not raise what the user has settled meanwhile; by default nothing."""
        self._errors = deque(error for error in self._errors if not settled(error))


class UnreadableTopics:
    """What the cluster says of topics that are to be read. To be called under the lock.

    Args:
        errors: What poll is to raise.
    """

    def __init__(self, errors: PendingErrors) -> None:
        self._errors = errors
        self._missing: set[str] = set()
        """Topics of which the log has said that they do not exist."""

    def heed(self, topic: str, error: KafkaError | None) -> None:
        """There are new metadata of a topic: an error is raised if it stays so, else logged once."""
        if error is None:
            self._missing.discard(topic)
        elif not error.retriable:
            self._errors.add(error)
        elif isinstance(error, UnknownTopicOrPartitionError) and topic not in self._missing:
            self._missing.add(topic)
            logger.warning("topic %r does not exist, so nothing of it is read until it does: is this its name?", topic)


class Notices:
    """What has happened in the background and the user has not been told yet.

    Args:
        state: Where the consumer is in its life: while it closes all are told, whatever they raise.
        interceptors: Are told of commits, and of the end.
        deserializers: Are told of the end.
    """

    def __init__(
        self,
        state: Callable[[], ClientState],
        interceptors: Sequence[ConsumerInterceptor],
        deserializers: Sequence[Deserializer[Any]],
    ) -> None:
        self._due: deque[tuple[Callable[..., Any], tuple[Any, ...]]] = deque()
        """What is to be called, with its arguments."""
        self._state = state
        self._interceptors = interceptors
        self._plugins = (*interceptors, *deserializers)
        """Are closed in the end."""
        self._telling = False

    def __bool__(self) -> bool:
        return bool(self._due)

    def add(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Have something called."""
        self._due.append((function, arguments))

    def committed(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Offsets were committed: the interceptors are told where the user is."""
        if self._interceptors:
            self.add(self._tell_interceptors, offsets)

    def _tell_interceptors(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        for interceptor in self._interceptors:
            try:
                interceptor.on_commit(offsets)
            except Exception:  # the offsets are committed, whatever the user's code makes of it
                logger.exception("%s.on_commit raised", type(interceptor).__name__)

    def run_callbacks(self) -> Script:
        """Tell callbacks, interceptors and listeners what happened in the background."""
        error = yield from self.tell()
        if error is not None:
            raise error

    def tell(self) -> Told:
        """As `run_callbacks`. While the consumer closes all are called, and the first error is returned.

        Nothing while one of them runs: it may commit or close, and what comes of that is told after it.
        """
        if self._telling:
            return None
        self._telling = True
        error: Exception | None = None
        try:
            # no more than there are now: callbacks that commit would keep poll for ever
            left = len(self._due)
            while self._due and (left > 0 or self._state() is not ClientState.RUNNING):
                left -= 1
                function, arguments = self._due.popleft()
                try:
                    yield Call(function, arguments)
                except Exception as failed:
                    state = self._state()
                    if state is ClientState.RUNNING:
                        raise
                    if not (state is ClientState.CLOSED and isinstance(failed, ClosedError)):  # it has been told that
                        error = error or failed
        finally:
            self._telling = False
            if self._state() is ClientState.CLOSED:
                self._close_plugins()
        return error

    def _close_plugins(self) -> None:
        """Tell interceptors and deserializers, once, that the consumer is closed."""
        plugins, self._plugins = self._plugins, ()
        for plugin in plugins:
            close: Any = getattr(plugin, "close", None)
            if close is None:
                continue
            try:
                close()
            except Exception:  # the user's code: the others are closed all the same
                logger.exception("%s.close raised", type(plugin).__name__)

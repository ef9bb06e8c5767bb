"""What the user is told by `poll`, `commit` and `close`: callbacks, interceptors, listeners, and that it is over."""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kclient.consumer.settings import ConsumerPlan
    from kclient.types import OffsetAndMetadata, TopicPartition

logger: logging.Logger = logging.getLogger("kclient.consumer")


class Notices:
    """What has happened in the background and the user has not been told yet; see `polling.run_callbacks`.

    Args:
        plan: Names the interceptors and deserializers.
    """

    def __init__(self, plan: ConsumerPlan) -> None:
        self.due: deque[tuple[Callable[..., Any], tuple[Any, ...]]] = deque()
        """What is to be called, with its arguments."""
        self.telling = False
        """Whether one of them is running."""
        self._plan = plan
        self._over = False

    def add(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Have something called."""
        self.due.append((function, arguments))

    def committed(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Offsets were committed: the interceptors are told where the user is."""
        if self._plan.interceptors:
            self.add(self._tell_interceptors, offsets)

    def _tell_interceptors(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        for interceptor in self._plan.interceptors:
            try:
                interceptor.on_commit(offsets)
            except Exception:  # the offsets are committed, whatever the user's code makes of it
                logger.exception("%s.on_commit raised", type(interceptor).__name__)

    def close_plugins(self) -> None:
        """Tell interceptors and deserializers, once, that the consumer is closed."""
        if self._over:
            return
        self._over = True
        for plugin in (*self._plan.interceptors, *self._plan.deserializers):
            close: Any = getattr(plugin, "close", None)
            if close is None:
                continue
            try:
                close()
            except Exception:  # the user's code: the others are closed all the same
                logger.exception("%s.close raised", type(plugin).__name__)

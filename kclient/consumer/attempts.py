"""Calls that try again until their time is over, and the error that says why they did not succeed."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import anyio

from kclient.arguments import in_seconds
from kclient.cluster import retry
from kclient.errors import KafkaError, KafkaTimeoutError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from kclient.cluster import Cluster

T = TypeVar("T")


class Attempts:
    """The attempts of one consumer's calls.

    Args:
        cluster: Knows who does not answer, and how soon to try again.
        clock: Monotonic time in seconds.
    """

    def __init__(self, cluster: Cluster, clock: Callable[[], float]) -> None:
        self._cluster = cluster
        self._clock = clock

    def late(
        self, what: str, timeout: float, cause: BaseException | None = None, unanswered: str = ""
    ) -> KafkaTimeoutError:
        """What was asked for did not come in time; the text says why, as far as that is known.

        Args:
            what: The start of the sentence.
            timeout: The time of the call, in seconds.
            cause: What last went wrong.
            unanswered: Who was asked and has not answered, see `Cluster.unanswered`.
        """
        cluster = self._cluster
        cause = cause or cluster.error
        reason = "; ".join(filter(None, [unanswered, "" if cause is None else str(cause)]))
        reason = reason or cluster.trouble or cluster.silence(timeout)
        text = (
            f"{what} did not succeed within {in_seconds(timeout)} (default.api.timeout.ms or the timeout of the call)"
        )
        error = KafkaTimeoutError(f"{text}: {reason}" if reason else text)
        error.__cause__ = cause
        return error

    async def retry(
        self, attempt: Callable[[], Awaitable[T]], timeout: float, what: str, unanswered: Callable[[], str]
    ) -> T:
        """Call until it succeeds or fails for good.

        Args:
            attempt: Makes one attempt.
            timeout: Seconds for all of them.
            what: What they are for, as the start of the error's sentence.
            unanswered: Tells who is being asked, when the time is over.

        Raises:
            KafkaTimeoutError: None succeeded in time.
            KafkaError: One failed for a reason that does not pass.
        """
        deadline = self._clock() + timeout
        last: KafkaError | None = None
        asking = ""

        async def once() -> T:
            nonlocal last, asking
            try:
                return await attempt()
            except anyio.get_cancelled_exc_class():
                asking = unanswered()
                raise
            except KafkaError as error:
                last = error
                if error.retriable and error.refresh_metadata:
                    self._cluster.request_update()
                raise

        with anyio.move_on_after(max(timeout, 0)):
            try:
                return await retry(once, self._cluster.retry_backoff, seconds_left=lambda: deadline - self._clock())
            except KafkaError as error:
                if not error.retriable:
                    raise
        raise self.late(what, timeout, last, asking)

"""What `unsubscribe` and `close` do, as scripts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kclient.consumer.actions import Await
from kclient.errors import ClosedError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

    from kclient.consumer.actions import Script, Told
    from kclient.consumer.fetch.control import FetchControl
    from kclient.consumer.group.consumer_group import ConsumerGroup
    from kclient.consumer.notices import Notices

_LEAVE_PATIENCE = 1.0
"""Seconds that `unsubscribe` waits for the coordinator to know; then it goes on without."""


class Departure:
    """How a consumer gives up what it reads.

    Args:
        clock: Monotonic time in seconds.
        group: What it leaves; None without one.
        control: Gives the partitions up.
        notices: Tell callbacks.
        running: Whether the tasks that talk to brokers have not ended.
        shut: Ends the tasks; it is told how many seconds are left.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float],
        group: ConsumerGroup | None,
        control: FetchControl,
        notices: Notices,
        running: Callable[[], bool],
        shut: Callable[[float], Coroutine[Any, Any, None]],
    ) -> None:
        self._clock = clock
        self._group = group
        self._control = control
        self._notices = notices
        self._running = running
        self._shut = shut

    def unsubscribe(
        self, reason: str = "the consumer unsubscribed", timeout: float = _LEAVE_PATIENCE, tell: bool | None = None
    ) -> Script:
        """Give everything up and leave the group; `tell`: see `Membership.leave`."""
        if self._group is None:
            self._control.unsubscribe()
            return
        error = yield from self._group.depart(reason, timeout, self._control.unsubscribe, tell)
        if error is not None:
            raise error

    def close(self, timeout: float, tell: bool | None = None) -> Script:
        """Commit, leave the group, end the tasks, and tell what is due: also of the commits that this gives up.

        `tell`: see `Membership.leave`.
        """
        error: Exception | None = None
        deadline = self._clock() + timeout
        try:
            if self._group is not None:
                error = yield from self._depart(self._group, timeout, tell)
        finally:
            try:
                yield Await(self._shut, (max(deadline - self._clock(), 0.0),))
            finally:
                failed = yield from self._notices.tell()
                error = error or failed
        if error is not None:
            raise error

    def _depart(self, group: ConsumerGroup, timeout: float, tell: bool | None) -> Told:
        """Commit and leave the group; returns what a callback raised."""
        deadline = self._clock() + timeout
        error: Exception | None = None
        if not self._running():
            deadline, timeout = self._clock(), 0
            group.warn_of_positions()
        if timeout > 0:
            yield Await(group.committer.drained, (timeout,))
            error = yield from self._notices.tell()
            if group.committer.busy:  # by a callback
                yield Await(group.committer.drained, (max(deadline - self._clock(), 0),))
            yield from group.commit_at_last(deadline)
        if self._clock() >= deadline:
            group.committer.give_up(ClosedError("The consumer was closed"))  # leaving does not wait for them either
        yield from self.unsubscribe("the consumer was closed", max(deadline - self._clock(), 0), tell)
        return error

"""What the calls of a share consumer do, as scripts: poll, commit, unsubscribe and close."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from kclient.consumer.actions import Await, Wait
from kclient.consumer.share.acquired import ShareCommit
from kclient.consumer.share.sessions import ShareNews
from kclient.errors import ClosedError, IllegalStateError, KafkaError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from kclient.concurrency import MomentLock
    from kclient.consumer.actions import Script
    from kclient.consumer.metrics import PollMetrics
    from kclient.consumer.notices import Notices, PendingErrors
    from kclient.consumer.readiness import PollReadiness
    from kclient.consumer.share.collector import ShareCollector
    from kclient.consumer.share.hand import Hand
    from kclient.consumer.share.member import ShareMember
    from kclient.consumer.share.sessions import ShareSessions
    from kclient.consumer.waits import Waits

logger: logging.Logger = logging.getLogger("kclient.consumer.share")

_POLL_INTERVAL = 1.0
"""Seconds for which records are iterated over without looking at anything else."""
_LEAVE_PATIENCE = 1.0
"""Seconds that `unsubscribe` waits for the brokers to know; then it goes on without. `close` keeps so many of its own,
or half of them, for leaving the group where a broker does not take the last acknowledgements."""


class SharePolling:
    """The calls of one share consumer.

    Args:
        lock: Guards the state machines.
        check: Raises if the consumer failed, or does not answer polls.
        member: The membership.
        sessions: Fetch and acknowledge.
        hand: What the user has.
        collector: Hands records out.
        waits: Have the user's wakeup.
        readiness: Ends the wait for records.
        errors: What to raise.
        notices: Tell callbacks.
        heed: Takes in what has changed, under no lock.
        wake: Has the tasks send what is due.
        running: Whether the tasks that talk to brokers have not ended.
        default_timeout: Seconds for acknowledgements that nobody waits for.
    """

    def __init__(
        self,
        *,
        lock: MomentLock,
        check: Callable[[], None],
        member: ShareMember,
        sessions: ShareSessions,
        hand: Hand,
        collector: ShareCollector,
        waits: Waits,
        readiness: PollReadiness,
        errors: PendingErrors,
        notices: Notices,
        heed: Callable[[ShareNews], None],
        wake: Callable[[], None],
        running: Callable[[], bool],
        metrics: PollMetrics,
        default_timeout: float,
    ) -> None:
        self._metrics = metrics
        self._lock = lock
        self._check = check
        self._member = member
        self._sessions = sessions
        self._hand = hand
        self._collector = collector
        self._waits = waits
        self._readiness = readiness
        self._errors = errors
        self._notices = notices
        self._heed = heed
        self._wake = wake
        self._running = running
        self._default_timeout = default_timeout

    # ------------------------------------------------------------------ polling

    def poll(self, deadline: float, take: Callable[[], Any]) -> Script:
        """Settle what was returned before, then return what `take` gives; None if there is nothing until `deadline`."""
        readiness = self._readiness
        self._metrics.begins(readiness.clock())
        try:
            return (yield from self._poll(deadline, take))
        finally:
            self._metrics.ends(readiness.clock())

    def _poll(self, deadline: float, take: Callable[[], Any]) -> Script:
        readiness, member = self._readiness, self._member
        while True:
            self._check()
            self._waits.take_wakeup()
            self._polled()
            yield from self._notices.run_callbacks()
            self._check()  # a callback may have closed it
            taken = take()
            if not taken:
                self._ask()  # also what was found to be no record is to be told
            if readiness.poll_needed or not taken:
                readiness.update()
            if taken:
                return taken
            if readiness.clock() >= deadline:
                return None
            with self._lock:
                member.wait_in_poll(True, readiness.clock())
            try:
                yield Wait(deadline)
            finally:
                with self._lock:
                    member.wait_in_poll(False, readiness.clock())

    def _polled(self) -> None:
        """The user polls: in implicit mode, what earlier polls returned is processed.

        Raises:
            IllegalStateError: Nothing is subscribed; or in explicit mode not all is acknowledged.
            KafkaError: The group refused this member, or something else has to be said.
        """
        now = self._readiness.clock()
        with self._lock:
            if not self._member.topics:
                raise IllegalStateError("Nothing to poll: subscribe to topics first")
            self._hand.settle(polls=True)
            outside = self._member.outside
            self._member.polled(now)
            self._readiness.poll_due = now + _POLL_INTERVAL
            self._errors.raise_first()
        if self._send(None, self._default_timeout) or outside:
            self._wake()

    def _ask(self) -> None:
        """Have the brokers asked for records, unless some are to be returned again first."""
        with self._lock:
            self._sessions.wanted = not self._hand.renews
        self._send(None, self._default_timeout)
        self._wake()

    def _send(self, commit: ShareCommit | None, timeout: float) -> bool:
        """What the user has said is to be told the brokers; returns whether that is anything."""
        news = ShareNews()
        deadline = self._readiness.clock() + timeout
        with self._lock:
            held = [acquired for acquired in self._hand.all() if acquired.has_chosen]
            self._sessions.acknowledge(held, deadline, news, commit)
            self._hand.forget_settled()
        self._heed(news)
        return bool(held)

    # ------------------------------------------------------------------ commits

    def commit(self, timeout: float) -> Script:
        """Tell the brokers what the user has said, and wait for their answers."""
        commit = self._begin_commit(timeout)
        yield from self._notices.run_callbacks()
        if commit.done:
            return commit.results
        yield Await(self._waits.interruptible, (self._answered, commit, timeout))
        yield from self._notices.run_callbacks()
        return commit.results

    async def _answered(self, commit: ShareCommit, timeout: float) -> None:
        await self._waits.until(lambda: commit.done, timeout, "Acknowledging records")

    def _begin_commit(self, timeout: float) -> ShareCommit:
        commit = ShareCommit()
        with self._lock:
            # another thread may poll meanwhile: its user has not got those yet
            self._hand.settle(polls=False, taken=self._collector.taken or ())
        if self._send(commit, timeout):
            self._wake()
        return commit

    def commit_async(self) -> None:
        """Tell the brokers what the user has said, in the background."""
        self._begin_commit(self._default_timeout)

    # ------------------------------------------------------------------ leaving

    def unsubscribe(
        self, reason: str = "the consumer unsubscribed", timeout: float = _LEAVE_PATIENCE, reserve: float = 0.0
    ) -> Script:
        """Send what was said, have the brokers give back the rest, and leave the group.

        Nothing is accepted by itself: who leaves may have been interrupted amid the records that were returned last.

        Args:
            reason: Why, for the log.
            timeout: Seconds to wait at most; then it goes on in the background.
            reserve: So many of them are kept for leaving the group.
        """
        clock = self._readiness.clock
        deadline = clock() + timeout
        self._send(None, timeout)
        with self._lock:
            self._collector.drop()
            self._hand.drop()
            self._sessions.end()
        self._wake()
        try:
            if timeout > 0 and self._running():
                told = (lambda: not self._sessions.busy, timeout - reserve, "Acknowledging the last records")
                yield Await(self._until, told)
        finally:
            with self._lock:
                self._member.leave(reason)
                self._errors.forget()
            self._wake()
        if self._member.leaving and self._running():
            left = max(deadline - clock(), 0)
            yield Await(self._until, (lambda: not self._member.leaving, left, "Leaving the share group"))
        yield from self._notices.run_callbacks()

    async def _until(self, met: Callable[[], bool], timeout: float, what: str) -> None:
        """Wait until a condition holds, or the time is over."""
        try:
            await self._waits.until(met, timeout, what)
        except KafkaError as error:
            logger.info("%s", error)

    def close(self, timeout: float, shut: Callable[[], Coroutine[Any, Any, None]]) -> Script:
        """As `unsubscribe`, then end the tasks, and tell what is due: also of what this gives up."""
        try:
            if timeout > 0:
                reserve = min(_LEAVE_PATIENCE, timeout / 2)
                yield from self.unsubscribe("the consumer was closed", timeout, reserve)
            else:
                with self._lock:
                    self._member.leave("the consumer was closed")
                self._wake()
        finally:
            try:
                yield Await(shut)
            finally:
                self.give_up(ClosedError("The consumer was closed"))
                error = yield from self._notices.tell()
        if error is not None:
            raise error

    def give_up(self, error: KafkaError) -> None:
        """Nothing is sent or answered any more."""
        news = ShareNews()
        with self._lock:
            self._sessions.give_up(error, news)
        self._heed(news)

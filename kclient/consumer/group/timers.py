"""When to send heartbeats, when the session is over for want of answers, and the membership for want of polls."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kclient.cluster import Backoff


class Heartbeats:
    """The times of one member's heartbeats.

    Args:
        interval: Seconds between heartbeats (`heartbeat.interval.ms`).
        session_timeout: Seconds after which the broker gives the member up (`session.timeout.ms`).
    """

    def __init__(self, interval: float, session_timeout: float) -> None:
        self.interval = interval
        self.session_timeout = session_timeout
        self.due: float = 0.0
        """When to send the next one."""
        self._answered = 0.0
        self._stall = 0.0

    def start(self, now: float) -> None:
        """The broker heard of the member just now."""
        self._answered = now
        self._stall = 0.0
        self.due = now + self.interval

    def sent(self, now: float) -> None:
        """A heartbeat goes out."""
        self.due = now + self.interval

    def answered(self, now: float) -> None:
        """A heartbeat was answered."""
        self._answered = now
        self._stall = 0.0

    @property
    def deadline(self) -> float:
        """When the session ends if no answer comes."""
        return self._answered + self.session_timeout

    def stalled(self, seconds: float) -> None:
        """Nothing could be sent for this long, because the event loop was blocked."""
        self._stall = max(self._stall, seconds)

    def explanation(self) -> str:
        """Why a broker may have given the member up, with the setting to change."""
        limit = f"session.timeout.ms ({round(self.session_timeout * 1000)})"
        if self._stall + self.interval >= self.session_timeout:  # the longest silence that the stall can have made
            return (
                f"the event loop was blocked for {self._stall:.1f} s, so no heartbeat reached the broker within "
                f"{limit}; move blocking work to a thread (or use kclient.sync), or raise session.timeout.ms"
            )
        return (
            f"the broker does not know it (any more): it restarted the group, removed the member, or no heartbeat "
            f"reached it within {limit}"
        )


class RemoteHeartbeats:
    """The times of one member's heartbeats where the broker says how often they are due.

    Args:
        backoff: How soon to try again what failed.
    """

    def __init__(self, backoff: Backoff) -> None:
        self._backoff = backoff
        self._interval = 0.0
        self._due = 0.0
        self._retry_at = 0.0
        self._failures = 0
        self._stall = 0.0

    def due(self, *, changed: bool) -> float:
        """When to send the next one; at once if something has changed that the broker has to know."""
        return self._retry_at if changed else max(self._due, self._retry_at)

    def sent(self, now: float) -> None:
        """A heartbeat goes out."""
        self._due = now + self._interval

    def answered(self, interval: float) -> None:
        """A heartbeat was answered: the next one is due so many seconds after that was sent."""
        self._due += interval - self._interval
        self._interval = interval
        self.again()
        self._stall = 0.0

    def failed(self, now: float) -> None:
        """A heartbeat came to nothing."""
        self._failures += 1
        self._retry_at = now + self._backoff.seconds(self._failures)

    def again(self) -> None:
        """What comes next need not wait for what failed before."""
        self._failures = 0
        self._retry_at = 0.0

    def stalled(self, seconds: float) -> None:
        """Nothing could be sent for this long, because the event loop was blocked."""
        self._stall = max(self._stall, seconds)

    def explanation(self) -> str:
        """Why the broker may have given the member up."""
        if self._interval and self._stall >= self._interval:
            return (
                f"the event loop was blocked for {self._stall:.1f} s, and the broker wants a heartbeat every "
                f"{self._interval:g} s; move blocking work to a thread (or use kclient.sync), or raise the group's "
                "consumer.session.timeout.ms"
            )
        return (
            "the broker removed the member, gave its partitions to others because it had not given them up within "
            "max.poll.interval.ms, or no heartbeat reached it within the group's consumer.session.timeout.ms"
        )


class PollTimer:
    """How long the user may take between two polls.

    Args:
        interval: Seconds (`max.poll.interval.ms`).
    """

    def __init__(self, interval: float) -> None:
        self.interval = interval
        self.deadline: float = inf
        """When the time is over; infinite before the first poll, and while the user waits inside one."""
        self._last = -inf

    def polled(self, now: float) -> None:
        """The user polls."""
        self._last = now
        self.deadline = now + self.interval

    def waits(self, begins: bool, now: float) -> None:
        """The user begins to wait inside poll, or ends it."""
        self.polled(now)
        if begins:
            self.deadline = inf

    def since(self, now: float) -> float:
        """Seconds since the last poll."""
        return now - self._last

"""Which topics a client wants to know of, for how long, and which of them may be created by asking.

A topic is of interest while it is *tracked* (a producer's topics, until nothing was sent to them for
`metadata.max.idle.ms`; what a consumer subscribes to or is assigned), or while somebody *looks at* it (a call that asks
once). A topic in use, because a call waits for it or records wait to be sent to it, is never idle.

Asking for a topic creates it, if client and broker allow that, only where somebody wants it to be there: while it is in
use, or was tracked to be created and has not been found since. One that is deleted later is not created again by the
refresh.
"""

from __future__ import annotations

from collections import Counter
from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable


class TopicInterest:
    """The topics of interest of one client; the time is an argument.

    Args:
        max_idle: Seconds after which a tracked topic that nobody touched is forgotten; None keeps topics for ever.
        in_use: The topics in use.
    """

    def __init__(self, max_idle: float | None, in_use: Callable[[], Collection[str]]) -> None:
        self._max_idle = max_idle
        self._in_use = in_use
        self._tracked: dict[str, float] = {}
        self._idle_at = -inf
        """Before this time none is idle."""
        self._looked_at: Counter[str] = Counter()
        self._wanted: set[str] = set()

    def __contains__(self, topic: object) -> bool:
        return topic in self._tracked or topic in self._looked_at

    @property
    def topics(self) -> list[str]:
        """All of them."""
        return list(dict.fromkeys([*self._tracked, *self._looked_at]))

    def to_create(self, known: Collection[str]) -> set[str]:
        """The topics that are created where they are missing.

        Args:
            known: The topics that are there.
        """
        return {topic for topic in (*self._wanted, *self._in_use()) if topic in self and topic not in known}

    # ------------------------------------------------------------------ tracked

    def track(self, topics: Iterable[str], now: float, *, create: bool) -> list[str]:
        """Track topics, or mark them as used.

        Args:
            topics: Their names.
            now: Monotonic time in seconds.
            create: Whether those that are new are created where they are missing, until they were found once.

        Returns:
            Those that are new.
        """
        fresh: list[str] = []
        for topic in topics:
            if topic not in self._tracked:
                fresh.append(topic)
                if create:
                    self._wanted.add(topic)
            self._tracked[topic] = now
        return fresh

    def track_only(self, topics: Iterable[str], now: float, *, create: bool) -> list[str]:
        """As `track`, and track no others any more."""
        wanted = list(topics)
        for topic in self._tracked.keys() - set(wanted):
            self._forget(topic)
        return self.track(wanted, now, create=create)

    def touch(self, topics: Iterable[str], now: float) -> None:
        """Mark tracked topics as used."""
        for topic in topics:
            if topic in self._tracked:
                self._tracked[topic] = now

    def expire(self, now: float) -> list[str]:
        """Forget the topics that nobody used for too long; returns them."""
        if self._max_idle is None or now < self._idle_at:
            return []
        oldest = now - self._max_idle
        idle: list[str] = []
        if any(used <= oldest for used in self._tracked.values()):
            self.touch(self._in_use(), now)
            idle = [topic for topic, used in self._tracked.items() if used <= oldest]
            for topic in idle:
                self._forget(topic)
        self._idle_at = min(self._tracked.values(), default=now) + self._max_idle
        return idle

    def found(self, topic: str) -> None:
        """The topic is there: whoever deletes it means it."""
        self._wanted.discard(topic)

    def _forget(self, topic: str) -> None:
        del self._tracked[topic]
        self._wanted.discard(topic)

    # ------------------------------------------------------------------ looked at

    def look_at(self, topics: Iterable[str]) -> None:
        """Somebody looks at topics, until `look_away`."""
        self._looked_at.update(topics)

    def look_away(self, topics: Iterable[str]) -> None:
        """Undo `look_at`."""
        self._looked_at.subtract(topics)
        self._looked_at = +self._looked_at

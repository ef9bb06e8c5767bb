"""Topics that are new to a client: they are asked for alone (KIP-526), and again while brokers cannot describe them.

What becomes of them neither hastens nor delays what is asked for of the topics that are known: else one topic that is
missing would have thousands described again, and a stream of them would put the others off for ever.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

    from kclient.cluster.backoff import Backoff


class NewTopics:
    """Which topics are to be asked for alone, and when; the time is an argument.

    Args:
        interest: The topics that anybody wants to know of; what leaves it is not asked for any more.
        backoff: Delay before a topic that could not be described is asked for again; the least of it also lies between
            any two requests that repeat a question.
    """

    def __init__(self, interest: Container[str], backoff: Backoff) -> None:
        self._interest = interest
        self._backoff = backoff
        self._due: dict[str, float] = {}
        """When to ask for each; -inf where nobody has yet."""
        self._failures: dict[str, int] = {}
        """How often each was asked for in vain."""
        self._repeat_at = -inf

    def add(self, topics: Iterable[str]) -> None:
        """Topics are new."""
        self._due.update(dict.fromkeys(topics, -inf))

    def repeat(self, topics: Iterable[str], now: float) -> None:
        """Somebody needs another answer than the last one."""
        for topic in topics:
            self._due.setdefault(topic, now)

    def lacking(self, topics: Iterable[str], now: float) -> None:
        """Topics were asked for, and could not be described: they are asked for again, ever less often."""
        for topic in topics:
            failures = self._failures[topic] = self._failures.get(topic, 0) + 1
            self._due[topic] = now + self._backoff.seconds(failures)

    def settled(self, topic: str) -> None:
        """A topic was described, or refused for good."""
        self._failures.pop(topic, None)

    def next(self, now: float) -> float:
        """When to ask: `now` means at once, infinity that nothing is new."""
        times = [due for topic, due in self._due.items() if topic in self._interest]
        if not times:
            return inf
        first = min(times)
        return now if first == -inf else max(first, self._repeat_at, now)

    def take(self, now: float) -> list[str]:
        """The topics to ask for now, which are taken for asked for."""
        for topic in [topic for topic in self._due if topic not in self._interest]:
            del self._due[topic]
            self._failures.pop(topic, None)
        last = now if now >= self._repeat_at else -inf
        taken = [topic for topic, due in self._due.items() if due <= last]
        if any(self._due[topic] > -inf for topic in taken):
            self._repeat_at = now + self._backoff.seconds(1)
        for topic in taken:
            del self._due[topic]
        return taken

    def take_all(self) -> None:
        """Everything is asked for."""
        self._due.clear()

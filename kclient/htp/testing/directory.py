"""What the name server of a simulated installation knows of topics, now and a while ago."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import count

from kclient.htp.port import Topic, TopicInfo


@dataclass(slots=True)
class _Life:
    """A topic or a domain, from its creation to its deletion."""

    created: float
    order: int
    info: TopicInfo | None
    deleted: float = math.inf

    def was_there(self, at: float) -> bool:
        return self.created <= at < self.deleted


class Directory:
    """Domains and topics, with what has become of them lately.

    Args:
        kept_s: Seconds for which it remembers what was deleted.
    """

    def __init__(self, kept_s: float) -> None:
        self._kept_s = kept_s
        self._numbers = count(1)
        self._domains: dict[str, list[_Life]] = {}
        self._topics: dict[str, dict[str, list[_Life]]] = {}

    def _living(self, lives: list[_Life] | None, at: float) -> _Life | None:
        return next((each for each in reversed(lives or ()) if each.was_there(at)), None)

    def domain(self, name: str, at: float) -> bool:
        """Whether there was a domain of that name."""
        return self._living(self._domains.get(name), at) is not None

    def topic(self, topic: Topic, at: float) -> TopicInfo | None:
        """The topic of that name, if there was one."""
        found = self._living(self._topics.get(topic.domain, {}).get(topic.name), at)
        return None if found is None else found.info

    def change(self, info: TopicInfo, now: float) -> None:
        """A topic is another one from now on, and was so all the time."""
        found = self._living(self._topics.get(info.topic.domain, {}).get(info.topic.name), now)
        if found is not None:
            found.info = info

    def number(self, topic: Topic, at: float) -> int:
        """The number of the topic's creation, which its namesakes do not share; 0 if there is none."""
        found = self._living(self._topics.get(topic.domain, {}).get(topic.name), at)
        return 0 if found is None else found.order

    def topics(self, domain: str, prefix: str, at: float) -> list[TopicInfo]:
        """Those of a domain whose names begin so, by name."""
        lives = self._topics.get(domain, {})
        found = (self._living(lives[name], at) for name in sorted(lives) if name.startswith(prefix))
        return [each.info for each in found if each is not None and each.info is not None]

    def add_domain(self, name: str, now: float) -> None:
        """A domain is made."""
        self._begin(self._domains.setdefault(name, []), None, now)

    def add_topic(self, info: TopicInfo, now: float) -> None:
        """A topic is made."""
        lives = self._topics.setdefault(info.topic.domain, {})
        self._begin(lives.setdefault(info.topic.name, []), info, now)

    def _begin(self, lives: list[_Life], info: TopicInfo | None, now: float) -> None:
        lives[:] = [each for each in lives if each.deleted + self._kept_s >= now]
        lives.append(_Life(now, next(self._numbers), info))

    def remove_topic(self, topic: Topic, now: float) -> bool:
        """A topic goes; whether there was one."""
        found = self._living(self._topics.get(topic.domain, {}).get(topic.name), now)
        if found is not None:
            found.deleted = now
        return found is not None

    def remove_domain(self, name: str, now: float) -> list[Topic]:
        """A domain goes, with its topics, which are returned."""
        found = self._living(self._domains.get(name), now)
        if found is not None:
            found.deleted = now
        gone = [info.topic for info in self.topics(name, "", now)]
        for topic in gone:
            self.remove_topic(topic, now)
        return gone

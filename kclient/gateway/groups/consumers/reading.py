"""Which topics the members of a consumer group read: those that are there, of some names or of a pattern.

All of it follows changes of topics one by one: with 100,000 topics nothing goes through all of them in one go.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Final, NamedTuple, Protocol

from kclient.gateway.groups.assignors.model import GroupView, MemberView, Partitions
from kclient.gateway.groups.consumers.member import MemberSubscription

TOPIC_READ: Final = 250
"""About how many bytes of memory a topic takes that a pattern stands for, or that members read by its name."""
_DIGEST: Final = 16
_BELOW: Final = 1 << 8 * _DIGEST
_NOTHING_SEEN: Final = -1


class CoordinatedTopic(Protocol):
    """What the coordinator knows of a topic."""

    @property
    def name(self) -> str:
        """Its name."""
        ...

    @property
    def topic_id(self) -> bytes:
        """Its id."""
        ...

    @property
    def partitions(self) -> int:
        """How many partitions it has."""
        ...


class CoordinatedTopics(Protocol):
    """The topics that there are."""

    @property
    def changes(self) -> int:
        """Grows whenever a topic comes or goes, or gets more partitions."""
        ...

    def get(self, name: str) -> CoordinatedTopic | None:
        """The topic of this name."""
        ...

    def __iter__(self) -> Iterator[CoordinatedTopic]:
        """All that are there now."""
        ...

    def changed_since(self, changes: int) -> AbstractSet[str] | None:
        """The names of those that have changed since there were so many changes; None if that is too long ago."""
        ...


class TopicsRead:
    """Some topics, with their ids and numbers of partitions.

    Args:
        at: The changes of topics that it knows of.
    """

    __slots__ = ("at", "counts", "digest", "ids", "partitions")

    def __init__(self, at: int = _NOTHING_SEEN) -> None:
        self.at: int = at
        """The changes of topics up to which it has been looked at; -1 before that."""
        self.ids: dict[str, bytes] = {}
        """By name."""
        self.counts: dict[bytes, int] = {}
        """How many partitions each has, by id."""
        self.partitions: int = 0
        """How many all of them have."""
        self.digest: int = 0
        """Another number where they are others or have more partitions: ids are random, so that a sum does."""

    @property
    def size(self) -> int:
        """About how many bytes of memory they take."""
        return TOPIC_READ * len(self.ids)

    def put(self, name: str, topic: CoordinatedTopic | None) -> bool:
        """The topic of this name is now this one, or none of them; whether that is new."""
        before = self.ids.get(name)
        if topic is not None and before == topic.topic_id and self.counts[before] == topic.partitions:
            return False
        if before is not None:
            self._take(before, self.counts.pop(before), -1)
            del self.ids[name]
        if topic is not None:
            self.ids[name] = topic.topic_id
            self.counts[topic.topic_id] = topic.partitions
            self._take(topic.topic_id, topic.partitions, 1)
        return topic is not None or before is not None

    def _take(self, topic_id: bytes, count: int, more: int) -> None:
        self.partitions += more * count
        self.digest = (self.digest + more * int.from_bytes(topic_id, "big") * (2 * count + 1)) % _BELOW

    def update(self, names: Iterable[str], topics: CoordinatedTopics, at: int) -> bool:
        """Look these names up; whether anything is another than before."""
        news = False
        for name in names:
            news = self.put(name, topics.get(name)) or news
        self.at = at
        return news

    def told(self) -> bytes:
        """What a digest of it is made of."""
        return self.digest.to_bytes(_DIGEST, "big")


class LookedUp(NamedTuple):
    """What a pattern stands for, as far as that was looked up."""

    pattern: str
    since: int
    """The changes of topics up to which it was known before; -1 if `whole` has all of it."""
    at: int
    """The changes up to which it is known now."""
    whole: TopicsRead | None
    news: Mapping[str, bool]
    """Else whether it stands for each name that has changed since then."""


class Picture(NamedTuple):
    """A group as an assignor needs it, which nothing changes: the view of it is made where there is time."""

    members: tuple[tuple[str, MemberSubscription, str | None, Partitions], ...]
    """Id, subscription, `group.instance.id` and target of each."""
    named: Mapping[str, bytes]
    """The ids of the topics that they read by their names."""
    patterns: Mapping[str, Mapping[str, bytes]]
    """The same of each pattern."""
    counts: tuple[Mapping[bytes, int], ...]
    """How many partitions these have."""

    def view(self) -> GroupView:
        """The group as an assignor sees it."""
        read: dict[int, tuple[bytes, ...]] = {}
        members: dict[str, MemberView] = {}
        for member_id, subscription, instance_id, target in self.members:
            ids = read.get(id(subscription))
            if ids is None:
                ids = read[id(subscription)] = self._ids(subscription)
            members[member_id] = MemberView(ids, instance_id, target)
        counts: dict[bytes, int] = {}
        for each in self.counts:
            counts.update(each)
        return GroupView(members, counts)

    def _ids(self, subscription: MemberSubscription) -> tuple[bytes, ...]:
        """The ids of the topics of a subscription that are there, in the order of their names."""
        named = self.named
        ids = {name: named[name] for name in subscription.topics if name in named}
        if subscription.pattern:
            ids = dict(sorted({**ids, **self.patterns.get(subscription.pattern, {})}.items()))
        return tuple(ids.values())

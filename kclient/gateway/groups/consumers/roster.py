"""The members of a consumer group: who has which partition, and which topics they read."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from hashlib import blake2b
from typing import Final, Protocol

from kclient.gateway.groups.assignors.model import GroupView, MemberView, Partitions
from kclient.gateway.groups.assignors.table import ASSIGNORS, DEFAULT_ASSIGNOR
from kclient.gateway.groups.consumers.member import ConsumerMember, Held, MemberSubscription

_NO_NAMES: Final[frozenset[str]] = frozenset()


class CoordinatedTopic(Protocol):
    """What the coordinator knows of a topic."""

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


class ConsumerRoster:
    """The members by id, in the order in which they joined, with the indexes that go with them."""

    def __init__(self) -> None:
        self._members: dict[str, ConsumerMember] = {}
        self._static: dict[str, str] = {}
        self._owners: dict[tuple[bytes, int], str] = {}
        """Who has each partition, or was told to give it up."""
        self._sizes: dict[str, int] = {}
        self._names: Counter[str] = Counter()
        """How many members read each topic by its name."""
        self._patterns: Counter[str] = Counter()
        self._shared: dict[MemberSubscription, MemberSubscription] = {}
        self._assignors: Counter[str] = Counter()
        self._reads: dict[MemberSubscription, tuple[bytes, ...]] = {}
        """The ids of what members with a subscription read, as far as that was asked for since `_reads_of`."""
        self._reads_of = -1
        self.resolved: dict[str, frozenset[str]] = {}
        """The names that each pattern of members stands for."""
        self.resolved_at: int = -1
        """The changes of topics for which that was looked up."""
        self.topics: dict[str, tuple[bytes, int]] = {}
        """Of what they read the topics that are there: id and number of partitions, by name."""
        self.digest: str = ""
        """Of the topics that they read, as far as `refresh` has looked."""
        self.version: int = 0
        """Grows whenever they may read something else."""
        self.lagging: set[str] = set()
        """The members that have not reached their target."""
        self._size = 0
        self._shared_size = 0

    @property
    def size(self) -> int:
        """About how many bytes of memory they take."""
        return self._size + self._shared_size

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[ConsumerMember]:
        return iter(list(self._members.values()))

    def __contains__(self, member_id: str) -> bool:
        return member_id in self._members

    def get(self, member_id: str) -> ConsumerMember | None:
        """The member with this id."""
        return self._members.get(member_id)

    def static(self, instance_id: str) -> ConsumerMember | None:
        """The member with this `group.instance.id`."""
        member_id = self._static.get(instance_id)
        return None if member_id is None else self._members.get(member_id)

    # Changes

    def add(self, member: ConsumerMember) -> None:
        """A member is in the group."""
        self._members[member.member_id] = member
        if member.instance_id is not None:
            self._static[member.instance_id] = member.member_id
        self.subscribe(member, member.subscription, MemberSubscription())
        self.prefer(member, member.assignor, None)
        self.hold(member, ())

    def name(self, member: ConsumerMember, instance_id: str) -> None:
        """A member has another `group.instance.id` from now on, which nobody has."""
        if member.instance_id is not None and self._static.get(member.instance_id) == member.member_id:
            del self._static[member.instance_id]
        member.instance_id = instance_id
        self._static[instance_id] = member.member_id
        self.measure(member)

    def remove(self, member: ConsumerMember) -> None:
        """A member is in it no more: what it had is free."""
        member_id = member.member_id
        del self._members[member_id]
        if member.instance_id is not None and self._static.get(member.instance_id) == member_id:
            del self._static[member.instance_id]
        self._count(member.subscription, -1)
        self._prefer(member.assignor, -1)
        self._release(member_id, (member.assigned, member.revoking))
        self._size -= self._sizes.pop(member_id, 0)
        self.lagging.discard(member_id)

    def hold(self, member: ConsumerMember, before: Iterable[Held]) -> None:
        """What a member has is another than before; what it takes is counted."""
        self._release(member.member_id, before)
        for held in (member.assigned, member.revoking):
            for topic, numbers in held.items():
                for number in numbers:
                    self._owners[topic, number] = member.member_id
        self.measure(member)

    def measure(self, member: ConsumerMember) -> None:
        """Count what a member takes."""
        size = member.size
        self._size += size - self._sizes.get(member.member_id, 0)
        self._sizes[member.member_id] = size

    def _release(self, member_id: str, held: Iterable[Held]) -> None:
        for partitions in held:
            for topic, numbers in partitions.items():
                for number in numbers:
                    if self._owners.get((topic, number)) == member_id:
                        del self._owners[topic, number]

    def is_free(self, topic: bytes, number: int) -> bool:
        """Whether nobody has a partition."""
        return (topic, number) not in self._owners

    def subscribe(
        self, member: ConsumerMember, subscription: MemberSubscription, before: MemberSubscription | None = None
    ) -> None:
        """A member reads something else; `before` names what was counted of it, if not what it has."""
        before = member.subscription if before is None else before
        known = self._shared.get(subscription)
        if known is None:
            self._shared[subscription] = known = subscription
            self._shared_size += _size(subscription)
        subscription = known
        self._count(subscription, 1)
        self._count(before, -1)
        member.subscription = subscription
        member.checked = -1

    def _count(self, subscription: MemberSubscription, more: int) -> None:
        if subscription == MemberSubscription():
            return
        for name in subscription.topics:
            self._names[name] += more
            if not self._names[name]:
                del self._names[name]
        pattern = subscription.pattern
        if pattern:
            self._patterns[pattern] += more
            if not self._patterns[pattern]:
                del self._patterns[pattern]
                self.resolved.pop(pattern, None)
        if len(self._shared) > 2 * len(self._members) + 16:
            used = {id(member.subscription) for member in self._members.values()}
            self._shared = {key: each for key, each in self._shared.items() if id(each) in used}
            self._shared_size = sum(map(_size, self._shared))
            self._reads.clear()

    def prefer(self, member: ConsumerMember, assignor: str | None, before: str | None) -> None:
        """A member wants another assignor."""
        member.assignor = assignor
        self._prefer(before, -1)
        self._prefer(assignor, 1)

    def _prefer(self, assignor: str | None, more: int) -> None:
        if assignor is not None:
            self._assignors[assignor] += more
            if not self._assignors[assignor]:
                del self._assignors[assignor]

    @property
    def assignor(self) -> str:
        """The assignor that most members want, of those that want one and that there is."""
        wanted = [(count, name) for name, count in self._assignors.items() if name in ASSIGNORS]
        return max(wanted, key=lambda each: each[0])[1] if wanted else DEFAULT_ASSIGNOR

    # What they read

    @property
    def patterns(self) -> Collection[str]:
        """The patterns by which members read."""
        return self._patterns.keys()

    def resolve(self, pattern: str, names: frozenset[str]) -> bool:
        """A pattern stands for these names; whether that is new."""
        if self.resolved.get(pattern) == names:
            return False
        self.resolved[pattern] = names
        self.version += 1
        return True

    def reads_topic(self, name: str) -> bool:
        """Whether a member reads a topic."""
        return name in self._names or any(name in names for names in self.resolved.values())

    def names(self) -> frozenset[str]:
        """The names of all topics that members read, those too that are not there."""
        return frozenset(self._names).union(*self.resolved.values())

    def count_names(self, more: Collection[str]) -> int:
        """How many topics members read by their names, with some more."""
        return len(self._names) + sum(name not in self._names for name in more)

    def refresh(self, topics: CoordinatedTopics) -> bool:
        """Look which of the topics that members read are there; whether anything is another than before."""
        found: dict[str, tuple[bytes, int]] = {}
        for name in sorted(self.names()):
            record = topics.get(name)
            if record is not None:
                found[name] = record.topic_id, record.partitions
        if found != self.topics:
            self.topics = found
            self.version += 1
        digest = _digest(found, self.resolved)
        before, self.digest = self.digest, digest
        return digest != before

    def reads(self, subscription: MemberSubscription) -> tuple[bytes, ...]:
        """The ids of the topics of a subscription that are there, in the order of their names."""
        if self._reads_of != self.version:
            self._reads.clear()
            self._reads_of = self.version
        ids = self._reads.get(subscription)
        if ids is None:
            names: Iterable[str] = subscription.topics
            if subscription.pattern:
                names = sorted({*names, *self.resolved.get(subscription.pattern, _NO_NAMES)})
            ids = tuple(self.topics[name][0] for name in names if name in self.topics)
            self._reads[subscription] = ids
        return ids

    def view(self) -> GroupView:
        """The group as an assignor sees it."""
        return GroupView(
            {
                member.member_id: MemberView(self.reads(member.subscription), member.instance_id, member.target)
                for member in self._members.values()
            },
            dict(self.topics.values()),
        )

    def retarget(self, targets: Mapping[str, Partitions], nothing: Partitions) -> list[ConsumerMember]:
        """There is a new target; the members for which it is another than before."""
        changed = []
        for member in self._members.values():
            target = targets.get(member.member_id, nothing)
            if member.target != target:
                member.target = target
                self.measure(member)
                changed.append(member)
        self.lagging = set(self._members)
        return changed


def _size(subscription: MemberSubscription) -> int:
    """About how many bytes of memory a subscription takes."""
    return sum(map(sys.getsizeof, (*subscription.topics, subscription.pattern)))


def _digest(topics: Mapping[str, tuple[bytes, int]], resolved: Mapping[str, frozenset[str]]) -> str:
    """A text that is another one where members read something else, without who reads what."""
    told = blake2b(digest_size=16)
    for name, (topic_id, count) in topics.items():
        told.update(b"%b\0%b%d\0" % (name.encode(), topic_id, count))
    for pattern in sorted(resolved):
        told.update(b"\1%b\0" % pattern.encode())
        for name in sorted(resolved[pattern] & topics.keys()):
            told.update(b"%b\0" % name.encode())
    return told.hexdigest()

"""The members of a consumer group: who has which partition, and which topics they read."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from collections.abc import Set as AbstractSet
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from kclient.gateway.groups.assignors.table import ASSIGNORS, DEFAULT_ASSIGNOR
from kclient.gateway.groups.consumers.member import NOTHING, ConsumerMember, Held, MemberSubscription
from kclient.gateway.groups.consumers.reading import Picture, TopicsRead

if TYPE_CHECKING:
    from kclient.concurrency import Completion
    from kclient.gateway.groups.assignors.model import Partitions
    from kclient.gateway.groups.consumers.reading import CoordinatedTopics, LookedUp

_NOBODY: Final[Mapping[int, str]] = {}
_UNKNOWN: Final = TopicsRead()


class ConsumerRoster:
    """The members by id, in the order in which they joined, with the indexes that go with them."""

    def __init__(self) -> None:
        self._members: dict[str, ConsumerMember] = {}
        self._static: dict[str, str] = {}
        self._owners: dict[bytes, dict[int, str]] = {}
        """Who has each partition, or was told to give it up, by topic and number."""
        self._sizes: dict[str, int] = {}
        self._names: Counter[str] = Counter()
        """How many members read each topic by its name."""
        self._patterns: Counter[str] = Counter()
        self._shared: dict[MemberSubscription, MemberSubscription] = {}
        self._assignors: Counter[str] = Counter()
        self._reads: dict[int, tuple[MemberSubscription, AbstractSet[bytes]]] = {}
        """The ids of what members with a subscription read, by its `id`, as far as that was asked for since
        `_reads_of`."""
        self._reads_of = -1
        self._named = TopicsRead()
        """The topics that members read by their names."""
        self._unsure: set[str] = set()
        """Names that somebody reads since `refresh`, or nobody any more."""
        self._read: dict[str, TopicsRead] = {}
        """The topics that each pattern of members stands for; what was not looked up is not in it."""
        self.rights: int = 0
        """The changes of rights that what patterns stand for goes by."""
        self.renewed: float = -math.inf
        """When all topics were looked at because rights had changed, on the monotonic clock."""
        self.looking: Completion[None] | None = None
        """Done when somebody has looked patterns up, who does so now."""
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
        return self._size + self._shared_size + self._named.size + sum(each.size for each in self._read.values())

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
        self.hold(member, (NOTHING, NOTHING))

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
        for held in (member.assigned, member.revoking):
            self._release(member_id, held, NOTHING)
        self._size -= self._sizes.pop(member_id, 0)
        self.lagging.discard(member_id)

    def hold(self, member: ConsumerMember, before: tuple[Held, Held]) -> None:
        """What a member has, and is to give up, is another than before; what it takes is counted."""
        sides = tuple(zip(before, (member.assigned, member.revoking), strict=True))
        for was, held in sides:
            self._release(member.member_id, was, held)
        for was, held in sides:
            for topic, numbers in held.items():
                if was.get(topic) is not numbers:
                    holds = dict.fromkeys(numbers, member.member_id)
                    others = self._owners.get(topic)
                    self._owners[topic] = {**others, **holds} if others else holds
        self.measure(member)

    def measure(self, member: ConsumerMember) -> None:
        """Count what a member takes."""
        size = member.size
        self._size += size - self._sizes.get(member.member_id, 0)
        self._sizes[member.member_id] = size

    def _release(self, member_id: str, was: Held, held: Held) -> None:
        """A member has what it had no more; but what is the same object in both, it keeps."""
        for topic, numbers in was.items():
            if held.get(topic) is numbers:
                continue
            owners = self._owners.get(topic, {})
            for number in numbers:
                if owners.get(number) == member_id:
                    del owners[number]
            if not owners:
                self._owners.pop(topic, None)

    def owners(self, topic: bytes) -> Mapping[int, str]:
        """Who has each partition of a topic, or was told to give it up; of one that nobody has, nothing."""
        return self._owners.get(topic, _NOBODY)

    def is_free(self, topic: bytes, number: int) -> bool:
        """Whether nobody has a partition."""
        return number not in self.owners(topic)

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
        names = self._names
        for name in subscription.topics:
            names[name] += more
            if names[name] == max(more, 0):  # the first, or the last
                self._unsure.add(name)
                if more < 0:
                    del names[name]
        pattern = subscription.pattern
        if pattern:
            self._patterns[pattern] += more
            if not self._patterns[pattern]:
                del self._patterns[pattern]
                self._read.pop(pattern, None)
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

    @property
    def unresolved(self) -> bool:
        """Whether there are patterns of which nobody has looked up what they stand for, as after a restart."""
        return len(self._read) < len(self._patterns)

    def looked_at(self, pattern: str) -> int:
        """The changes of topics up to which it is known what a pattern stands for; -1 if it is not."""
        return self._read.get(pattern, _UNKNOWN).at

    def learn(self, found: LookedUp, topics: CoordinatedTopics) -> None:
        """What a pattern stands for was looked up; who has found that out later knows better."""
        if found.pattern not in self._patterns:
            return
        known = self._read.get(found.pattern)
        if found.whole is not None:
            if known is None or known.at <= found.at:
                self._read[found.pattern] = found.whole
                self.version += known is None or known.digest != found.whole.digest
        elif known is not None and known.at == found.since:
            matching = [name for name, matches in found.news.items() if matches]
            news = known.update(matching, topics, found.at)
            for name, matches in found.news.items():
                news = (not matches and known.put(name, None)) or news
            self.version += news

    def reads_topic(self, name: str) -> bool:
        """Whether a member reads a topic."""
        return name in self._names or any(name in read.ids for read in self._read.values())

    def count_names(self, more: Collection[str]) -> int:
        """How many topics members read by their names, with some more."""
        return len(self._names) + sum(name not in self._names for name in more)

    def refresh(self, topics: CoordinatedTopics) -> bool:
        """Look which of the topics that members read are there; whether anything is another than before."""
        changed = None if self._named.at < 0 else topics.changed_since(self._named.at)
        if changed is None:
            unsure: AbstractSet[str] = self._names.keys() | self._named.ids.keys()
        else:
            unsure = self._unsure | (changed & self._names.keys())
        there = [name for name in unsure if name in self._names]
        news = self._named.update(there, topics, topics.changes)
        for name in unsure:
            news = (name not in self._names and self._named.put(name, None)) or news
        self._unsure.clear()
        self.version += news
        before, self.digest = self.digest, self._digest()
        return self.digest != before

    def _digest(self) -> str:
        """A text that is another one where members read something else, without who reads what."""
        told = blake2b(self._named.told(), digest_size=16)
        for pattern in sorted(self._read):
            told.update(b"%b\0%b" % (pattern.encode(), self._read[pattern].told()))
        return told.hexdigest()

    @property
    def partitions(self) -> int:
        """How many partitions they read, those twice that several patterns stand for."""
        return self._named.partitions + sum(each.partitions for each in self._read.values())

    def names_read(self, member: ConsumerMember) -> dict[bytes, str]:
        """The topics that a member reads by their names and that are there: names by ids."""
        ids = self._named.ids
        return {ids[name]: name for name in member.subscription.topics if name in ids}

    def reads(self, subscription: MemberSubscription) -> AbstractSet[bytes]:
        """The ids of the topics of a subscription that are there; for now, they may change."""
        pattern = self._read.get(subscription.pattern, _UNKNOWN).counts.keys()
        if not subscription.topics:
            return pattern
        if self._reads_of != self.version:
            self._reads.clear()
            self._reads_of = self.version
        known = self._reads.get(id(subscription))
        if known is None:
            named = self._named.ids
            ids = frozenset(named[name] for name in subscription.topics if name in named)
            known = self._reads[id(subscription)] = subscription, ids | pattern if pattern else ids
        return known[1]

    def picture(self) -> Picture:
        """The group for an assignor."""
        members = self._members.values()
        return Picture(
            tuple((each.member_id, each.subscription, each.instance_id, each.target) for each in members),
            self._named.ids.copy(),
            {pattern: read.ids.copy() for pattern, read in self._read.items()},
            tuple(each.counts.copy() for each in (self._named, *self._read.values())),
        )

    def retarget(self, targets: Mapping[str, Partitions], nothing: Partitions) -> list[ConsumerMember]:
        """There is a new target; the members for which it is another than before."""
        changed = []
        for member in self._members.values():
            target = targets.get(member.member_id, nothing)
            if member.target is not target and member.target != target:
                member.target = target
                self.measure(member)
                changed.append(member)
        self.lagging = set(self._members)
        return changed


class SharedRoster(ConsumerRoster):
    """The members of a share group: several of them may have a partition, so nobody has to wait for it."""

    def hold(self, member: ConsumerMember, before: tuple[Held, Held]) -> None:
        """What a member has is another than before; what it takes is counted, and others may have it too."""
        self.measure(member)


def _size(subscription: MemberSubscription) -> int:
    """About how many bytes of memory a subscription takes."""
    return sum(map(sys.getsizeof, (*subscription.topics, subscription.pattern)))

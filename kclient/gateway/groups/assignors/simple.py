"""The assignor `simple` of share groups (KIP-932): several members may read a partition, and all about equally many.

As Kafka's: a member keeps what it has, as far as no partition and no member has too much of the other. Where members
read different topics, each topic is divided by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import ceil
from typing import Final

from kclient.gateway.groups.assignors.model import GroupView, Partitions

SIMPLE: Final = "simple"
"""Its name, as ShareGroupDescribe tells it."""


def assign_simply(group: GroupView) -> dict[str, Partitions]:
    """Divide the topics among those who read them; each partition has as many readers as every other, or one less."""
    found: dict[str, dict[bytes, frozenset[int]]] = {member_id: {} for member_id in group.members}
    for topics, readers in _divisions(group):
        partitions = [(topic, number) for topic in topics for number in range(group.counts[topic])]
        places = {partition: place for place, partition in enumerate(partitions)}
        held = [_places_of(group.members[reader].target, topics, places) for reader in readers]
        for reader, mine in zip(readers, _divide(len(partitions), held), strict=True):
            for topic, numbers in _by_topic(partitions[place] for place in sorted(mine)):
                found[reader][topic] = numbers
    return dict(found)


def _divisions(group: GroupView) -> Iterator[tuple[Sequence[bytes], Sequence[str]]]:
    """What is divided by itself: topics, with the members that read them."""
    if group.alike:
        topics = next(iter(group.members.values())).topics
        if topics:
            yield topics, list(group.members)
        return
    readers: dict[bytes, list[str]] = {}
    for member_id, member in group.members.items():
        for topic in member.topics:
            readers.setdefault(topic, []).append(member_id)
    for topic, ids in readers.items():
        yield (topic,), ids


def _places_of(target: Partitions, topics: Sequence[bytes], places: dict[tuple[bytes, int], int]) -> set[int]:
    """The places of those partitions that a member was to have so far, and that are there."""
    held = ((topic, number) for topic in topics for number in target.get(topic, ()))
    return {places[partition] for partition in held if partition in places}


def _divide(count: int, held: Sequence[set[int]]) -> Sequence[set[int]]:
    """Who of some members has which of `count` partitions, given what each of them had, which is changed."""
    if not count:
        return held
    sharing = -(-len(held) // count)
    """Members that each partition is to have."""
    quotas = _quotas(sharing * count, len(held))
    for mine, quota in zip(held, quotas, strict=True):
        for place in sorted(mine)[: max(0, len(mine) - quota)]:
            mine.remove(place)
    owners: list[set[int]] = [set() for _ in range(count)]
    for member, mine in enumerate(held):
        for place in mine:
            owners[place].add(member)
    for place, those in enumerate(owners):
        for member in sorted(those)[: max(0, len(those) - sharing)]:
            those.remove(member)
            held[member].remove(place)
    _fill(owners, held, quotas, sharing)
    return held


def _quotas(total: int, members: int) -> list[int]:
    """How many of `total` assignments each member is to have: in doubles, as Kafka reckons them."""
    each = total / members
    return [ceil(each * (member + 1)) - ceil(each * member) for member in range(members)]


def _fill(owners: Sequence[set[int]], held: Sequence[set[int]], quotas: Sequence[int], sharing: int) -> None:
    """Give partitions that have too few members to members that have too few partitions, by turns.

    As in Kafka a member whose turn comes again at the same partition counts as another one, so that one may stay with
    fewer members than it could have.
    """
    open_members = [member for member, quota in enumerate(quotas) if len(held[member]) < quota]
    turn, given = 0, False
    """Whose turn it is, and whether anybody has got something in this round."""
    for place, those in enumerate(owners):
        wanted = sharing - len(those)
        while wanted > 0 and open_members:
            if turn == len(open_members):
                if not given:
                    break
                turn, given = 0, False
            member = open_members[turn]
            turn += 1
            if member in those:
                continue
            held[member].add(place)
            wanted -= 1
            given = True
            if len(held[member]) >= quotas[member]:
                turn -= 1
                del open_members[turn]
        if not open_members:
            return


def _by_topic(partitions: Iterable[tuple[bytes, int]]) -> Iterator[tuple[bytes, frozenset[int]]]:
    numbers: dict[bytes, set[int]] = {}
    for topic, number in partitions:
        numbers.setdefault(topic, set()).add(number)
    return ((topic, frozenset(some)) for topic, some in numbers.items())

"""A member's next step from what it has to what it is to have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Final

from kclient.gateway.groups.consumers.states import RECONCILING_TABLE, ReconcilingEvent, ReconcilingState
from kclient.state_tables import next_state

if TYPE_CHECKING:
    from kclient.gateway.groups.assignors.model import Partitions
    from kclient.gateway.groups.consumers.member import ConsumerMember, Held, Owned

_NO_PARTITIONS: Final[Mapping[int, int]] = {}


Owners = Callable[[bytes], Mapping[int, str]]
"""Who has each partition of a topic."""


def reconcile(
    member: ConsumerMember, target_epoch: int, reads: AbstractSet[bytes], owners: Owners, owned: Owned | None
) -> bool:
    """Take a member a step towards its target; whether anything of it has changed.

    What it has of a topic stays the same object where it stays as it is: a member may have 100,000 of them.

    Args:
        member: The member.
        target_epoch: The epoch of the present target.
        reads: The ids of the topics that it reads now: it gives others up, although they may be in its target.
        owners: Tells who has the partitions of a topic.
        owned: The partitions that it says it has; None if it says nothing.
    """
    if member.state is ReconcilingState.STABLE:
        if member.epoch == target_epoch and member.assigned.keys() <= reads:
            return False
    elif member.state is ReconcilingState.UNREVOKED_PARTITIONS and _owns(owned, member.revoking):
        return _give_up_too(member, reads)
    return _step(member, target_epoch, reads, owners, owned)


def _give_up_too(member: ConsumerMember, reads: AbstractSet[bytes]) -> bool:
    """While it gives something up, a member gives up what it reads no more; whether there is such."""
    if member.assigned.keys() <= reads:
        return False
    more = {topic: held for topic, held in member.assigned.items() if topic not in reads}
    revoking = {topic: {**member.revoking.get(topic, {}), **held} for topic, held in more.items()}
    kept = {topic: held for topic, held in member.assigned.items() if topic in reads}
    _move(member, ReconcilingEvent.MUST_REVOKE, member.epoch, kept, {**member.revoking, **revoking})
    return True


def _step(
    member: ConsumerMember, target_epoch: int, reads: AbstractSet[bytes], owners: Owners, owned: Owned | None
) -> bool:
    wanted = member.target
    if not wanted.keys() <= reads:
        wanted = {topic: numbers for topic, numbers in wanted.items() if topic in reads}
    kept, revoking = _divided(member.assigned, wanted)
    if revoking and _owns(owned, revoking):
        _move(member, ReconcilingEvent.MUST_REVOKE, member.epoch, kept, revoking)
        return True
    waits = False
    for topic, numbers in wanted.items():
        has = kept.get(topic, _NO_PARTITIONS)
        if len(has) == len(numbers):
            continue
        taken = owners(topic)
        new = numbers - has.keys() if has else numbers
        free = new if not taken else [number for number in new if number not in taken]
        waits = waits or len(free) < len(new)
        if free:
            got = dict.fromkeys(free, target_epoch)
            kept[topic] = {**has, **got} if has else got
    event = ReconcilingEvent.MUST_WAIT if waits else ReconcilingEvent.COMPLETE
    before = member.state, member.epoch, member.assigned, member.revoking
    if before == (RECONCILING_TABLE[member.state][event], target_epoch, kept, {}):
        return False  # others still have what it waits for
    _move(member, event, target_epoch, kept, {})
    return True


def _divided(assigned: Held, wanted: Partitions) -> tuple[dict[bytes, Mapping[int, int]], Held]:
    """What a member keeps of what it has, and what it is to give up."""
    kept: dict[bytes, Mapping[int, int]] = {}
    revoking: dict[bytes, Mapping[int, int]] = {}
    for topic, held in assigned.items():
        stays = wanted.get(topic)
        if stays is None:
            revoking[topic] = held
        elif held.keys() <= stays:
            kept[topic] = held
        else:
            revoking[topic] = {number: since for number, since in held.items() if number not in stays}
            some = {number: since for number, since in held.items() if number in stays}
            if some:
                kept[topic] = some
    return kept, revoking


def _move(member: ConsumerMember, event: ReconcilingEvent, epoch: int, assigned: Held, revoking: Held) -> None:
    member.state = next_state(RECONCILING_TABLE, member.state, event, member.member_id)
    member.moved_to(epoch)
    member.assigned, member.revoking = assigned, revoking


def _owns(owned: Owned | None, held: Held) -> bool:
    """Whether a member still has some of these; who says nothing may."""
    if owned is None:
        return True
    return any(not numbers.keys().isdisjoint(owned.get(topic, ())) for topic, numbers in held.items())

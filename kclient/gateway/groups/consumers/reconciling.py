"""A member's next step from what it has to what it is to have."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import TYPE_CHECKING

from kclient.gateway.groups.consumers.states import RECONCILING_TABLE, ReconcilingEvent, ReconcilingState
from kclient.state_tables import next_state

if TYPE_CHECKING:
    from kclient.gateway.groups.consumers.member import ConsumerMember, Held, Owned


def reconcile(
    member: ConsumerMember,
    target_epoch: int,
    reads: Container[bytes],
    is_free: Callable[[bytes, int], bool],
    owned: Owned | None,
) -> bool:
    """Take a member a step towards its target; whether anything of it has changed.

    Args:
        member: The member.
        target_epoch: The epoch of the present target.
        reads: The ids of the topics that it reads now: it gives others up, although they may be in its target.
        is_free: Whether nobody has a partition.
        owned: The partitions that it says it has; None if it says nothing.
    """
    if member.state is ReconcilingState.STABLE:
        if member.epoch == target_epoch and all(topic in reads for topic in member.assigned):
            return False
    elif member.state is ReconcilingState.UNREVOKED_PARTITIONS and _owns(owned, member.revoking):
        return _give_up_too(member, reads)
    return _step(member, target_epoch, reads, is_free, owned)


def _give_up_too(member: ConsumerMember, reads: Container[bytes]) -> bool:
    """While it gives something up, a member gives up what it reads no more; whether there is such."""
    more = {topic: held for topic, held in member.assigned.items() if topic not in reads}
    if not more:
        return False
    revoking = {topic: {**member.revoking.get(topic, {}), **held} for topic, held in more.items()}
    kept = {topic: held for topic, held in member.assigned.items() if topic in reads}
    _move(member, ReconcilingEvent.MUST_REVOKE, member.epoch, kept, {**member.revoking, **revoking})
    return True


def _step(
    member: ConsumerMember,
    target_epoch: int,
    reads: Container[bytes],
    is_free: Callable[[bytes, int], bool],
    owned: Owned | None,
) -> bool:
    kept: dict[bytes, dict[int, int]] = {}
    revoking: dict[bytes, dict[int, int]] = {}
    wanted = {topic: numbers for topic, numbers in member.target.items() if topic in reads}
    for topic, held in member.assigned.items():
        stays = wanted.get(topic, frozenset())
        for number, since in held.items():
            (kept if number in stays else revoking).setdefault(topic, {})[number] = since
    if revoking and _owns(owned, revoking):
        _move(member, ReconcilingEvent.MUST_REVOKE, member.epoch, kept, revoking)
        return True
    waits = False
    for topic, numbers in wanted.items():
        new = numbers - kept.get(topic, {}).keys()
        free = [number for number in new if is_free(topic, number)]
        waits = waits or len(free) < len(new)
        if free:
            kept.setdefault(topic, {}).update(dict.fromkeys(free, target_epoch))
    event = ReconcilingEvent.MUST_WAIT if waits else ReconcilingEvent.COMPLETE
    before = member.state, member.epoch, member.assigned, member.revoking
    if before == (RECONCILING_TABLE[member.state][event], target_epoch, kept, {}):
        return False  # others still have what it waits for
    _move(member, event, target_epoch, kept, {})
    return True


def _move(member: ConsumerMember, event: ReconcilingEvent, epoch: int, assigned: Held, revoking: Held) -> None:
    member.state = next_state(RECONCILING_TABLE, member.state, event, member.member_id)
    member.moved_to(epoch)
    member.assigned, member.revoking = assigned, revoking


def _owns(owned: Owned | None, held: Held) -> bool:
    """Whether a member still has some of these; who says nothing may."""
    if owned is None:
        return True
    return any(not numbers.keys().isdisjoint(owned.get(topic, ())) for topic, numbers in held.items())

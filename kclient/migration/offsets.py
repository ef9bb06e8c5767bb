"""What consumer groups have committed: read at the source, and committed in their names in the store."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import anyio

from kclient.admin import Admin, GroupListing, PartialFailureError
from kclient.errors import (
    CoordinatorNotAvailableError,
    GroupIdNotFoundError,
    GroupNotEmptyError,
    GroupSubscribedToTopicError,
    KafkaError,
    TopicAuthorizationError,
    UnknownMemberIdError,
    UnknownTopicOrPartitionError,
)
from kclient.gateway.topics.names import CONSUMER_OFFSETS
from kclient.types import OffsetAndMetadata, TopicPartition

_TOGETHER: Final = 8
"""Groups that are asked for at the same time."""
_ACTIVE: Final = frozenset(
    {"Stable", "PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling", "NotReady"}
)
"""The states of groups that have members."""
_WITH_OFFSETS: Final = frozenset({"", "classic", "consumer", "streams"})
_PROTOCOLS: Final = frozenset({"", "consumer", "streams"})


@dataclass(slots=True)
class GroupCommits:
    """A group that has committed offsets of the topics in question."""

    group_id: str
    type: str
    """`classic`, `consumer`, `streams`, or empty where the brokers are too old to tell."""
    state: str
    offsets: dict[TopicPartition, OffsetAndMetadata]

    @property
    def active(self) -> bool:
        """Whether it has members."""
        return self.state in _ACTIVE


@dataclass(slots=True)
class OffsetsMoved:
    """What became of committed offsets."""

    moved: int = 0
    """Offsets that were committed in the store."""
    same: int = 0
    """Offsets that it had already."""
    later: int = 0
    """Offsets whose records the store does not have yet."""
    deleted: int = 0
    """Offsets that were moved before, have been deleted at the source since, and so in the store, too."""
    active: list[str] = field(default_factory=list)
    """Groups that were left as they are: they have members in the store."""


Moved: TypeAlias = dict[tuple[str, TopicPartition], tuple[int, str]]
"""What was moved so far: offset and metadata, by group and partition."""


def has_offsets(group: GroupListing) -> bool:
    """Whether a group may commit offsets that consumers go on from."""
    return group.type.lower() in _WITH_OFFSETS and group.protocol_type in _PROTOCOLS


async def committed(admin: Admin, topics: Mapping[str, int]) -> list[GroupCommits]:
    """The groups that have committed offsets of some topics, by name, with these offsets.

    Args:
        admin: Of the cluster.
        topics: The topics, and how many partitions each has: what was committed of others is not looked at.

    Raises:
        CoordinatorNotAvailableError: Some groups have no coordinator at the moment, so that no broker lists them.
        KafkaError: The groups cannot be listed, or one of them not be asked for.
    """
    # before and after: whoever has got a leader meanwhile may have been listed by nobody
    await _check_coordinators(admin)
    listed = [group for group in (await admin.list_groups()).complete() if has_offsets(group)]
    await _check_coordinators(admin)
    found: list[GroupCommits] = []
    places = anyio.Semaphore(_TOGETHER)
    failures: list[KafkaError] = []

    async def one(group: GroupListing) -> None:
        async with places:
            try:
                offsets = await admin.list_group_offsets(group.group_id)
                state = group.state or (await admin.describe_groups([group.group_id]))[group.group_id].state
            except GroupIdNotFoundError:  # it has just gone
                return
            except KafkaError as error:
                failures.append(error)
                return
        of_topics = {tp: offset for tp, offset in offsets.items() if tp.partition < topics.get(tp.topic, 0)}
        if of_topics:
            found.append(GroupCommits(group.group_id, group.type, state, of_topics))

    async with anyio.create_task_group() as tasks:
        for group in listed:
            tasks.start_soon(one, group)
    if failures:
        raise failures[0]
    return sorted(found, key=lambda group: group.group_id)


async def _check_coordinators(admin: Admin) -> None:
    """Raises where a list of groups lacks some, since the partition that they are kept in has no leader."""
    try:
        described = (await admin.describe_topics([CONSUMER_OFFSETS]))[CONSUMER_OFFSETS]
    except (UnknownTopicOrPartitionError, TopicAuthorizationError):  # there are no groups yet, or we must not know
        return
    if orphaned := sorted(each.partition for each in described.partitions if each.leader is None):
        raise CoordinatorNotAvailableError(
            f"{len(orphaned)} of {len(described.partitions)} partitions of {CONSUMER_OFFSETS} have no leader (the "
            f"first: {orphaned[0]}), so the groups in them cannot be listed: start the brokers that hold them"
        )


async def move_offsets(
    source: Admin,
    target: Admin,
    topics: Mapping[str, int],
    end: Callable[[TopicPartition], int | None],
    moved: Moved,
) -> OffsetsMoved:
    """Commit in the store what groups have committed at the source.

    Args:
        source: The source.
        target: The store's gateway.
        topics: Of which topics, and how many partitions each has.
        end: Up to which offset what was committed of a partition is moved: one beyond is left for later. None where the
            store has no such partition yet.
        moved: What earlier calls have moved, to which this call adds: where that has been deleted at the source since,
            and is unchanged in the store, it is deleted there, too. What others have committed in the store stays.

    Raises:
        KafkaError: A side cannot be asked, or the store takes no commits.
    """
    result = OffsetsMoved()
    there = {group.group_id: group.offsets for group in await committed(target, topics)}
    states = {group.group_id: group.state for group in (await target.list_groups()).complete()}
    found = await committed(source, topics)
    for group in found:
        wanted: dict[TopicPartition, OffsetAndMetadata] = {}
        for tp, offset in group.offsets.items():
            has, ends = there.get(group.group_id, {}).get(tp), end(tp)
            if ends is None or offset.offset > ends:
                result.later += 1
            elif has is not None and (has.offset, has.metadata) == (offset.offset, offset.metadata):
                result.same += 1
                moved[group.group_id, tp] = offset.offset, offset.metadata
            else:  # leader epochs are the store's own
                wanted[tp] = OffsetAndMetadata(offset.offset, offset.metadata)
        if not wanted:
            continue
        if states.get(group.group_id) in _ACTIVE:
            result.active.append(group.group_id)
            continue
        try:
            await target.alter_group_offsets(group.group_id, wanted)
        except KafkaError as error:
            if not _has_members(error):
                raise
            result.active.append(group.group_id)  # since a moment ago
        else:
            result.moved += len(wanted)
            moved.update(((group.group_id, tp), (each.offset, each.metadata)) for tp, each in wanted.items())
    at_source = {(group.group_id, tp) for group in found for tp in group.offsets}
    gone: dict[str, list[TopicPartition]] = {}
    for group_id, tp in [
        key for key in moved if key not in at_source and key[1].partition < topics.get(key[1].topic, 0)
    ]:
        has = there.get(group_id, {}).get(tp)
        if has is not None and (has.offset, has.metadata) == moved[group_id, tp]:
            gone.setdefault(group_id, []).append(tp)
        else:  # the store's clients have gone on
            del moved[group_id, tp]
    for group_id, partitions in gone.items():
        await _delete(source, target, group_id, partitions, moved, result)
    return result


async def _delete(
    source: Admin, target: Admin, group_id: str, partitions: list[TopicPartition], moved: Moved, result: OffsetsMoved
) -> None:
    """Delete in the store what a group has committed no more at the source, by its own coordinator's word."""
    with suppress(GroupIdNotFoundError):
        still = await source.list_group_offsets(
            group_id
        )  # a list of groups may lack those of a coordinator that is down
        partitions = [tp for tp in partitions if tp not in still]
    if not partitions:
        return
    try:
        await target.delete_group_offsets(group_id, partitions)
    except KafkaError as error:
        if _has_members(error):
            result.active.append(group_id)
            return
        if not isinstance(error, GroupIdNotFoundError):
            raise
    result.deleted += len(partitions)
    for tp in partitions:
        del moved[group_id, tp]


def _has_members(error: KafkaError) -> bool:
    """Whether offsets were refused because the group has members."""
    failures = error.failures.values() if isinstance(error, PartialFailureError) else (error,)
    refusals = GroupNotEmptyError | UnknownMemberIdError | GroupSubscribedToTopicError
    return all(isinstance(each, refusals) for each in failures)

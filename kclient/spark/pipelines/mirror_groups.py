"""What groups have committed at a mirror's source, committed in its target at the offsets that belong to it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kclient.errors import (
    GroupIdNotFoundError,
    GroupNotEmptyError,
    GroupSubscribedToTopicError,
    InvalidCommitOffsetSizeError,
    KafkaError,
    OffsetMetadataTooLargeError,
    UnknownMemberIdError,
)
from kclient.spark.pipelines.mirror_offsets import OffsetTranslator
from kclient.types import OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    from kclient.admin import GroupListing
    from kclient.sync import Admin

_EMPTY = frozenset({"", "Empty", "Dead"})
"""States of groups without members."""
_HAS_MEMBERS = (GroupNotEmptyError, UnknownMemberIdError, GroupSubscribedToTopicError)
_REFUSED = (GroupIdNotFoundError, OffsetMetadataTooLargeError, InvalidCommitOffsetSizeError)
"""What concerns one group alone: its name is another type's in the target, or its metadata are too long."""
_NOTE = re.compile(r'\{"format":\d')
"""How metadata begin that pipelines write: their groups are no consumers."""


@dataclass(frozen=True)
class GroupsMirrored:
    """What became of committed offsets.

    Attributes:
        moved: how many were committed in the target.
        same: how many it had already, or had gone on from: groups are never moved back.
        later: how many lie behind what is mirrored yet.
        early: how many may lie before their exact place, since the source has lost records; never behind it.
        active: groups that were left as they are, as they have members in the target.
        refused: groups of which the target has taken not all, with the reason.
    """

    moved: int = 0
    same: int = 0
    later: int = 0
    early: int = 0
    active: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()


def mirror_groups(
    source: Admin, target: Admin, pattern: re.Pattern[str], translators: Mapping[TopicPartition, OffsetTranslator],
    targets: Mapping[str, str],
) -> GroupsMirrored:  # fmt: skip
    """Commit in the target what groups have committed at the source.

    Args:
        source: Of the source.
        target: Of the target.
        pattern: Whole ids of groups match it.
        translators: By partition of the source.
        targets: By source topic.

    Raises:
        KafkaError: a side cannot be asked, or the target takes no commits.
    """
    commits = _committed(source, pattern, translators)
    wanted: dict[str, dict[TopicPartition, OffsetAndMetadata]] = defaultdict(dict)
    later = early = 0
    for tp, by_group in commits.items():  # partition by partition: what one reads of it serves all groups
        for group_id, offset in by_group.items():
            found = translators[tp].translate(offset.offset)
            if found is None:
                later += 1
                continue
            early += not found.certain
            place = TopicPartition(targets[tp.topic], tp.partition)
            wanted[group_id][place] = OffsetAndMetadata(found.offset, offset.metadata)
    listed = {group.group_id: group for group in target.list_groups().complete()}
    moved = same = 0
    active: list[str] = []
    refused: list[str] = []
    for group_id, offsets in sorted(wanted.items()):
        known = listed.get(group_id)
        if known is not None and not _commits(known):
            refused.append(f"{group_id}: a group of another type has the name in the target")
            continue
        there = {} if known is None else _offsets_of(target, group_id)
        ahead = {tp: each for tp, each in offsets.items() if tp not in there or there[tp].offset < each.offset}
        same += len(offsets) - len(ahead)
        if not ahead:
            continue
        if known is not None and known.state not in _EMPTY:
            active.append(group_id)
            continue
        failures = _commit(target, group_id, ahead)
        own = [error for error in failures if not isinstance(error, _HAS_MEMBERS)]
        if failures and not own:
            active.append(group_id)
        else:
            moved += len(ahead) - len(failures)
        if own:
            refused.append(f"{group_id}: {own[0]}")
    return GroupsMirrored(moved, same, later, early, tuple(active), tuple(refused))


def _commits(group: GroupListing) -> bool:
    """Whether it is of a type that commits offsets as consumers do."""
    return group.protocol_type in ("", "consumer") and group.type.lower() in ("", "classic", "consumer")


def _offsets_of(admin: Admin, group_id: str) -> Mapping[TopicPartition, OffsetAndMetadata]:
    try:
        return admin.list_group_offsets(group_id)
    except GroupIdNotFoundError:  # it has just gone
        return {}


def _committed(
    source: Admin, pattern: re.Pattern[str], partitions: Mapping[TopicPartition, object]
) -> dict[TopicPartition, dict[str, OffsetAndMetadata]]:
    found: dict[TopicPartition, dict[str, OffsetAndMetadata]] = defaultdict(dict)
    for group in source.list_groups().complete():
        if not pattern.fullmatch(group.group_id) or not _commits(group):
            continue
        for tp, offset in _offsets_of(source, group.group_id).items():
            if tp in partitions and not _NOTE.match(offset.metadata):
                found[tp][group.group_id] = offset
    return found


def _commit(target: Admin, group_id: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> Sequence[KafkaError]:
    """Why offsets were not taken: of a group that has got members since a moment ago, or whose own fault it is."""
    try:
        target.alter_group_offsets(group_id, dict(offsets))
    except KafkaError as error:
        several = getattr(error, "failures", None)  # where partitions were refused one by one
        reasons: list[KafkaError] = [error] if several is None else list(several.values())
        if not all(isinstance(each, (*_HAS_MEMBERS, *_REFUSED)) for each in reasons):
            raise
        return reasons
    return ()

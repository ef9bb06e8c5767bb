"""Large writes, which go to the store a part at a time: what becomes of a part whatever becomes of the rest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from kclient.gateway.rows.groups import encode_offset
from kclient.gateway.rows.keys import group_key, offset_key

if TYPE_CHECKING:
    from kclient.gateway.groups.offsets import GroupOffsets, OffsetCommit
    from kclient.gateway.rows.groups import CommittedOffset
    from kclient.gateway.topic_record import TopicRecord
    from kclient.types import TopicPartition


class CommitParts:
    """A commit of offsets: each part is visible once it is stored, so that nobody sees others than after a restart.

    Args:
        group_id: The group.
        offsets: Its offsets.
        commit: What is committed.
    """

    def __init__(self, group_id: str, offsets: GroupOffsets, commit: OffsetCommit) -> None:
        self._group_id = group_id
        self._offsets = offsets
        self._commit = commit
        self._taken: list[tuple[TopicRecord, TopicPartition, CommittedOffset | None]] = []

    def __iter__(self) -> Iterator[tuple[str, bytes | None]]:
        for record, partition, committed in self._commit.items():
            self._taken.append((record, partition, committed))
            value = None if committed is None else encode_offset(committed, record.topic_id)
            yield offset_key(self._group_id, partition), value

    def stored(self) -> Iterator[None]:
        """These are visible."""
        taken, self._taken = self._taken, []
        for record, partition, committed in taken:
            if not record.gone:
                self._offsets.put(partition, committed)
            yield


class DeletionParts:
    """The rows of a deleted group, by now without commits on their way.

    Its own comes last, so that what is cut off can be done again.

    Args:
        group_id: The group.
        offsets: Its offsets.
    """

    def __init__(self, group_id: str, offsets: GroupOffsets) -> None:
        self._group_id = group_id
        self._offsets = offsets
        self._taken: list[TopicPartition] = []
        self._removed: list[TopicPartition] = []

    def __iter__(self) -> Iterator[tuple[str, None]]:
        for partition, _ in self._offsets.items():
            self._taken.append(partition)
            yield offset_key(self._group_id, partition), None
        yield group_key(self._group_id), None

    def stored(self) -> Iterable[None]:
        """These are not in the store any more."""
        self._removed += self._taken
        self._taken = []
        return ()

    def drop_removed(self) -> Iterator[None]:
        """Forget what was removed, where the rest could not be."""
        for partition in self._removed:
            self._offsets.put(partition, None)
            yield

"""Writes of many rows, which are made when they go to the store: what becomes of a part whatever becomes of the rest.

Each row's key repeats the name of the group, which may have 32 kB: so none is made ahead.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from kclient.errors import KafkaError
from kclient.gateway.rows.groups import encode_offset
from kclient.gateway.rows.keys import group_key, longest_offset_key, of_topic_offsets, offsets_of_group, pending_key

if TYPE_CHECKING:
    from kclient.gateway.groups.offsets import GroupOffsets, OffsetCommit
    from kclient.gateway.rows.groups import CommittedOffset
    from kclient.gateway.topics.record import TopicRecord
    from kclient.htp.port import Manager
    from kclient.types import TopicPartition

_VALUE: Final = 120
"""About how many bytes the row of an offset has, beside its metadata."""


class CommitParts:
    """A commit of offsets: each part is visible once it is stored, so that nobody sees others than after a restart.

    Args:
        group_id: The group.
        offsets: Its offsets.
        commit: What is committed.
        few: Whether it goes with other writes.
    """

    def __init__(self, group_id: str, offsets: GroupOffsets, commit: OffsetCommit, *, few: bool) -> None:
        self.few: int | None = commit.size if few else None
        self.length: int = commit.size * (longest_offset_key(group_id) + _VALUE) + commit.held
        self._group_id = group_id
        self._offsets = offsets
        self._commit = commit
        self._taken: list[tuple[TopicRecord, TopicPartition, CommittedOffset | None]] = []

    def __iter__(self) -> Iterator[tuple[str, bytes | None]]:
        self._taken = []  # once more, if others with which they went were refused
        group, prefix, last = offsets_of_group(self._group_id), "", None
        for record, partition, committed in self._commit.items():
            if record is not last:
                prefix, last = group + of_topic_offsets(record.name), record
            self._taken.append((record, partition, committed))
            value = None if committed is None else encode_offset(committed, record.topic_id)
            yield f"{prefix}{partition.partition}", value

    def stored(self) -> Iterator[None]:
        """These are visible."""
        taken, self._taken = self._taken, []
        self._offsets.bring(self._commit, len(taken))
        for record, partition, committed in taken:
            if not record.gone:
                self._offsets.put(partition, committed)
            yield

    async def failed(self, manager: Manager) -> None:
        """The store may have these: they are not told, and go with the group, or with their topic.

        What was to be deleted stays, unless the store has removed it all the same: who reads on from it would not after
        the next start.
        """
        taken, self._taken = self._taken, []
        deleted: dict[str, tuple[TopicRecord, TopicPartition]] = {}
        group = offsets_of_group(self._group_id)
        for record, partition, committed in taken:
            if committed is None:
                deleted[f"{group}{of_topic_offsets(record.name)}{partition.partition}"] = record, partition
            elif not record.gone:
                self._offsets.doubt(partition)
        with suppress(KafkaError):
            there = await manager.get(deleted) if deleted else {}
            for key, (record, partition) in deleted.items():
                if key not in there and not record.gone:
                    self._offsets.put(partition, None)


class DeletionParts:
    """The rows of a deleted group, by now without commits on their way.

    Its own comes last, so that what is cut off can be done again.

    Args:
        group_id: The group.
        offsets: Its offsets.
        others: The keys of its other rows.
    """

    def __init__(self, group_id: str, offsets: GroupOffsets, others: Sequence[str] = ()) -> None:
        self.few: int | None = None
        self.length: int = 0
        self._group_id = group_id
        self._offsets = offsets
        self._others = others
        self._taken: list[TopicPartition] = []
        self._removed: list[TopicPartition] = []

    def __iter__(self) -> Iterator[tuple[str, None]]:
        for transactional_id in list(self._offsets.transactions):  # first: then nothing is committed behind it
            yield pending_key(self._group_id, transactional_id), None
        for partition, key in self._keys(partition for partition, _ in self._offsets.everything()):
            self._taken.append(partition)
            yield key, None
        for key in self._others:
            yield key, None
        yield group_key(self._group_id), None

    def _keys(self, partitions: Iterable[TopicPartition]) -> Iterator[tuple[TopicPartition, str]]:
        group, prefix, last = offsets_of_group(self._group_id), "", None
        for partition in partitions:
            if partition.topic != last:
                prefix, last = group + of_topic_offsets(partition.topic), partition.topic
            yield partition, f"{prefix}{partition.partition}"

    def stored(self) -> Iterable[None]:
        """These are not in the store any more."""
        self._removed += self._taken
        self._taken = []
        return ()

    async def failed(self, manager: Manager) -> None:
        """They stay, but for those that the store has removed all the same; all, where it does not tell."""
        taken, self._taken = self._taken, []
        with suppress(KafkaError):
            there = await manager.get([key for _, key in self._keys(taken)])
            self._removed += [partition for partition, key in self._keys(taken) if key not in there]

    def drop_removed(self) -> Iterator[None]:
        """Forget what was removed, where the rest could not be."""
        for partition in self._removed:
            self._offsets.put(partition, None)
            yield


class RemovalParts:
    """The rows of a group's offsets of a deleted topic.

    Args:
        group_id: The group.
        topic: The topic.
        numbers: Its partitions.
    """

    def __init__(self, group_id: str, topic: str, numbers: Sequence[int]) -> None:
        self.few: int | None = len(numbers)
        self.length: int = len(numbers) * longest_offset_key(group_id)
        self._group_id = group_id
        self._topic = topic
        self._numbers = numbers

    def __iter__(self) -> Iterator[tuple[str, None]]:
        prefix = offsets_of_group(self._group_id) + of_topic_offsets(self._topic)
        return ((f"{prefix}{number}", None) for number in self._numbers)

    def stored(self) -> Iterable[None]:
        """Whoever asked for it is told of the whole."""
        return ()

    async def failed(self, manager: Manager) -> None:
        """They are removed again."""

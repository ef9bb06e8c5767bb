"""The store that topics are moved into: a gateway in this process, which nobody else may open meanwhile."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

import anyio
import anyio.lowlevel

from kclient.errors import CorruptRecordError, KafkaError, KafkaStorageError
from kclient.gateway import Gateway
from kclient.gateway.append import Append, AppendState
from kclient.gateway.config import check_topic_overrides
from kclient.gateway.partition import Partition
from kclient.gateway.rows.topics import MirrorOrigin
from kclient.gateway.topics.names import check_name
from kclient.gateway.topics.record import TopicRecord
from kclient.migration.errors import MigrationError
from kclient.migration.source import SourceTopic
from kclient.records import CURRENT_MAGIC, BatchHeader, iter_headers, up_convert
from kclient.records.headers import check_found
from kclient.types import Buffer

_AT_ONCE: Final = 2 << 20
"""Bytes, or a batch more, that are appended in one write, before others have their turn."""
_BATCHES_AT_ONCE: Final = 256
"""And batches."""
_HEADERS_AT_ONCE: Final = 1024
"""Headers that are read before others have their turn."""


class Appended(NamedTuple):
    """What `Target.append` has appended."""

    last: Append | None
    """The last batch; None for none."""
    records: int
    size: int
    """Bytes of all batches."""


class FoundBatches(NamedTuple):
    """The batches in what a broker has sent."""

    data: memoryview
    batches: list[tuple[int, BatchHeader]]
    """Where each begins, and its header; one that is cut off is left out. No checksum was compared yet."""
    damage: CorruptRecordError | None
    """Why those that follow cannot be told apart."""


async def find_batches(data: Buffer) -> FoundBatches:
    """Look for the batches in what a broker has sent."""
    view = memoryview(data)
    batches: list[tuple[int, BatchHeader]] = []
    try:
        for each in iter_headers(view):
            batches.append(each)
            if len(batches) % _HEADERS_AT_ONCE == 0:
                await anyio.lowlevel.checkpoint()
    except CorruptRecordError as error:
        return FoundBatches(view, batches, error)
    return FoundBatches(view, batches, None)


class Target:
    """What the migration does with a running gateway.

    Args:
        gateway: It runs, in this event loop.
    """

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        parts = gateway.parts
        self._topics = parts.topics
        self._catalogue = parts.catalogue
        self._partitions = parts.partitions
        self._producer_ids = parts.producer_ids

    def topic(self, name: str) -> TopicRecord | None:
        """The topic of this name."""
        return self._topics.get(name)

    async def check_new(self, topic: SourceTopic) -> None:
        """See to it that the mirror of a topic could be made. Raises the error that it would be refused with."""
        self._catalogue.check_creation(topic.name, topic.partitions, {})
        await self._catalogue.check_places(topic.name, topic.partitions)

    async def mirror(self, topic: SourceTopic, cluster_id: str, settings: Mapping[str, str]) -> TopicRecord:
        """The mirror of a topic, which is made if it is not there.

        Args:
            topic: The topic, as it is at the source.
            cluster_id: The source.
            settings: Which a new one gets.

        Raises:
            MigrationError: What is there under this name is not its mirror.
            KafkaError: It cannot be made.
        """
        record = self.topic(topic.name)
        if record is None:
            mirror = MirrorOrigin(cluster_id, topic.topic_id)
            return await self._catalogue.create(topic.name, topic.partitions, -1, settings, mirror=mirror)
        reason = conflict(record.mirror, topic, cluster_id)
        if reason is not None:
            raise MigrationError(reason)
        return record

    async def grow(self, record: TopicRecord, partitions: int) -> None:
        """Have a mirror have as many partitions as its source, which has grown."""
        await self._catalogue.grow(record.name, partitions, as_source=True)

    def partition(self, record: TopicRecord, number: int) -> Partition:
        """A partition of a mirror. Raises `KafkaError` where there is none."""
        return self._partitions.check(record, number)

    async def append(self, partition: Partition, found: FoundBatches) -> Appended:
        """Append what is new of some batches of a partition's source; wait for `durable` afterwards.

        Args:
            partition: It is open.
            found: What a broker sent, asked for from an offset that the partition has reached: batches that are there
                already are left out. They are stamped, and written out of this buffer.

        Raises:
            CorruptRecordError: A batch is damaged, or does not follow on what is there; those before it are appended.
            KafkaError: The gateway refuses some; those before them are appended, unless they fail, too.
        """
        last: Append | None = None
        records = size = waiting = 0
        group: list[tuple[Buffer, BatchHeader]] = []
        expected = partition.log.next_offset

        async def write() -> None:
            nonlocal last, records, size, waiting, expected
            if waiting == 0:
                return
            last = partition.append_mirrored(group)
            if last.error is not None:
                raise last.error
            records += sum(header.count for _, header in group)
            size, waiting, expected = size + waiting, 0, partition.log.next_offset
            group.clear()
            await anyio.lowlevel.checkpoint()
            if last.error is not None:
                raise last.error
            if partition.log.next_offset != expected:  # what is between would be taken for a hole of the source
                raise KafkaStorageError(f"{partition}: what was appended before is not stored")

        try:
            for batch, header in _checked(found):
                if header.last_offset < expected:
                    continue
                if header.base_offset < expected:
                    raise CorruptRecordError(
                        f"{partition}: the source has a batch of the offsets {header.base_offset} to "
                        f"{header.last_offset}, and the mirror ends within it, at {expected}"
                    )
                group.append((batch, header))
                expected = header.last_offset + 1
                waiting += header.length
                if waiting >= _AT_ONCE or len(group) == _BATCHES_AT_ONCE:
                    await write()
        except CorruptRecordError:
            await write()
            raise
        await write()
        return Appended(last, records, size)

    def skip(self, partition: Partition, end: int) -> Appended:
        """Have the mirror of a partition end where its source ends; wait for `durable` afterwards.

        Raises:
            KafkaError: The gateway refuses that.
        """
        return Appended(partition.skip_mirrored(end), 0, 0)

    async def take_over(self, records: Iterable[TopicRecord]) -> None:
        """Have topics follow their sources no more, and take producers' records; for good when this returns."""
        # ids that the source's producers had are given to nobody else from now on, by whatever gateway
        await self._producer_ids.take()
        for record in records:
            await self._catalogue.take_over(record.name)


async def durable(append: Append) -> None:
    """Until a batch is durable. Raises `KafkaError` if it is not stored."""
    if append.state < AppendState.DURABLE:
        over = anyio.Event()
        append.watch(AppendState.DURABLE, over.set)
        await over.wait()
    if append.error is not None:
        raise append.error


def conflict(mirror: MirrorOrigin | None, topic: SourceTopic, cluster_id: str) -> str | None:
    """Why a topic of the store is not the mirror of a source's of the same name; None if it is, or was.

    Args:
        mirror: Of what that of the store is the mirror; None where it was made there.
        topic: The source's.
        cluster_id: The source.
    """
    if mirror is None:
        return (
            f"topic {topic.name} is in the store already and was made there: delete it there, or leave it out "
            f"(--exclude {topic.name})"
        )
    if mirror.cluster_id != cluster_id:
        return (
            f"topic {topic.name} in the store mirrors the cluster {mirror.cluster_id}, and this is {cluster_id}: "
            "name the right --from, or delete the topic in the store"
        )
    if mirror.topic_id != topic.topic_id:
        return (
            f"topic {topic.name} was deleted at the source and created again: the store has the records of the first "
            f"one. Delete the topic in the store to mirror the new one, or leave it out (--exclude {topic.name})"
        )
    return None


def refused_name(name: str) -> str | None:
    """Why a gateway would refuse a topic's name; None if it would not."""
    try:
        check_name(name)
    except KafkaError as error:
        return error.message
    return None


def refused_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """The settings that a gateway does not take, and why."""
    refused: dict[str, str] = {}
    for name, value in settings.items():
        try:
            check_topic_overrides({name: value})
        except KafkaError as error:
            refused[name] = error.message
    return refused


def _checked(found: FoundBatches) -> Iterator[tuple[Buffer, BatchHeader]]:
    """Every batch, checked, with its header; messages of older formats become batches of the present one."""
    view = found.data
    old: tuple[int, int] | None = None
    for position, header in found.batches:
        end = position + header.length
        if header.magic != CURRENT_MAGIC:
            old = (position if old is None else old[0], end)
            continue
        if old is not None:
            yield from _converted(view[slice(*old)])
            old = None
        check_found(view, position, header)
        yield view[position:end], header
    if old is not None:
        yield from _converted(view[slice(*old)])
    if found.damage is not None:
        raise found.damage


def _converted(messages: memoryview) -> Iterator[tuple[Buffer, BatchHeader]]:
    converted = memoryview(up_convert(messages, CURRENT_MAGIC))
    for position, header in iter_headers(converted):
        yield converted[position : position + header.length], header

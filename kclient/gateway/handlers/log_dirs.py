"""DescribeLogDirs: how large the partitions are that this gateway leads; and AlterReplicaLogDirs.

A gateway has one log directory, its store, which all gateways of a store share: each tells of what it leads, as a
broker of its replicas.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain
from typing import ClassVar, Final, cast

from kclient.acls import AclOperation
from kclient.concurrency import side_by_side
from kclient.errors import KafkaError, LogDirNotFoundError, UnknownTopicOrPartitionError
from kclient.gateway.access import Access
from kclient.gateway.contexts import ConnectionContext, RequestContext
from kclient.gateway.error_codes import code_of
from kclient.gateway.handlers._work import counted, rows_of
from kclient.gateway.handlers.handler import Begun, Handler, VersionRange
from kclient.gateway.partition import Partition
from kclient.gateway.partitions import PartitionTable
from kclient.gateway.topics.record import TopicRecord
from kclient.gateway.topics.table import TopicTable
from kclient.htp.urls import split_options
from kclient.net.fair_queue import Pace
from kclient.protocol.messages.replicas import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from kclient.protocol.registry import ApiKey

logger: logging.Logger = logging.getLogger("kclient.gateway")

_PER_PARTITION: Final = 150
"""About how many bytes of memory a partition's row takes."""
_AT_ONCE: Final = 32
"""Partitions that are opened at once, where they are not open."""


class DescribeLogDirsHandler(Handler):
    """Answers DescribeLogDirs."""

    API: ClassVar[ApiKey] = ApiKey.DESCRIBE_LOG_DIRS
    VERSIONS: ClassVar[VersionRange] = (0, 5)
    ONLY_READS: ClassVar[bool] = True

    def __init__(self, log_dir: str, access: Access, topics: TopicTable, partitions: PartitionTable) -> None:
        self._log_dir = log_dir
        self._access = access
        self._topics = topics
        self._partitions = partitions

    def begin(self, request: DescribeLogDirsRequest, context: RequestContext) -> Begun:
        """Partitions may have to be opened."""
        self._access.check_cluster(context.connection, AclOperation.DESCRIBE)
        sizes = rows_of((indexes for _, indexes in self._asked(request)), _PER_PARTITION)
        return cast("Begun", counted(sizes, partial(self._finish, request, context.connection)))

    def _asked(self, request: DescribeLogDirsRequest) -> Iterator[tuple[TopicRecord | None, Sequence[int]]]:
        if request.topics is None:
            for record in self._topics.all():
                yield record, range(record.partitions)
            return
        for topic in request.topics:
            named = self._topics.get(topic.topic)
            yield named, topic.partitions if named is not None else ()

    async def _finish(
        self, request: DescribeLogDirsRequest, client: ConnectionContext
    ) -> DescribeLogDirsResponse | None:
        found = DescribeLogDirsResult(log_dir=self._log_dir)
        topics: list[DescribeLogDirsTopic] = []
        pace = Pace(client.flow)
        async with side_by_side(_AT_ONCE) as begin:
            for record, indexes in self._asked(request):
                await pace.pause()
                if record is None:
                    continue
                topic = DescribeLogDirsTopic(name=record.name)
                for index in indexes:
                    if pace.over:
                        await pace.pause()
                        if client.gone:
                            return None
                    led = self._partitions.of(record, index)
                    if led is not None:
                        await begin(self._measure, led, index, topic)
                topics.append(topic)
        for topic in topics:
            await pace.pause()
            if topic.partitions:
                topic.partitions.sort(key=lambda row: row.partition_index)
                found.topics.append(topic)
        return DescribeLogDirsResponse(results=[found])

    @staticmethod
    async def _measure(led: Partition, index: int, topic: DescribeLogDirsTopic) -> None:
        try:
            await led.ready()
            size = await led.size()
        except KafkaError as error:  # it has moved, was deleted, or cannot be read: as of a disk that has failed
            logger.info("%s is not among what DescribeLogDirs tells: %s", led, error)
            return
        topic.partitions.append(DescribeLogDirsPartition(partition_index=index, partition_size=size))


class AlterReplicaLogDirsHandler(Handler):
    """Answers AlterReplicaLogDirs: there is one directory, where all partitions are, and no other to move them to.

    `kafka-reassign-partitions.sh` names it, when it is given what it printed before it moved partitions.
    """

    API: ClassVar[ApiKey] = ApiKey.ALTER_REPLICA_LOG_DIRS
    VERSIONS: ClassVar[VersionRange] = (0, 2)

    def __init__(self, log_dir: str, access: Access, topics: TopicTable) -> None:
        self._log_dir = log_dir
        self._access = access
        self._topics = topics

    def begin(self, request: AlterReplicaLogDirsRequest, context: RequestContext) -> Begun:
        """Nothing is moved."""
        arrays = chain.from_iterable(
            ((), *(topic.partitions for topic in directory.topics)) for directory in request.dirs
        )
        sizes = rows_of(arrays, _PER_PARTITION)
        return cast("Begun", counted(sizes, partial(self._finish, request, context.connection)))

    async def _finish(
        self, request: AlterReplicaLogDirsRequest, client: ConnectionContext
    ) -> AlterReplicaLogDirsResponse:
        response = AlterReplicaLogDirsResponse()
        pace = Pace(client.flow)
        for directory in request.dirs:
            await pace.pause()
            for topic in directory.topics:
                await pace.pause()
                answer = AlterReplicaLogDirTopicResult(topic_name=topic.name)
                response.results.append(answer)
                for index in topic.partitions:
                    await pace.pause()
                    row = AlterReplicaLogDirPartitionResult(partition_index=index)
                    answer.partitions.append(row)
                    try:
                        self._check(client, directory.path, topic.name, index)
                    except KafkaError as error:
                        row.error_code = code_of(error)
        return response

    def _check(self, client: ConnectionContext, path: str, name: str, index: int) -> None:
        self._access.check_cluster(client, AclOperation.ALTER)
        record = self._topics.get(name)
        if record is None or not 0 <= index < record.partitions:
            raise UnknownTopicOrPartitionError(f"the topic {name[:300]} has no partition {index}")
        if path != self._log_dir:
            raise LogDirNotFoundError(f"the log directory is {self._log_dir}, and there is no other")


def log_dir_of(store: str) -> str:
    """What clients are told of where a store is: its directory, or else its address.

    Args:
        store: Its address.
    """
    scheme, _, path = store.partition(":")
    return os.path.realpath(split_options(path)[0]) if scheme == "embedded" else store

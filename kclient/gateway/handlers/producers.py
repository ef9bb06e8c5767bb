"""DescribeProducers: who writes to partitions, and where their open transactions begin (KIP-664)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Final, cast

from kclient.acls import AclOperation
from kclient.errors import KafkaError
from kclient.gateway.error_codes import put_error
from kclient.gateway.handlers._internal import InternalPartitions
from kclient.gateway.handlers._partitions import NamedPartitions
from kclient.gateway.handlers._work import counted
from kclient.gateway.handlers.handler import Begun, Handler, VersionRange
from kclient.net.fair_queue import Pace
from kclient.protocol.messages.produce import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeProducersResponsePartition,
    DescribeProducersResponseTopic,
    ProducerState,
)
from kclient.protocol.registry import ApiKey

if TYPE_CHECKING:
    from kclient.gateway.access import Access
    from kclient.gateway.contexts import RequestContext
    from kclient.gateway.leadership import Leadership
    from kclient.gateway.partitions import PartitionTable
    from kclient.gateway.producer_windows import ProducerWindow

_PER_PARTITION: Final = 200
_PER_PRODUCER: Final = 250
"""About how many bytes of memory a row of the answer takes."""


class DescribeProducersHandler(Handler):
    """Tells what the logs of partitions remember of producers."""

    ONLY_READS: ClassVar[bool] = True
    API: ClassVar[ApiKey] = ApiKey.DESCRIBE_PRODUCERS
    VERSIONS: ClassVar[VersionRange] = (0, 0)

    def __init__(self, access: Access, partitions: PartitionTable, leadership: Leadership) -> None:
        self._internal = InternalPartitions(access, leadership)
        self._table = partitions
        self._partitions = NamedPartitions(access, partitions, AclOperation.READ)

    def begin(self, request: DescribeProducersRequest, context: RequestContext) -> Begun:
        """Partitions may have to be opened."""
        return cast("Begun", counted(self._sizes(request), partial(self._finish, request, context)))

    def _sizes(self, request: DescribeProducersRequest) -> Iterator[int]:
        for topic in request.topics:
            yield _PER_PARTITION
            for number in topic.partition_indexes:
                found = self._table.get(topic.name, number)
                yield _PER_PARTITION + _PER_PRODUCER * (0 if found is None else found.log.producers)

    async def _finish(
        self, request: DescribeProducersRequest, context: RequestContext
    ) -> DescribeProducersResponse | None:
        response = DescribeProducersResponse()
        partitions, pace = self._partitions, Pace(context.connection.flow)
        named = ((topic.name, number) for topic in request.topics for number in topic.partition_indexes)
        for topic in request.topics:
            await pace.pause()
            answer = DescribeProducersResponseTopic(name=topic.name)
            response.topics.append(answer)
            for number in topic.partition_indexes:
                if pace.over:  # also where nobody produces, and where there is no partition
                    await pace.pause()
                    if context.connection.gone:
                        return None
                row = DescribeProducersResponsePartition(partition_index=number)
                answer.partitions.append(row)
                try:
                    if self._internal.epoch(context.connection, AclOperation.READ, topic.name, number) is not None:
                        continue  # nobody produces to it
                    partition = partitions.find(context, topic.name, number)
                    await partitions.ready(partition, context, named, pace)
                    windows = partition.log.windows
                except KafkaError as error:
                    put_error(row, error)
                    windows = {}
                for producer_id, window in windows.items():
                    if pace.over:
                        await pace.pause()
                        if context.connection.gone:
                            return None
                    row.active_producers.append(_state(producer_id, window))
        return response


def _state(producer_id: int, window: ProducerWindow) -> ProducerState:
    return ProducerState(
        producer_id=producer_id,
        producer_epoch=window.epoch,
        last_sequence=window.batches[-1].last_sequence if window.batches else -1,
        last_timestamp=window.seen_ms,
        coordinator_epoch=window.coordinator_epoch,
        current_txn_start_offset=window.transaction_start,
    )

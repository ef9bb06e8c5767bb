"""Transactions: AddPartitionsToTxn, EndTxn, and WriteTxnMarkers.

The decisions are those of `kclient.gateway.transactions`; here requests become calls, and outcomes answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, ClassVar, Final, cast

import anyio

from kclient.acls import AclOperation, ResourceType
from kclient.concurrency import side_by_side
from kclient.errors import (
    ErrorCode,
    InvalidRequestError,
    InvalidTopicError,
    KafkaError,
    UnknownTopicOrPartitionError,
)
from kclient.gateway.access import CLUSTER_NAME
from kclient.gateway.error_codes import Role, code_of
from kclient.gateway.handlers._work import counted, rows_for
from kclient.gateway.handlers.handler import Begun, Finish, Handler, VersionRange
from kclient.gateway.partition_id import PartitionId
from kclient.gateway.peer_calls.names import FromGateway, named_group, named_id
from kclient.gateway.peers import EndOfTransaction, TransactionOf
from kclient.gateway.transaction import ProducerIdentity
from kclient.net.fair_queue import Pace
from kclient.protocol.messages.transactions import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
    EndTxnRequest,
    EndTxnResponse,
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopic,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from kclient.protocol.registry import ApiKey
from kclient.records import EndMarker

if TYPE_CHECKING:
    from kclient.gateway.access import Access
    from kclient.gateway.contexts import RequestContext
    from kclient.gateway.peers import LocalPeers
    from kclient.gateway.topics.record import TopicRecord
    from kclient.gateway.topics.table import TopicTable
    from kclient.gateway.transactions.coordinator import TransactionCoordinator
    from kclient.net.fair_queue import Flow

_FROM_BROKERS_SINCE: Final = 4
"""AddPartitionsToTxn comes from brokers from this version on, for many transactions."""
_BUMPS_SINCE: Final = 5
"""EndTxn gives the producer the next epoch from this version on (KIP-890)."""
_PATIENCE_S: Final = 2.0
"""Seconds that the answer to a request of many may take: what is not done then is to be asked for again."""
_AT_ONCE: Final = 64
"""Transactions of one request that are dealt with at the same time."""
_PER_PARTITION: Final = 400
"""About how many bytes of memory a partition takes until the request is answered, its row of the answer included."""
_PER_END: Final = 1500
"""The same of one where a transaction is to end."""
Place = tuple[str, int]
"""A topic as the request names it, and the number of a partition."""
_FENCED_SINCE: Final = 2
"""From this version on clients of both know PRODUCER_FENCED."""


def _code(error: KafkaError, version: int) -> int:
    code = code_of(error, Role.GROUPS)
    if code == ErrorCode.PRODUCER_FENCED and version < _FENCED_SINCE:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return code


class AddPartitionsToTxnHandler(Handler):
    """Adds partitions to transactions, or tells whether they are in them."""

    API: ClassVar[ApiKey] = ApiKey.ADD_PARTITIONS_TO_TXN
    VERSIONS: ClassVar[VersionRange] = (0, 5)
    ROLE: ClassVar[Role] = Role.GROUPS

    def __init__(
        self, access: Access, transactions: TransactionCoordinator, topics: TopicTable, from_gateway: FromGateway
    ) -> None:
        self._access = access
        self._transactions = transactions
        self._topics = topics
        self._from_gateway = from_gateway

    def begin(self, request: AddPartitionsToTxnRequest, context: RequestContext) -> Begun:
        """Have the coordinator look at each transaction."""
        client = context.connection
        if context.api_version >= _FROM_BROKERS_SINCE:
            trusted = self._from_gateway(context.client_id)
            many = partial(self._finish_many, request, trusted, client.flow)
            if trusted:  # others may hold the memory, and wait for this: such requests are small
                return many
            self._access.check_cluster(client, AclOperation.CLUSTER_ACTION)
            return cast("Begun", counted(_sizes_of_many(request.transactions), many))
        name = request.v3_and_below_transactional_id
        self._access.check(client, AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, name)
        return cast("Begun", counted(_sizes(request.v3_and_below_topics), partial(self._finish_one, request, context)))

    async def _finish_one(
        self, request: AddPartitionsToTxnRequest, context: RequestContext
    ) -> AddPartitionsToTxnResponse:
        topics, pace = request.v3_and_below_topics, Pace(context.connection.flow)
        found, refused = await self._look_up(
            topics, lambda name: self._access.topic(context.connection, AclOperation.WRITE, name), pace
        )
        code: int = ErrorCode.NONE
        if refused:  # all or none
            code = ErrorCode.OPERATION_NOT_ATTEMPTED
        else:
            producer = ProducerIdentity(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch)
            try:
                await self._transactions.join(
                    request.v3_and_below_transactional_id, producer, found.values(), version=1
                )
            except KafkaError as error:
                code = _code(error, context.api_version)
        return AddPartitionsToTxnResponse(
            results_by_topic_v3_and_below=await _results(topics, lambda place: refused.get(place, code), pace)
        )

    async def _finish_many(
        self, request: AddPartitionsToTxnRequest, trusted: bool, flow: Flow
    ) -> AddPartitionsToTxnResponse:
        response, pace = AddPartitionsToTxnResponse(), Pace(flow)
        until = anyio.current_time() + _PATIENCE_S
        async with side_by_side(_AT_ONCE) as begin:  # none waits for the commit of another
            for each in request.transactions:
                if pace.over:
                    await pace.pause()
                answer = AddPartitionsToTxnResult(transactional_id=each.transactional_id)
                response.results_by_transaction.append(answer)
                await begin(self._verify, each, answer, trusted, flow, until)
        return response

    async def _verify(
        self,
        asked: AddPartitionsToTxnTransaction,
        answer: AddPartitionsToTxnResult,
        trusted: bool,
        flow: Flow,
        until: float,
    ) -> None:
        pace = Pace(flow)
        groups = {each.name: name for each in asked.topics if trusted and (name := named_group(each.name)) is not None}
        topics = [each for each in asked.topics if each.name not in groups]
        found, refused = await self._look_up(topics, partial(self._named_by_broker, trusted=trusted), pace)
        transaction = TransactionOf(asked.transactional_id, asked.producer_id, asked.producer_epoch)
        joining = [(each.name, number) for each in asked.topics if each.name in groups for number in each.partitions]
        codes = dict.fromkeys((*found, *joining), int(ErrorCode.COORDINATOR_NOT_AVAILABLE))
        try:
            with anyio.CancelScope(deadline=until):
                if found or not groups:
                    outcomes = await self._transactions.verify(transaction, found.values(), add=not asked.verify_only)
                    codes |= {place: outcomes[partition] for place, partition in found.items()}
                if groups:
                    await self._transactions.join_groups(transaction, groups.values())
                    codes |= dict.fromkeys(joining, int(ErrorCode.NONE))
        except KafkaError as error:
            codes = dict.fromkeys(codes, code_of(error, self.ROLE))
        answer.topic_results = await _results(
            asked.topics, lambda place: codes[place] if place in codes else refused[place], pace
        )

    @staticmethod
    async def _look_up(
        topics: Sequence[AddPartitionsToTxnTopic], find: Callable[[str], TopicRecord], pace: Pace
    ) -> tuple[dict[Place, PartitionId], dict[Place, int]]:
        """The partitions by topic and number, and the codes of those that cannot be used."""
        found: dict[Place, PartitionId] = {}
        refused: dict[Place, int] = {}
        for topic in topics:
            await pace.pause()
            code, topic_id, partitions = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), b"", 0
            try:
                record = find(topic.name)
                topic_id, partitions = record.topic_id, record.partitions
            except InvalidTopicError:  # one of Kafka's own: as Kafka answers
                code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            except KafkaError as error:
                code = code_of(error)
            for number in topic.partitions:
                if pace.over:
                    await pace.pause()
                if 0 <= number < partitions:
                    found[topic.name, number] = PartitionId(topic_id, number)
                else:
                    refused[topic.name, number] = code
        return found, refused

    def _named_by_broker(self, name: str, *, trusted: bool) -> TopicRecord:
        """The topic that a gateway names by its id, and any other broker by its name, with the right to the cluster."""
        topic_id = named_id(name) if trusted else None
        record = self._topics.get(name) if topic_id is None else self._topics.by_id(topic_id)
        if record is None:
            raise UnknownTopicOrPartitionError(f"there is no topic {name[:300]}")
        return record

    def fail(
        self, request: AddPartitionsToTxnRequest, context: RequestContext, error: KafkaError
    ) -> AddPartitionsToTxnResponse:
        """The answer to a request that is refused as a whole."""
        code = code_of(error, self.ROLE)
        if context.api_version >= _FROM_BROKERS_SINCE:
            return AddPartitionsToTxnResponse(error_code=code)

        def partition(number: int) -> AddPartitionsToTxnPartitionResult:
            return AddPartitionsToTxnPartitionResult(partition_index=number, partition_error_code=code)

        def answered(topic: AddPartitionsToTxnTopic) -> AddPartitionsToTxnTopicResult:
            return AddPartitionsToTxnTopicResult(
                name=topic.name, results_by_partition=rows_for(topic.partitions, partition)
            )

        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=rows_for(request.v3_and_below_topics, answered))


def _sizes(topics: Sequence[AddPartitionsToTxnTopic]) -> Iterator[int]:
    for topic in topics:
        yield _PER_PARTITION
        yield from repeat(_PER_PARTITION, len(topic.partitions))


def _sizes_of_many(transactions: Sequence[AddPartitionsToTxnTransaction]) -> Iterator[int]:
    for each in transactions:
        yield _PER_PARTITION
        yield from _sizes(each.topics)


async def _results(
    topics: Sequence[AddPartitionsToTxnTopic], code: Callable[[Place], int], pace: Pace
) -> list[AddPartitionsToTxnTopicResult]:
    results = []
    for topic in topics:
        await pace.pause()
        result = AddPartitionsToTxnTopicResult(name=topic.name)
        results.append(result)
        for number in topic.partitions:
            if pace.over:
                await pace.pause()
            result.results_by_partition.append(
                AddPartitionsToTxnPartitionResult(
                    partition_index=number, partition_error_code=code((topic.name, number))
                )
            )
    return results


class EndTxnHandler(Handler):
    """Commits and aborts transactions."""

    API: ClassVar[ApiKey] = ApiKey.END_TXN
    VERSIONS: ClassVar[VersionRange] = (0, 5)
    ROLE: ClassVar[Role] = Role.GROUPS

    def __init__(self, access: Access, transactions: TransactionCoordinator) -> None:
        self._access = access
        self._transactions = transactions

    def begin(self, request: EndTxnRequest, context: RequestContext) -> Finish:
        """Have the coordinator decide."""
        name = request.transactional_id
        self._access.check(context.connection, AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, name)
        return partial(self._finish, request, context)

    async def _finish(self, request: EndTxnRequest, context: RequestContext) -> EndTxnResponse:
        bumps = context.api_version >= _BUMPS_SINCE
        try:
            producer = await self._transactions.end(
                request.transactional_id,
                ProducerIdentity(request.producer_id, request.producer_epoch),
                commit=request.committed,
                version=2 if bumps else 1,
            )
        except KafkaError as error:
            return EndTxnResponse(error_code=_code(error, context.api_version))
        if not bumps:
            return EndTxnResponse()
        return EndTxnResponse(producer_id=producer.producer_id, producer_epoch=producer.epoch)


def _sizes_of_ends(markers: Sequence[WritableTxnMarker]) -> Iterator[int]:
    for marker in markers:
        yield _PER_PARTITION
        for topic in marker.topics:
            yield _PER_PARTITION
            yield from repeat(_PER_END, len(topic.partition_indexes))


def _check_marker(marker: WritableTxnMarker) -> None:
    """Raise `InvalidRequestError` for one that no log can hold."""
    if marker.producer_id < 0 or marker.producer_epoch < 0:
        raise InvalidRequestError(f"no producer has the id {marker.producer_id} and epoch {marker.producer_epoch}")
    if marker.coordinator_epoch < -1:
        raise InvalidRequestError(f"no coordinator has the epoch {marker.coordinator_epoch}")


class WriteTxnMarkersHandler(Handler):
    """Appends the ends of transactions to partitions that are led here, for the coordinators of other gateways.

    So may whoever may alter the cluster: tools that end transactions which hang.
    """

    API: ClassVar[ApiKey] = ApiKey.WRITE_TXN_MARKERS
    VERSIONS: ClassVar[VersionRange] = (0, 2)

    def __init__(self, access: Access, local: LocalPeers, topics: TopicTable, from_gateway: FromGateway) -> None:
        self._access = access
        self._local = local
        self._topics = topics
        self._from_gateway = from_gateway

    def begin(self, request: WriteTxnMarkersRequest, context: RequestContext) -> Begun:
        """Append them; the answer waits until they are durable."""
        client = context.connection
        trusted = self._from_gateway(context.client_id)
        if not trusted and not self._access.allows(client, AclOperation.ALTER, ResourceType.CLUSTER, CLUSTER_NAME):
            self._access.check_cluster(client, AclOperation.CLUSTER_ACTION)
        finish = partial(self._finish, request, trusted, client.flow)
        return finish if trusted else cast("Begun", counted(_sizes_of_ends(request.markers), finish))

    async def _finish(self, request: WriteTxnMarkersRequest, trusted: bool, flow: Flow) -> WriteTxnMarkersResponse:
        pace = Pace(flow)
        places: list[dict[Place, PartitionId]] = []
        ends: list[EndOfTransaction] = []
        groups: dict[str, str] = {}
        for marker in request.markers:
            await pace.pause()
            if not trusted or any(named_group(topic.name) is None for topic in marker.topics):  # else it tells groups
                _check_marker(marker)
        for marker in request.markers:
            await pace.pause()
            found = await self._look_up(marker, trusted, pace)
            places.append(found)
            end = EndMarker(marker.transaction_result, coordinator_epoch=marker.coordinator_epoch)
            ends.append(
                EndOfTransaction(
                    marker.producer_id, marker.producer_epoch, end, list(found.values()), marker.transaction_version
                )
            )
            if trusted:
                named = ((topic.name, named_group(topic.name)) for topic in marker.topics)
                groups |= {name: group_id for name, group_id in named if group_id is not None}
        if groups:
            self._local.tell_outcome(groups.values())
        response = WriteTxnMarkersResponse()
        outcomes = await self._local.write_markers(ends, patience_s=_PATIENCE_S, flow=flow)
        for marker, found, codes in zip(request.markers, places, outcomes, strict=True):
            await pace.pause()
            result = WritableTxnMarkerResult(producer_id=marker.producer_id)
            for topic in marker.topics:
                await pace.pause()
                row = WritableTxnMarkerTopicResult(name=topic.name)
                for number in topic.partition_indexes:
                    if pace.over:
                        await pace.pause()
                    partition = found.get((topic.name, number))
                    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if partition is None else codes[partition]
                    code = ErrorCode.NONE if topic.name in groups else code
                    row.partitions.append(WritableTxnMarkerPartitionResult(partition_index=number, error_code=code))
                result.topics.append(row)
            response.markers.append(result)
        return response

    async def _look_up(self, marker: WritableTxnMarker, trusted: bool, pace: Pace) -> dict[Place, PartitionId]:
        """The partitions by topic and number. The right to the cluster is enough, whatever the topic."""
        found: dict[Place, PartitionId] = {}
        for topic in marker.topics:
            await pace.pause()
            topic_id = named_id(topic.name) if trusted else None
            record = self._topics.get(topic.name) if topic_id is None else self._topics.by_id(topic_id)
            for number in topic.partition_indexes:
                if pace.over:
                    await pace.pause()
                if record is not None and 0 <= number < record.partitions:
                    found[topic.name, number] = PartitionId(record.topic_id, number)
        return found

    def fail(
        self, request: WriteTxnMarkersRequest, context: RequestContext, error: KafkaError
    ) -> WriteTxnMarkersResponse:
        """The same error for every partition."""
        code = code_of(error, self.ROLE)

        def partition(number: int) -> WritableTxnMarkerPartitionResult:
            return WritableTxnMarkerPartitionResult(partition_index=number, error_code=code)

        def topic_of(topic: WritableTxnMarkerTopic) -> WritableTxnMarkerTopicResult:
            return WritableTxnMarkerTopicResult(
                name=topic.name, partitions=rows_for(topic.partition_indexes, partition)
            )

        def answered(marker: WritableTxnMarker) -> WritableTxnMarkerResult:
            topics = rows_for(marker.topics, topic_of)
            return WritableTxnMarkerResult(producer_id=marker.producer_id, topics=topics)

        return WriteTxnMarkersResponse(markers=rows_for(request.markers, answered))

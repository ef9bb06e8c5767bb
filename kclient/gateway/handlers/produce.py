"""Produce: batches are checked, get their offsets and go to HTP in the order the requests came."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import ClassVar

import anyio

from kclient.concurrency import Completion
from kclient.errors import (
    ErrorCode,
    InvalidRequiredAcksError,
    InvalidTxnStateError,
    KafkaError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
    UnsupportedVersionError,
)
from kclient.gateway.core import CloseConnectionError, Core, RequestContext
from kclient.gateway.handlers import Handler
from kclient.gateway.partitions import Level, Partition, Ticket
from kclient.gateway.recompression import recompress
from kclient.gateway.topics import TopicRecord
from kclient.gateway.validation import check_produced
from kclient.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from kclient.protocol.registry import ApiKey

logger: logging.Logger = logging.getLogger("kclient.gateway.produce")

# v0 to v2 carry message sets, which are answered as Kafka 4 answers them; they are advertised because old
# librdkafka otherwise takes compression for unsupported (KAFKA-18659).
API_VERSIONS: dict[ApiKey, tuple[int, int]] = {ApiKey.PRODUCE: (0, 13)}
OLDEST_WITH_BATCHES = 3

_TIMEOUT_STEP_S = 1.0
"""How often timeouts are looked at: a sync that takes long is rare, and clients wait longer than they ask for."""
_WANTED = {-1: Level.DURABLE, 1: Level.STORED, 0: Level.WAITING}

Waiting = list[tuple[PartitionProduceResponse, Ticket]]


class ProduceHandler(Handler):
    """Answers Produce."""

    API: ClassVar[ApiKey] = ApiKey.PRODUCE

    def __init__(self, core: Core) -> None:
        super().__init__(core)
        self._waiting: set[_Waiting] = set()
        self._expiring = False

    def begin(
        self, request: ProduceRequest, context: RequestContext
    ) -> ProduceResponse | Completion[ProduceResponse] | None:
        """Append every batch; the answer waits for what `acks` asks for."""
        wanted = _WANTED.get(request.acks)
        refusal = _refusal(request, context.api_version)
        if refusal is not None or wanted is None:
            refusal = refusal or InvalidRequiredAcksError(f"acks={request.acks} is none of -1, 0 and 1")
            return self.fail(request, context, refusal)
        waiting: Waiting = []
        response = ProduceResponse()
        now_ms = self.core.wall_ms()
        for topic in request.topic_data:
            response.responses.append(self._topic(topic, context.api_version, now_ms, wanted, waiting))
        if request.acks == 0:
            _close_on_errors(response)
            return None
        if not waiting:
            return response
        deadline = self.core.now() + request.timeout_ms / 1000
        answer = _Waiting(response, waiting, wanted, deadline, self._waiting).answer
        if not self._expiring:
            self._expiring = True
            self.core.spawn(self._expire, name="produce timeouts")
        return answer

    def fail(self, request: ProduceRequest, context: RequestContext, error: KafkaError) -> ProduceResponse | None:
        """The same error for every partition of the request; with `acks=0` the connection is closed."""
        if request.acks == 0:
            raise CloseConnectionError(str(error))
        response = ProduceResponse()
        for topic in request.topic_data:
            answer = TopicProduceResponse(name=topic.name, topic_id=topic.topic_id)
            for data in topic.partition_data:
                row = PartitionProduceResponse(index=data.index)
                _put_error(row, error)
                answer.partition_responses.append(row)
            response.responses.append(answer)
        return response

    def _topic(
        self, topic: TopicProduceData, version: int, now_ms: int, wanted: Level, waiting: Waiting
    ) -> TopicProduceResponse:
        answer = TopicProduceResponse(name=topic.name, topic_id=topic.topic_id)
        record = self.core.topics.by_id(topic.topic_id) if version >= 13 else self.core.topics.get(topic.name)
        for data in topic.partition_data:
            row = PartitionProduceResponse(index=data.index)
            answer.partition_responses.append(row)
            try:
                partition = self._partition(record, topic, data.index, version)
                ticket = self._append(partition, data, version, now_ms)
            except KafkaError as error:
                _put_error(row, error)
                continue
            if ticket.settled(wanted):
                _put(row, ticket)
            else:
                waiting.append((row, ticket))
            row.log_start_offset = partition.log.start_offset
        return answer

    def _partition(self, record: TopicRecord | None, topic: TopicProduceData, index: int, version: int) -> Partition:
        if record is None and version >= 13:
            raise UnknownTopicIdError(f"no topic has the id {topic.topic_id.hex()}")
        partition = self.core.partitions.of(record, index) if record is not None else None
        if partition is None:
            raise UnknownTopicOrPartitionError(f"there is no partition {topic.name}-{index}")
        return partition

    def _append(self, partition: Partition, data: PartitionProduceData, version: int, now_ms: int) -> Ticket:
        config = partition.config
        header = check_produced(data.records, version, config, now_ms)
        assert data.records is not None
        if header.is_transactional:
            raise InvalidTxnStateError("transactions are not supported yet")
        if config.compression_type != "producer":
            batch, header = recompress(data.records, header, config)
            return partition.append(batch, header)
        return partition.append(data.records, header)

    async def _expire(self) -> None:
        """Answer the requests whose `timeout.ms` has passed; runs while requests wait."""
        try:
            while self._waiting:
                await anyio.sleep(_TIMEOUT_STEP_S)
                now = self.core.now()
                for request in [request for request in self._waiting if request.deadline <= now]:
                    request.finish()
        finally:
            self._expiring = False


class _Waiting:
    """A request whose batches are on their way: completed by the last of them, or by its timeout."""

    __slots__ = ("_left", "_registry", "_response", "_rows", "_wanted", "answer", "deadline")

    def __init__(
        self, response: ProduceResponse, rows: Waiting, wanted: Level, deadline: float, registry: set[_Waiting]
    ) -> None:
        self.answer: Completion[ProduceResponse] = Completion()
        self.deadline = deadline
        self._response = response
        self._rows = rows
        self._wanted = wanted
        self._registry = registry
        self._left = len(rows)
        registry.add(self)
        for _, ticket in rows:
            ticket.watch(wanted, self._settled)

    def _settled(self) -> None:
        self._left -= 1
        if not self._left:
            self.finish()

    def finish(self) -> None:
        """Answer with what is known."""
        if self.answer.done:
            return
        self._registry.discard(self)
        for row, ticket in self._rows:
            if ticket.settled(self._wanted):
                _put(row, ticket)
            else:
                row.error_code = ErrorCode.REQUEST_TIMED_OUT
                row.error_message = "not durable within the request's timeout"
                row.base_offset = -1
        self.answer.set_result(self._response)


def _refusal(request: ProduceRequest, version: int) -> KafkaError | None:
    if version < OLDEST_WITH_BATCHES:
        return UnsupportedVersionError(
            f"Produce version {version} carries message formats v0 and v1, which are not supported yet"
        )
    if request.transactional_id is not None:
        return InvalidTxnStateError(
            f"transactions are not supported yet (transactional.id {request.transactional_id!r})"
        )
    return None


def _put(row: PartitionProduceResponse, ticket: Ticket) -> None:
    if ticket.error is not None:
        _put_error(row, ticket.error)
        return
    row.base_offset = ticket.base_offset
    row.log_append_time_ms = ticket.timestamp


def _put_error(row: PartitionProduceResponse, error: KafkaError) -> None:
    code = error.code
    row.error_code = code if code is not None else ErrorCode.UNKNOWN_SERVER_ERROR
    row.error_message = error.message
    row.base_offset = -1
    logger.debug("a batch for partition %d is refused: %s", row.index, error)


def _close_on_errors(response: ProduceResponse) -> None:
    """With acks=0 nobody is answered, so that a closed connection has to tell of errors, as in Kafka."""
    for row in _rows(response):
        if row.error_code:
            raise CloseConnectionError(f"a batch produced with acks=0 was refused: {row.error_message}")


def _rows(response: ProduceResponse) -> Iterator[PartitionProduceResponse]:
    for topic in response.responses:
        yield from topic.partition_responses


HANDLERS: dict[ApiKey, type[Handler]] = {ApiKey.PRODUCE: ProduceHandler}

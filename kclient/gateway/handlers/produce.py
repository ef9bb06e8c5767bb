"""Produce: batches are checked, get their offsets and go to HTP in the order the requests came.

Small batches are looked through at once. What takes longer, because it has to be decompressed or compressed, is done by
threads, a piece at a time; the request keeps its place meanwhile, and the connection's next one begins after it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar, Final, cast

import anyio

from kclient.acls import AclOperation, ResourceType
from kclient.concurrency import Completion
from kclient.errors import (
    InvalidRequiredAcksError,
    KafkaError,
    KafkaStorageError,
    RecordTooLargeError,
    TransactionalIdAuthorizationError,
)
from kclient.gateway.access import Access
from kclient.gateway.append import AppendState
from kclient.gateway.append_memory import AppendMemory
from kclient.gateway.clock import Clock
from kclient.gateway.config import TopicConfig
from kclient.gateway.contents import AT_ONCE, ContentCheck, Recompression, look_through
from kclient.gateway.contexts import RequestContext
from kclient.gateway.handlers._leaders import PRODUCE_SINCE, tell_producer
from kclient.gateway.handlers._produce_reply import PendingReply, put, put_error, told
from kclient.gateway.handlers._verification import Verifications
from kclient.gateway.handlers._work import Work, rows_for, started
from kclient.gateway.handlers.handler import Begun, Handler, VersionRange
from kclient.gateway.leadership import Leadership
from kclient.gateway.old_formats import BATCHES_SENT_SINCE, is_message_set, room_to_send, sent_batch
from kclient.gateway.partition import Partition
from kclient.gateway.partition_id import PartitionId
from kclient.gateway.partitions import LedElsewhereError, PartitionTable
from kclient.gateway.peers import Peers
from kclient.gateway.validation import check_produced
from kclient.gateway.workers import Workers
from kclient.memory_ledger import LimitedAccount
from kclient.net.answers import CloseConnectionError
from kclient.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from kclient.protocol.registry import ApiKey
from kclient.records import HEADER_SIZE, BatchHeader, CompressionType, read_header
from kclient.records.batch_header import write_header
from kclient.records.restamping import writable
from kclient.types import Buffer, TimestampType

logger: logging.Logger = logging.getLogger("kclient.gateway.produce")

_WITH_TOPIC_IDS: Final = 13  # Produce names topics by id from this version on

_TIMEOUT_STEP_S = 1.0
"""How often timeouts are looked at: a sync that takes long is rare, and clients wait longer than they ask for."""
_TOLD_AGAIN_S: Final = 60.0
"""Seconds between two lines of the log that say that batches are refused for want of memory."""
# with acks=0 nobody is answered; but a batch that is not stored yet still takes memory
_WANTED = {-1: AppendState.DURABLE, 1: AppendState.STORED, 0: AppendState.STORED}
_LOOKED_AT: Final = 1024
"""So many batches are asked whether they are a transaction's before others have their turn."""
_AT_A_TIME: Final = 16
"""Batches that are appended before others have their turn, and the bytes of them."""
_BYTES_AT_A_TIME: Final = 1 << 20
_PER_ROW: Final = 650
"""About how many bytes of memory a row takes with its view of the request, beside the topic's name in an error."""
_LONGEST_NAME: Final = 300
_LOG_APPEND_TIME: Final = 0x08
_CODEC_AT: Final = 22
"""Where the codec stands in a batch v2."""
_TRANSACTIONAL: Final = 0x10
_TAKES_LONG: Final = 0x07 | _TRANSACTIONAL
"""Bits of that byte: its codec, and whether its coordinator has to be asked."""
_AS_IT_IS: Final = frozenset({"producer", "uncompressed"})
"""The `compression.type` that leaves batches without compression as they are."""
_LARGE: Final = 16 << 20
"""Bytes of a batch whose checksum is not computed on the event loop."""
_SMALL: Final = 16 * 1024
"""Bytes of a compressed batch that is looked through at once, if it holds no more than `_SMALL_INSIDE`."""
_SMALL_INSIDE: Final = min(AT_ONCE, 128 * 1024)


class ProduceHandler(Handler):
    """Answers Produce.

    Args:
        topics: All topics.
        partitions: Their partitions.
        leadership: Knows where those are that others lead.
        workers: Threads for checksums, decompression and compression.
        clock: What time it is.
        peers: Know the coordinators of transactions.
        appends: Where appends count that wait for syncs.
        batches: Where batches count that are not stored and outlive their requests.
        spawn: Starts a task of the gateway.
    """

    API: ClassVar[ApiKey] = ApiKey.PRODUCE
    VERSIONS: ClassVar[VersionRange] = (0, 13)
    FEW_AT_ONCE: ClassVar[bool] = True

    def __init__(
        self,
        access: Access,
        partitions: PartitionTable,
        leadership: Leadership,
        workers: Workers,
        clock: Clock,
        peers: Peers,
        appends: AppendMemory,
        batches: LimitedAccount,
        spawn: Callable[..., object],
    ) -> None:
        self._access = access
        self._partitions = partitions
        self._leadership = leadership
        self._workers = workers
        self._clock = clock
        self._peers = peers
        self._appends = appends.account
        self._many = appends.many
        """Bytes of appends that wait for syncs: while there are so many, answers wait for theirs."""
        self._batches = batches
        self._told_full = float("-inf")
        self._spawn = spawn
        self._waiting: set[PendingReply] = set()
        self._expiring = False

    def begin(self, request: ProduceRequest, context: RequestContext) -> Begun:
        """Append every batch; the answer waits for what `acks` asks for."""
        wanted = _WANTED.get(request.acks)
        if wanted is None:
            raise InvalidRequiredAcksError(f"acks={request.acks} is none of -1, 0 and 1")
        if len(request.topic_data) == 1 and len(request.topic_data[0].partition_data) == 1:
            topic = request.topic_data[0]
            partition = self._at_hand(topic, topic.partition_data[0], context)
            if partition is not None:
                if self._appends.held < self._many:
                    return self._append_one(request, context, wanted, partition)
                if not partition.appends.full:
                    return self._append_one(request, context, self._enough(wanted, partition), partition)
        return cast("Begun", started(self._begin(request, context, wanted)))

    def _at_hand(
        self, topic: TopicProduceData, data: PartitionProduceData, context: RequestContext
    ) -> Partition | None:
        """The partition of a batch that can be looked through and appended in one go."""
        records = data.records
        if records is None or not HEADER_SIZE <= len(records) <= AT_ONCE or records[_CODEC_AT] & _TAKES_LONG:
            return None
        if context.api_version < BATCHES_SENT_SINCE:
            return None
        topic_id = topic.topic_id if context.api_version >= _WITH_TOPIC_IDS else None
        record = self._access.find(context.connection, AclOperation.WRITE, topic.name, topic_id)
        partition = None if record is None else self._partitions.of(record, data.index)
        if partition is None or partition.config.compression_type not in _AS_IT_IS:
            return None
        return partition

    def _append_one(
        self, request: ProduceRequest, context: RequestContext, wanted: AppendState, partition: Partition
    ) -> Begun:
        """The same as `_begin` of one batch that is at hand."""
        topic = request.topic_data[0]
        data = topic.partition_data[0]
        row = PartitionProduceResponse(index=data.index)
        response = ProduceResponse(
            responses=[TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=[row])]
        )
        try:
            header = check_produced(data.records, context.api_version, partition.config)
            if self._batches.held >= self._batches.limit:
                self._check_queue(partition, header)
            append = partition.append(*self._looked_through(partition, data, header))
        except KafkaError as error:
            put_error(row, error, context.api_version)
            return told(response, request.acks == 0)
        row.log_start_offset = partition.log.start_offset
        if append.state >= wanted:
            put(row, append, context.api_version)
            return told(response, request.acks == 0)
        waiting = PendingReply(response, request.acks == 0, context.api_version)
        waiting.add(row, append, wanted)
        if append.state < AppendState.STORED:
            waiting.outlive(append, len(data.records or b""), self._batches)
        return self._answer(waiting, request, context, self._deadline(request))

    def _begin(self, request: ProduceRequest, context: RequestContext, wanted: AppendState) -> Work:
        deadline = self._deadline(request)
        if request.transactional_id is None:
            return (yield from self._append_all(request, context, wanted, deadline, None))
        verifications = Verifications(
            self._peers,
            request.transactional_id,
            self._clock,
            max(deadline, self._clock.now() + _TIMEOUT_STEP_S),
            context.api_version,
        )
        try:
            yield from self._verify(verifications, request, context)
            return (yield from self._append_all(request, context, wanted, deadline, verifications))
        finally:
            verifications.close()

    def _verify(self, verifications: Verifications, request: ProduceRequest, context: RequestContext) -> Work:
        """Ask about the partitions of a transaction; of those that are not there the answer will say so."""
        allowed = False
        for topic in request.topic_data:
            for count, data in enumerate(topic.partition_data, 1):
                if count % _LOOKED_AT == 0:
                    yield None
                if not _is_transactional(data.records):
                    continue
                if not allowed:
                    name = verifications.transactional_id
                    self._access.check(context.connection, AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, name)
                    allowed = True
                with suppress(KafkaError):
                    key, partition = self._partition(topic, data.index, context)
                    assert data.records is not None
                    verifications.add(key, partition, data.records)
            yield None
        if not allowed:
            return
        self._spawn(verifications.ask, name="verify a transaction")
        yield verifications.done

    def _append_all(
        self,
        request: ProduceRequest,
        context: RequestContext,
        wanted: AppendState,
        deadline: float,
        verifications: Verifications | None,
    ) -> Work:
        response = ProduceResponse()
        waiting = PendingReply(response, request.acks == 0, context.api_version)
        count = size = 0
        for topic in request.topic_data:
            answer = TopicProduceResponse(name=topic.name, topic_id=topic.topic_id)
            response.responses.append(answer)
            count += 1  # topics count too: there may be very many without partitions
            if count > _AT_A_TIME:
                yield count * (_PER_ROW + min(len(topic.name), _LONGEST_NAME))
                count = 0
            for data in topic.partition_data:
                row = PartitionProduceResponse(index=data.index)
                answer.partition_responses.append(row)
                count += 1
                size += len(data.records or b"")
                if count > _AT_A_TIME or size > _BYTES_AT_A_TIME:
                    yield count * (_PER_ROW + min(len(topic.name), _LONGEST_NAME))
                    count = size = 0
                try:
                    key, partition = self._partition(topic, data.index, context)
                    of_old = context.api_version < BATCHES_SENT_SINCE and is_message_set(data.records)
                    if of_old:
                        sent = yield from self._made_new(data.records, partition.config, context)
                        key, partition = self._partition(topic, data.index, context)  # it may be another now
                        if sent is None:
                            row.base_offset = -1  # nothing is appended, and nothing is wrong
                            continue
                        data.records = sent
                    if len(data.records or b"") <= _LARGE:
                        header = check_produced(data.records, context.api_version, partition.config)
                    else:
                        header = yield from self._check_large(partition, data, context.api_version)
                    self._check_appends(partition, header)
                    if header.is_transactional and verifications is None:
                        raise TransactionalIdAuthorizationError("a transaction's request names no transactional.id")
                    if header.compression is CompressionType.NONE and header.length <= AT_ONCE:
                        batch, header = self._looked_through(partition, data, header)
                        inside = header.length - HEADER_SIZE
                    else:
                        batch, header, inside = yield from self._look_through(partition, data, header, context)
                        key, partition = self._partition(topic, data.index, context)  # it may be another now
                    if anew := Recompression.asked_for(header, partition.config):
                        made = Recompression(batch, header, partition.config, inside)
                        batch, header = yield from self._made_anew(made, context, waiting)
                        key, partition = self._partition(topic, data.index, context)
                    if self._batches.held >= self._batches.limit:
                        self._check_queue(partition, header)
                    verified = None if verifications is None else verifications.of(key, partition, header)
                    append, enough = partition.append(batch, header, verified), self._enough(wanted, partition)
                    if anew or of_old:
                        waiting.hold(append, enough, header.length)
                except KafkaError as error:
                    put_error(row, error, context.api_version)
                    if isinstance(error, LedElsewhereError) and context.api_version >= PRODUCE_SINCE:
                        endpoints, client = response.node_endpoints, context.connection
                        tell_producer(endpoints, row, error.leader, self._leadership, client.advertised)
                    continue
                if append.state >= enough:
                    put(row, append, context.api_version)
                else:
                    waiting.add(row, append, enough)
                    if append.state < AppendState.STORED:
                        waiting.outlive(append, len(batch), self._batches)
                row.log_start_offset = partition.log.start_offset
        return self._answer(waiting, request, context, deadline)

    def _enough(self, wanted: AppendState, partition: Partition) -> AppendState:
        """What an answer waits for that asks for `wanted`: where there are many, for what makes them fewer."""
        return AppendState.DURABLE if self._appends.held >= self._many and partition.appends.many else wanted

    def _check_appends(self, partition: Partition, header: BatchHeader) -> None:
        """While there is no memory for appends: refuse the batch before it costs more, and so that its log knows."""
        if partition.appends.full:
            partition.log.refuse(header, self._clock.wall_ms())
            raise self._full(self._appends, "appends whose syncs have not come")

    def _check_queue(self, partition: Partition, header: BatchHeader) -> None:
        """While there is no memory for batches that outlive their requests: refuse what could become one."""
        if partition.queues:
            partition.open_soon()  # whoever tries again finds it open, though others' batches may stay for long
            partition.log.refuse(header, self._clock.wall_ms())
            raise self._full(self._batches, "batches that are not stored and whose clients wait no longer")

    def _full(self, account: LimitedAccount, what: str) -> KafkaError:
        """The error of a batch for which there is no memory, as while the disk hangs."""
        text = (
            f"{what} take {account.held} bytes of memory, and may take {account.limit}, an eighth of "
            "connections.max.memory.bytes: the store has to catch up first"
        )
        now = self._clock.now()
        if now - self._told_full >= _TOLD_AGAIN_S:
            self._told_full = now
            logger.warning("batches are refused, their producers try again: %s", text)
        return KafkaStorageError(text)

    def _deadline(self, request: ProduceRequest) -> float:
        """When the time of a request that begins now is over."""
        return self._clock.now() + request.timeout_ms / 1000

    def _answer(
        self, waiting: PendingReply, request: ProduceRequest, context: RequestContext, deadline: float
    ) -> Completion[Any] | ProduceResponse | None:
        """The answer, or what becomes it, once all batches were appended."""
        if waiting.is_over():
            return waiting.response()
        if waiting.outlives:
            context.connection.when_gone(waiting.outlived)
            waiting.on_done(lambda _: context.connection.unless_gone(waiting.outlived))
        if request.acks:
            self._expire_at(waiting, deadline)
        return waiting

    def fail(self, request: ProduceRequest, context: RequestContext, error: KafkaError) -> ProduceResponse | None:
        """The same error for every partition of the request; with `acks=0` the connection is closed."""
        if request.acks == 0:
            raise CloseConnectionError(str(error))

        def partition(data: PartitionProduceData) -> PartitionProduceResponse:
            row = PartitionProduceResponse(index=data.index)
            put_error(row, error, context.api_version)
            return row

        def answered(topic: TopicProduceData) -> TopicProduceResponse:
            rows = rows_for(topic.partition_data, partition)
            return TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=rows)

        return ProduceResponse(responses=rows_for(request.topic_data, answered))

    def _check_large(self, partition: Partition, data: PartitionProduceData, version: int) -> Work:
        """The header of a batch whose checksum takes long."""
        step = self._workers.run(partial(check_produced, data.records, version, partition.config))
        yield step
        return step.result()

    def _looked_through(
        self, partition: Partition, data: PartitionProduceData, header: BatchHeader
    ) -> tuple[Buffer, BatchHeader]:
        """The batch and its header, once its records were looked through, in one go."""
        assert data.records is not None
        greatest = look_through(data.records, header, partition.config, self._clock.wall_ms(), partition)
        return _stamped(data.records, header, partition.config, greatest)

    def _look_through(
        self, partition: Partition, data: PartitionProduceData, header: BatchHeader, context: RequestContext
    ) -> Work:
        """The same in steps, and the size of the records, for a batch that is large or may hold more than it seems."""
        config, batch = partition.config, data.records
        assert batch is not None
        check = ContentCheck(batch, header, config)
        if header.compression is CompressionType.NONE:
            while not check.step():
                yield None
        elif header.length > _SMALL or not check.step(_SMALL_INSIDE):
            held = 0
            while not check.done:
                step = self._workers.run(check.step)
                yield step
                try:
                    step.result()
                    _check_memory(context, check.memory - held, "decompressing it takes")
                except KafkaError:
                    yield -held
                    raise
                yield check.memory - held
                held = check.memory
            yield -held
        greatest = check.conclude(self._clock.wall_ms(), partition)
        return *_stamped(batch, header, config, greatest), check.size

    def _made_new(self, records: Buffer | None, config: TopicConfig, context: RequestContext) -> Work:
        """The batch that a message set of old becomes; None if there is no message in it. It is held in memory."""
        if not records:
            return None
        most = config.max_decompressed_bytes
        step = self._workers.run(partial(room_to_send, records, most))
        yield step
        room = min(step.result(), max(context.connection.share.most - context.place.held, 0))
        yield room
        made = self._workers.run(partial(sent_batch, records, most, room))
        yield made
        try:
            batch: bytearray | None = made.result()
        except KafkaError:
            yield -room
            raise
        yield len(batch or b"") - room
        return batch

    def _made_anew(self, made: Recompression, context: RequestContext, waiting: PendingReply) -> Work:
        """The batch in the codec of its topic, and its header. What it takes is held until the request is answered."""
        place, most = context.place, context.connection.share.most
        while place.held + made.room > most and (freed := waiting.freed()) is not None:
            yield freed  # to be waited for, or bytes of those that were made before
        _check_memory(context, made.least, "with its topic's compression.type it has")
        room = max(most - place.held, 0)
        made.room = min(made.room, room)
        held = min(made.room + made.codec_memory, room)  # what codecs take, they take for a moment
        yield held
        try:
            while True:
                step = self._workers.run(made.step)
                yield step
                if step.result():
                    break
        except KafkaError:
            yield -held
            raise
        batch, header = made.batch()
        yield len(batch) - held
        return batch, header

    def _partition(self, topic: TopicProduceData, index: int, context: RequestContext) -> tuple[PartitionId, Partition]:
        topic_id = topic.topic_id if context.api_version >= _WITH_TOPIC_IDS else None
        record = self._access.topic(context.connection, AclOperation.WRITE, topic.name, topic_id)
        return PartitionId(record.topic_id, index), self._partitions.check(record, index)

    def _expire_at(self, waiting: PendingReply, deadline: float) -> None:
        waiting.deadline = deadline
        self._waiting.add(waiting)
        waiting.on_done(self._waiting.discard)
        if not self._expiring:
            self._expiring = True
            self._spawn(self._expire, name="produce timeouts")

    async def _expire(self) -> None:
        """Answer the requests whose `timeout.ms` has passed; runs while requests wait."""
        try:
            while self._waiting:
                await anyio.sleep(_TIMEOUT_STEP_S)
                now = self._clock.now()
                for request in [request for request in self._waiting if request.deadline <= now]:
                    request.give_up()
        finally:
            self._expiring = False


def _check_memory(context: RequestContext, size: int, what: str) -> None:
    """Refuse a batch that needs more memory than its connection may hold: it could not be fetched either."""
    held, most = context.place.held, context.connection.share.most
    if held + size > most:
        raise RecordTooLargeError(
            f"The record batch takes too much memory: {what} {size} bytes beside {held} of its request, and one "
            f"connection may hold {most}, a quarter of connections.max.memory.bytes."
        )


def _is_transactional(records: Buffer | None) -> bool:
    return records is not None and len(records) >= HEADER_SIZE and bool(records[_CODEC_AT] & _TRANSACTIONAL)


def _stamped(batch: Buffer, header: BatchHeader, config: TopicConfig, greatest: int) -> tuple[Buffer, BatchHeader]:
    """The batch whose header tells the greatest timestamp of its records, as searches by time rely on."""
    if config.log_append_time or (
        greatest == header.max_timestamp and header.timestamp_type is TimestampType.CREATE_TIME
    ):
        return batch, header
    place = writable(batch)
    write_header(
        place,
        base_offset=header.base_offset,
        partition_leader_epoch=header.partition_leader_epoch,
        attributes=header.attributes & ~_LOG_APPEND_TIME,
        last_offset_delta=header.last_offset_delta,
        base_timestamp=header.base_timestamp,
        max_timestamp=greatest,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        count=header.count,
    )
    return place, read_header(place)

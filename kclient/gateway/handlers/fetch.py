"""Fetch: whole batches from an offset on, at once or when enough has arrived.

A response carries the buffers that HTP gave, untouched. Data that HTP has at hand is answered in `begin`; what has
to come from the disk, and long polls, are finished later.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import ClassVar

import anyio

from kclient.errors import (
    ErrorCode,
    KafkaError,
    KafkaStorageError,
    OffsetOutOfRangeError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)
from kclient.gateway.core import Core, RequestContext
from kclient.gateway.fetch_sessions import FetchSessionCache, Key, Plan, Wanted
from kclient.gateway.handlers import Finish, Handler
from kclient.gateway.partitions import Partition, State, Waiter
from kclient.htp.errors import HtpError, PositionError
from kclient.htp.port import Pulled
from kclient.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    FetchResponsePartitionData,
)
from kclient.protocol.registry import ApiKey

logger: logging.Logger = logging.getLogger("kclient.gateway.fetch")

API_VERSIONS: dict[ApiKey, tuple[int, int]] = {ApiKey.FETCH: (4, 18)}
TOPIC_IDS_SINCE = 13
READ_COMMITTED = 1


class _Rows:
    """The answer under construction: what was read of each wanted partition, and how much it is."""

    __slots__ = ("answers", "failed", "size")

    def __init__(self) -> None:
        self.answers: list[tuple[Wanted, FetchResponsePartitionData]] = []
        self.size = 0
        self.failed = False

    def add(self, wanted: Wanted, answer: FetchResponsePartitionData) -> None:
        self.answers.append((wanted, answer))
        self.size += len(answer.records or b"")
        self.failed = self.failed or bool(answer.error_code)


class FetchHandler(Handler):
    """Answers Fetch."""

    API: ClassVar[ApiKey] = ApiKey.FETCH

    def __init__(self, core: Core) -> None:
        super().__init__(core)
        self.sessions: FetchSessionCache = FetchSessionCache(
            core.config.get_int("max.incremental.fetch.session.cache.slots")
        )

    def begin(self, request: FetchRequest, context: RequestContext) -> FetchResponse | Finish:
        """Take the request's place in its session; answer what is at hand."""
        by_id = context.api_version >= TOPIC_IDS_SINCE
        plan = self.sessions.plan(
            request.session_id,
            request.session_epoch,
            _wanted(request),
            _forgotten(request),
            self.core.now(),
            by_id=by_id,
        )
        rows = self._read_now(plan, request, by_id=by_id)
        if rows is not None and self._enough(rows, plan, request):
            return self._respond(plan, rows)
        return partial(self._finish, plan, request, by_id)

    def fail(self, request: FetchRequest, context: RequestContext, error: KafkaError) -> FetchResponse:
        """A session's error is the whole answer."""
        return FetchResponse(error_code=_code(error), session_id=0)

    # Reading

    def _read_now(self, plan: Plan, request: FetchRequest, *, by_id: bool) -> _Rows | None:
        """What can be read without waiting; None where something has to come from the disk first."""
        rows = _Rows()
        limit = self._limit(request)
        for wanted in plan.wanted:
            answer = FetchResponsePartitionData(partition_index=wanted.key.partition)
            try:
                partition = self._find(wanted.key, by_id=by_id)
                if partition.state is not State.OPEN or partition.direct is None:
                    return None
                size = _check(partition, wanted, limit - rows.size, first=not rows.size)
                if size >= 0:
                    pulled = partition.direct.pull_nowait(wanted.offset, max_bytes=size)
                    if pulled is None:
                        return None
                    _put(answer, partition, pulled, size, first=not rows.size)
                else:
                    _put_state(answer, partition)
            except KafkaError as error:
                _put_error(answer, error)
            _finish_answer(answer, request)
            rows.add(wanted, answer)
        return rows

    async def _read(self, plan: Plan, request: FetchRequest, *, by_id: bool) -> _Rows:
        rows = _Rows()
        limit = self._limit(request)
        for wanted in plan.wanted:
            answer = FetchResponsePartitionData(partition_index=wanted.key.partition)
            try:
                partition = self._find(wanted.key, by_id=by_id)
                await partition.ready()
                size = _check(partition, wanted, limit - rows.size, first=not rows.size)
                if size >= 0:
                    pulled = await partition.pull(wanted.offset, max_bytes=size)
                    _put(answer, partition, pulled, size, first=not rows.size)
                else:
                    _put_state(answer, partition)
            except KafkaError as error:
                _put_error(answer, error)
            _finish_answer(answer, request)
            rows.add(wanted, answer)
        return rows

    def _limit(self, request: FetchRequest) -> int:
        return max(0, min(request.max_bytes, self.core.config.get_int("fetch.max.bytes")))

    def _find(self, key: Key, *, by_id: bool) -> Partition:
        topics = self.core.topics
        record = topics.by_id(key.topic_id) if by_id else topics.get(key.topic)
        if record is None and by_id:
            raise UnknownTopicIdError(f"no topic has the id {key.topic_id.hex()}")
        partition = self.core.partitions.of(record, key.partition) if record is not None else None
        if partition is None:
            raise UnknownTopicOrPartitionError(f"there is no partition {key.topic}-{key.partition}")
        return partition

    # Waiting

    def _enough(self, rows: _Rows, plan: Plan, request: FetchRequest) -> bool:
        return (
            rows.failed
            or rows.size >= request.min_bytes
            or request.max_wait_ms <= 0
            or not plan.wanted
            or self.core.closing
        )

    async def _finish(self, plan: Plan, request: FetchRequest, by_id: bool) -> FetchResponse:
        rows = _Rows()
        with anyio.move_on_after(max(0, request.max_wait_ms) / 1000) as patience:
            while True:
                waiter = self._wait_for(plan, request.min_bytes, by_id=by_id)
                try:
                    with anyio.CancelScope(shield=True):
                        rows = await self._read(plan, request, by_id=by_id)
                    if self._enough(rows, plan, request):
                        break
                    waiter.less(rows.size)
                    await waiter.wait()
                finally:
                    waiter.close()
        if patience.cancelled_caught:
            rows = self._read_now(plan, request, by_id=by_id) or rows
        return self._respond(plan, rows)

    def _wait_for(self, plan: Plan, min_bytes: int, *, by_id: bool) -> Waiter:
        # Registered before reading: what arrives in between is counted twice at worst, never lost.
        partitions = []
        for wanted in plan.wanted:
            try:
                partitions.append(self._find(wanted.key, by_id=by_id))
            except KafkaError:
                continue  # reading says so
        return Waiter(min_bytes, partitions)

    # Answering

    def _respond(self, plan: Plan, rows: _Rows) -> FetchResponse:
        response = FetchResponse(session_id=plan.session_id)
        topics: dict[tuple[str, bytes], FetchableTopicResponse] = {}
        served = []
        for wanted, answer in rows.answers:
            size = len(answer.records or b"")
            if plan.session is not None:
                news = wanted.is_news(answer.error_code, answer.high_watermark, answer.log_start_offset, size)
                if plan.incremental and not news:
                    continue
                if size:
                    served.append(wanted.key)
            key = wanted.key
            topic = topics.get((key.topic, key.topic_id))
            if topic is None:
                topic = topics[key.topic, key.topic_id] = FetchableTopicResponse(topic=key.topic, topic_id=key.topic_id)
                response.responses.append(topic)
            topic.partitions.append(answer)
        if plan.session is not None:
            self.sessions.answered(plan.session, served)
        return response


def _wanted(request: FetchRequest) -> list[Wanted]:
    return [
        Wanted(
            Key(topic.topic, topic.topic_id, item.partition),
            item.fetch_offset,
            item.partition_max_bytes,
            item.current_leader_epoch,
        )
        for topic in request.topics
        for item in topic.partitions
    ]


def _forgotten(request: FetchRequest) -> list[Key]:
    return [
        Key(topic.topic, topic.topic_id, number)
        for topic in request.forgotten_topics_data
        for number in topic.partitions
    ]


def _check(partition: Partition, wanted: Wanted, left: int, *, first: bool) -> int:
    """How many bytes to read; -1 for nothing at all. Raises when the offset or the leader epoch is wrong."""
    log = partition.log
    log.check_epoch(wanted.leader_epoch)
    if not log.start_offset <= wanted.offset <= log.next_offset:
        raise OffsetOutOfRangeError(
            f"{partition}: offset {wanted.offset} is not between {log.start_offset} and {log.next_offset}"
        )
    if wanted.offset >= log.high_watermark:
        return -1
    size = max(0, min(wanted.max_bytes, left))
    return size if size or first else -1


def _put(answer: FetchResponsePartitionData, partition: Partition, pulled: Pulled, size: int, *, first: bool) -> None:
    _put_state(answer, partition)
    # One message is always pulled, however large; only the response's first records may exceed a limit (KIP-74).
    if len(pulled.data) <= size or first:
        answer.records = pulled.data
        answer.high_watermark = max(answer.high_watermark, pulled.last + 1)


def _put_state(answer: FetchResponsePartitionData, partition: Partition) -> None:
    answer.high_watermark = partition.log.high_watermark
    answer.log_start_offset = partition.log.start_offset
    answer.records = b""


def _put_error(answer: FetchResponsePartitionData, error: KafkaError) -> None:
    if isinstance(error, PositionError):
        error = OffsetOutOfRangeError(str(error))
    elif isinstance(error, HtpError):
        logger.error("reading failed: %s", error)
        error = KafkaStorageError(str(error))
    answer.error_code = _code(error)
    answer.high_watermark = answer.log_start_offset = -1
    answer.records = b""


def _finish_answer(answer: FetchResponsePartitionData, request: FetchRequest) -> None:
    answer.last_stable_offset = answer.high_watermark  # without transactions everything visible is stable
    answer.aborted_transactions = [] if request.isolation_level == READ_COMMITTED else None


def _code(error: KafkaError) -> int:
    return error.code if error.code is not None else ErrorCode.UNKNOWN_SERVER_ERROR


HANDLERS: dict[ApiKey, type[Handler]] = {ApiKey.FETCH: FetchHandler}

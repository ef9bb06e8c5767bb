"""What a fetch has read: whole batches of partitions, from an offset on, as far as its client may see and take them.

It is read at once where HTP has it at hand (`FetchReader.read_some`), and else by a task (`FetchReader.read`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from kclient.acls import AclOperation
from kclient.errors import ErrorCode, KafkaError, OffsetOutOfRangeError, UnknownServerError
from kclient.gateway.aborted import Hidden
from kclient.gateway.access import Access
from kclient.gateway.config import Live
from kclient.gateway.contexts import RequestContext
from kclient.gateway.error_codes import code_of
from kclient.gateway.fetch_sessions import FetchPlan, Key, Wanted
from kclient.gateway.handlers._internal import END, InternalPartitions, check_offset
from kclient.gateway.handlers._leaders import FETCH_SINCE, MOVED, tell_consumer
from kclient.gateway.handlers._work import FEW, READ_COMMITTED
from kclient.gateway.leadership import Leadership
from kclient.gateway.log import PartitionLog
from kclient.gateway.old_formats import BATCHES_FETCHED_SINCE
from kclient.gateway.partition import Partition
from kclient.gateway.partition_states import PartitionPhase
from kclient.gateway.partitions import PartitionTable
from kclient.gateway.slow_reads import SlowReadError, SlowReads
from kclient.gateway.topic_traffic import TopicTraffic
from kclient.gateway.waiters import Waiter
from kclient.htp.errors import HtpError, PositionError
from kclient.htp.port import Place, Pulled
from kclient.net.fair_queue import Pace
from kclient.protocol.lazy_arrays import lazily
from kclient.protocol.messages.fetch import (
    AbortedTransaction,
    FetchRequest,
    FetchResponseNodeEndpoint,
    FetchResponsePartitionData,
)
from kclient.records import read_header
from kclient.records.bounds import INT64_MAX

logger: logging.Logger = logging.getLogger("kclient.gateway.fetch")

MOST_AT_ONCE: Final = 4 << 20
"""Bytes of one partition that are read at once, so that nobody waits for long; one batch comes, however large."""
_AT_A_TIME: Final = 1 << 20
"""Bytes that are read before others have their turn."""
_STORAGE_ERRORS_SINCE: Final = 6
"""The version of Fetch."""
_PART_OF_OLD: Final = 4
"""One part in so many of what a connection may hold is read for a client that knows old message formats alone."""
_REMEMBERED: Final = 1_000
"""Batches that are larger than all the memory there is, so that they are read, and logged, once."""


class Fetch:
    """One request under way: what it wants, and what of that has been read."""

    __slots__ = (
        "by_id",
        "committed",
        "context",
        "counted",
        "endpoints",
        "errors",
        "full",
        "hidden",
        "hurried",
        "lacking",
        "late",
        "least",
        "plan",
        "request",
        "rows",
        "size",
        "waiter",
        "withheld",
    )

    def __init__(self, request: FetchRequest, context: RequestContext, plan: FetchPlan, by_id: bool) -> None:
        self.request: FetchRequest = request
        self.context: RequestContext = context
        self.plan: FetchPlan = plan
        self.by_id: bool = by_id
        self.committed: bool = request.isolation_level == READ_COMMITTED
        """Whether only committed records are wanted."""
        self.rows: dict[int, FetchResponsePartitionData] = {}
        """The partitions that have records, by their numbers in the plan; for the others their state will do."""
        self.counted: list[tuple[TopicTraffic, int]] = []
        """What of it their topics count when it is answered."""
        self.errors: dict[int, int] = {}
        """The codes of those that cannot be read."""
        self.late: int = 0
        """How many of them the store does not answer for: the others are waited for all the same."""
        self.lacking: bool = False
        """Whether some are not there at all."""
        self.size: int = 0
        self.full: bool = False
        """Whether there is more of a partition that the client would take, and no room for it in this answer."""
        self.withheld: int = 0
        """Bytes that partitions have beside what was read of them, up to what the client would take of each: they count
        for `fetch.min.bytes`, since waiting brings no more of these. How many there are beyond that is not known."""
        self.hidden: int = 0
        """Aborted transactions that go with what was read at once."""
        self.least: int = 0
        """Bytes of memory without which nothing can be read: those of a large batch."""
        self.hurried: bool = False
        """Whether it was told to wait no longer."""
        self.waiter: Waiter | None = None
        self.endpoints: list[FetchResponseNodeEndpoint] = []
        """The answer's, once it is made: where those leaders are that it names."""

    @property
    def is_old(self) -> bool:
        """Whether its client does not know record batches."""
        return self.context.api_version < BATCHES_FETCHED_SINCE

    def clear(self) -> None:
        """What was read is not needed: it is read again when there is more."""
        self.counted.clear()
        self.rows, self.errors = {}, {}
        self.lacking = self.full = False
        self.size = self.hidden = self.withheld = self.late = 0

    def end_of(self, log: PartitionLog) -> int:
        """Where a log ends for this client."""
        return log.last_stable_offset if self.committed else log.high_watermark

    def visible(self, partition: Partition, pulled: Pulled) -> Pulled:
        """What was read of a partition, as far as this client may see it now."""
        end = self.end_of(partition.log)
        return _below(pulled, end) if pulled.last >= end else pulled

    def add(self, number: int, partition: Partition, pulled: Pulled, most: int, aborted: Hidden | None = None) -> None:
        """What was read of a partition and is visible, at most so many bytes, if it fits.

        Args:
            number: Of the partition in the plan.
            partition: The partition.
            pulled: What was read.
            most: As many bytes as were to be read.
            aborted: What of it a client that wants committed records is to leave out.
        """
        size = len(pulled.data)
        fits = size <= most or not self.size
        if not fits or pulled.last + 1 < self.end_of(partition.log):
            limit = self.plan.wanted[number].max_bytes
            if most < limit:
                self.full = True
            elif size:
                self.withheld += max(limit - size, 0) if fits else limit
        # One message is always pulled, however large; only the response's first records may exceed a limit (KIP-74).
        if not size or not fits:
            return
        answer = self.rows[number] = FetchResponsePartitionData(partition_index=partition.index)
        put_state(answer, partition)
        answer.records = pulled.data
        if aborted:
            rows = (AbortedTransaction(producer_id=producer_id, first_offset=first) for producer_id, first in aborted)
            answer.aborted_transactions = list(rows) if len(aborted) <= FEW else lazily(len(aborted), rows)
            self.size += aborted.nbytes
        self.size += size
        self.counted.append((partition.traffic, size))

    def answered(self) -> None:
        """What was read is in the answer: topics count it now, since what they have counted never becomes less."""
        for traffic, size in self.counted:
            traffic.bytes_out += size

    def fail(self, number: int, error: KafkaError) -> None:
        """A partition cannot be read."""
        if isinstance(error, SlowReadError):
            self.late += 1
        elif isinstance(error, HtpError) and not isinstance(error, PositionError):
            logger.error("reading failed: %s", error)
        self.errors[number] = code_of(error)

    def hurry(self) -> None:
        """Answer with what there is."""
        self.hurried = True
        self.wake()

    def wake(self) -> None:
        """Something has changed."""
        if self.waiter is not None:
            self.waiter.wake()


class FetchReader:
    """Reads partitions for fetches.

    Args:
        access: Who finds which topics.
        partitions: Their partitions.
        leadership: Knows where those are that others lead.
        memory: Bytes that all clients may hold together.
        max_bytes: Bytes that one answer may hold.
        spawn: Starts a task of the gateway.
    """

    def __init__(
        self,
        access: Access,
        partitions: PartitionTable,
        leadership: Leadership,
        memory: int,
        max_bytes: Live[int],
        spawn: Callable[..., object],
    ) -> None:
        self._access = access
        self._partitions = partitions
        self._leadership = leadership
        self._internal = InternalPartitions(access, leadership)
        self._max_bytes = max_bytes
        self._slow = SlowReads(spawn)
        self.memory: int = memory
        """Bytes that all clients may hold together."""
        self._unreadable: dict[tuple[Place, int, int], int] = {}
        """Where batches lie that are larger than all the memory there is, and their sizes."""

    def read_some(self, fetch: Fetch, number: int, limit: int) -> int | None:
        """Read partitions from a number on, until others should have their turn.

        Returns:
            The number to go on at; None if there is one that has to be waited for, or much was aborted.
        """
        wanted = fetch.plan.wanted
        last = min(number + FEW, len(wanted))
        enough = fetch.size + _AT_A_TIME
        while number < last and fetch.size <= enough:
            item = wanted[number]
            partition = self.find(fetch, item.key)
            if partition is None:
                self._look_elsewhere(fetch, number, item)
            elif partition.state is not PartitionPhase.OPEN or partition.direct is None:
                return None
            else:
                try:
                    most = self._most(fetch, partition, item, limit - fetch.size)
                    if most < 0:
                        fetch.full = fetch.full or item.offset < fetch.end_of(partition.log)
                    else:
                        pulled = partition.direct.pull_nowait(item.offset, max_bytes=most)
                        if pulled is None or _behind_nothing(pulled) < fetch.end_of(partition.log):
                            return None
                        pulled, aborted = fetch.visible(partition, pulled), None
                        if fetch.committed:
                            aborted = partition.aborted_nowait(pulled.first, pulled.last + 1)
                            if aborted is None:
                                return None
                            fetch.hidden += len(aborted)
                            if fetch.hidden > FEW:
                                return None  # they are not encoded in one go
                        fetch.add(number, partition, pulled, most, aborted)
                except KafkaError as error:
                    fetch.fail(number, error)
            number += 1
        return number

    async def read(self, fetch: Fetch, pace: Pace, limit: int) -> None:
        """Read up to so many bytes, but one batch at least."""
        for number, wanted in enumerate(fetch.plan.wanted):
            if pace.over:
                await pace.pause()
                if fetch.context.connection.gone:
                    return
            partition = self.find(fetch, wanted.key)
            if partition is None:
                self._look_elsewhere(fetch, number, wanted)
                continue
            try:
                if partition.state is not PartitionPhase.OPEN:
                    if partition.undecided or partition.being_opened:
                        continue  # it tells when that is over: the others of the request do not wait for it
                    await partition.ready()
                most = self._most(fetch, partition, wanted, limit - fetch.size)
                if most < 0:
                    fetch.full = fetch.full or wanted.offset < fetch.end_of(partition.log)
                else:
                    pulled = await self._pull(partition, wanted.offset, most, patient=not fetch.late)
                    while (offset := _behind_nothing(pulled)) < fetch.end_of(partition.log):
                        if pace.over:
                            await pace.pause()
                            if fetch.context.connection.gone:
                                return
                        pulled = await self._pull(partition, offset, most, patient=not fetch.late)
                    _check_start(partition, wanted.offset)
                    pulled = fetch.visible(partition, pulled)
                    # of what is visible now: what is decided meanwhile is for the next answer
                    aborted = None
                    if fetch.committed:
                        aborted = await partition.aborted(pulled.first, pulled.last + 1, pace.pause)
                    _check_start(partition, wanted.offset)
                    fetch.add(number, partition, pulled, most, aborted)
            except KafkaError as error:
                fetch.fail(number, error)

    def _most(self, fetch: Fetch, partition: Partition, wanted: Wanted, left: int) -> int:
        """How many bytes to read; -1 for nothing at all. Raises when nothing can be read from there."""
        most = _check(partition, wanted, left, fetch.end_of(partition.log), first=not fetch.size)
        if self._unreadable and most >= 0 and _spot(partition, wanted.offset) in self._unreadable:
            # consumers wait, and read other partitions meanwhile
            raise UnknownServerError(f"{partition}: the batch at offset {wanted.offset} is larger than all memory")
        return most

    async def _pull(self, partition: Partition, offset: int, size: int, *, patient: bool) -> Pulled:
        if partition.direct is not None:
            pulled = partition.direct.pull_nowait(offset, max_bytes=size)
            if pulled is not None:
                return pulled
        return await self._slow.pull(partition, offset, size, patient=patient)

    def limit(self, fetch: Fetch) -> int:
        """Bytes that an answer may hold."""
        limit = max(0, min(fetch.request.max_bytes, self._max_bytes()))
        if fetch.context.charge is not None:
            limit = min(limit, fetch.context.charge.most_to_fetch)
        if fetch.is_old:  # the rest of the connection's memory is to make it older in
            limit = min(limit, fetch.context.connection.share.most // _PART_OF_OLD)
        return limit

    def find(self, fetch: Fetch, key: Key) -> Partition | None:
        """The partition, if it is there, led here, and the client may read it."""
        topic_id = key.topic_id if fetch.by_id else None
        record = self._access.find(fetch.context.connection, AclOperation.READ, key.topic, topic_id)
        return None if record is None else self._partitions.of(record, key.partition)

    def _look_elsewhere(self, fetch: Fetch, number: int, wanted: Wanted) -> None:
        """A partition was not found: it is not there, or one of Kafka's own topics, of which nothing is ever read."""
        key = wanted.key
        try:
            if not self.is_internal(fetch, key, wanted.leader_epoch):
                fetch.lacking = True
                return
            check_offset(key.topic, key.partition, wanted.offset)
        except KafkaError as error:
            fetch.fail(number, error)

    def is_internal(self, fetch: Fetch, key: Key, epoch: int = -1) -> bool:
        """Whether this is a partition of one of Kafka's own topics. Raises why it cannot be read here."""
        topic_id = key.topic_id if fetch.by_id else None
        found = self._internal.epoch(
            fetch.context.connection, AclOperation.READ, key.topic, key.partition, topic_id=topic_id, known=epoch
        )
        return found is not None

    def why_not(self, fetch: Fetch, key: Key) -> int:
        """The code of a partition that is not found."""
        try:
            topic_id = key.topic_id if fetch.by_id else None
            record = self._access.topic(fetch.context.connection, AclOperation.READ, key.topic, topic_id)
            self._partitions.check(record, key.partition)
        except KafkaError as error:
            return code_of(error)
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION  # it is there now, and was not when it was to be read

    def put_error(self, fetch: Fetch, key: Key, answer: FetchResponsePartitionData, code: int) -> None:
        """Say why a partition cannot be read; where it has another leader, or epoch, than the client knew, which."""
        context = fetch.context
        put_error(answer, code, context.api_version)
        if code not in MOVED or context.api_version < FETCH_SINCE:
            return
        topic_id = key.topic_id if fetch.by_id else None
        record = self._access.find(context.connection, AclOperation.READ, key.topic, topic_id)
        record = record or self._access.internal(context.connection, AclOperation.READ, key.topic, topic_id)
        if record is None or not 0 <= key.partition < record.partitions:
            return
        leadership = self._leadership
        if code == ErrorCode.FENCED_LEADER_EPOCH or not leadership.leads(record, key.partition):
            leader = leadership.leader(record, key.partition)
            tell_consumer(fetch.endpoints, answer, leader, leadership, context.connection.advertised)

    def refuse(self, fetch: Fetch) -> None:
        """The one batch that was read is larger than all the memory there is: the others are read without it."""
        number, size = next(iter(fetch.rows)), fetch.size
        wanted = fetch.plan.wanted[number]
        partition = self.find(fetch, wanted.key)
        fetch.clear()
        if partition is None:
            return
        if len(self._unreadable) >= _REMEMBERED:
            self._unreadable.clear()
        self._unreadable[_spot(partition, wanted.offset)] = size
        logger.error(
            "%s: the batch at offset %d takes %d bytes, more than connections.max.memory.bytes=%d: it cannot be "
            "fetched. Start the gateway with a higher setting, or let consumers seek beyond it",
            partition, wanted.offset, size, self.memory,
        )  # fmt: skip


def _spot(partition: Partition, offset: int) -> tuple[Place, int, int]:
    """What tells an offset from those of all other partitions, also of namesakes, and of those in the same place."""
    return partition.place, partition.index, offset


def _check(partition: Partition, wanted: Wanted, left: int, end: int, *, first: bool) -> int:
    """How many bytes to read; -1 for nothing at all. Raises when the offset or the leader epoch is wrong."""
    log = partition.log
    log.check_epoch(wanted.leader_epoch)
    if not log.start_offset <= wanted.offset <= log.next_offset:
        raise OffsetOutOfRangeError(
            f"{partition}: offset {wanted.offset} is not between {log.start_offset} and {log.next_offset}"
        )
    if wanted.offset >= end:
        return -1
    size = max(0, min(wanted.max_bytes, left, MOST_AT_ONCE))
    return size if size or first else -1


def _behind_nothing(pulled: Pulled) -> int:
    """Where to read on, if all that was read are batches without records; the end of all offsets if it is not.

    Where compaction has left nothing there are such batches. Kafka leaves gaps there, and answers with what lies
    behind: librdkafka takes answers without a record for records that are too large for it, and soon says so.
    """
    data, place = pulled.data, 0
    for _ in range(FEW):
        if place >= len(data):
            return pulled.last + 1 if place else INT64_MAX
        header = read_header(data, place)
        if header.count:
            break
        place += header.length
    return INT64_MAX


def _check_start(partition: Partition, offset: int) -> None:
    """Raise if the log start has moved beyond an offset while that was read.

    Which transactions below it were aborted, or are open, the log does not tell any more.
    """
    if offset < partition.log.start_offset:
        raise OffsetOutOfRangeError(f"{partition}: offset {offset} was deleted while it was read")


def _below(pulled: Pulled, end: int) -> Pulled:
    """What was read, without the batches from `end` on, a high watermark or last stable offset.

    A store may show a message before it has answered the call that sent it. Were such a one given out, the next answer
    would have a lower high watermark than this one.
    """
    data = memoryview(pulled.data)
    place = 0
    while place < len(data) and (header := read_header(data, place)).base_offset < end:
        place += header.length
    return Pulled(data[:place], pulled.first, end - 1)


def put_state(answer: FetchResponsePartitionData, partition: Partition) -> None:
    """Say where a partition begins and ends."""
    answer.high_watermark = partition.log.high_watermark
    answer.last_stable_offset = partition.log.last_stable_offset
    answer.log_start_offset = partition.log.start_offset
    answer.records = b""


def put_nothing(answer: FetchResponsePartitionData) -> None:
    """Say that a partition has no records, and never will."""
    answer.high_watermark = answer.last_stable_offset = answer.log_start_offset = END
    answer.records = b""


def put_error(answer: FetchResponsePartitionData, code: int, version: int) -> None:
    """Say why a partition cannot be read."""
    if code == ErrorCode.KAFKA_STORAGE_ERROR and version < _STORAGE_ERRORS_SINCE:
        code = ErrorCode.NOT_LEADER_OR_FOLLOWER  # older consumers do not know that one, and come back after this
    answer.error_code = code
    answer.high_watermark = answer.last_stable_offset = answer.log_start_offset = -1
    answer.records = b""

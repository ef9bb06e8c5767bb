"""Fetch: whole batches from an offset on, at once or when enough has arrived.

A response carries the buffers that HTP gave, untouched. Data that HTP has at hand is answered in `begin`; what has
to come from the disk, and long polls, are finished later.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from typing import ClassVar, Final, cast

import anyio

from kclient.errors import ErrorCode, KafkaError, OffsetOutOfRangeError, UnknownServerError
from kclient.gateway.access import Access, AclOperation
from kclient.gateway.clock import Clock
from kclient.gateway.config import BrokerConfig
from kclient.gateway.contexts import RequestContext
from kclient.gateway.discarding import emptied, in_slices
from kclient.gateway.error_codes import code_of
from kclient.gateway.fetch_sessions import FINAL_EPOCH, FetchPlan, FetchSessionCache, Key, Wanted
from kclient.gateway.handlers._work import FEW, Work, lazily, started
from kclient.gateway.handlers.handler import Begun, Handler, VersionRange
from kclient.gateway.partition import Partition, State, Waiter
from kclient.gateway.partitions import PartitionTable
from kclient.gateway.shields import Shields
from kclient.htp.errors import HtpError, PositionError
from kclient.htp.port import Place, Pulled
from kclient.net.fair_queue import Flow, Pace
from kclient.net.garbage import HoldOff
from kclient.net.memory_budget import Share
from kclient.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    FetchResponsePartitionData,
)
from kclient.protocol.registry import ApiKey
from kclient.records import read_header

logger: logging.Logger = logging.getLogger("kclient.gateway.fetch")

TOPIC_IDS_SINCE = 13
READ_COMMITTED = 1
_MOST_AT_ONCE: Final = 4 << 20
"""Bytes of one partition that are read at once, so that nobody waits for long; one batch comes, however large."""
_AT_A_TIME: Final = 1 << 20
"""Bytes that are read before others have their turn."""
_PATIENCE: Final = 13.0
"""Seconds beyond `max_wait_ms` that a fetch waits for memory to read a batch into that is there: longer than
clients may stall that keep it (`ServerSettings.stall_timeout`)."""
_MANY: Final = 5_000
_REMEMBERED: Final = 1_000
"""Batches that are larger than all the memory there is, so that they are read, and logged, once."""
_SESSIONS_SHARE: Final = 8
"""One part in so many of the memory for clients may be taken by fetch sessions."""


class _Fetch:
    """One request under way: what it wants, and what of that has been read."""

    __slots__ = (
        "by_id",
        "context",
        "errors",
        "full",
        "hurried",
        "lacking",
        "least",
        "plan",
        "request",
        "rows",
        "size",
        "waiter",
    )

    def __init__(self, request: FetchRequest, context: RequestContext, plan: FetchPlan, by_id: bool) -> None:
        self.request = request
        self.context = context
        self.plan = plan
        self.by_id = by_id
        self.rows: dict[int, FetchResponsePartitionData] = {}
        """The partitions that have records, by their numbers in the plan; for the others their state will do."""
        self.errors: dict[int, int] = {}
        """The codes of those that cannot be read."""
        self.lacking = False
        """Whether some are not there at all."""
        self.size = 0
        self.full = False
        """Whether there is more of a partition that the client would take, and no room for it in this answer."""
        self.least = 0
        """Bytes of memory without which nothing can be read: those of a large batch."""
        self.hurried = False
        """Whether it was told to wait no longer."""
        self.waiter: Waiter | None = None

    def clear(self) -> None:
        """What was read is not needed: it is read again when there is more."""
        self.rows, self.errors = {}, {}
        self.lacking = self.full = False
        self.size = 0

    def add(self, number: int, partition: Partition, pulled: Pulled, most: int) -> None:
        """What was read of a partition, at most so many bytes, if it fits."""
        if pulled.last >= partition.log.high_watermark:
            pulled = _below(pulled, partition.log.high_watermark)
        size = len(pulled.data)
        fits = size <= most or not self.size
        if (not fits or pulled.last + 1 < partition.log.high_watermark) and most < self.plan.wanted[number].max_bytes:
            self.full = True
        # One message is always pulled, however large; only the response's first records may exceed a limit (KIP-74).
        if not size or not fits:
            return
        answer = self.rows[number] = FetchResponsePartitionData(partition_index=partition.index)
        _put_state(answer, partition)
        answer.records = pulled.data
        self.size += size

    def fail(self, number: int, error: KafkaError) -> None:
        """A partition cannot be read."""
        if isinstance(error, HtpError) and not isinstance(error, PositionError):
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


class FetchHandler(Handler):
    """Answers Fetch.

    Args:
        access: Who finds which topics.
        partitions: Their partitions.
        config: The broker's settings.
        clock: What time it is.
        shields: Keep what is read from the disk from being left half done.
        flow: In whose turns the many partitions of a session are given up.
    """

    API: ClassVar[ApiKey] = ApiKey.FETCH
    VERSIONS: ClassVar[VersionRange] = (4, 18)
    ONLY_READS: ClassVar[bool] = True
    FEW_AT_ONCE: ClassVar[bool] = True

    def __init__(
        self,
        access: Access,
        partitions: PartitionTable,
        config: BrokerConfig,
        *,
        clock: Clock,
        shields: Shields,
        flow: Flow,
    ) -> None:
        self._access = access
        self._partitions = partitions
        self._config = config
        self._clock = clock
        self._shields = shields
        self.sessions: FetchSessionCache = FetchSessionCache(
            config.get_int("max.incremental.fetch.session.cache.slots"),
            config.get_int("connections.max.memory.bytes") // _SESSIONS_SHARE,
            self._discard,
        )
        self._flow = flow
        self._parked: set[_Fetch] = set()
        self._draining = False
        self._memory: int = config.get_int("connections.max.memory.bytes")
        self._unreadable: dict[tuple[Place, int], int] = {}
        """Where batches lie that are larger than all the memory there is, and their sizes."""

    def begin(self, request: FetchRequest, context: RequestContext) -> Begun:
        """Take the request's place in its session; answer what is at hand."""
        if _is_small(request) and self.sessions.is_small(request.session_id, FEW):
            return self._begin_small(request, context)
        return cast("Begun", started(self._begin(request, context)))

    def _begin_small(self, request: FetchRequest, context: RequestContext) -> Begun:
        """The same as `_begin`, of few partitions, and in one go unless they hold much."""
        by_id = context.api_version >= TOPIC_IDS_SINCE
        connection = context.connection
        wanted = [
            Wanted(
                Key(topic.topic, topic.topic_id, item.partition),
                item.fetch_offset,
                item.partition_max_bytes,
                item.current_leader_epoch,
            )
            for topic in request.topics
            for item in topic.partitions
        ]
        session_id, epoch = request.session_id, request.session_epoch
        if epoch == FINAL_EPOCH and not session_id:
            plan = FetchPlan(wanted, None, incremental=False)
        else:
            forgotten = [
                Key(topic.topic, topic.topic_id, number)
                for topic in request.forgotten_topics_data
                for number in topic.partitions
            ]
            plan = self.sessions.plan(
                session_id, epoch, wanted, forgotten, self._clock.now(), by_id=by_id, owner=connection.share
            )
            if plan.session is not None:
                connection.when_gone(self._end_sessions_of(context))
        fetch = _Fetch(request, context, plan, by_id)
        if not context.place.is_next:
            return partial(self._finish, fetch)
        limit = min(self._limit(fetch), _room(connection.share))
        number = self._read_some(fetch, 0, limit)
        if number == len(plan.wanted):
            if (fetch.size <= limit or fetch.size <= connection.share.room) and self._enough(fetch):
                return self._respond_small(fetch)
        elif number is not None:
            return cast("Begun", started(self._begin_to_read(fetch, number, limit)))
        fetch.clear()
        return partial(self._finish, fetch)

    def _begin(self, request: FetchRequest, context: RequestContext) -> Work:
        by_id = context.api_version >= TOPIC_IDS_SINCE
        wanted: list[Wanted] = yield from _wanted(request)
        forgotten: list[Key] = yield from _forgotten(request)
        owner = context.connection.share
        plan: FetchPlan = yield from self.sessions.plan_steps(
            request.session_id, request.session_epoch, wanted, forgotten, self._clock.now(), by_id=by_id, owner=owner
        )
        if plan.session is not None:
            context.connection.when_gone(self._end_sessions_of(context))
        fetch = _Fetch(request, context, plan, by_id)
        if not context.place.is_next:
            return partial(self._finish, fetch)
        limit = min(self._limit(fetch), _room(owner))
        return (yield from self._begin_to_read(fetch, self._read_some(fetch, 0, limit), limit))

    def _begin_to_read(self, fetch: _Fetch, number: int | None, limit: int) -> Work:
        """Go on reading at a partition, None if one has to be waited for; answer if that is enough."""
        if (yield from self._read_now(fetch, number, limit)) and self._enough(fetch):
            fetch.context.place.give_back(but=fetch.size)
            return (yield from self._respond(fetch))
        fetch.clear()
        fetch.context.place.give_back()
        return partial(self._finish, fetch)

    def _end_sessions_of(self, context: RequestContext) -> Callable[[], object]:
        connection = context.connection
        if connection.end_sessions is None:
            connection.end_sessions = partial(self.sessions.drop_all_of, connection.share)
        return connection.end_sessions

    def _discard(self, partitions: dict[Key, Wanted]) -> None:
        if len(partitions) > _MANY:
            self._flow.add(in_slices(emptied(partitions), self._flow.clock))

    def fail(self, request: FetchRequest, context: RequestContext, error: KafkaError) -> FetchResponse:
        """A session's error is the whole answer."""
        return FetchResponse(error_code=code_of(error), session_id=0)

    def memory_short(self) -> None:
        """Those that wait with much in their hands are answered now."""
        for fetch in self._parked:
            if len(fetch.plan.wanted) > FEW:
                fetch.hurry()

    def drain(self) -> None:
        """Those that wait are answered now, and none waits from now on."""
        self._draining = True
        for fetch in self._parked:
            fetch.wake()

    # Reading

    def _read_now(self, fetch: _Fetch, number: int | None, limit: int) -> Work:
        """Go on reading without waiting; False where something has to come from the disk, or memory, first."""
        paused = False
        while number is not None and number < len(fetch.plan.wanted):
            if not paused and not fetch.context.place.take(limit):
                return False  # others would read into the same memory meanwhile
            paused = True
            yield None
            number = self._read_some(fetch, number, limit)
        if number is None:
            return False
        if not paused:
            return fetch.size <= fetch.context.connection.share.room
        if fetch.size <= limit:
            return True
        return fetch.size <= self._memory and fetch.context.place.take(fetch.size - limit, whole=True)

    def _read_some(self, fetch: _Fetch, number: int, limit: int) -> int | None:
        """Read partitions from a number on, until others should have their turn.

        Returns:
            The number to go on at; None if there is one that has to be waited for.
        """
        wanted = fetch.plan.wanted
        last = min(number + FEW, len(wanted))
        enough = fetch.size + _AT_A_TIME
        while number < last and fetch.size <= enough:
            item = wanted[number]
            partition = self._find(fetch, item.key)
            if partition is None:
                fetch.lacking = True
            elif partition.state is not State.OPEN or partition.direct is None:
                return None
            else:
                try:
                    most = self._most(partition, item, limit - fetch.size, first=not fetch.size)
                    if most < 0:
                        fetch.full = fetch.full or item.offset < partition.log.high_watermark
                    else:
                        pulled = partition.direct.pull_nowait(item.offset, max_bytes=most)
                        if pulled is None:
                            return None
                        fetch.add(number, partition, pulled, most)
                except KafkaError as error:
                    fetch.fail(number, error)
            number += 1
        return number

    async def _read(self, fetch: _Fetch, pace: Pace, limit: int) -> None:
        """Read up to so many bytes, but one batch at least."""
        for number, wanted in enumerate(fetch.plan.wanted):
            if pace.over:
                await pace.pause()
                if fetch.context.connection.gone:
                    return
            partition = self._find(fetch, wanted.key)
            if partition is None:
                fetch.lacking = True
                continue
            try:
                if partition.state is not State.OPEN:
                    await partition.ready()
                most = self._most(partition, wanted, limit - fetch.size, first=not fetch.size)
                if most < 0:
                    fetch.full = fetch.full or wanted.offset < partition.log.high_watermark
                else:
                    fetch.add(number, partition, await self._pull(partition, wanted.offset, most), most)
            except KafkaError as error:
                fetch.fail(number, error)

    def _most(self, partition: Partition, wanted: Wanted, left: int, *, first: bool) -> int:
        """How many bytes to read; -1 for nothing at all. Raises when nothing can be read from there."""
        most = _check(partition, wanted, left, first=first)
        if self._unreadable and most >= 0 and (partition.place, wanted.offset) in self._unreadable:
            # consumers wait, and read other partitions meanwhile
            raise UnknownServerError(f"{partition}: the batch at offset {wanted.offset} is larger than all memory")
        return most

    async def _pull(self, partition: Partition, offset: int, size: int) -> Pulled:
        if partition.direct is not None:
            pulled = partition.direct.pull_nowait(offset, max_bytes=size)
            if pulled is not None:
                return pulled
        return await partition.pull(offset, max_bytes=size)

    def _limit(self, fetch: _Fetch) -> int:
        return max(0, min(fetch.request.max_bytes, self._config.get_int("fetch.max.bytes")))

    def _least(self, fetch: _Fetch) -> int:
        """Bytes that are waited for: as many as the client asks for, but no more than an answer may hold."""
        return min(fetch.request.min_bytes, self._limit(fetch), _MOST_AT_ONCE * len(fetch.plan.wanted))

    def _find(self, fetch: _Fetch, key: Key) -> Partition | None:
        topic_id = key.topic_id if fetch.by_id else None
        record = self._access.find(fetch.context.connection, AclOperation.READ, key.topic, topic_id)
        return None if record is None else self._partitions.of(record, key.partition)

    def _why_not(self, fetch: _Fetch, key: Key) -> int:
        """The code of a partition that is not found."""
        try:
            topic_id = key.topic_id if fetch.by_id else None
            record = self._access.topic(fetch.context.connection, AclOperation.READ, key.topic, topic_id)
            self._partitions.check(record, key.partition)
        except KafkaError as error:
            return code_of(error)
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION  # it is there now, and was not when it was to be read

    # Waiting

    def _enough(self, fetch: _Fetch) -> bool:
        request = fetch.request
        return (
            fetch.size >= request.min_bytes
            or request.max_wait_ms <= 0
            or fetch.lacking
            or bool(fetch.errors)
            or fetch.full
            or not fetch.plan.wanted
            or fetch.size >= self._least(fetch)
            or fetch.hurried
            or fetch.context.place.hurried
            or self._draining
        )

    async def _finish(self, fetch: _Fetch) -> FetchResponse | None:
        """Wait for the request's turn to be answered, for enough to answer with, and for memory to read it into."""
        connection = fetch.context.connection
        pace = Pace(connection.flow)
        connection.when_gone(fetch.wake)
        self._parked.add(fetch)
        try:
            await self._until_enough(fetch, pace)
        finally:
            self._parked.discard(fetch)
            connection.unless_gone(fetch.wake)
            fetch.context.place.when_next(None)  # else each keeps the other, with all that was read
        steps = self._respond(fetch)
        while not connection.gone:
            try:
                next(steps)
            except StopIteration as end:
                return cast("FetchResponse", end.value)
            await pace.pause()
        fetch.clear()
        connection.discard(emptied(fetch.plan.wanted))
        return None

    async def _until_enough(self, fetch: _Fetch, pace: Pace) -> None:
        connection, place = fetch.context.connection, fetch.context.place
        deadline = anyio.current_time() + max(0, fetch.request.max_wait_ms) / 1000
        place.when_next(fetch.wake)
        while not connection.gone:
            waiter = fetch.waiter = Waiter(self._least(fetch))
            try:
                if not place.is_next:  # no answer could leave
                    await waiter.wait()
                    continue
                # Registered before reading: what arrives in between is counted twice at worst, never lost.
                with HoldOff() if len(fetch.plan.wanted) > _MANY else nullcontext():
                    await self._wait_for(fetch, waiter, pace)
                    fits = await self._read_into_memory(fetch, pace)
                now = anyio.current_time()
                until = deadline
                if not fits:
                    # the client asks again, for the same: it gets on only if it waits for its turn
                    until += _PATIENCE
                    if now >= until or place.hurried or self._draining:
                        return  # with nothing
                elif now >= deadline or self._enough(fetch):
                    return
                else:
                    waiter.arrived(fetch.size)
                    fetch.clear()
                    place.give_back()
                with anyio.move_on_after(until - now):
                    await waiter.wait()
            finally:
                waiter.close()
                fetch.waiter = None
            await pace.turn()

    async def _read_into_memory(self, fetch: _Fetch, pace: Pace) -> bool:
        """Read, if there is memory for it; else its coming wakes the fetch."""
        place = fetch.context.place
        if place.taken:  # it was waited for
            room = place.taken
        else:
            room = max(min(self._limit(fetch), _room(fetch.context.connection.share)), fetch.least)
            if room and not place.take(room, whole=fetch.least > 0):
                return False
        with self._shields.shield():
            await self._read(fetch, pace, room)
            while fetch.size > self._memory:
                self._refuse(fetch)
                await self._read(fetch, pace, room)
        if fetch.size > room and not place.take(fetch.size - room, whole=True):
            fetch.least = fetch.size
            fetch.clear()
            place.give_back()
            return False
        place.give_back(but=fetch.size)
        return True

    def _refuse(self, fetch: _Fetch) -> None:
        """The one batch that was read is larger than all the memory there is: the others are read without it."""
        number, size = next(iter(fetch.rows)), fetch.size
        wanted = fetch.plan.wanted[number]
        partition = self._find(fetch, wanted.key)
        fetch.clear()
        if partition is None:
            return
        if len(self._unreadable) >= _REMEMBERED:
            self._unreadable.clear()
        self._unreadable[partition.place, wanted.offset] = size
        logger.error(
            "%s: the batch at offset %d takes %d bytes, more than connections.max.memory.bytes=%d: it cannot be "
            "fetched. Start the gateway with a higher setting, or let consumers seek beyond it",
            partition, wanted.offset, size, self._memory,
        )  # fmt: skip

    async def _wait_for(self, fetch: _Fetch, waiter: Waiter, pace: Pace) -> None:
        for wanted in fetch.plan.wanted:
            if pace.over:
                await pace.pause()
            partition = self._find(fetch, wanted.key)
            if partition is not None:
                waiter.add(partition)

    # Answering

    def _respond(self, fetch: _Fetch) -> Work:
        """The response; of many partitions it is made while it is encoded."""
        plan = fetch.plan
        response = FetchResponse(session_id=plan.session_id)
        told: dict[tuple[str, bytes], array[int]] = {}
        for number, wanted in enumerate(plan.wanted):
            if plan.session is None or self._is_news(fetch, number, wanted) or not plan.incremental:
                told.setdefault(wanted.key[:2], array("l")).append(number)
            if (number + 1) % FEW == 0:
                yield None
        for (name, topic_id), numbers in told.items():
            rows = self._rows(fetch, numbers)
            partitions = list(rows) if len(numbers) <= FEW else lazily(len(numbers), rows)
            response.responses.append(FetchableTopicResponse(topic=name, topic_id=topic_id, partitions=partitions))
        if plan.session is not None:
            served = [plan.wanted[number].key for number, row in fetch.rows.items() if row.records]
            self.sessions.answered(plan.session, served)
        return response

    def _respond_small(self, fetch: _Fetch) -> FetchResponse:
        """The same, of few partitions."""
        plan = fetch.plan
        session = plan.session
        response = FetchResponse(session_id=plan.session_id)
        topics: dict[tuple[str, bytes], FetchableTopicResponse] = {}
        for number, wanted in enumerate(plan.wanted):
            if session is not None and not self._is_news(fetch, number, wanted) and plan.incremental:
                continue
            key = wanted.key
            topic = topics.get(key[:2])
            if topic is None:
                topic = topics[key[:2]] = FetchableTopicResponse(topic=key.topic, topic_id=key.topic_id)
                response.responses.append(topic)
            topic.partitions.append(self._row(fetch, number))
        if session is not None:
            self.sessions.answered(session, [plan.wanted[number].key for number in fetch.rows])
        return response

    def _rows(self, fetch: _Fetch, numbers: array[int]) -> Iterator[FetchResponsePartitionData]:
        wanted: list[Wanted | None] = fetch.plan.wanted  # type: ignore[assignment]
        alone = fetch.plan.session is None
        for number in numbers:
            yield self._row(fetch, number)
            if alone:
                wanted[number] = None  # very many are not given up in one go

    def _is_news(self, fetch: _Fetch, number: int, wanted: Wanted) -> bool:
        """Whether a session's client has to be told of a partition; remembers that it is."""
        answer = self._row(fetch, number)
        size = len(answer.records or b"")
        return wanted.is_news(answer.error_code, answer.high_watermark, answer.log_start_offset, size)

    def _row(self, fetch: _Fetch, number: int) -> FetchResponsePartitionData:
        """What is answered of a partition: what was read of it, or else its state."""
        answer = fetch.rows.get(number)
        if answer is None:
            key = fetch.plan.wanted[number].key
            answer = FetchResponsePartitionData(partition_index=key.partition)
            partition = self._find(fetch, key)
            if partition is None:
                _put_error(answer, self._why_not(fetch, key))
            elif number in fetch.errors:
                _put_error(answer, fetch.errors[number])
            else:
                _put_state(answer, partition)
        answer.last_stable_offset = answer.high_watermark  # without transactions everything visible is stable
        answer.aborted_transactions = [] if fetch.request.isolation_level == READ_COMMITTED else None
        return answer


def _room(share: Share) -> int:
    """Bytes that may be read; what is left is for the rows that go with them."""
    room = share.room
    return room - room // 8


def _is_small(request: FetchRequest) -> bool:
    """Whether a request names few partitions."""
    count = len(request.topics) + len(request.forgotten_topics_data)
    if count > FEW:
        return False
    for topic in request.topics:
        count += len(topic.partitions)
    for forgotten in request.forgotten_topics_data:
        count += len(forgotten.partitions)
    return count <= FEW


def _wanted(request: FetchRequest) -> Work:
    wanted = []
    for topic in request.topics:
        partitions, topic.partitions = topic.partitions, []
        partitions.reverse()
        while partitions:  # they may be many: each is given up for what is made of it
            item = partitions.pop()
            key = Key(topic.topic, topic.topic_id, item.partition)
            wanted.append(Wanted(key, item.fetch_offset, item.partition_max_bytes, item.current_leader_epoch))
            if len(wanted) % FEW == 0:
                yield None
    return wanted


def _forgotten(request: FetchRequest) -> Work:
    keys = []
    for topic in request.forgotten_topics_data:
        for number in topic.partitions:
            keys.append(Key(topic.topic, topic.topic_id, number))
            if len(keys) % FEW == 0:
                yield None
    return keys


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
    size = max(0, min(wanted.max_bytes, left, _MOST_AT_ONCE))
    return size if size or first else -1


def _below(pulled: Pulled, end: int) -> Pulled:
    """What was read, without the batches from `end`, a high watermark, on.

    A store may show a message before it has answered the call that sent it. Were such a one given out, the next answer
    would have a lower high watermark than this one.
    """
    data = memoryview(pulled.data)
    place = 0
    while place < len(data) and (header := read_header(data, place)).base_offset < end:
        place += header.length
    return Pulled(data[:place], pulled.first, end - 1)


def _put_state(answer: FetchResponsePartitionData, partition: Partition) -> None:
    answer.high_watermark = partition.log.high_watermark
    answer.log_start_offset = partition.log.start_offset
    answer.records = b""


def _put_error(answer: FetchResponsePartitionData, code: int) -> None:
    answer.error_code = code
    answer.high_watermark = answer.log_start_offset = -1
    answer.records = b""

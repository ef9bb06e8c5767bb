"""Fetch: whole batches from an offset on, at once or when enough has arrived.

A response carries the buffers that HTP gave, untouched. Data that HTP has at hand is answered in `begin`; what has
to come from the disk, and long polls, are finished later.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from typing import ClassVar, Final, cast

import anyio

from kclient.errors import ErrorCode, KafkaError
from kclient.gateway.access import Access
from kclient.gateway.clock import Clock
from kclient.gateway.config import Live
from kclient.gateway.contexts import RequestContext
from kclient.gateway.error_codes import code_of
from kclient.gateway.fetch_sessions import FINAL_EPOCH, FetchPlan, FetchSessionCache, Key, Wanted
from kclient.gateway.handlers._work import FEW, Work, started
from kclient.gateway.handlers.fetch_of_old import OldFetches
from kclient.gateway.handlers.fetch_reading import MOST_AT_ONCE, Fetch, FetchReader, put_error, put_nothing, put_state
from kclient.gateway.handlers.handler import Begun, Handler, VersionRange
from kclient.gateway.leadership import Leadership
from kclient.gateway.partition import Partition
from kclient.gateway.partition_states import UNREAD, PartitionPhase
from kclient.gateway.partitions import PartitionTable
from kclient.gateway.shields import Shields
from kclient.gateway.waiters import Waiter
from kclient.gateway.workers import Workers
from kclient.net.discarding import emptied, in_slices
from kclient.net.fair_queue import Flow, Pace
from kclient.net.garbage import HoldOff
from kclient.net.memory_budget import Share
from kclient.protocol.lazy_arrays import lazily
from kclient.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    FetchResponsePartitionData,
)
from kclient.protocol.registry import ApiKey

_TOPIC_IDS_SINCE = 13
_PATIENCE: Final = 13.0
"""Seconds beyond `max_wait_ms` that a fetch waits for memory to read a batch into that is there: longer than
clients may stall that keep it (`ServerSettings.stall_timeout`)."""
_MANY: Final = 5_000
_SESSIONS_SHARE: Final = 8
"""One part in so many of the memory for clients may be taken by fetch sessions."""
_PER_ANSWER: Final = 24
_PER_ROW: Final = 48
"""About how many bytes an answer has beside records, and a partition in it."""
_LONGEST_NAME: Final = 249
"""Characters of a topic's name."""


class FetchHandler(Handler):
    """Answers Fetch.

    Args:
        access: Who finds which topics.
        partitions: Their partitions.
        leadership: Knows where those are that others lead.
        memory: Bytes that all that the gateway keeps may take.
        max_bytes: Bytes that one answer may hold (`fetch.max.bytes`).
        session_slots: How many sessions there may be.
        workers: Threads in which batches are made older.
        clock: What time it is.
        shields: Keep what is read from the disk from being left half done.
        flow: In whose turns the many partitions of a session are given up.
        spawn: Starts a task of the gateway.
    """

    API: ClassVar[ApiKey] = ApiKey.FETCH
    VERSIONS: ClassVar[VersionRange] = (0, 18)
    ONLY_READS: ClassVar[bool] = True
    FEW_AT_ONCE: ClassVar[bool] = True

    def __init__(
        self,
        access: Access,
        partitions: PartitionTable,
        leadership: Leadership,
        *,
        memory: int,
        max_bytes: Live[int],
        session_slots: int,
        workers: Workers,
        clock: Clock,
        shields: Shields,
        flow: Flow,
        spawn: Callable[..., object],
    ) -> None:
        self._reader = FetchReader(access, partitions, leadership, memory, max_bytes, spawn)
        self._old = OldFetches(self._reader, workers)
        self._clock = clock
        self._shields = shields
        self.sessions: FetchSessionCache = FetchSessionCache(session_slots, memory // _SESSIONS_SHARE, self._discard)
        self._flow = flow
        self._parked: set[Fetch] = set()
        self._draining = False

    def begin(self, request: FetchRequest, context: RequestContext) -> Begun:
        """Take the request's place in its session; answer what is at hand."""
        if _is_small(request) and self.sessions.is_small(request.session_id, FEW):
            return self._begin_small(request, context)
        return cast("Begun", started(self._begin(request, context)))

    def _begin_small(self, request: FetchRequest, context: RequestContext) -> Begun:
        """The same as `_begin`, of few partitions, and in one go unless they hold much."""
        by_id = context.api_version >= _TOPIC_IDS_SINCE
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
        if not by_id and not all(_may_be_there(topic.topic) for topic in request.topics):
            epoch = FINAL_EPOCH
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
        fetch = Fetch(request, context, plan, by_id)
        if fetch.is_old or not context.place.is_next:
            return partial(self._finish, fetch)
        limit = min(self._reader.limit(fetch), _room(connection.share))
        number = self._reader.read_some(fetch, 0, limit)
        if number == len(plan.wanted):
            if (fetch.size <= limit or fetch.size <= connection.share.room) and self._enough(fetch):
                return self._throttled(fetch) or self._respond_small(fetch)
        elif number is not None:
            return cast("Begun", started(self._begin_to_read(fetch, number, limit)))
        fetch.clear()
        return partial(self._finish, fetch)

    def _begin(self, request: FetchRequest, context: RequestContext) -> Work:
        by_id = context.api_version >= _TOPIC_IDS_SINCE
        wanted, kept = yield from _wanted(request)
        forgotten: list[Key] = yield from _forgotten(request)
        owner = context.connection.share
        plan: FetchPlan = yield from self.sessions.plan_steps(
            request.session_id,
            request.session_epoch if kept else FINAL_EPOCH,
            wanted,
            forgotten,
            self._clock.now(),
            by_id=by_id,
            owner=owner,
        )
        if plan.session is not None:
            context.connection.when_gone(self._end_sessions_of(context))
        fetch = Fetch(request, context, plan, by_id)
        if fetch.is_old or not context.place.is_next:
            return partial(self._finish, fetch)
        limit = min(self._reader.limit(fetch), _room(owner))
        return (yield from self._begin_to_read(fetch, self._reader.read_some(fetch, 0, limit), limit))

    def _begin_to_read(self, fetch: Fetch, number: int | None, limit: int) -> Work:
        """Go on reading at a partition, None if one has to be waited for; answer if that is enough."""
        if (yield from self._read_now(fetch, number, limit)) and self._enough(fetch):
            fetch.context.place.give_back(but=fetch.size)
            return self._throttled(fetch) or (yield from self._respond(fetch))
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

    def _read_now(self, fetch: Fetch, number: int | None, limit: int) -> Work:
        """Go on reading without waiting; False where something has to come from the disk, or memory, first."""
        paused = False
        while number is not None and number < len(fetch.plan.wanted):
            if not paused and not fetch.context.place.take(limit):
                return False  # others would read into the same memory meanwhile
            paused = True
            yield None
            number = self._reader.read_some(fetch, number, limit)
        if number is None:
            return False
        if not paused:
            return fetch.size <= fetch.context.connection.share.room
        if fetch.size <= limit:
            return True
        return fetch.size <= self._reader.memory and fetch.context.place.take(fetch.size - limit, whole=True)

    # Waiting

    def _least(self, fetch: Fetch) -> int:
        """Bytes that are waited for: as many as the client asks for, but no more than an answer may hold."""
        return min(fetch.request.min_bytes, self._reader.limit(fetch), MOST_AT_ONCE * len(fetch.plan.wanted))

    def _enough(self, fetch: Fetch) -> bool:
        request, there = fetch.request, fetch.size + fetch.withheld
        return (
            there >= request.min_bytes
            or request.max_wait_ms <= 0
            or fetch.lacking
            or len(fetch.errors) > fetch.late
            or fetch.full
            or not fetch.plan.wanted
            or there >= self._least(fetch)
            or fetch.hurried
            or fetch.context.place.hurried
            or self._draining
        )

    async def _finish(self, fetch: Fetch) -> FetchResponse | None:
        """Wait for the request's turn to be answered, for enough to answer with, and for memory to read it into."""
        connection = fetch.context.connection
        pace = Pace(connection.flow)
        connection.when_gone(fetch.wake)
        self._parked.add(fetch)
        deadline = anyio.current_time() + max(0, fetch.request.max_wait_ms) / 1000
        try:
            await self._until_enough(fetch, pace, deadline)
            while fetch.is_old and not await self._old.convert(fetch):
                await self._until_enough(fetch, pace, deadline)  # there is nothing for this client in what was read
        finally:
            self._parked.discard(fetch)
            connection.unless_gone(fetch.wake)
            fetch.context.place.when_next(None)  # else each keeps the other, with all that was read
        throttled = None if connection.gone else self._throttled(fetch)
        if throttled is not None:
            return throttled
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

    async def _until_enough(self, fetch: Fetch, pace: Pace, deadline: float) -> None:
        connection, place = fetch.context.connection, fetch.context.place
        place.when_next(fetch.wake)
        while not connection.gone:
            waiter = fetch.waiter = Waiter(self._least(fetch), committed=fetch.committed)
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
                    waiter.arrived(fetch.size, fetch.size)
                    fetch.clear()
                    place.give_back()
                with anyio.move_on_after(until - now):
                    await waiter.wait()
            finally:
                waiter.close()
                fetch.waiter = None
            await pace.turn()

    async def _read_into_memory(self, fetch: Fetch, pace: Pace) -> bool:
        """Read, if there is memory for it; else its coming wakes the fetch."""
        place = fetch.context.place
        if place.taken:  # it was waited for
            room = place.taken
        else:
            room = max(min(self._reader.limit(fetch), _room(fetch.context.connection.share)), fetch.least)
            if room and not place.take(room, whole=fetch.least > 0):
                return False
        with self._shields.shield():
            await self._reader.read(fetch, pace, room)
            while fetch.size > self._reader.memory:
                self._reader.refuse(fetch)
                await self._reader.read(fetch, pace, room)
        if fetch.size > room and not place.take(fetch.size - room, whole=True):
            fetch.least = fetch.size
            fetch.clear()
            place.give_back()
            return False
        place.give_back(but=fetch.size)
        return True

    async def _wait_for(self, fetch: Fetch, waiter: Waiter, pace: Pace) -> None:
        """Be told of the partitions. Those that are not open are waited for here, where no memory is held."""
        closed: list[Partition] = []
        for wanted in fetch.plan.wanted:
            if pace.over:
                await pace.pause()
            partition = self._reader.find(fetch, wanted.key)
            if partition is not None:
                waiter.add(partition)
                if partition.state is not PartitionPhase.OPEN and not partition.undecided:
                    partition.open_soon()  # all at once
                    closed.append(partition)
        for partition in closed:
            if pace.over:
                await pace.pause()
            await partition.soon_opened()

    # Answering

    def _throttled(self, fetch: Fetch) -> FetchResponse | None:
        """The answer of a client that has got too much (KIP-219): nothing, as yet. None where it gets what was read."""
        charge, plan = fetch.context.charge, fetch.plan
        if charge is None:
            return None
        rows = len(fetch.rows) if plan.incremental else len(plan.wanted)
        if not charge.fetched(fetch.size + _PER_ANSWER + rows * _PER_ROW):
            return None
        fetch.clear()
        fetch.context.place.give_back()
        if plan.session is not None and not plan.incremental:  # its client begins anew
            self.sessions.drop(plan.session)
            return FetchResponse()
        return FetchResponse(session_id=plan.session_id)

    def _respond(self, fetch: Fetch) -> Work:
        """The response; of many partitions it is made while it is encoded."""
        plan = fetch.plan
        response = FetchResponse(session_id=plan.session_id)
        fetch.endpoints = response.node_endpoints
        told: dict[tuple[str, bytes], array[int]] = {}
        for number, wanted in enumerate(plan.wanted):
            if plan.session is None or self._is_news(fetch, number, wanted) or not plan.incremental:
                told.setdefault(wanted.key[:2], array("l")).append(number)
            if (number + 1) % FEW == 0:
                yield None
        for count, ((name, topic_id), numbers) in enumerate(told.items(), 1):
            rows = self._rows(fetch, numbers)
            partitions = list(rows) if len(numbers) <= FEW else lazily(len(numbers), rows)
            response.responses.append(FetchableTopicResponse(topic=name, topic_id=topic_id, partitions=partitions))
            if count % FEW == 0:
                yield None
        if plan.session is not None:
            served = [plan.wanted[number].key for number, row in fetch.rows.items() if row.records]
            self.sessions.answered(plan.session, served)
        fetch.answered()
        return response

    def _respond_small(self, fetch: Fetch) -> FetchResponse:
        """The same, of few partitions."""
        plan = fetch.plan
        session = plan.session
        response = FetchResponse(session_id=plan.session_id)
        fetch.endpoints = response.node_endpoints
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
        fetch.answered()
        return response

    def _rows(self, fetch: Fetch, numbers: array[int]) -> Iterator[FetchResponsePartitionData]:
        wanted: list[Wanted | None] = fetch.plan.wanted  # type: ignore[assignment]
        alone = fetch.plan.session is None
        for number in numbers:
            yield self._row(fetch, number)
            if alone:
                wanted[number] = None  # very many are not given up in one go

    def _is_news(self, fetch: Fetch, number: int, wanted: Wanted) -> bool:
        """Whether a session's client has to be told of a partition; remembers that it is."""
        answer = self._row(fetch, number)
        size = len(answer.records or b"")
        return wanted.is_news(answer.error_code, answer.high_watermark, answer.log_start_offset, size)

    def _row(self, fetch: Fetch, number: int) -> FetchResponsePartitionData:
        """What is answered of a partition: what was read of it, or else its state."""
        answer = fetch.rows.get(number)
        if answer is None:
            key = fetch.plan.wanted[number].key
            answer = FetchResponsePartitionData(partition_index=key.partition)
            partition = self._reader.find(fetch, key)
            if partition is None:
                self._put_nothing(fetch, number, key, answer)
            elif number in fetch.errors:
                self._reader.put_error(fetch, key, answer, fetch.errors[number])
            elif partition.state in UNREAD:
                put_error(answer, ErrorCode.KAFKA_STORAGE_ERROR, fetch.context.api_version)
            else:
                put_state(answer, partition)
        if not fetch.committed:
            answer.aborted_transactions = None
        return answer

    def _put_nothing(self, fetch: Fetch, number: int, key: Key, answer: FetchResponsePartitionData) -> None:
        """What is answered of a partition that is not found."""
        code: int = ErrorCode.NONE
        try:
            if self._reader.is_internal(fetch, key):
                code = fetch.errors.get(number, code)
            else:
                code = self._reader.why_not(fetch, key)
        except KafkaError as error:
            code = code_of(error)
        if code:
            self._reader.put_error(fetch, key, answer, code)
        else:
            put_nothing(answer)


def _room(share: Share) -> int:
    """Bytes that may be read; what is left is for the rows that go with them."""
    room = share.room
    return room - room // 8


def _may_be_there(name: str) -> bool:
    """Whether a topic may have this name: others, which may be long, are kept in no session."""
    return len(name) <= _LONGEST_NAME and name.isascii()


def _wanted(request: FetchRequest) -> Work:
    """The partitions that are wanted, and whether a session may keep them."""
    wanted = []
    kept = True
    for count, topic in enumerate(request.topics, 1):
        if count % FEW == 0:  # there may be very many without partitions
            yield None
        kept = kept and _may_be_there(topic.topic)
        partitions, topic.partitions = topic.partitions, []
        partitions.reverse()
        while partitions:  # they may be many: each is given up for what is made of it
            item = partitions.pop()
            key = Key(topic.topic, topic.topic_id, item.partition)
            wanted.append(Wanted(key, item.fetch_offset, item.partition_max_bytes, item.current_leader_epoch))
            if len(wanted) % FEW == 0:
                yield None
    return wanted, kept


def _forgotten(request: FetchRequest) -> Work:
    keys = []
    for count, topic in enumerate(request.forgotten_topics_data, 1):
        if count % FEW == 0:
            yield None
        for number in topic.partitions:
            keys.append(Key(topic.topic, topic.topic_id, number))
            if len(keys) % FEW == 0:
                yield None
    return keys


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

"""ShareFetch: members of a share group acquire records, and say what became of earlier ones (KIP-932).

Records are read as a fetch reads them (`fetch_reading.py`), from the first offset on that is available. Nothing is
acquired while more is waited for.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import chain, islice
from typing import ClassVar, Final, cast

import anyio

from kclient.errors import ErrorCode, InvalidRequestError, KafkaError, ShareSessionNotFoundError
from kclient.gateway.clock import Clock
from kclient.gateway.contexts import ConnectionContext, RequestContext
from kclient.gateway.error_codes import code_of, text_of
from kclient.gateway.fetch_sessions import FetchPlan, Key, Wanted
from kclient.gateway.handlers._shares import (
    PER_PARTITION,
    RENEWING_SINCE,
    PartOutcome,
    ShareRequests,
)
from kclient.gateway.handlers._work import FEW, READ_COMMITTED, Work, counting, rows_of, started
from kclient.gateway.handlers.fetch_reading import Fetch, FetchReader
from kclient.gateway.handlers.handler import Begun, Handler, VersionRange
from kclient.gateway.leadership import Leader
from kclient.gateway.partition_id import PartitionId
from kclient.gateway.shares.led import LedShare
from kclient.gateway.shares.sessions import FINAL_EPOCH, INITIAL_EPOCH, MemberSession, SessionName
from kclient.gateway.shares.settings import DeliverySettings
from kclient.gateway.shares.share_partition import Delivered, ReadSpan
from kclient.gateway.shares.spans import SpanPlace, records_of, spans_of
from kclient.gateway.shields import Shields
from kclient.gateway.waiters import Waiter
from kclient.net.fair_queue import Pace
from kclient.protocol.messages.fetch import FetchRequest, FetchResponsePartitionData
from kclient.protocol.messages.share import (
    AcquiredRecords,
    ShareFetchableTopicResponse,
    ShareFetchRequest,
    ShareFetchResponse,
    ShareFetchResponseLeaderIdAndEpoch,
    ShareFetchResponseNodeEndpoint,
    ShareFetchResponsePartitionData,
)
from kclient.protocol.registry import ApiKey
from kclient.types import Buffer

_SOON_S: Final = 0.5
"""Seconds in which what was delivered of partitions is to be read; others are answered without these."""
_AT_ONCE: Final = 1_000
"""Batches of a partition that are looked at before others have their turn; what is behind them is read anew."""
_LOOKED_AT: Final = 1024
"""So many partitions are asked whether anything of them is acknowledged before others have their turn."""
_BATCH_OPTIMIZED: Final = 0
_RECORD_LIMIT: Final = 1
"""The mode in which no more records are acquired than were asked for (KIP-1206)."""


class _Fetching:
    """One request under way."""

    __slots__ = ("context", "delivered", "errors", "records", "request", "session", "settings", "size", "waiter")

    def __init__(
        self, request: ShareFetchRequest, context: RequestContext, session: MemberSession, settings: DeliverySettings
    ) -> None:
        self.request = request
        self.context = context
        self.session = session
        self.settings = settings
        self.delivered: dict[PartitionId, list[Delivered]] = {}
        self.records: dict[PartitionId, Buffer] = {}
        self.errors: dict[PartitionId, PartOutcome] = {}
        """Why partitions cannot be read."""
        self.size = 0
        self.waiter: Waiter | None = None

    @property
    def strict(self) -> bool:
        return self.request.share_acquire_mode == _RECORD_LIMIT

    def wake(self) -> None:
        """Something has changed."""
        if self.waiter is not None:
            self.waiter.wake()


class ShareFetchHandler(Handler):
    """Answers ShareFetch.

    Args:
        requests: Knows sessions, and what they hold.
        reader: Reads partitions.
        clock: What time it is.
        shields: Keep what is read from the disk from being left half done.
    """

    API: ClassVar[ApiKey] = ApiKey.SHARE_FETCH
    VERSIONS: ClassVar[VersionRange] = (1, 2)

    def __init__(self, requests: ShareRequests, reader: FetchReader, clock: Clock, shields: Shields) -> None:
        self._requests = requests
        self._reader = reader
        self._clock = clock
        self._shields = shields
        self._parked: set[_Fetching] = set()
        self._draining = False

    def begin(self, request: ShareFetchRequest, context: RequestContext) -> Begun:
        """Take the request's place in its session."""
        name = self._requests.name(context, request.group_id, request.member_id)
        _check_mode(request)
        return cast("Begun", started(self._begin(request, context, name)))

    def _begin(self, request: ShareFetchRequest, context: RequestContext, name: SessionName) -> Work:
        """The same, in steps."""
        sessions, epoch = self._requests.sessions, request.share_session_epoch
        if epoch == INITIAL_EPOCH:
            acknowledges = yield from _acknowledges(request)
            session = sessions.begin(name, context.connection.share, acknowledges=acknowledges)
            self._end_with_connection(session, context.connection)
        else:
            session = sessions.go_on(name, epoch)
        if epoch != FINAL_EPOCH:
            yield from sessions.change(session, _read(request), _forgotten(request))
        fetching = _Fetching(request, context, session, self._requests.shares.settings(name.group_id))
        sizes = rows_of((topic.partitions for topic in request.topics), PER_PARTITION)
        return (yield from counting(sizes, partial(self._finish, fetching)))

    def _end_with_connection(self, session: MemberSession, connection: ConnectionContext) -> None:
        end = partial(self._requests.end, session)
        session.on_end = partial(connection.unless_gone, end)
        connection.when_gone(end)

    def drain(self) -> None:
        """Those that wait are answered now, and none waits from now on."""
        self._draining = True
        for fetching in self._parked:
            fetching.wake()

    async def _finish(self, fetching: _Fetching) -> ShareFetchResponse | None:
        request, context = fetching.request, fetching.context
        client, session = context.connection, fetching.session
        pace = Pace(client.flow)
        renewing = request.is_renew_ack and context.api_version >= RENEWING_SINCE
        acknowledged = await self._requests.acknowledge(client, session.name, request.topics, pace, renewing=renewing)
        if request.share_session_epoch == FINAL_EPOCH:
            self._requests.end(session)
        elif not renewing and request.max_records > 0 and not self._is_throttled(context):
            await self._deliver(fetching, pace)
            if context.charge is not None:
                context.charge.delivered(fetching.size)
        return None if client.gone else await self._answer(fetching, acknowledged, pace)

    @staticmethod
    def _is_throttled(context: RequestContext) -> bool:
        """Whether its client has got too much before: it acquires nothing now, for what it acquires it has to get."""
        return context.charge is not None and context.charge.has_too_much()

    # Waiting

    async def _deliver(self, fetching: _Fetching, pace: Pace) -> None:
        """Acquire what there is, or wait for it."""
        context, place = fetching.context, fetching.context.place
        client = context.connection
        deadline = anyio.current_time() + max(0, fetching.request.max_wait_ms) / 1000
        client.when_gone(fetching.wake)
        place.when_next(fetching.wake)
        self._parked.add(fetching)
        try:
            while not client.gone:
                waiter = fetching.waiter = Waiter(1, committed=fetching.settings.committed)
                try:
                    if place.is_next:  # else no answer could leave
                        least = fetching.request.min_bytes
                        over = least <= 0 or anyio.current_time() >= deadline or self._draining or place.hurried
                        if await self._try(fetching, waiter, pace, over=over) or over:
                            return
                        with anyio.move_on_after(deadline - anyio.current_time()):
                            await waiter.wait()
                    else:
                        await waiter.wait()
                finally:
                    waiter.close()
                    fetching.waiter = None
                await pace.turn()
        finally:
            self._parked.discard(fetching)
            client.unless_gone(fetching.wake)
            place.when_next(None)

    async def _try(self, fetching: _Fetching, waiter: Waiter, pace: Pace, *, over: bool) -> bool:
        """Read, and acquire if that is enough; False if more is to be waited for.

        Args:
            fetching: The request.
            waiter: Is told of what happens from now on.
            pace: Where others have their turn.
            over: Whether as little as there is is enough.
        """
        while True:
            shares = [share for share in await self._find(fetching, waiter, pace) if share.records is not None]
            fetch = self._fetch_of(fetching, shares)
            if not await self._read(fetch, pace):
                return False  # memory is waited for
            late = not over and len(fetch.errors) <= fetch.late  # the store may answer yet
            for number, code in () if late else fetch.errors.items():
                if code != ErrorCode.OFFSET_OUT_OF_RANGE:  # an administrator has set one that is not there yet
                    fetching.errors[shares[number].key] = PartOutcome(code)
            self._check_session(fetching)
            least = min(fetching.request.min_bytes, self._reader.limit(fetch))
            if fetch.size < least and not over and not fetching.errors and not fetch.full:
                fetch.context.place.give_back()
                return False
            passed_over = await self._acquire(fetching, fetch, shares, pace)
            fetch.context.place.give_back(but=fetching.size)
            if fetching.delivered or fetching.errors:
                return True
            if over or not passed_over:
                return False
            await pace.pause()  # there were no records in what was read: maybe there are behind it

    async def _find(self, fetching: _Fetching, waiter: Waiter, pace: Pace) -> list[LedShare]:
        """The partitions of the session of which something may be acquired; the others are told of, or waited for."""
        client, group_id = fetching.context.connection, fetching.session.name.group_id
        found: list[LedShare] = []
        beginning: list[LedShare] = []
        fetching.errors = {}
        until = anyio.current_time() + _SOON_S
        for key in list(fetching.session.partitions):
            if pace.over:
                await pace.pause()
            try:
                beginning.append(self._requests.share(client, group_id, key))
            except KafkaError as error:
                fetching.errors[key] = PartOutcome.of(error)
        for share in beginning:
            if pace.over:
                await pace.pause()
            waiter.add(share)
            waiter.add(share.partition)
            try:
                if not share.is_ready:  # a store that hangs keeps nobody from the other partitions: it tells later
                    with anyio.move_on_after(until - anyio.current_time()):
                        await share.ready()
                share.check()
            except KafkaError as error:
                fetching.errors[share.key] = PartOutcome.of(error)
                continue
            records = share.records
            if records is None or not share.is_ready:
                continue
            if records.advance(share.partition.log.start_offset):
                self._requests.shares.changed(share)
            if records.may_acquire(fetching.settings.locks):
                found.append(share)
        return found

    # Reading

    def _fetch_of(self, fetching: _Fetching, shares: list[LedShare]) -> Fetch:
        """What is to be read: of each partition from the first offset on that is available."""
        request, committed = fetching.request, fetching.settings.committed
        wanted = [
            Wanted(Key("", share.key.topic_id, share.key.partition), share.records.next_offset, request.max_bytes)
            for share in shares
            if share.records is not None
        ]
        read = FetchRequest(
            max_wait_ms=request.max_wait_ms,
            min_bytes=request.min_bytes,
            max_bytes=request.max_bytes,
            isolation_level=READ_COMMITTED if committed else 0,
        )
        return Fetch(read, fetching.context, FetchPlan(wanted, None, incremental=False), by_id=True)

    async def _read(self, fetch: Fetch, pace: Pace) -> bool:
        """Read, if there is memory for it; else its coming wakes the request."""
        place = fetch.context.place
        room = place.taken or max(min(self._reader.limit(fetch), fetch.context.connection.share.room), 1)
        if not place.taken and not place.take(room):
            return False
        with self._shields.shield():
            await self._reader.read(fetch, pace, room)
            while fetch.size > self._reader.memory:
                self._reader.refuse(fetch)
                await self._reader.read(fetch, pace, room)
        if fetch.size > room and not place.take(fetch.size - room, whole=True):
            fetch.clear()
            place.give_back()
            return False
        return True

    # Acquiring

    def _check_session(self, fetching: _Fetching) -> None:
        """Raise `ShareSessionNotFoundError` if the session has ended: with it, what its member had was given back."""
        if not self._requests.sessions.is_current(fetching.session):
            fetching.context.place.give_back()
            raise ShareSessionNotFoundError("the share session has ended while its fetch has waited")

    async def _acquire(self, fetching: _Fetching, fetch: Fetch, shares: list[LedShare], pace: Pace) -> bool:
        """Acquire of what was read as much as was asked for; returns whether something was passed over."""
        request, settings, member_id = fetching.request, fetching.settings, fetching.session.name.member_id
        until = self._clock.now() + settings.lock_ms / 1000
        left, passed_over = request.max_records, False
        for number, row in fetch.rows.items():
            if pace.over:
                await pace.pause()
                self._check_session(fetching)
            share = shares[number]
            records = share.records
            if left <= 0 or records is None or not share.is_here:
                continue
            begin, next_offset = fetch.plan.wanted[number].offset, records.next_offset
            places: list[SpanPlace] = []
            found = records.acquire(
                member_id, begin, _spans(row, places),
                most=left, batch_size=max(request.batch_size, 1), strict=fetching.strict, locks=settings.locks,
                deliveries=settings.deliveries, until=until,
            )  # fmt: skip
            passed_over = passed_over or records.next_offset != next_offset
            self._requests.shares.changed(share, freed=False)
            if found:
                left -= sum(each.last - each.first + 1 for each in found)
                fetching.delivered[share.key] = found
                fetching.records[share.key] = records_of(row.records or b"", places, found)
                fetching.size += len(fetching.records[share.key])
        fetching.session.served(fetching.delivered)
        return passed_over

    # Answering

    async def _answer(
        self, fetching: _Fetching, acknowledged: dict[PartitionId, PartOutcome], pace: Pace
    ) -> ShareFetchResponse:
        client = fetching.context.connection
        response = ShareFetchResponse(acquisition_lock_timeout_ms=fetching.settings.lock_ms)
        topics: dict[bytes, ShareFetchableTopicResponse] = {}
        leaders: list[Leader] = []
        told: set[PartitionId] = set()
        for key in chain(fetching.delivered, fetching.errors, acknowledged):
            if pace.over:
                await pace.pause()
            if key in told:
                continue
            told.add(key)
            code, text = fetching.errors.get(key, PartOutcome())
            said, why = acknowledged.get(key, PartOutcome())
            row = ShareFetchResponsePartitionData(
                partition_index=key.partition,
                error_code=code,
                error_message=text,
                acknowledge_error_code=said,
                acknowledge_error_message=why,
                records=fetching.records.get(key, b""),
                acquired_records=[
                    AcquiredRecords(first_offset=first, last_offset=last, delivery_count=deliveries)
                    for first, last, deliveries in fetching.delivered.get(key, ())
                ],
            )
            leader = self._requests.leader(client, key, code or said)
            if leader is not None:
                row.current_leader = ShareFetchResponseLeaderIdAndEpoch(
                    leader_id=leader.node_id, leader_epoch=leader.epoch
                )
                leaders.append(leader)
            topic = topics.get(key.topic_id)
            if topic is None:
                topic = topics[key.topic_id] = ShareFetchableTopicResponse(topic_id=key.topic_id)
                response.responses.append(topic)
            topic.partitions.append(row)
        response.node_endpoints = self._requests.endpoints(client, leaders, ShareFetchResponseNodeEndpoint)
        return response

    def fail(self, request: ShareFetchRequest, context: RequestContext, error: KafkaError) -> ShareFetchResponse:
        """A session's error is the whole answer."""
        return ShareFetchResponse(error_code=code_of(error), error_message=text_of(str(error)))


def _acknowledges(request: ShareFetchRequest) -> Work:
    """Whether a request acknowledges anything, found out in steps."""
    for count, topic in enumerate(request.topics, 1):
        for begin in range(0, len(topic.partitions), _LOOKED_AT):
            if begin:
                yield None
            if any(each.acknowledgement_batches for each in topic.partitions[begin : begin + _LOOKED_AT]):
                return True
        if count % FEW == 0:
            yield None
    return False


def _read(request: ShareFetchRequest) -> Iterator[PartitionId | None]:
    """What is read from now on, too: each topic, as None, and each of its partitions."""
    for topic in request.topics:
        yield None
        for each in topic.partitions:
            yield PartitionId(topic.topic_id, each.partition_index)


def _forgotten(request: ShareFetchRequest) -> Iterator[PartitionId | None]:
    """What is not read any more: each topic, as None, and each of its partitions."""
    for topic in request.forgotten_topics_data:
        yield None
        for number in topic.partitions:
            yield PartitionId(topic.topic_id, number)


def _spans(row: FetchResponsePartitionData, places: list[SpanPlace]) -> Iterator[ReadSpan]:
    """The batches that were read, noted as they are looked at."""
    aborted = [(each.producer_id, each.first_offset) for each in row.aborted_transactions or ()]
    for each in islice(spans_of(row.records or b"", aborted), _AT_ONCE):
        places.append(each)
        yield each.span


def _check_mode(request: ShareFetchRequest) -> None:
    """Raise `InvalidRequestError` for a request that renews locks and asks for records, or how nobody knows."""
    if request.share_acquire_mode not in (_BATCH_OPTIMIZED, _RECORD_LIMIT):
        raise InvalidRequestError(f"there is no mode of acquisition {request.share_acquire_mode}")
    asks = (request.max_wait_ms, request.min_bytes, request.max_bytes, request.max_records)
    if request.is_renew_ack and any(asks):
        raise InvalidRequestError(
            "a fetch that renews locks has to ask for no records: MaxWaitMs, MinBytes, MaxBytes and MaxRecords are 0"
        )

"""A gateway with quotas: who is throttled, what that does to a connection, and what the two APIs say."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import ANY

import anyio
import pytest

from kclient.errors import ErrorCode
from kclient.gateway import Gateway
from kclient.gateway.contexts import ANONYMOUS, Principal
from kclient.gateway.handlers.share_fetch import ShareFetchHandler
from kclient.gateway.quotas.charges import Charge, Throttles
from kclient.gateway.quotas.clients import ClientQuotas, Limits, Meter
from kclient.gateway.quotas.entities import QuotaKind, entity_of
from kclient.gateway.quotas.rates import RateWindow, WindowedRate
from kclient.gateway.request_quotas import RequestQuotas
from kclient.gateway.rows.inspection import shown_row
from kclient.gateway.rows.quotas import quota_key
from kclient.htp import open_store
from kclient.memory_ledger import MemoryLedger
from kclient.protocol import messages as m
from kclient.protocol.framing import encode_request
from kclient.protocol.message import ApiMessage
from tests.gateway_wire import Wire, batch_of, connect, fetch_request, names, produce_request, running
from tests.unit.gateway_cluster.together import joined
from tests.wire_session import until

pytestmark = pytest.mark.anyio

Names = Mapping[str, str | None]
IN, OUT, TIME, TOPICS = "producer_byte_rate", "consumer_byte_rate", "request_percentage", "controller_mutation_rate"
SHORT = {"quota.window.num": 2}
"""A rate over one to two seconds: what is too much by a tenth is throttled for 100 ms."""
CLIENT: Names = {"client-id": "x"}
"""What the clients of these tests call themselves."""


async def alter(
    wire: Wire, names: Names, *, validate_only: bool = False, **quotas: float | None
) -> tuple[int, str | None]:
    entity = [m.AlterClientQuotasRequestEntityData(entity_type=kind, entity_name=name) for kind, name in names.items()]
    ops = [m.OpData(key=name, value=value or 0.0, remove=value is None) for name, value in quotas.items()]
    entries = [m.AlterClientQuotasRequestEntryData(entity=entity, ops=ops)]
    (row,) = (await wire(m.AlterClientQuotasRequest(entries=entries, validate_only=validate_only), 1)).entries
    assert {each.entity_type: each.entity_name for each in row.entity} == names
    return row.error_code, row.error_message


async def describe(
    wire: Wire, *components: tuple[str, int, str | None], strict: bool = False
) -> list[tuple[Names, dict[str, float]]]:
    filters = [m.ComponentData(entity_type=kind, match_type=how, match=match) for kind, how, match in components]
    answer = await wire(m.DescribeClientQuotasRequest(components=filters, strict=strict), 1)
    assert answer.error_code == 0, answer.error_message
    return [
        ({each.entity_type: each.entity_name for each in row.entity}, {each.key: each.value for each in row.values})
        for row in answer.entries
    ]


class Client(Wire):
    """A connection whose client calls itself so, and is somebody perhaps."""

    def __init__(self, gateway: Gateway, client_id: str | None, user: str | None = None) -> None:
        server = gateway._server
        assert server is not None
        before = set(server.connections)
        super().__init__(connect(gateway).stream)
        (self.connection,) = server.connections - before
        self.client_id = client_id
        if user is not None:
            self.connection.context.principal = Principal(user)

    async def send(self, request: ApiMessage, version: int) -> None:
        await self.stream.send(encode_request(request, version, 1, self.client_id))

    async def timed(self, request: ApiMessage, version: int) -> tuple[Any, float]:
        """The answer, and how long it took."""
        begun = anyio.current_time()
        return await self(request, version), anyio.current_time() - begun


@asynccontextmanager
async def limited(names: Names = CLIENT, **quotas: float) -> AsyncIterator[tuple[Gateway, Client, Wire]]:
    """A gateway with a topic and quotas; a client called x, and the connection of an administrator, called test."""
    with anyio.fail_after(30):
        async with running(config=SHORT) as (gateway, wire):
            await wire.create("t")
            assert await alter(wire, names, **quotas) == (0, None)
            client = Client(gateway, "x")
            try:
                yield gateway, client, wire
            finally:
                await client.aclose()


NOTHING = m.MetadataRequest(topics=[])


# Produce


async def test_who_produces_too_much_is_told_at_once_and_not_read_for_that_time() -> None:
    async with limited(**{IN: 10_000}) as (gateway, client, wire):
        batch = batch_of(bytes(6_000))
        first, _ = await client.timed(produce_request("t", batch), 9)
        second, took = await client.timed(produce_request("t", batch), 9)
        assert first.throttle_time_ms == 0
        assert 150 < second.throttle_time_ms <= 300, "2 * 6,000 are a fifth too much"
        assert second.responses[0].partition_responses[0].base_offset == 1
        assert took < 0.1, "the answer does not wait"
        assert client.connection.muted
        assert (await wire(NOTHING, 12)).throttle_time_ms == 0, "nor do others"
        _, waited = await client.timed(NOTHING, 12)
        assert waited > second.throttle_time_ms / 1000 - took - 0.05
        assert not client.connection.muted
        assert await wire.values("t") == [bytes(6_000)] * 2
        throttled = gateway.parts.charged.throttles
        assert (throttled.count[QuotaKind.PRODUCE], throttled.count[QuotaKind.FETCH]) == (1, 0)
        assert throttled.seconds[QuotaKind.PRODUCE] == pytest.approx(second.throttle_time_ms / 1000, abs=0.05)


async def test_requests_that_were_sent_ahead_wait_too() -> None:
    async with limited(**{IN: 10_000}) as (_, client, _wire):
        request = produce_request("t", batch_of(bytes(11_000)))
        for _ in range(3):
            await client.send(request, 9)
        begun = anyio.current_time()
        throttled = [(await client.read(request, 9)).throttle_time_ms for _ in range(2)]
        assert 50 < throttled[0] < 200, "a tenth too much, less what it took to answer"
        assert anyio.current_time() - begun > 0.04
        assert throttled[1] > throttled[0]


async def test_without_acknowledgements_the_pause_is_not_told() -> None:
    async with limited(**{IN: 10_000}) as (_, client, wire):
        await client.send(produce_request("t", batch_of(bytes(12_500)), acks=0), 9)
        answer, waited = await client.timed(NOTHING, 12)
        assert waited > 0.2
        assert answer.throttle_time_ms == 0
        assert await wire.values("t") == [bytes(12_500)]


@pytest.mark.parametrize("names", [{"user": "u", "client-id": "x"}, {"user": "u"}, {"user": None}, {"client-id": None}])
async def test_whom_a_quota_holds_for(names: Names) -> None:
    async with limited(names, **{IN: 10_000}) as (gateway, _, wire):
        request = produce_request("t", batch_of(bytes(11_000)))
        user, other = Client(gateway, "x", "u"), Client(gateway, "y", "v")
        assert (await user(request, 9)).throttle_time_ms > 0
        assert bool((await other(request, 9)).throttle_time_ms) == (None in names.values())
        assert await alter(wire, names, **{IN: None}) == (0, None) if "user" in names and names["user"] == "u" else True
        for each in (user, other):
            await each.aclose()


async def test_a_quota_that_is_removed_holds_no_more() -> None:
    async with limited(**{IN: 10_000}) as (gateway, client, wire):
        request = produce_request("t", batch_of(bytes(11_000)))
        assert (await client(request, 9)).throttle_time_ms > 0
        assert await alter(wire, CLIENT, **{IN: None, OUT: None}) == (0, None)
        assert (await client(request, 9)).throttle_time_ms == 0
        assert not gateway.parts.charged.clients.active


# Fetch


async def filled(wire: Wire, number: int = 4) -> None:
    for _ in range(number):
        await wire.produce("t", batch_of(bytes(6_000)))


async def test_who_fetches_too_much_gets_nothing_as_yet() -> None:
    async with limited(**{OUT: 10_000}) as (_, client, wire):
        await filled(wire)
        first = await client(fetch_request("t", 0), 11)
        assert 6_000 < len(first.responses[0].partitions[0].records) < 10_000, "what it may have in the window"
        second, took = await client.timed(fetch_request("t", 1), 11)
        assert second.responses == []
        assert 150 < second.throttle_time_ms < 400
        assert took < 0.1
        third, waited = await client.timed(fetch_request("t", 1), 11)
        assert waited > 0.1
        while not third.responses:  # what was not sent does not count
            third = await client(fetch_request("t", 1), 11)
        assert len(third.responses[0].partitions[0].records) > 6_000


async def test_sessions_of_who_is_throttled() -> None:
    """A session goes on; one that begins does not, for its client begins it anew."""
    async with limited(**{OUT: 10_000}) as (gateway, client, wire):
        await filled(wire)

        def request(offset: int, session: int, epoch: int) -> m.FetchRequest:
            found = fetch_request("t", offset)
            found.session_id, found.session_epoch = session, epoch
            return found

        first = await client(request(0, 0, 0), 11)
        assert first.session_id
        second = await client(request(1, first.session_id, 1), 11)
        assert (second.responses, second.session_id, second.error_code) == ([], first.session_id, 0)
        assert second.throttle_time_ms > 0
        answer, epoch = second, 2
        while not answer.responses:
            answer = await client(request(1, first.session_id, epoch), 11)
            assert answer.error_code == 0
            epoch += 1
        sessions = gateway.parts.table.handlers[1].sessions  # type: ignore[attr-defined]
        anew = await client(request(2, first.session_id, 0), 11)
        assert (anew.responses, anew.session_id) == ([], 0)
        assert anew.throttle_time_ms > 0
        assert len(sessions) == 0


async def test_a_fetch_that_has_waited_is_throttled_when_there_is_something() -> None:
    async with limited(**{OUT: 10_000}) as (_, client, wire):
        await filled(wire, 1)
        await client(fetch_request("t", 0), 11)
        await client.send(fetch_request("t", 1, max_wait_ms=20_000), 11)
        await filled(wire, 1)
        answer = await client.read(fetch_request("t", 1), 11)
        assert answer.responses == []
        assert answer.throttle_time_ms > 0


async def test_a_share_fetch_acquires_nothing_while_its_client_is_throttled() -> None:
    async with limited(**{OUT: 10_000}) as (gateway, client, wire):
        record = gateway.parts.topics.get("t")
        assert record is not None
        await wire.alter(32, "g", ("share.auto.offset.reset", 0, "earliest"))
        await filled(wire)
        topics = [
            m.ShareFetchRequestTopic(
                topic_id=record.topic_id, partitions=[m.ShareFetchRequestPartition(partition_index=0)]
            )
        ]

        def request(member: str) -> m.ShareFetchRequest:
            return m.ShareFetchRequest(
                group_id="g", member_id=member, share_session_epoch=0, max_wait_ms=5_000, min_bytes=1,
                max_bytes=1 << 20, max_records=3, batch_size=1, topics=topics,
            )  # fmt: skip

        async def acquired(wire: Client, member: str) -> tuple[list[int], int]:
            answer = await wire(request(member), 2)
            assert answer.error_code == 0, answer
            rows = [row for topic in answer.responses for each in topic.partitions for row in each.acquired_records]
            return [row.first_offset for row in rows], answer.throttle_time_ms

        assert await acquired(client, "a") == ([0], 0)
        others = [Client(gateway, "x") for _ in range(2)]
        found, throttled = await acquired(others[0], "b")
        assert found == [1], "what it has acquired it gets"
        assert throttled > 100
        found, throttled = await acquired(others[1], "c")
        assert found == []
        assert throttled > 0
        await until(lambda: acquired(client, "a"), lambda outcome: bool(outcome[0]))
        for each in others:
            await each.aclose()


async def test_the_time_that_a_share_fetch_takes_to_read_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks at what its client has got before."""

    async def slow(*_: object) -> None:
        time.sleep(0.2)

    async with limited(**{TIME: 5.0}) as (gateway, client, _):
        record = gateway.parts.topics.get("t")
        assert record is not None
        monkeypatch.setattr(ShareFetchHandler, "_deliver", slow)
        partitions = [m.ShareFetchRequestPartition(partition_index=0)]
        request = m.ShareFetchRequest(
            group_id="g", member_id="a", share_session_epoch=0, max_wait_ms=0, min_bytes=1, max_bytes=1 << 20,
            max_records=3, batch_size=1,
            topics=[m.ShareFetchRequestTopic(topic_id=record.topic_id, partitions=partitions)],
        )  # fmt: skip
        answer = await client(request, 2)
        assert answer.error_code == 0
        assert answer.throttle_time_ms > 500, "a fifth of a second is four times as much as it may take"


# Topics


def creation(name: str, partitions: int, *, validate_only: bool = False) -> m.CreateTopicsRequest:
    topic = m.CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)
    return m.CreateTopicsRequest(topics=[topic], validate_only=validate_only)


async def test_topics_are_refused_while_there_are_too_many() -> None:
    """To clients that know that, all at once up to the burst, and beyond it by one request (KIP-599)."""
    async with limited(**{TOPICS: 10}) as (gateway, client, wire):
        answer = await client(creation("a", 111), 7)
        assert (answer.topics[0].error_code, answer.throttle_time_ms) == (0, 0)
        answer, took = await client.timed(creation("b", 1), 7)
        assert answer.topics[0].error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
        assert answer.topics[0].error_message == "The throttling quota has been exceeded."
        assert 0 < answer.throttle_time_ms <= 100, "one is owed"
        assert took < 0.09
        grown, waited = await client.timed(
            m.CreatePartitionsRequest(topics=[m.CreatePartitionsTopic(name="a", count=114, assignments=None)]), 3
        )
        assert waited > 0.02
        assert grown.results[0].error_code == 0
        deleted = await client(m.DeleteTopicsRequest(topics=[m.DeleteTopicState(name="t")], timeout_ms=1000), 6)
        assert deleted.responses[0].error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
        assert gateway.parts.topics.get("t") is not None
        assert "b" not in [topic.name for topic in (await wire(m.MetadataRequest(topics=None), 12)).topics]
        assert gateway.parts.charged.throttles.count[QuotaKind.CONTROLLER_MUTATION] == 2


async def test_clients_that_do_not_know_that_wait_afterwards() -> None:
    async with limited(**{TOPICS: 10}) as (_, client, _wire):
        answer = await client(creation("a", 112), 5)
        assert answer.topics[0].error_code == 0
        assert 100 < answer.throttle_time_ms <= 200
        _, waited = await client.timed(NOTHING, 12)
        assert waited > 0.05


async def test_topics_are_not_made_by_metadata_while_there_are_too_many() -> None:
    """Their client is not throttled for it, and asks again."""
    async with limited(**{TOPICS: 1}) as (gateway, client, _wire):
        assert (await client.metadata("made", create=True)).topics[0].error_code == 0
        assert (await client(creation("a", 30), 5)).throttle_time_ms > 15_000
        other = Client(gateway, "x")
        answer = await other.metadata("not-made", create=True)
        assert answer.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert answer.throttle_time_ms == 0
        assert not other.connection.muted
        await other.aclose()


# Time


async def test_who_takes_too_much_time_waits_a_second_at_most() -> None:
    async with limited(**{TIME: 0.001}) as (gateway, client, _):
        for request, version in ((NOTHING, 12), (m.ListGroupsRequest(), 5), (m.ApiVersionsRequest(), 2)):
            answer, _ = await client.timed(request, version)
            assert 900 <= answer.throttle_time_ms <= 1000, request
            client.connection._unmute()
        assert gateway.parts.charged.throttles.count[QuotaKind.REQUEST] == 3
        answer = await client(m.ApiVersionsRequest(), 0)
        assert client.connection.muted, "also where the answer has no place for the time"


async def test_the_least_quota_ends_no_connection() -> None:
    """Else nobody could remove one that holds for all."""
    async with limited({"client-id": None}, **{TIME: 5e-324}) as (_, client, wire):
        answer = await client(NOTHING, 12)
        assert 900 <= answer.throttle_time_ms <= 1000
        assert await alter(wire, {"client-id": None}, **{TIME: None}) == (0, None)


async def test_time_is_what_the_loop_works_on_a_request() -> None:
    now = 0.0

    class Place:
        worked = 0.0
        since: float | None = None
        muted = 0.0

        def mute(self, seconds: float) -> None:
            self.muted = seconds

    async def work() -> str:
        nonlocal now
        now += 1.0
        await anyio.sleep(0)
        now += 2.0
        with pytest.raises(ValueError, match="mine"):
            await failing()
        return "done"

    async def failing() -> None:
        nonlocal now
        await anyio.sleep(0)
        now += 4.0
        raise ValueError("mine")

    meter = Meter(WindowedRate(RateWindow()), 200.0)
    limits, place = Limits(None, None, "x", request=meter, any=True), Place()
    charge = Charge(limits, place, lambda: now, lambda: now, 1000, Throttles())  # type: ignore[arg-type]
    now += 0.5
    charge.pause()
    now += 100
    assert await charge.timed(work()) == "done"
    now += 100
    place.worked = 0.25
    told = charge.told(m.ListGroupsResponse())
    assert isinstance(told, m.ListGroupsResponse)
    assert meter.measure._total == pytest.approx(775.0)
    assert told.throttle_time_ms == place.muted == 0
    with anyio.CancelScope() as scope:
        scope.cancel()
        await charge.timed(work())
    assert scope.cancelled_caught


def test_who_has_not_logged_in_makes_no_meters() -> None:
    """Else client ids that anybody makes up take the place of what the clients have used that there are."""
    clients = ClientQuotas(RateWindow(), RateWindow(), MemoryLedger().part(1 << 24).limited("quotas", 1))
    clients.put(entity_of({"client-id": None}), {IN: 1.0})
    quotas = RequestQuotas(clients, Throttles(), lambda: 0.0, lambda client_id: client_id == "gateway")

    def charge(client_id: str, protocol: str) -> Charge | None:
        advertised = SimpleNamespace(security_protocol=protocol)
        connection = SimpleNamespace(
            principal=ANONYMOUS, limits=None, advertised=advertised, flow=SimpleNamespace(clock=lambda: 0.0)
        )
        context: Any = SimpleNamespace(connection=connection, client_id=client_id, api_key=18, place=None)
        return quotas.charge(context, 100)

    for number in range(100):
        assert charge(str(number), "SASL_SSL") is None
        assert charge("gateway", "PLAINTEXT") is None
    assert len(clients) == 0
    assert charge("x", "PLAINTEXT") is not None
    assert len(clients) == 1


# Connections


@pytest.mark.parametrize("gone", ["closed", "aborted"])
async def test_a_muted_connection_whose_client_goes_is_freed(gone: str) -> None:
    async with limited(**{IN: 100}) as (gateway, client, _):
        answer = await client(produce_request("t", batch_of(bytes(100_000))), 9)
        assert answer.throttle_time_ms > 900_000
        await client.send(NOTHING, 12)
        server = gateway._server
        assert server is not None
        assert client.connection in server.connections
        if gone == "closed":
            await client.aclose()
        else:
            client.connection.abort()
        with anyio.fail_after(5):
            while client.connection in server.connections:
                await anyio.sleep(0.01)
        assert client.connection._muted is None


async def test_a_gateway_closes_while_connections_are_muted() -> None:
    async with limited(**{IN: 100}) as (gateway, client, _):
        await client(produce_request("t", batch_of(bytes(100_000))), 9)
        begun = anyio.current_time()
        await gateway.close()
        assert anyio.current_time() - begun < 5


async def test_what_a_muted_connection_holds_is_bounded() -> None:
    """It is not read: its client's sending stands still."""
    async with limited(**{IN: 100}) as (_, client, wire):
        await client(produce_request("t", batch_of(bytes(100_000))), 9)
        request = produce_request("t", batch_of(bytes(500_000)))
        sent = 0
        with anyio.move_on_after(0.3):
            for _ in range(200):
                await client.send(request, 9)
                sent += 1
        assert sent < 20
        assert client.connection.share.held < 16 << 20
        assert len(await wire.values("t")) == 1


async def test_addresses_that_connect_too_often(caplog: pytest.LogCaptureFixture) -> None:
    """They are closed a moment later, and the others are served (KIP-612)."""
    with anyio.fail_after(30):
        async with Gateway(f"memory:{next(names)}", listen="127.0.0.1:0", config=SHORT) as gateway:
            wire = connect(gateway)
            rate = {"connection_creation_rate": 3.0}
            assert await alter(wire, {"ip": "127.0.0.1"}, **rate) == (0, None)
            host, _, port = gateway.address.partition(":")
            streams = [await anyio.connect_tcp(host, int(port)) for _ in range(6)]
            closed = 0
            for stream in streams:
                with anyio.move_on_after(1.5):
                    with pytest.raises(anyio.EndOfStream):
                        await stream.receive()
                    closed += 1
            assert closed == 3
            assert gateway.connections == 4
            elsewhere = await anyio.connect_tcp(host, int(port), local_host="127.0.0.2")
            await until(lambda: _count(gateway), lambda count: count == 5)
            for stream in (*streams, elsewhere):
                await stream.aclose()
            assert gateway.parts.charged.throttles.count[QuotaKind.CONNECTION] == 3
            await wire.aclose()


async def _count(gateway: Gateway) -> int:
    return gateway.connections


async def test_a_gateway_that_takes_connections_slowly() -> None:
    with anyio.fail_after(30):
        listeners = {
            "listeners": "A://127.0.0.1:0,B://127.0.0.1:0", "listener.security.protocol.map": "A:PLAINTEXT,B:PLAINTEXT",
            "listener.name.a.max.connection.creation.rate": 2, **SHORT,
        }  # fmt: skip
        async with Gateway(f"memory:{next(names)}", config=listeners) as gateway:
            streams = []
            for name in ("A", "B"):
                host, _, port = gateway.advertised[name].partition(":")
                streams += [await anyio.connect_tcp(host, int(port)) for _ in range(5)]
            await until(lambda: _count(gateway), lambda count: count >= 8)
            assert gateway.connections <= 9, "two of A, perhaps three, and five of B"
            await until(lambda: _count(gateway), lambda count: count == 10)
            assert gateway.parts.charged.throttles.seconds[QuotaKind.CONNECTION] > 0.3
            for stream in streams:
                await stream.aclose()


# The APIs


async def test_what_is_set_is_described() -> None:
    async with running() as (gateway, wire):
        given: list[tuple[Names, dict[str, float]]] = [
            ({"user": "a"}, {IN: 1.0, OUT: 2.0}),
            ({"user": "a", "client-id": "c"}, {TIME: 0.5}),
            ({"user": None, "client-id": None}, {TOPICS: 3.0}),
            ({"user": None}, {IN: 4.0}),
            ({"client-id": "c"}, {IN: 5.0}),
            ({"client-id": "<default>"}, {IN: 6.0}),
            ({"ip": None}, {"connection_creation_rate": 7.0}),
            ({"ip": "10.0.0.1"}, {"connection_creation_rate": 8.0}),
        ]
        for entity, quotas in given:
            assert await alter(wire, entity, validate_only=True, **quotas) == (0, None)
        assert await describe(wire) == []
        for entity, quotas in given:
            assert await alter(wire, entity, **quotas) == (0, None)
        a, both, defaults, default, c, odd, any_ip, ip = given
        assert await describe(wire) == given
        for wanted, found in (
            ([("user", 0, "a")], [a, both]),
            ([("user", 1, None)], [defaults, default]),
            ([("user", 2, None)], [a, both, defaults, default]),
            ([("client-id", 2, None)], [both, defaults, c, odd]),
            ([("client-id", 0, "<default>")], [odd]),
            ([("user", 2, None), ("client-id", 0, "c")], [both]),
            ([("ip", 2, None)], [any_ip, ip]),
            ([("ip", 0, "10.0.0.1")], [ip]),
            ([("user", 0, "nobody")], []),
        ):
            assert await describe(wire, *wanted) == found, wanted
        assert await describe(wire, ("user", 0, "a"), strict=True) == [a]
        assert await describe(wire, strict=True) == []
        assert await alter(wire, {"user": "a"}, **{IN: None, OUT: 9.0, TIME: None}) == (0, None)
        assert await describe(wire, ("user", 0, "a"), strict=True) == [({"user": "a"}, {OUT: 9.0})]
        for entity, quotas in given:
            assert await alter(wire, entity, **dict.fromkeys(quotas)) == (0, None)
        assert await describe(wire) == []
        assert gateway.parts.arrivals.default is None
        assert not gateway.parts.arrivals.limits


@pytest.mark.parametrize(
    ("components", "code", "text"),
    [
        ([("", 0, "a")], 42, "Invalid empty entity type."),
        ([("user", 0, "a"), ("user", 1, None)], 42, "Entity type user cannot appear more than once in the filter."),
        ([("group", 0, "a")], 35, "Unsupported entity type group"),
        ([("user", 0, None)], 42, "Request specified MATCH_TYPE_EXACT, but set match string to null."),
        ([("user", 1, "a")], 42, "Request specified MATCH_TYPE_DEFAULT, but also specified a match string."),
        ([("user", 2, "a")], 42, "Request specified MATCH_TYPE_SPECIFIED, but also specified a match string."),
        ([("user", 3, None)], 42, "Unknown match type 3"),
        ([("user", 2, None), ("ip", 2, None)], 42, "Invalid entity filter component combination."),
    ],
)
async def test_filters_that_are_refused(components: list[tuple[str, int, str | None]], code: int, text: str) -> None:
    async with running() as (_, wire):
        filters = [m.ComponentData(entity_type=kind, match_type=how, match=match) for kind, how, match in components]
        answer = await wire(m.DescribeClientQuotasRequest(components=filters), 1)
        assert answer.error_code == code
        assert answer.error_message.startswith(text)
        assert answer.entries is None


async def test_each_entity_has_its_own_result() -> None:
    async with running() as (_, wire):

        def entry(name: str, *ops: tuple[str, float]) -> m.AlterClientQuotasRequestEntryData:
            return m.AlterClientQuotasRequestEntryData(
                entity=[m.AlterClientQuotasRequestEntityData(entity_type="user", entity_name=name)],
                ops=[m.OpData(key=key, value=value) for key, value in ops],
            )

        entries = [
            entry("good", (IN, 1.0)), entry("wrong", ("x", 1.0)), entry("twice", (IN, 1.0)), entry("twice", (IN, 2.0)),
            entry("same", (IN, 1.0), (IN, 2.0)), entry(""),
        ]  # fmt: skip
        answer = await wire(m.AlterClientQuotasRequest(entries=entries), 1)
        assert {row.entity[0].entity_name: (row.error_code, row.error_message) for row in answer.entries} == {
            "good": (0, None),
            "wrong": (42, "Invalid configuration key x"),
            "twice": (42, "Ignoring duplicate entity ClientQuotaEntity(entries={user=twice})"),
            "same": (42, "Ignoring duplicate entity ClientQuotaEntity(entries={user=same})"),
            "": (42, "Empty user not supported"),
        }
        assert await describe(wire) == [({"user": "good"}, {IN: 1.0})]
        assert (await alter(wire, {"ip": "no.such.host.invalid"}, connection_creation_rate=1.0))[0] == 42
        assert (await alter(wire, {"ip": "no.such.host.invalid"}, connection_creation_rate=None))[0] == 0
        assert (await alter(wire, {"ip": "localhost"}, connection_creation_rate=1000.0))[0] == 0


async def test_more_than_one_request_may_change() -> None:
    async with running() as (_, wire):
        entries = [
            m.AlterClientQuotasRequestEntryData(
                entity=[m.AlterClientQuotasRequestEntityData(entity_type="user", entity_name=str(number))],
                ops=[m.OpData(key=IN, value=1.0)],
            )
            for number in range(1001)
        ]
        answer = await wire(m.AlterClientQuotasRequest(entries=entries), 1)
        assert {row.error_code for row in answer.entries} == {ErrorCode.INVALID_REQUEST}
        answer = await wire(m.AlterClientQuotasRequest(entries=entries[1:]), 1)
        assert {row.error_code for row in answer.entries} == {0}
        assert len(await describe(wire)) == 1000


def _entry(names: list[tuple[str, str]], keys: list[str]) -> m.AlterClientQuotasRequestEntryData:
    return m.AlterClientQuotasRequestEntryData(
        entity=[m.AlterClientQuotasRequestEntityData(entity_type=kind, entity_name=name) for kind, name in names],
        ops=[m.OpData(key=key, value=1.0) for key in keys],
    )


@pytest.mark.parametrize(
    ("entries", "text"),
    [
        ([_entry([("user", "x")] * 17, [IN])], "an entity has 16 parts at most"),
        ([_entry([(str(number), "x") for number in range(20_000)], [IN])], "an entity has 16 parts at most"),
        (
            [_entry([("user", str(user))], [str(number) for number in range(100)]) for user in range(101)],
            "one request has 10000 quotas at most",
        ),
    ],
)
async def test_more_than_one_entity_may_consist_of(
    entries: list[m.AlterClientQuotasRequestEntryData], text: str
) -> None:
    """They took seconds of the event loop: a request may have millions."""
    async with running() as (_, wire):
        answer = await wire(m.AlterClientQuotasRequest(entries=entries), 1)
        assert {(row.error_code, row.error_message) for row in answer.entries} == {(ErrorCode.INVALID_REQUEST, text)}
        assert all(len(row.entity) <= 16 for row in answer.entries)
        assert await describe(wire) == []


@pytest.mark.slow
async def test_quotas_hold_however_many_there_are() -> None:
    """What clients have used does not have to fit beside the quotas, nor do these beside that."""
    async with limited(**{IN: 10_000}) as (gateway, client, wire):
        entries, count = gateway.parts.quotas, 0
        while not await entries.alter({entity_of({"user": f"{count}-{number}"}): {IN: 1.0} for number in range(1000)}):
            count += 1
        other = Client(gateway, "y")
        assert await alter(wire, {"client-id": None}, **{IN: 10_000}) == (ErrorCode.POLICY_VIOLATION, ANY)
        assert await alter(wire, {"user": "0-0"}, **{IN: None}) == (0, None)
        assert await alter(wire, {"client-id": None}, **{IN: 10_000}) == (0, None)
        batch = batch_of(bytes(6_000))
        for each in (client, other):
            assert (await each(produce_request("t", batch), 9)).throttle_time_ms == 0
        for each in (client, other):
            assert (await each(produce_request("t", batch), 9)).throttle_time_ms > 0
        await other.aclose()


@pytest.mark.slow
async def test_thousands_of_entities_leave_the_loop_to_others() -> None:
    longest = 0.0

    async def watch() -> None:
        nonlocal longest
        while True:
            begun = time.thread_time()
            await anyio.sleep(0)
            longest = max(longest, time.thread_time() - begun)

    async with running() as (gateway, _):
        entries = gateway.parts.quotas
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch)
            await anyio.sleep(0.05)
            changes = {entity_of({"user": str(number)}): {IN: 1.0} for number in range(4000)}
            longest = 0.0
            assert not await entries.alter(changes)
            assert longest < 0.03, "to change them"
            await entries.read_all()
            assert longest < 0.03, "to read them"
            tasks.cancel_scope.cancel()
        assert len(entries.quotas) == 4000


# Rows


async def test_all_gateways_of_a_store_have_the_same() -> None:
    url = f"memory:{next(names)}"
    with anyio.fail_after(30):
        async with open_store(url) as store, joined(store, 1) as (_, one), joined(store, 2) as (other, two):
            assert await alter(one, CLIENT, **{IN: 10_000.0}) == (0, None)
            assert await alter(one, {"ip": "10.0.0.1"}, connection_creation_rate=5.0) == (0, None)
            await until(lambda: describe(two), lambda found: len(found) == 2)
            assert other.parts.charged.clients.active
            assert other.parts.arrivals.limits == {"10.0.0.1": 5.0}
            assert await alter(two, CLIENT, **{OUT: 5.0, IN: None}) == (0, None)
            await until(lambda: describe(one, ("client-id", 2, None)), lambda found: found == [(CLIENT, {OUT: 5.0})])
            assert await alter(one, CLIENT, **{OUT: None}) == (0, None)
            await until(lambda: describe(two, ("client-id", 2, None)), lambda found: not found)


async def test_quotas_hold_after_a_restart_but_for_rows_that_are_damaged(caplog: pytest.LogCaptureFixture) -> None:
    async with open_store(f"memory:{next(names)}") as store:
        async with Gateway(store, listen=None) as gateway:
            wire = connect(gateway)
            for user in ("a", "b"):
                assert await alter(wire, {"user": user}, **{IN: 5.0}) == (0, None)
            key = quota_key(entity_of({"user": "b"}))
            row = (await gateway.parts.manager.get([key]))[key]
            assert shown_row(key, row.value).value == {"format": 1, "quotas": {IN: "5.0"}}
            await gateway.parts.manager.commit({key: b"{}"}, {key: row.version}, lease=None)
            await wire.aclose()
        caplog.set_level(logging.ERROR)
        caplog.clear()
        async with Gateway(store, listen=None) as gateway:
            wire = connect(gateway)
            assert await describe(wire) == [({"user": "a"}, {IN: 5.0})]
            assert "quotas that cannot be read" in caplog.text
            assert await alter(wire, {"user": "b"}, **{IN: 6.0}) == (0, None)
            assert len(await describe(wire)) == 2
            await wire.aclose()

"""A gateway with quotas: who is throttled, and how long."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from kclient.errors import ErrorCode
from kclient.gateway.contexts import ANONYMOUS
from kclient.gateway.handlers.share_fetch import ShareFetchHandler
from kclient.gateway.quotas.charges import Charge, Throttles
from kclient.gateway.quotas.clients import ClientQuotas, Limits, Meter
from kclient.gateway.quotas.entities import QuotaKind, entity_of
from kclient.gateway.quotas.rates import RateWindow, WindowedRate
from kclient.gateway.request_quotas import RequestQuotas
from kclient.memory_ledger import MemoryLedger
from kclient.protocol import messages as m
from tests.gateway_wire import Wire, batch_of, fetch_request, produce_request
from tests.unit.gateway.quotabox import (
    CLIENT,
    IN,
    NOTHING,
    OUT,
    TIME,
    TOPICS,
    Client,
    Names,
    alter,
    limited,
)
from tests.wire_session import until

pytestmark = pytest.mark.anyio


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

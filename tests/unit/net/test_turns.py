"""Requests that wait for their turn: a limit on its way (`max.in.flight...`), and pauses that the broker asks for."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import pytest

from kclient.concurrency import Supervisor
from kclient.errors import BrokerConnectionError, KafkaTimeoutError
from kclient.net.connection import Connection
from kclient.net.settings import ConnectionSettings
from kclient.net.throttling import requested_pause
from kclient.protocol.messages import (
    ConsumerGroupHeartbeatResponse,
    FetchResponse,
    HeartbeatResponse,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    ProduceRequest,
    ProduceResponse,
    SaslHandshakeResponse,
)

from .links import LINKS, Broker, supervised

pytestmark = pytest.mark.anyio


@dataclass
class Scripted:
    """Keeps every request until the test answers it."""

    supervisor: Supervisor
    kind: str = "memory"
    settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        mine, theirs = LINKS[self.kind]()
        self.broker = Broker(theirs, self.supervisor, lambda header, message: None)
        self.connection = Connection.over(
            mine, "broker:9092", ConnectionSettings(**self.settings), supervisor=self.supervisor
        )
        self.answered = 0

    @property
    def arrived(self) -> list[str]:
        """What reached the broker."""
        names = []
        for _, message in self.broker.requests:
            topics = getattr(message, "topics", None)
            names.append(topics[0].name if topics else type(message).__name__)
        return names

    async def until_arrived(self, count: int) -> list[str]:
        with anyio.fail_after(10):
            while len(self.broker.requests) < count:
                await anyio.sleep(0.001)
        return self.arrived

    def answer(self, throttle_ms: int = 0) -> None:
        """Answer the oldest request."""
        header, message = self.broker.requests[self.answered]
        self.answered += 1
        name = message.topics[0].name
        self.broker.reply(header, MetadataResponse(cluster_id=name, throttle_time_ms=throttle_ms))

    def send(self, name: str, version: int = 9, timeout: float | None = None) -> Any:
        return self.connection.send_nowait(metadata(name), version, timeout=timeout)

    async def throttle(self, seconds: float, version: int = 9) -> None:
        """Let a response ask for a pause."""
        pending = self.send("throttle", version)
        await self.until_arrived(self.answered + 1)
        self.answer(round(seconds * 1000))
        with anyio.fail_after(10):
            await pending


def metadata(name: str) -> MetadataRequest:
    return MetadataRequest(topics=[MetadataRequestTopic(name=name)])


@asynccontextmanager
async def scripted(kind: str = "memory", **settings: Any) -> AsyncIterator[Scripted]:
    async with supervised() as supervisor:
        script = Scripted(supervisor, kind, settings)
        yield script
        await script.connection.aclose()
        script.broker.channel.close()
        await script.broker.channel.wait_closed()


LIMITED = {"max_in_flight_requests_per_connection": 2}


# --------------------------------------------------------------------------- the limit


@pytest.mark.parametrize("kind", ["memory", "tcp", "tls"])
async def test_no_more_than_the_limit_are_on_their_way(kind: str) -> None:
    async with scripted(kind, **LIMITED) as script:
        pending = [script.send(str(i)) for i in range(6)]
        assert script.connection.in_flight == 6
        for answered in range(6):
            most = min(answered + 2, 6)
            await script.until_arrived(most)
            await anyio.wait_all_tasks_blocked()
            assert script.arrived == [str(i) for i in range(most)]
            script.answer()
            with anyio.fail_after(10):
                assert (await pending[answered]).cluster_id == str(answered)
        assert script.connection.in_flight == 0


async def test_any_number_without_a_limit() -> None:
    async with scripted(max_in_flight_requests_per_connection=0) as script:
        pending = [script.send(str(i)) for i in range(300)]
        assert len(await script.until_arrived(300)) == 300
        script.connection.close()
        for item in pending:
            with pytest.raises(BrokerConnectionError):
                await item


async def test_a_callback_that_sends_does_not_overtake() -> None:
    async with scripted(max_in_flight_requests_per_connection=1) as script:
        script.send("a").on_done(lambda _: script.send("from the callback"))
        script.send("b")
        for expected in ("a", "b", "from the callback"):
            assert (await script.until_arrived(script.answered + 1))[-1] == expected
            script.answer()


async def test_a_cancelled_waiter_gives_its_turn_away() -> None:
    async with scripted(max_in_flight_requests_per_connection=1) as script:
        first = script.send("a")
        with anyio.move_on_after(0.01) as scope:
            await script.connection.request(metadata("cancelled"), 9)
        assert scope.cancelled_caught
        last = script.send("b")
        await script.until_arrived(1)
        script.answer()
        assert await script.until_arrived(2) == ["a", "b"], "what was not sent is not sent any more"
        script.answer()
        assert (await first).cluster_id == "a"
        assert (await last).cluster_id == "b"


async def test_what_cannot_be_sent_in_time_fails_alone() -> None:
    async with scripted(max_in_flight_requests_per_connection=1) as script:
        first = script.send("a")
        with anyio.fail_after(10), pytest.raises(KafkaTimeoutError, match=r"not be sent .* 1 others are unanswered"):
            await script.connection.request(metadata("late"), 9, timeout=0.02)
        assert not script.connection.closed
        await script.until_arrived(1)
        script.answer()
        assert (await first).cluster_id == "a"
        next_one = script.send("b")
        assert await script.until_arrived(2) == ["a", "b"]
        script.answer()
        assert (await next_one).cluster_id == "b"


async def test_an_unanswered_request_takes_those_behind_it_along() -> None:
    async with scripted(max_in_flight_requests_per_connection=1) as script:
        first, second = script.send("a", timeout=0.02), script.send("b", timeout=30)
        with anyio.fail_after(10):
            with pytest.raises(KafkaTimeoutError, match="did not answer"):
                await first
            with pytest.raises(BrokerConnectionError, match=r"MetadataRequest was not sent: .* did not answer"):
                await second
        assert script.connection.closed


@pytest.mark.parametrize("kind", ["memory", "socketpair"])
async def test_requests_without_response_count_until_they_are_written(kind: str) -> None:
    async with scripted(kind, max_in_flight_requests_per_connection=1) as script:
        silent = ProduceRequest(transactional_id=None, acks=0, timeout_ms=1)
        sent = [script.connection.send_nowait(silent, 9, expect_response=False) for _ in range(2000)]
        with anyio.fail_after(10):
            for item in sent:
                assert await item is None
        await script.until_arrived(2000)
        assert script.connection.in_flight == 0


# --------------------------------------------------------------------------- pauses (KIP-219)


@pytest.mark.parametrize("kind", ["memory", "tcp"])
async def test_a_throttled_connection_sends_nothing_until_the_pause_is_over(kind: str) -> None:
    async with scripted(kind) as script:
        before = anyio.current_time()
        on_its_way = script.send("before")
        await script.until_arrived(1)
        script.answer(150)
        assert (await on_its_way).cluster_id == "before"
        until = script.connection.throttled_until
        assert until >= before + 0.15
        pending = [script.send("a"), script.send("b")]
        await anyio.wait_all_tasks_blocked()
        assert script.arrived == ["before"]
        assert await script.until_arrived(3) == ["before", "a", "b"]
        assert anyio.current_time() >= until
        script.answer()
        script.answer()
        assert [(await item).cluster_id for item in pending] == ["a", "b"]
        assert script.connection.throttled_until == 0.0


async def test_a_shorter_pause_does_not_end_a_longer_one() -> None:
    async with scripted() as script:
        pending = [script.send("long"), script.send("short")]
        await script.until_arrived(2)
        script.answer(60_000)
        script.answer(1)
        for item in pending:
            await item
        assert script.connection.throttled_until > anyio.current_time() + 30
        waiting = script.send("never sent")
        await anyio.wait_all_tasks_blocked()
        script.connection.close()
        with pytest.raises(BrokerConnectionError, match="was not sent"):
            await waiting
        assert script.arrived == ["long", "short"]


async def test_time_runs_while_a_request_waits_for_the_end_of_a_pause() -> None:
    async with scripted() as script:
        await script.throttle(60)
        with anyio.fail_after(10), pytest.raises(KafkaTimeoutError, match=r"within 0.02 s .* asked for a pause"):
            await script.connection.request(metadata("t"), 9, timeout=0.02)
        assert not script.connection.closed
        assert script.connection.in_flight == 0


async def test_cancelling_during_a_pause() -> None:
    async with scripted() as script:
        await script.throttle(0.1)
        with anyio.move_on_after(0.01) as scope:
            await script.connection.request(metadata("cancelled"), 9)
        assert scope.cancelled_caught
        last = script.send("last")
        assert await script.until_arrived(2) == ["throttle", "last"]
        script.answer()
        assert (await last).cluster_id == "last"


async def test_older_versions_have_paused_already() -> None:
    async with scripted() as script:
        await script.throttle(60, version=5)
        assert script.connection.throttled_until == 0.0
        script.send("at once")
        assert await script.until_arrived(2) == ["throttle", "at once"]


@pytest.mark.parametrize(
    ("response", "first"),
    [(ProduceResponse, 6), (FetchResponse, 8), (MetadataResponse, 6), (HeartbeatResponse, 2)],
)
def test_the_versions_that_ask_for_a_pause(response: Any, first: int) -> None:
    message = response(throttle_time_ms=1500)
    assert requested_pause(message, first - 1) == 0.0
    assert requested_pause(message, first) == 1.5
    assert requested_pause(response(), first) == 0.0


def test_young_apis_always_ask_for_a_pause() -> None:
    assert requested_pause(ConsumerGroupHeartbeatResponse(throttle_time_ms=10), 0) == 0.01
    assert requested_pause(SaslHandshakeResponse(), 1) == 0.0

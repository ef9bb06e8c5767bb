"""The pipelined connection of clients, over every kind of stream: order, time, cancellation, every way to end."""

from __future__ import annotations

import logging
import time
from typing import Any

import anyio
import pytest

from kclient.concurrency import Supervisor
from kclient.errors import (
    BrokerConnectionError,
    ConfigError,
    ErrorCode,
    KafkaTimeoutError,
    ProtocolError,
    UnsupportedVersionError,
)
from kclient.net.connection import Connection
from kclient.net.settings import ConnectionSettings
from kclient.net.streams import ByteStream, memory_pair, socketpair_streams
from kclient.protocol.messages import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    ProduceRequest,
)
from kclient.testing.cancellation import Cancelled, Outcome, at_every_checkpoint
from kclient.testing.faults import FaultyStream

from .links import LINKS, Broker, metadata_answer, supervised

pytestmark = pytest.mark.anyio

KINDS = sorted(LINKS)
FAST = ["memory", "socketpair", "tcp", "tls"]


def metadata(name: str) -> MetadataRequest:
    return MetadataRequest(topics=[MetadataRequestTopic(name=name)])


def never(header: Any, message: Any) -> None:
    return None


def over(stream: ByteStream, supervisor: Supervisor, **settings: Any) -> Connection:
    return Connection.over(stream, "broker:9092", ConnectionSettings(**settings), supervisor=supervisor)


@pytest.mark.parametrize("kind", KINDS)
async def test_pipelined_requests_are_answered_in_order(kind: str) -> None:
    async with supervised() as supervisor:
        mine, theirs = LINKS[kind]()
        broker = Broker(theirs, supervisor, metadata_answer)
        connection = over(mine, supervisor, client_id="me")
        pending = [connection.send_nowait(metadata(f"t{i}"), 9) for i in range(50)]
        assert connection.in_flight == 50
        with anyio.fail_after(20):
            names = [(await item).cluster_id for item in pending]
        assert names == [f"t{i}" for i in range(50)]
        assert [header.client_id for header, _ in broker.requests] == ["me"] * 50
        assert connection.in_flight == 0
        answer = await connection.request(metadata("last"), 12)
        assert answer.cluster_id == "last"
        await connection.aclose()
        await connection.aclose()
        assert connection.closed


@pytest.mark.parametrize("kind", KINDS)
async def test_every_waiter_fails_when_the_broker_goes_away(kind: str) -> None:
    async with supervised() as supervisor:
        mine, theirs = LINKS[kind]()
        broker = Broker(theirs, supervisor, never)
        connection = over(mine, supervisor)
        closed = []
        connection.on_close(closed.append)
        errors: list[BaseException] = []

        async def wait() -> None:
            try:
                await connection.request(metadata("t"), 9)
            except BrokerConnectionError as error:
                errors.append(error)

        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(wait)
            with anyio.fail_after(20):
                while len(broker.requests) < 3:
                    await anyio.sleep(0.001)
            broker.channel.close()
        assert len(set(map(id, errors))) == 3
        assert "MetadataRequest v9 got no response" in str(errors[0])
        assert "broker:9092" in str(errors[0])
        assert "the broker closed it" in str(errors[0])
        assert connection.closed
        assert closed == [connection]
        connection.on_close(closed.append)
        assert closed == [connection] * 2
        with pytest.raises(BrokerConnectionError, match="was not sent"):
            connection.send_nowait(metadata("t"), 9)
        await connection.aclose()
        await broker.channel.wait_closed()


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\0\0\0\x08\0\0\0\x63abcd", "correlation id 99, expected 1"),
        (b"\0\0\0\x02\0\0", "correlation id 0, expected 1"),
        (b"\0\0\0\x05\0\0\0\x01x", "Metadata v1 response"),
        (b"\xff\xff\xff\xff", "-1"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "the peer speaks HTTP"),
        (b"\x15\x03\x03\0\2\2\x46", "the peer speaks TLS"),
    ],
)
@pytest.mark.parametrize("kind", FAST)
async def test_garbage_fails_every_waiter(kind: str, data: bytes, reason: str) -> None:
    async with supervised() as supervisor:
        mine, theirs = LINKS[kind]()
        connection = over(mine, supervisor)
        pending = [connection.send_nowait(metadata("t"), 1) for _ in range(2)]
        await theirs.send([data])
        for item in pending:
            with pytest.raises((BrokerConnectionError, ProtocolError)), anyio.fail_after(10):
                await item
        assert connection.closed
        assert isinstance(connection.cause, ProtocolError)
        with pytest.raises(BrokerConnectionError, match=reason):
            connection.send_nowait(metadata("t"), 1)
        await connection.aclose()
        await theirs.aclose()


@pytest.mark.parametrize("body", [b"\0\0", b"\0\0\0\0\0\x02\0\x03", b"\0\0\0\0\0\0\0\0\0\0\0\0!"])
async def test_malformed_versions_name_the_broker(body: bytes) -> None:
    async with supervised() as supervisor:
        mine, theirs = memory_pair()
        connection = over(mine, supervisor)
        pending = connection.send_nowait(ApiVersionsRequest(), 1)
        await theirs.send([(4 + len(body)).to_bytes(4, "big"), pending.correlation_id.to_bytes(4, "big"), body])
        text = "^broker:9092 sent a malformed response: ApiVersions v1 response: "
        with pytest.raises(ProtocolError, match=text) as caught, anyio.fail_after(10):
            await pending
        assert caught.value.position is not None
        assert connection.closed
        await connection.aclose()
        await theirs.aclose()


async def test_unasked_response() -> None:
    async with supervised() as supervisor:
        mine, theirs = socketpair_streams()
        connection = over(mine, supervisor)
        done = anyio.Event()
        connection.on_close(lambda _: done.set())
        await theirs.send([b"\0\0\0\x04\0\0\0\x01"])
        await done.wait()
        assert "correlation id 1, expected none" in str(connection.cause)
        await theirs.aclose()


@pytest.mark.parametrize("kind", FAST)
async def test_timeout_ends_the_connection(kind: str) -> None:
    async with supervised() as supervisor:
        mine, theirs = LINKS[kind]()
        Broker(theirs, supervisor, never)
        connection = over(mine, supervisor, request_timeout_ms=60_000)
        patient = connection.send_nowait(metadata("patient"), 9)
        hasty = connection.send_nowait(metadata("hasty"), 9, timeout=0.02)
        with pytest.raises(KafkaTimeoutError) as caught, anyio.fail_after(10):
            await hasty
        assert "broker:9092 did not answer MetadataRequest v9 within 0.02 s (request.timeout.ms)" in str(caught.value)
        with pytest.raises(BrokerConnectionError, match=r"within 0\.02 s"):
            await patient
        assert connection.closed
        await connection.aclose()


@pytest.mark.parametrize("kind", FAST)
async def test_timeout_is_that_of_the_settings(kind: str) -> None:
    async with supervised() as supervisor:
        mine, theirs = LINKS[kind]()
        Broker(theirs, supervisor, never)
        connection = over(mine, supervisor, request_timeout_ms=20)
        with pytest.raises(KafkaTimeoutError), anyio.fail_after(10):
            await connection.request(metadata("t"), 9)
        await connection.aclose()


@pytest.mark.parametrize("kind", FAST)
async def test_deadline_moves_on_with_the_requests(kind: str) -> None:
    """Requests that are answered do not count; the later ones are still watched."""
    async with supervised() as supervisor:
        mine, theirs = LINKS[kind]()
        silent = False
        broker = Broker(
            theirs, supervisor, lambda header, message: None if silent else metadata_answer(header, message)
        )
        connection = over(mine, supervisor, request_timeout_ms=50)
        for _ in range(4):
            await connection.request(metadata("t"), 9)
            await anyio.sleep(0.02)
        silent = True
        with pytest.raises(KafkaTimeoutError), anyio.fail_after(10):
            await connection.request(metadata("t"), 9)
        await connection.aclose()
        assert len(broker.requests) == 5


@pytest.mark.parametrize("kind", FAST)
async def test_response_that_lay_unread_while_the_loop_stood_still(kind: str) -> None:
    """User code that blocks the loop beyond the deadline does not break the connection: the response had come."""
    async with supervised() as supervisor:
        mine, theirs = LINKS[kind]()
        Broker(theirs, supervisor, metadata_answer)
        connection = over(mine, supervisor)
        pending = connection.send_nowait(metadata("t"), 9, timeout=0.05)
        time.sleep(0.4)
        with anyio.fail_after(10):
            assert (await pending).cluster_id == "t"
        assert not connection.closed
        await connection.aclose()


@pytest.mark.parametrize("kind", KINDS)
async def test_cancelled_waiter_neither_desynchronises_nor_closes(kind: str) -> None:
    async with supervised() as supervisor:
        mine, theirs = LINKS[kind]()
        go = anyio.Event()

        async def slow(header: Any, message: Any) -> MetadataResponse:
            await go.wait()
            return metadata_answer(header, message)  # type: ignore[no-any-return]

        broker = Broker(theirs, supervisor, slow)
        connection = over(mine, supervisor)
        with anyio.move_on_after(0.01) as scope:
            await connection.request(metadata("given up"), 9)
        assert scope.cancelled_caught
        pending = connection.send_nowait(metadata("wanted"), 9)
        assert connection.in_flight == 2
        go.set()
        with anyio.fail_after(20):
            assert (await pending).cluster_id == "wanted"
        assert len(broker.requests) == 2
        assert not connection.closed
        await connection.aclose()


@pytest.mark.parametrize("kind", KINDS)
async def test_cancelled_anywhere(kind: str) -> None:
    async with supervised() as supervisor:
        mine, theirs = LINKS[kind]()
        Broker(theirs, supervisor, metadata_answer)
        connection = over(mine, supervisor)

        async def scenario(cancelled: Cancelled) -> None:
            outcome = await cancelled(connection.request(metadata("first"), 9))
            if outcome is Outcome.FINISHED:
                assert cancelled.result.cluster_id == "first"
            with anyio.fail_after(20):
                assert (await connection.request(metadata("second"), 9)).cluster_id == "second"

        await at_every_checkpoint(scenario)
        assert not connection.closed
        await connection.aclose()


async def test_garbage_in_an_abandoned_response_does_no_harm() -> None:
    """Nobody wants it, so it is not decoded; only its place in the order counts."""
    async with supervised() as supervisor:
        mine, theirs = socketpair_streams()
        connection = over(mine, supervisor)
        with anyio.move_on_after(0.01):
            await connection.request(metadata("t"), 9)
        await theirs.send([b"\0\0\0\x07\0\0\0\x01bad"])
        with anyio.fail_after(10):
            while connection.in_flight:
                await anyio.sleep(0.001)
        assert not connection.closed
        await connection.aclose()
        await theirs.aclose()


@pytest.mark.parametrize("kind", KINDS)
async def test_request_without_response(kind: str) -> None:
    async with supervised() as supervisor:
        mine, theirs = LINKS[kind]()
        broker = Broker(
            theirs,
            supervisor,
            lambda header, message: metadata_answer(header, message) if header.api_key == 3 else None,
        )
        connection = over(mine, supervisor)
        pending = connection.send_nowait(ProduceRequest(acks=0, timeout_ms=1), 9, expect_response=False)
        with anyio.fail_after(20):
            assert await pending is None
            assert (await connection.request(metadata("after"), 9)).cluster_id == "after"
        assert [header.api_key for header, _ in broker.requests] == [0, 3]
        await connection.aclose()


@pytest.mark.parametrize("kind", ["socketpair", "tcp"])
async def test_request_without_response_that_cannot_be_written(kind: str) -> None:
    async with supervised() as supervisor:
        mine, theirs = LINKS[kind]()
        connection = over(mine, supervisor, max_in_flight_requests_per_connection=0)
        large = ProduceRequest(transactional_id=None, acks=0, timeout_ms=1)
        pending = [connection.send_nowait(metadata("x" * 30_000), 9, timeout=60) for _ in range(500)]
        last = connection.send_nowait(large, 9, expect_response=False, timeout=0.02)
        assert connection.pending_bytes > 0
        with pytest.raises(KafkaTimeoutError), anyio.fail_after(10):
            await last
        for item in pending:
            with pytest.raises(BrokerConnectionError):
                await item
        await connection.aclose()
        await theirs.aclose()


async def test_closing_fails_the_waiters() -> None:
    async with supervised() as supervisor:
        mine, theirs = memory_pair()
        connection = over(mine, supervisor)
        pending = connection.send_nowait(metadata("t"), 9)
        await connection.aclose()
        with pytest.raises(BrokerConnectionError, match="closed by this client"):
            await pending
        assert connection.cause is None
        assert "closed" in repr(connection)
        await theirs.aclose()


@pytest.mark.parametrize("where", range(0, 120, 7))
async def test_cut_anywhere(where: int) -> None:
    """However much of the response came: an answer or an error, never a wait without end."""
    async with supervised() as supervisor:
        mine, theirs = memory_pair()
        Broker(theirs, supervisor, metadata_answer)
        connection = over(FaultyStream(mine, cut_received=where), supervisor)

        async def many() -> None:
            for _ in range(20):
                assert (await connection.request(metadata("t"), 9)).cluster_id == "t"

        with anyio.fail_after(10), pytest.raises(BrokerConnectionError, match="cut"):
            await many()
        await connection.aclose()


@pytest.mark.parametrize("where", range(0, 120, 7))
async def test_cut_while_writing(where: int) -> None:
    async with supervised() as supervisor:
        mine, theirs = memory_pair()
        Broker(theirs, supervisor, metadata_answer)
        connection = over(FaultyStream(mine, cut_sent=where), supervisor)

        async def many() -> None:
            for _ in range(20):
                await connection.request(metadata("t"), 9)

        with anyio.fail_after(10), pytest.raises(BrokerConnectionError):
            await many()
        await connection.aclose()


async def test_what_cannot_be_encoded_changes_nothing() -> None:
    async with supervised() as supervisor:
        mine, theirs = memory_pair()
        broker = Broker(theirs, supervisor, metadata_answer)
        connection = over(mine, supervisor)
        with pytest.raises(UnsupportedVersionError):
            connection.send_nowait(metadata("t"), 99)
        assert connection.in_flight == 0
        assert (await connection.request(metadata("t"), 9)).cluster_id == "t"
        assert len(broker.requests) == 1
        await connection.aclose()


@pytest.mark.slow
@pytest.mark.parametrize("kind", FAST)
async def test_idle_connection_is_closed(kind: str) -> None:
    async with supervised() as supervisor:
        mine, theirs = LINKS[kind]()
        Broker(theirs, supervisor, metadata_answer)
        connection = over(mine, supervisor, connections_max_idle_ms=800)
        closed = anyio.Event()
        connection.on_close(lambda _: closed.set())
        for _ in range(4):
            await anyio.sleep(0.25)  # together longer than the connection may be idle
            await connection.request(metadata("t"), 9)
        with anyio.fail_after(10):
            await closed.wait()
        assert connection.cause is None


async def test_connection_that_waits_is_not_idle() -> None:
    async with supervised() as supervisor:
        mine, theirs = memory_pair()
        go = anyio.Event()

        async def slow(header: Any, message: Any) -> MetadataResponse:
            await go.wait()
            return metadata_answer(header, message)  # type: ignore[no-any-return]

        looked = anyio.Event()

        class Watched(Connection):
            """Says when it has looked whether it is idle."""

            def _deadline_passed(self) -> None:
                super()._deadline_passed()
                looked.set()

        Broker(theirs, supervisor, slow)
        settings = ConnectionSettings(connections_max_idle_ms=500)
        connection = Watched.over(mine, "broker:9092", settings, supervisor=supervisor)
        pending = connection.send_nowait(metadata("t"), 9)
        with anyio.fail_after(10):
            await looked.wait()
        assert not connection.closed
        go.set()
        assert (await pending).cluster_id == "t"
        await connection.aclose()


def versions(header: Any, message: Any) -> ApiVersionsResponse:
    return ApiVersionsResponse(api_keys=[ApiVersion(api_key=3, min_version=0, max_version=9)])


async def test_negotiation() -> None:
    async with supervised() as supervisor:
        mine, theirs = memory_pair()
        broker = Broker(theirs, supervisor, versions)
        connection = over(mine, supervisor)
        assert await connection.negotiate() == {3: (0, 9)}
        assert connection.api_versions == {3: (0, 9)}
        header, message = broker.requests[0]
        assert header.api_version == ApiVersionsRequest.VERSIONS[1]
        assert message.client_software_name == "kclient"
        await connection.aclose()


@pytest.mark.parametrize("known", [2, 0, None])
async def test_negotiation_with_an_older_broker(known: int | None) -> None:
    """It answers an unknown version in the format of v0, with the versions that it knows, or none (before KIP-511)."""
    async with supervised() as supervisor:
        mine, theirs = memory_pair()
        mine_only = [] if known is None else [ApiVersion(api_key=18, min_version=0, max_version=known)]

        def answer(header: Any, message: Any) -> Any:
            if header.api_version > (known or 0):
                refusal = ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=mine_only)
                broker.reply(header._replace(api_version=0), refusal)
                return None
            return versions(header, message)

        broker = Broker(theirs, supervisor, answer)
        connection = over(mine, supervisor)
        assert await connection.negotiate() == {3: (0, 9)}
        assert [header.api_version for header, _ in broker.requests] == [ApiVersionsRequest.VERSIONS[1], known or 0]
        await connection.aclose()


async def test_negotiation_that_is_refused() -> None:
    from kclient.errors import ClusterAuthorizationError

    async with supervised() as supervisor:
        mine, theirs = memory_pair()
        Broker(theirs, supervisor, lambda *_: ApiVersionsResponse(error_code=31))
        connection = over(mine, supervisor)
        with pytest.raises(ClusterAuthorizationError, match="broker:9092"):
            await connection.negotiate()
        await connection.aclose()


async def test_last_used_moves(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "kclient.net")
    async with supervised() as supervisor:
        mine, theirs = memory_pair()
        Broker(theirs, supervisor, metadata_answer)
        connection = over(mine, supervisor)
        before = connection.last_used
        await anyio.sleep(0.01)
        await connection.request(metadata("t"), 9)
        assert connection.last_used > before
        await theirs.aclose()
        await connection.aclose()


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"request_timeout_ms": "3"}, "request_timeout_ms must be an integer, 0 or more, not '3'"),
        ({"request_timeout_ms": -1}, "request_timeout_ms must be an integer, 0 or more, not -1"),
        ({"connections_max_idle_ms": True}, "connections_max_idle_ms must be an integer, not True"),
        ({"send_buffer_bytes": -2}, "send_buffer_bytes must be an integer, -1 or more, not -2"),
        ({"client_id": b"me"}, "client_id must be a str or None, not b'me'"),
        ({"tls_context": "context"}, "tls_context must be an ssl.SSLContext or None, not a str"),
    ],
)
def test_settings_are_checked(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ConnectionSettings(**settings)
    assert str(caught.value) == text

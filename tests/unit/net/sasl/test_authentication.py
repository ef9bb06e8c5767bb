"""Authentication on connections: our client and our server, in memory, on both event loops."""

from __future__ import annotations

import hashlib
import logging
import threading
from typing import Any

import anyio
import pytest

import kclient
from kclient.config.secret import Secret
from kclient.errors import (
    AuthenticationError,
    BrokerConnectionError,
    ConfigError,
    IllegalSaslStateError,
    IllegalStateError,
    KafkaTimeoutError,
    OAuthTokenError,
    ProtocolError,
    SaslAuthenticationError,
    UnsupportedSaslMechanismError,
    UnsupportedVersionError,
)
from kclient.net.channel import TruncatedError
from kclient.net.connection import Connection
from kclient.net.sasl.authentication import AuthenticationState, ClientAuthentication, session_end
from kclient.net.sasl.login import PasswordLogin, TokenLogin
from kclient.net.sasl.plain import PlainClient, fixed_passwords
from kclient.net.sasl.scram import ScramCredential
from kclient.net.sasl.server import SaslHandler
from kclient.net.sasl.session import SaslSession, SessionState, server_mechanisms
from kclient.net.sasl.token import OAuthToken
from kclient.net.sasl.unsecured import unsecured_token
from kclient.net.server import Server
from kclient.net.streams import CutOffError, memory_pair
from kclient.protocol.messages import (
    ApiVersionsRequest,
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from kclient.testing.cancellation import Cancelled, Outcome, at_every_checkpoint
from tests.unit.net.sasl.authentication_peers import PASSWORD, Inner, Peer, metadata, peer, until

pytestmark = pytest.mark.anyio

PASSWORDS = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]


def login(server: Peer, mechanism: str, password: str = PASSWORD, *, life: float = 3600) -> Any:
    if mechanism != "OAUTHBEARER":
        return PasswordLogin(mechanism, "alice", password)

    async def token() -> Any:
        return unsecured_token({"sub": "alice"}, lifetime=life, now=server.wall.now)

    return TokenLogin(token, server.supervisor, clock=server.wall)


@pytest.mark.parametrize("mechanism", [*PASSWORDS, "OAUTHBEARER"])
async def test_the_right_credentials(mechanism: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with peer() as server:
        connection = await server.open(login(server, mechanism))
        answer = await connection.request(metadata("t"), 9)
        assert answer.cluster_id == "t"
        assert server.identity.principal == "alice"
        assert server.identity.mechanism == mechanism
        assert PASSWORD not in repr(connection) + repr(login(server, mechanism)) + repr(server.handler)
    assert "alice" in caplog.text
    assert PASSWORD not in caplog.text
    assert server.inner.seen == ["connected", "disconnected"]


@pytest.mark.parametrize("mechanism", PASSWORDS)
async def test_a_wrong_password(mechanism: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with peer() as server:
        with pytest.raises(SaslAuthenticationError) as caught:
            await server.open(login(server, mechanism, "falsch und lang"))
        error = caught.value
        assert error.fatal
        assert not error.retriable
        assert "broker:9092 refused the credentials for SASL " + mechanism in str(error)
        assert "falsch" not in str(error) + caplog.text + repr(error)
        await until(lambda: server.opened[0].closed)  # the server hangs up
        assert [record.levelname for record in caplog.records if "failed to authenticate" in record.message] == [
            "WARNING"
        ]


async def test_an_ended_token() -> None:
    async with peer() as server:

        async def token() -> Any:
            return unsecured_token({"sub": "alice"}, lifetime=-1, now=server.wall.now)

        # our own clock says that it has ended: it is not even sent
        with pytest.raises(OAuthTokenError, match="returned an expired token"):
            await server.open(TokenLogin(token, server.supervisor, clock=server.wall))
        # with a clock that is slow the broker says it
        with pytest.raises(SaslAuthenticationError, match="status invalid_token"):
            await server.open(TokenLogin(token, server.supervisor, clock=lambda: 0.0))


async def test_a_refused_token_is_not_shown_for_ever() -> None:
    async with peer() as server:
        tokens = [unsecured_token({"sub": "alice"}, now=server.wall.now), OAuthToken(value=Secret("revoked"))]
        made = TokenLogin(lambda: tokens.pop(), server.supervisor, clock=server.wall)
        with pytest.raises(SaslAuthenticationError, match="invalid_token"):
            await server.open(made)
        server.wall.now += 10
        with pytest.raises(SaslAuthenticationError, match="invalid_token"):
            await server.open(made)
        await server.open(made)


async def test_a_mechanism_that_is_not_offered() -> None:
    async with peer(mechanisms=server_mechanisms(plain=fixed_passwords({}))) as server:
        with pytest.raises(UnsupportedSaslMechanismError, match="SCRAM-SHA-256; it enables PLAIN") as caught:
            await server.open(login(server, "SCRAM-SHA-256"))
        assert caught.value.fatal


async def test_a_client_without_sasl_is_told_why_it_is_closed(caplog: pytest.LogCaptureFixture) -> None:
    async with peer() as server:
        connection = server.connect()
        await connection.negotiate()
        text = r"the broker closed it, at the first request; does this listener ask for SASL\? \(security.protocol\)"
        with pytest.raises(BrokerConnectionError, match=text):
            await connection.request(metadata("t"), 9)
        assert len(server.inner.requests) == 1  # Metadata never reached the handler
    assert "it is not authenticated" in caplog.text


@pytest.mark.parametrize(
    ("cause", "said"),
    [
        (None, True),
        (ConnectionResetError("reset"), True),
        (BrokenPipeError("broken"), True),
        (CutOffError("cut off"), True),
        (TruncatedError("inside of a frame"), False),
        (ProtocolError("no response"), False),
        (OSError(110, "timed out"), False),
        (ConnectionAbortedError("the task was cancelled"), False),
        (KafkaTimeoutError("late"), False),
    ],
)
async def test_sasl_is_blamed_only_for_what_it_explains(cause: BaseException | None, said: bool) -> None:
    """A listener that asks for SASL hangs up at the first request; it sends no garbage, and does not hesitate."""
    async with peer() as server:
        connection = server.connect()
        await connection.negotiate()
        waiting = connection.send_nowait(metadata("t"), 9)
        connection._channel.close(cause)
        with pytest.raises(BrokerConnectionError) as caught:
            await waiting
        assert (", at the first request; does this listener ask for SASL?" in str(caught.value)) is said
        assert "SASL" not in str(caught.value) or said


async def test_sasl_is_not_blamed_for_a_connection_that_lay_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    async with peer() as server:
        connection = server.connect()
        await connection.negotiate()
        now = connection._now() + 11
        monkeypatch.setattr(connection, "_now", lambda: now)
        waiting = connection.send_nowait(metadata("t"), 9)
        connection._channel.close(None)
        with pytest.raises(BrokerConnectionError) as caught:
            await waiting
        assert "SASL" not in str(caught.value)


@pytest.mark.parametrize("iterations", [4096, 10_000, 10_001, 200_000])
async def test_costly_scram_does_not_block_the_loop(iterations: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server says how much there is to hash; beyond a few milliseconds the client does it in a thread."""
    credential = ScramCredential.derive("SCRAM-SHA-256", PASSWORD, iterations=iterations)
    where: list[int] = []
    real = hashlib.pbkdf2_hmac

    def hash_and_tell(*arguments: Any) -> bytes:
        where.append(threading.get_ident())
        return real(*arguments)

    monkeypatch.setattr(hashlib, "pbkdf2_hmac", hash_and_tell)
    async with peer(mechanisms=server_mechanisms(scram_sha_256={"alice": credential}.get)) as server:
        connection = await server.open(login(server, "SCRAM-SHA-256"))
        assert (await connection.request(metadata("t"), 9)).cluster_id == "t"
        with pytest.raises(SaslAuthenticationError, match="refused the credentials"):
            await server.open(login(server, "SCRAM-SHA-256", "falsch"))
        assert len(where) == 2, "the server computes none"
        assert [ident != threading.get_ident() for ident in where] == [iterations > 10_000] * 2


async def test_leaving_while_it_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    credential = ScramCredential.derive("SCRAM-SHA-512", PASSWORD, iterations=20_000)
    hashing, go_on, hashed = threading.Event(), threading.Event(), threading.Event()

    def hash_for_long(*_: Any) -> bytes:
        hashing.set()
        go_on.wait(20)
        hashed.set()
        return b""

    monkeypatch.setattr(hashlib, "pbkdf2_hmac", hash_for_long)
    try:
        async with peer(mechanisms=server_mechanisms(scram_sha_512={"alice": credential}.get)) as server:
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as group:
                    group.start_soon(server.open, login(server, "SCRAM-SHA-512"))
                    while not hashing.is_set():
                        await anyio.sleep(0.005)
                    scope.cancel()
            assert scope.cancelled_caught
            assert not hashed.is_set(), "it was waited for"
    finally:
        go_on.set()


async def test_a_refused_login_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async with peer() as server:
        listener = await server.server.listen_tcp()
        settings = {"bootstrap.servers": str(listener.address), "security.protocol": "SASL_PLAINTEXT"}
        settings |= {"sasl.mechanism": "PLAIN", "sasl.username": "alice", "sasl.password": "falsch"}
        caplog.set_level(logging.DEBUG)

        def told_of(text: str) -> list[logging.LogRecord]:
            return [record for record in caplog.records if text in record.message]

        async with kclient.Admin(settings) as admin:
            with pytest.raises(SaslAuthenticationError):
                await admin.list_topics()
            with anyio.fail_after(20):
                while len(told_of("refused the credentials")) < 2:
                    await anyio.sleep(0.01)
        told = told_of("refused the credentials for SASL PLAIN")
        server_side = told_of("failed to authenticate")
        assert len(told) == len(server_side), "one line for each attempt, also on the level of details"
        assert (told[0].levelname, told[0].name) == ("WARNING", "kclient.cluster")
        assert all(record.levelname == "DEBUG" for record in told[1:])


async def test_trouble_with_a_token_is_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    """And is waited out, other than a mistake in the callback, which ends the call at once."""

    def sealed() -> str:
        raise ValueError("the vault is sealed")

    def wrong() -> str:
        raise TypeError("a mistake")

    async with peer() as server:
        listener = await server.server.listen_tcp()
        settings: dict[str, Any] = {"bootstrap.servers": str(listener.address), "security.protocol": "SASL_PLAINTEXT"}
        settings |= {"sasl.mechanism": "OAUTHBEARER", "request.timeout.ms": 1400, "default.api.timeout.ms": 1500}
        for callback, error in ((sealed, KafkaTimeoutError), (wrong, OAuthTokenError)):
            caplog.clear()
            with pytest.raises(error, match="the token callback failed"):
                async with kclient.Admin(settings, sasl_login_callback_handler_class=callback) as admin:
                    await admin.list_topics()
            assert [record.name for record in caplog.records if record.levelno >= logging.WARNING] == [
                "kclient.cluster"
            ]


@pytest.mark.parametrize("listed", [False, True])
async def test_a_broker_without_sasl(listed: bool) -> None:
    """A listener in the clear does not list SaslHandshake, or lists it as Kafka does, and answers with an error."""

    class Plain(Inner):
        def begin(self, frame: memoryview, connection: Any) -> Any:
            if frame[:2] == b"\0\x11":
                from kclient.protocol.framing import encode_response

                number = int.from_bytes(frame[4:8], "big")
                return encode_response(SaslHandshakeResponse(error_code=34), 1, number)
            return super().begin(frame, connection)

    async with peer() as server:
        mine, theirs = memory_pair("broker:9092")
        plain = Server(Plain(), server.supervisor)
        plain.attach(theirs)
        connection = Connection.over(mine, "broker:9092", supervisor=server.supervisor)
        await connection.negotiate()
        if listed:
            connection.api_versions |= {17: (0, 1), 36: (0, 2)}
        with pytest.raises(IllegalSaslStateError, match=r"does not use SASL on this listener: security\.protocol"):
            await connection.authenticate(login(server, "PLAIN"))
        await connection.aclose()
        await plain.aclose()


async def test_api_versions_of_the_future_goes_through() -> None:
    """An answer in another version than was asked for is completed too."""

    class Future(Inner):
        def begin(self, frame: memoryview, connection: Any) -> Any:
            from kclient.protocol.framing import encode_response
            from kclient.protocol.messages import ApiVersionsResponse

            number = int.from_bytes(frame[4:8], "big")
            if int.from_bytes(frame[2:4], "big") > 0:
                return encode_response(ApiVersionsResponse(error_code=35), 0, number)
            return encode_response(ApiVersionsResponse(), 0, number)

    async with peer() as server:
        server.handler.handler = Future()
        connection = server.connect()
        assert await connection.negotiate() == {17: (0, 1), 36: (0, 2)}


# --- what a server does not allow


async def test_only_sasl_before_authentication() -> None:
    async with peer() as server:
        connection = server.connect()
        await connection.negotiate()
        first = await connection.request(SaslHandshakeRequest(mechanism="PLAIN"), 1)
        assert first.mechanisms == ["OAUTHBEARER", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
        with pytest.raises(BrokerConnectionError):
            await connection.request(metadata("t"), 9)


async def test_authenticate_before_handshake_and_twice() -> None:
    async with peer() as server:
        connection = server.connect()
        await connection.negotiate()
        answer = await connection.request(SaslAuthenticateRequest(auth_bytes=b"\0alice\0x"), 2)
        assert answer.error_code == 34
        await until(lambda: connection.closed)
        connection = server.connect()
        await connection.negotiate()
        await connection.request(SaslHandshakeRequest(mechanism="PLAIN"), 1)
        answer = await connection.request(SaslHandshakeRequest(mechanism="PLAIN"), 1)
        assert answer.error_code == 34
        await until(lambda: connection.closed)


async def test_what_comes_behind_a_refusal_is_not_looked_at(caplog: pytest.LogCaptureFixture) -> None:
    async with peer(failure_delay=0.02) as server:
        connection = server.connect()
        await connection.negotiate()
        await connection.request(SaslHandshakeRequest(mechanism="PLAIN"), 1)
        wrong, right = (SaslAuthenticateRequest(auth_bytes=f"\0alice\0{word}".encode()) for word in ("x", PASSWORD))
        first, second = connection.send_nowait(wrong, 2), connection.send_nowait(right, 2)
        assert (await first).error_code == 58
        with pytest.raises(BrokerConnectionError):
            await second
    assert [record.levelname for record in caplog.records] == ["WARNING"]


async def test_strangers_get_little_room(caplog: pytest.LogCaptureFixture) -> None:
    async with peer(max_receive_bytes=100) as server:
        connection = server.connect()
        await connection.negotiate()
        with pytest.raises(BrokerConnectionError):
            await connection.request(SaslAuthenticateRequest(auth_bytes=bytes(100)), 2)
        assert "the limit is 100" in caplog.text
        connection = await server.open(login(server, "PLAIN"))
        assert (await connection.request(metadata("x" * 200), 9)).cluster_id == "x" * 200


async def test_the_delay_after_a_refusal() -> None:
    async with peer(failure_delay=0.05) as server:
        start = anyio.current_time()
        with pytest.raises(SaslAuthenticationError):
            await server.open(login(server, "PLAIN", "x"))
        assert anyio.current_time() - start >= 0.05


async def test_bare_frames_after_the_old_handshake() -> None:
    """SaslHandshake v0, as clients of Kafka 0.10 send it: the messages have no header."""
    async with peer() as server:
        mine, theirs = memory_pair()
        server.server.attach(theirs)
        from kclient.protocol.framing import encode_request

        async def exchange(parts: Any) -> bytes:
            await mine.send(parts)
            return bytes(await mine.receive())

        handshake = encode_request(SaslHandshakeRequest(mechanism="PLAIN"), 0, 1, None)
        assert (await exchange(handshake))[4:10] == b"\0\0\0\1\0\0"
        token = f"\0alice\0{PASSWORD}".encode()
        assert await exchange([len(token).to_bytes(4, "big"), token]) == b"\0\0\0\0"
        reply = await exchange(encode_request(metadata("t"), 9, 2, None))
        assert reply[4:8] == b"\0\0\0\2"
        await mine.aclose()


async def test_a_wrong_password_in_bare_frames() -> None:
    async with peer() as server:
        mine, theirs = memory_pair()
        server.server.attach(theirs)
        from kclient.protocol.framing import encode_request

        await mine.send(encode_request(SaslHandshakeRequest(mechanism="PLAIN"), 0, 1, None))
        await mine.receive()
        await mine.send([b"\0\0\0\x07", b"\0alice\0"])
        assert bytes(await mine.receive()) == b""
        await mine.aclose()


def test_a_server_without_mechanism() -> None:
    with pytest.raises(ConfigError, match="lets nobody in"):
        SaslHandler(Inner(), {})


# --- sessions (KIP-368)


class Due:
    """The client's session is said to be about to end."""

    @staticmethod
    def now(connection: Connection) -> None:
        assert connection._send_queue.session_end < float("inf")
        connection._send_queue.session_end = 0.0


@pytest.mark.parametrize("mechanism", [*PASSWORDS, "OAUTHBEARER"])
async def test_authenticating_again_with_requests_in_flight(mechanism: str) -> None:
    async with peer(max_session_ms=60_000) as server:
        connection = await server.open(login(server, mechanism))
        session = next(iter(server.handler._sessions.values()))
        assert session.ends_at == 1060.0
        before = [connection.send_nowait(metadata(f"hold{n}"), 9) for n in range(3)]
        Due.now(connection)
        server.wall.now += 50
        after = [connection.send_nowait(metadata(f"after{n}"), 9) for n in range(3)]
        assert connection.in_flight == 6
        await anyio.wait_all_tasks_blocked()
        assert not any(item.done for item in after)
        server.inner.released.set()
        assert [(await item).cluster_id for item in before] == ["hold0", "hold1", "hold2"]
        assert [(await item).cluster_id for item in after] == ["after0", "after1", "after2"]
        assert session.ends_at == 1110.0
        assert connection.in_flight == 0
        assert connection._send_queue.session_end > anyio.current_time() + 40
        kinds = [type(message).__name__ for message in server.inner.requests]
        assert kinds == ["ApiVersionsRequest"] + ["MetadataRequest"] * 6


async def test_authenticating_again_heeds_no_limit_and_keeps_it() -> None:
    async with peer(max_session_ms=60_000) as server:
        connection = await server.open(login(server, "PLAIN"), max_in_flight_requests_per_connection=1)
        session = next(iter(server.handler._sessions.values()))
        pending = [connection.send_nowait(metadata(name), 9) for name in ("hold", "a", "b")]
        Due.now(connection)
        server.wall.now += 50
        await anyio.wait_all_tasks_blocked()
        assert session.ends_at == 1060.0, "it is the turn of a request that makes it authenticate again"
        server.inner.released.set()
        with anyio.fail_after(10):
            assert [(await item).cluster_id for item in pending] == ["hold", "a", "b"]
        assert session.ends_at == 1110.0


async def test_nothing_is_asked_before_the_new_authentication() -> None:
    async with peer(max_session_ms=60_000) as server:
        connection = await server.open(login(server, "PLAIN"))
        server.wall.now += 61  # the session has ended, with nobody there to notice
        Due.now(connection)
        assert (await connection.request(metadata("t"), 9)).cluster_id == "t"


async def test_a_session_that_has_ended_is_closed(caplog: pytest.LogCaptureFixture) -> None:
    async with peer(max_session_ms=60_000) as server:
        connection = await server.open(login(server, "PLAIN"))
        assert (await connection.request(metadata("t"), 9)).cluster_id == "t"
        server.wall.now += 61
        with pytest.raises(BrokerConnectionError):
            await connection.request(metadata("t"), 9)
        assert "its session has expired" in caplog.text


async def test_a_token_ends_its_session() -> None:
    async with peer(max_session_ms=60_000) as server:
        await server.open(login(server, "OAUTHBEARER", life=30))
        assert next(iter(server.handler._sessions.values())).ends_at == 1030.0


async def test_a_refused_new_authentication_fails_who_waits() -> None:
    """The password was changed meanwhile: those who wait get the reason, not a lost connection."""
    passwords = {"alice": PASSWORD}
    mechanisms = server_mechanisms(plain=lambda name, password: password.reveal() == passwords[name])
    async with peer(max_session_ms=60_000, mechanisms=mechanisms) as server:
        connection = await server.open(login(server, "PLAIN"))
        passwords["alice"] = "neu"
        before = connection.send_nowait(metadata("before"), 9)
        Due.now(connection)
        after = [connection.send_nowait(metadata("after"), 9) for _ in range(2)]
        assert (await before).cluster_id == "before"
        errors = []
        for item in after:
            with pytest.raises(SaslAuthenticationError, match="Invalid username or password") as caught:
                await item
            errors.append(caught.value)
        assert errors[0] is not errors[1]
        assert errors[0].fatal
        assert connection.closed
        with pytest.raises(SaslAuthenticationError):
            connection.send_nowait(metadata("t"), 9)


async def test_the_user_must_not_change() -> None:
    known = fixed_passwords({"alice": PASSWORD, "bob": PASSWORD})
    async with peer(max_session_ms=60_000, mechanisms=server_mechanisms(plain=known)) as server:
        connection = await server.open(login(server, "PLAIN"))
        with pytest.raises(SaslAuthenticationError, match="user must not change"):
            await connection.authenticate(PasswordLogin("PLAIN", "bob", PASSWORD))
        await until(lambda: connection.closed)


async def test_the_mechanism_must_not_change() -> None:
    async with peer(max_session_ms=60_000) as server:
        connection = await server.open(login(server, "PLAIN"))
        with pytest.raises(UnsupportedSaslMechanismError):
            await connection.authenticate(login(server, "SCRAM-SHA-256"))


async def test_requests_that_wait_have_their_timeouts() -> None:
    """The broker never answers the new authentication: everything ends as a request that is late does."""
    async with peer(max_session_ms=60_000) as server:
        connection = await server.open(login(server, "PLAIN"), request_timeout_ms=50)
        connection.send_nowait(metadata("hold"), 9, timeout=10)
        Due.now(connection)
        with pytest.raises(KafkaTimeoutError, match=r"MetadataRequest v9 within 0\.05 s"):
            await connection.request(metadata("t"), 9)
        assert connection.closed


async def test_a_broken_connection_ends_the_wait_for_a_token() -> None:
    """The identity provider does not answer, and meanwhile the broker goes away."""
    async with peer() as server:
        asked: list[int] = []

        async def token() -> Any:
            asked.append(1)
            if len(asked) > 1:
                await anyio.sleep_forever()
            return unsecured_token({"sub": "alice"}, lifetime=60, now=server.wall.now)

        connection = await server.open(TokenLogin(token, server.supervisor, clock=server.wall))
        server.wall.now += 61
        Due.now(connection)
        held = connection.send_nowait(metadata("t"), 9)
        await until(lambda: len(asked) == 2)
        for theirs in list(server.server.connections):
            theirs.close()
        with anyio.fail_after(5), pytest.raises(BrokerConnectionError, match="the broker closed it"):
            await held


async def test_a_cancelled_owner_leaves_nobody_waiting() -> None:
    async with peer(max_session_ms=60_000) as server:
        connection = await server.open(login(server, "PLAIN"))
        connection.send_nowait(metadata("hold"), 9)
        Due.now(connection)
        held = connection.send_nowait(metadata("t"), 9)
        await anyio.wait_all_tasks_blocked()
        for handle in list(server.supervisor._handles):
            if "authenticate again" in handle.name:
                handle.cancel()
        with pytest.raises(BrokerConnectionError):
            await held


async def test_cancelling_at_every_checkpoint() -> None:
    """Opening may be cancelled at any await: nothing is left behind, and the next attempt works."""
    async with peer() as server:
        outcomes = []

        async def scenario(cancelled: Cancelled) -> None:
            outcomes.append(await cancelled(server.open(login(server, "SCRAM-SHA-256"))))
            server.opened[-1].close()
            await until(lambda: not server.server.connections)

        await at_every_checkpoint(scenario)
        assert outcomes.count(Outcome.CANCELLED) >= 3
        assert len(outcomes) >= 5  # ApiVersions, the handshake, two rounds of SCRAM, and once to the end
        connection = await server.open(login(server, "SCRAM-SHA-256"))
        assert (await connection.request(metadata("t"), 9)).cluster_id == "t"


# --- decisions alone


def plain_exchange(versions: dict[int, tuple[int, int]]) -> ClientAuthentication:
    return ClientAuthentication(PlainClient("alice", Secret(PASSWORD)), "broker:9092", versions)


def test_the_versions_that_are_chosen() -> None:
    exchange = plain_exchange({17: (0, 1), 36: (0, 1)})
    message, version = exchange.start()
    assert (type(message), version) == (SaslHandshakeRequest, 1)
    outgoing = exchange.answered(SaslHandshakeResponse(mechanisms=["PLAIN"]))
    assert outgoing is not None
    assert (type(outgoing[0]), outgoing[1]) == (SaslAuthenticateRequest, 1)
    assert exchange.answered(SaslAuthenticateResponse(session_lifetime_ms=5)) is None
    assert (exchange.state, exchange.session_lifetime_ms) == (AuthenticationState.DONE, 5)
    with pytest.raises(IllegalStateError):
        exchange.answered(SaslAuthenticateResponse())
    with pytest.raises(UnsupportedVersionError):
        plain_exchange({17: (0, 0)}).start()
    with pytest.raises(UnsupportedVersionError):
        plain_exchange({17: (0, 1)}).start()


def test_a_broker_that_wants_it_too_often() -> None:
    """Kafka allows one new authentication per second, and answers others like a listener without SASL."""
    client = PlainClient("alice", Secret(PASSWORD))
    exchange = ClientAuthentication(client, "broker:9092", {17: (0, 1), 36: (0, 2)}, again=True)
    exchange.start()
    with pytest.raises(BrokerConnectionError, match=r"connections\.max\.reauth\.ms") as caught:
        exchange.answered(SaslHandshakeResponse(error_code=34))
    assert caught.value.retriable


@pytest.mark.parametrize("code", [58, 34, 35, 9999])
def test_what_a_broker_says(code: int) -> None:
    exchange = plain_exchange({17: (0, 1), 36: (0, 2)})
    exchange.start()
    exchange.answered(SaslHandshakeResponse())
    with pytest.raises(Exception, match=r"broker:9092 refused .*SASL PLAIN: no such user") as caught:
        exchange.answered(SaslAuthenticateResponse(error_code=code, error_message="no such user"))
    assert PASSWORD not in str(caught.value)
    assert exchange.state is AuthenticationState.FAILED
    assert isinstance(caught.value, AuthenticationError) == (code in (58, 34))


def test_when_to_authenticate_again() -> None:
    assert session_end(0, 10) == float("inf")
    assert session_end(-1, 10) == float("inf")
    assert session_end(1000, 10, chance=0) == pytest.approx(10.85)
    assert session_end(1000, 10, chance=1) == pytest.approx(10.95)
    assert all(10.85 <= session_end(1000, 10) <= 10.95 for _ in range(100))


def test_a_session_of_a_client_that_is_late() -> None:
    now = [100.0]
    mechanisms = server_mechanisms(plain=fixed_passwords({"a": "b"}))
    session = SaslSession(mechanisms, max_lifetime_ms=1000, clock=lambda: now[0])
    assert not session.may_ask()
    session.choose("PLAIN", 1)
    answer, goes_on = session.authenticate(b"\0a\0b")
    assert goes_on
    assert answer.session_lifetime_ms == 1000
    assert session.may_ask()
    now[0] += 1
    assert session.expired
    assert not session.may_ask()
    assert session.choose("PLAIN", 1)[1]  # late, but it may
    session.authenticate(b"\0a\0b")
    assert session.may_ask()
    assert session.state is SessionState.AUTHENTICATED
    assert "b'" not in repr(session)


async def test_the_versions_of_sasl_are_checked(caplog: pytest.LogCaptureFixture) -> None:
    async with peer() as server:
        connection = server.connect()
        pending = connection.send_nowait(ApiVersionsRequest(), 0)
        await pending
        connection._channel.write([b"\0\0\0\x0c", b"\0\x24\0\x63\0\0\0\1\xff\xff\0\0"])
        await until(lambda: connection.closed)
    assert "version 99 of the API 36 is not served" in caplog.text

"""Authentication in front of a server's request handler.

```python
handler = SaslHandler(inner, server_mechanisms(plain=fixed_passwords({"alice": "..."})))
server = Server(handler, supervisor)
```
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final

import anyio

from kclient.errors import ConfigError, ProtocolError
from kclient.net.answers import CloseConnectionError, Later, Steps, Work
from kclient.net.sasl.mechanism import ClientIdentity
from kclient.net.sasl.session import Mechanisms, SaslSession, SessionState
from kclient.net.server import Answer, Reply, RequestHandler
from kclient.net.server_connection import ServerConnection
from kclient.protocol.framing import (
    FrameHeader,
    decode_request_header,
    decode_response,
    encode_response,
)
from kclient.protocol.messages import (
    ApiVersion,
    ApiVersionsResponse,
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
)
from kclient.protocol.registry import ApiKey

__all__ = ["SASL_VERSIONS", "SaslHandler"]

logger: logging.Logger = logging.getLogger("kclient.net.server")

SASL_VERSIONS: Final = {
    ApiKey.SASL_HANDSHAKE: SaslHandshakeRequest.VERSIONS,
    ApiKey.SASL_AUTHENTICATE: SaslAuthenticateRequest.VERSIONS,
}
"""The APIs that authentication adds, and their versions."""


class SaslHandler:
    """Lets only authenticated clients through to another handler.

    Before a client is authenticated, ApiVersions goes through, and the two requests of SASL are answered; anything else
    closes the connection. A client that is refused is told why, and closed after a delay that slows down guessing. A
    session that has ended is closed at its next request, unless that begins a new authentication (KIP-368). The other
    handler's answers to ApiVersions are completed by the APIs of SASL.

    Args:
        handler: Answers everything else; it finds out who asks by `identity_of`.
        mechanisms: What is offered, see `server_mechanisms`.
        max_session_ms: `connections.max.reauth.ms`: how long an authentication counts at most; 0 for no limit.
        failure_delay: `connection.failed.authentication.delay.ms`, in seconds.
        max_receive_bytes: `sasl.server.max.receive.size`: the largest request of a client that is not authenticated.
        clock: Seconds since the epoch.
        authenticated: Called with a connection and who its client is, after each authentication; it must not raise.
        login_timeout: Seconds after which a client that is not authenticated is closed, where `spawn` is given.
        spawn: Starts the task that does so.

    Raises:
        ConfigError: If no mechanism is offered.
    """

    def __init__(
        self,
        handler: RequestHandler,
        mechanisms: Mechanisms,
        *,
        max_session_ms: int = 0,
        failure_delay: float = 0.1,
        max_receive_bytes: int = 524_288,
        clock: Callable[[], float] = time.time,
        authenticated: Callable[[ServerConnection, ClientIdentity], object] | None = None,
        login_timeout: float = 10.0,
        spawn: Callable[..., object] | None = None,
    ) -> None:
        if not mechanisms:
            raise ConfigError("SASL without a mechanism lets nobody in; offer one at least")
        self.handler = handler
        self._mechanisms = dict(mechanisms)
        self._max_session_ms = max_session_ms
        self._failure_delay = failure_delay
        self._max_receive_bytes = max_receive_bytes
        self._clock = clock
        self._authenticated = authenticated
        self._login_timeout = login_timeout
        self._spawn = spawn
        self._watching = False
        self._strangers: dict[ServerConnection, float] = {}
        """Until when each has to be authenticated, in the order of that time."""
        self._sessions: dict[ServerConnection, SaslSession] = {}

    def identity_of(self, connection: ServerConnection) -> ClientIdentity | None:
        """Who a connection's client is; None before it is authenticated."""
        session = self._sessions.get(connection)
        return None if session is None else session.identity

    # What the network calls

    def connected(self, connection: ServerConnection) -> None:
        """See `RequestHandler`."""
        self._sessions[connection] = SaslSession(self._mechanisms, self._max_session_ms, self._clock)
        connection.limit_frames(self._max_receive_bytes)
        self.handler.connected(connection)
        if self._spawn is not None:
            self._strangers[connection] = anyio.current_time() + self._login_timeout
            if not self._watching:
                self._watching = True
                self._spawn(self._watch_strangers, name="slow logins")

    def disconnected(self, connection: ServerConnection) -> None:
        """See `RequestHandler`."""
        self._sessions.pop(connection, None)
        self._strangers.pop(connection, None)
        self.handler.disconnected(connection)

    def begin(self, frame: memoryview, connection: ServerConnection) -> Answer:
        """See `RequestHandler`."""
        session = self._sessions[connection]
        if session.state is SessionState.REFUSED:
            return None  # came together with what it was refused for
        if session.raw:
            return self._raw(bytes(frame), session, connection)
        # the key alone: reading a whole header here would cost every request that goes through
        api_key = int.from_bytes(frame[:2], "big", signed=True)
        if api_key == ApiKey.SASL_HANDSHAKE or api_key == ApiKey.SASL_AUTHENTICATE:
            return self._authenticate(frame, session, connection)
        if api_key == ApiKey.API_VERSIONS:
            return self._with_sasl(self.handler.begin(frame, connection), frame)
        if session.may_ask():
            return self.handler.begin(frame, connection)
        what = "its session has expired" if session.identity is not None else "it is not authenticated"
        raise CloseConnectionError(f"it asks for the API {api_key}, but {what}")

    # SASL

    def _authenticate(
        self, frame: memoryview, session: SaslSession, connection: ServerConnection
    ) -> Reply | Awaitable[Reply | None]:
        header, position = decode_request_header(frame)
        low, high = SASL_VERSIONS[ApiKey(header.api_key)]
        if not low <= header.api_version <= high:
            raise ProtocolError(f"version {header.api_version} of the API {header.api_key} is not served")
        if header.api_key == ApiKey.SASL_HANDSHAKE:
            choice, _ = SaslHandshakeRequest.decode_from(frame, position, header.api_version)
            response, goes_on = session.choose(choice.mechanism, header.api_version)
        else:
            message, _ = SaslAuthenticateRequest.decode_from(frame, position, header.api_version)
            response, goes_on = session.authenticate(bytes(message.auth_bytes))
            self._told(session, response, connection)
        reply = encode_response(response, header.api_version, header.correlation_id)
        return reply if goes_on else self._refuse(reply, connection)

    def _raw(
        self, data: bytes, session: SaslSession, connection: ServerConnection
    ) -> Reply | Awaitable[Reply | None] | None:
        """After SaslHandshake v0 the mechanism's messages come without a header, and refusal is silence."""
        response, goes_on = session.authenticate(data)
        self._told(session, response, connection)
        if not goes_on:
            return self._refuse(None, connection)
        session.raw = session.state is SessionState.EXCHANGE
        return [len(response.auth_bytes).to_bytes(4, "big"), bytes(response.auth_bytes)]

    async def _refuse(self, reply: Reply | None, connection: ServerConnection) -> Reply | None:
        """The connection ends with this reply; it is read no more from now on."""
        connection.drain()
        await anyio.sleep(self._failure_delay)
        return reply

    async def _watch_strangers(self) -> None:
        """Close who takes too long, as long as there is anybody who is not authenticated."""
        try:
            while self._strangers:
                connection, end = next(iter(self._strangers.items()))
                left = end - anyio.current_time()
                if left > 0:
                    await anyio.sleep(left)
                    continue
                del self._strangers[connection]
                logger.warning("%s did not log in within %g s: closed", connection.peer, self._login_timeout)
                connection.close()
        finally:
            self._watching = False

    def _told(self, session: SaslSession, response: SaslAuthenticateResponse, connection: ServerConnection) -> None:
        if response.error_code:
            logger.warning("%s failed to authenticate: %s", connection.peer, response.error_message)
        elif session.identity is not None and session.may_ask():
            connection.limit_frames(None)
            self._strangers.pop(connection, None)
            if self._authenticated is not None:
                self._authenticated(connection, session.identity)
            name = session.identity.principal
            told = name if name.isprintable() else ascii(name)
            logger.debug("%s is %s (%s)", connection.peer, told, session.identity.mechanism)

    # ApiVersions

    def _with_sasl(self, answer: Answer, frame: memoryview) -> Answer:
        if answer is None:
            return None
        if isinstance(answer, Steps):
            return Steps(self._in_steps(answer, frame), answer.lasting)
        header, _ = decode_request_header(frame)
        if isinstance(answer, Later):
            return Later(answer.completion, lambda done: _with_sasl(answer.reply(done), header))
        if isinstance(answer, Awaitable):
            return self._later(answer, header)
        return _add_sasl(answer, header)

    def _in_steps(self, answer: Steps, frame: memoryview) -> Work:
        return self._with_sasl((yield from answer.work), frame)

    @staticmethod
    async def _later(answer: Awaitable[Reply | Steps | None], header: FrameHeader) -> Reply | None:
        return _with_sasl(await answer, header)


def _with_sasl(reply: Reply | Steps | None, header: FrameHeader) -> Reply | None:
    assert not isinstance(reply, Steps), "the answer to ApiVersions is small"
    return None if reply is None else _add_sasl(reply, header)


def _add_sasl(reply: Reply, header: FrameHeader) -> Reply:
    """An answer to ApiVersions that names the APIs of SASL too."""
    frame = b"".join(map(bytes, reply))[4:]
    # an unknown version is answered in the format of v0 with UNSUPPORTED_VERSION, which stands behind the header
    known = header.api_version <= ApiVersionsResponse.VERSIONS[1] and frame[4:6] != b"\x00\x23"
    version = header.api_version if known else 0
    correlation_id, answer = decode_response(ApiVersionsResponse, frame, version)
    ranges = {item.api_key: item for item in answer.api_keys}
    for key, (low, high) in SASL_VERSIONS.items():
        ranges[key] = ApiVersion(api_key=key, min_version=low, max_version=high)
    answer.api_keys = [ranges[key] for key in sorted(ranges)]
    return encode_response(answer, version, correlation_id)

"""From frames to handlers and back: decodes requests, finds the handler, encodes the answers.

`kclient.net.server` reads the frames and keeps the replies of a connection in order; this module knows what is in
them. A request that cannot be understood closes its connection with a line in the log that names the cause; the
other connections go on.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from typing import Any

from kclient.concurrency import Completion
from kclient.errors import KafkaError, ProtocolError
from kclient.gateway.core import Advertised, CloseConnectionError, ConnectionContext, Core, RequestContext
from kclient.gateway.handlers import Finish, Handler
from kclient.net.address import parse_address
from kclient.net.server import Reply, ServerConnection
from kclient.protocol.framing import decode_request_header, encode_response
from kclient.protocol.message import ApiMessage
from kclient.protocol.registry import ApiKey, request_class

logger: logging.Logger = logging.getLogger("kclient.gateway.server")


class RequestServer:
    """Answers the frames of all connections (`kclient.net.server.RequestHandler`)."""

    def __init__(self, core: Core) -> None:
        self.core = core

    # What the network calls

    def connected(self, connection: ServerConnection) -> None:
        """A connection begins: it keeps what its listener advertises."""
        advertised = connection.label
        assert isinstance(advertised, Advertised)
        connection.context = ConnectionContext(connection.peer, _client_host(connection.peer), advertised)
        logger.debug("%s connected", connection.peer, extra=self.core.extra())

    def disconnected(self, connection: ServerConnection) -> None:
        """A connection has ended."""
        logger.debug("%s disconnected", connection.peer, extra=self.core.extra())

    def begin(self, frame: memoryview, connection: ServerConnection) -> Reply | Awaitable[Reply | None] | None:
        """Begin one request. Raises `ProtocolError` for bytes that are no request of a version served here."""
        context, handler, request = self._decode(frame, connection)
        if request is None:
            return self._unsupported(handler, context)
        if self.core.lease.expires <= self.core.now():
            logger.error("%s: the gateway's lease has run out, the connection is closed", connection.peer)
            connection.close()
            return None
        try:
            begun = handler.begin(request, context)
        except KafkaError as error:
            return self._refused(handler, request, context, error, connection)
        except CloseConnectionError as error:
            _close(connection, error)
            return None
        if begun is None:
            return None
        if isinstance(begun, Completion):
            return self._completing(begun, context)
        if isinstance(begun, ApiMessage):
            return encode_response(begun, context.api_version, context.correlation_id)
        return self._finish(begun, handler, request, context, connection)

    # Requests

    def _decode(
        self, frame: memoryview, connection: ServerConnection
    ) -> tuple[RequestContext, Handler, ApiMessage | None]:
        header, position = decode_request_header(frame)
        context = RequestContext(
            header.api_key, header.api_version, header.correlation_id, header.client_id, connection.context
        )
        table = self.core.table
        handler = table.handlers.get(header.api_key)
        if handler is None:
            raise ProtocolError(f"the API key {_name(header.api_key)} is not served")
        if not table.serves(header.api_key, header.api_version):
            if header.api_key == ApiKey.API_VERSIONS:
                return context, handler, None
            low, high = table.versions[header.api_key]
            raise ProtocolError(
                f"version {header.api_version} of {_name(header.api_key)} is not served, only {low} to {high}"
            )
        # Bytes behind the message are ignored, as Kafka does: librdkafka sends some after Metadata requests.
        request, _ = request_class(header.api_key).decode_from(frame, position, header.api_version)
        return context, handler, request

    def _unsupported(self, handler: Handler, context: RequestContext) -> Reply:
        """ApiVersions of a version from the future: answered in the format of v0, which every client reads."""
        answer = handler.fail(None, context, KafkaError("unsupported version"))
        assert answer is not None
        return encode_response(answer, 0, context.correlation_id)

    def _refused(
        self,
        handler: Handler,
        request: ApiMessage,
        context: RequestContext,
        error: KafkaError,
        connection: ServerConnection,
    ) -> Reply | None:
        """The answer that says what went wrong; without a place for it the connection is closed."""
        logger.debug("%s: %s is refused: %s", connection.peer, _name(context.api_key), error)
        try:
            answer = handler.fail(request, context, error)
        except CloseConnectionError as closing:
            _close(connection, closing)
            return None
        if answer is None:
            _close(connection, error)
            return None
        return encode_response(answer, context.api_version, context.correlation_id)

    async def _finish(
        self,
        finish: Finish,
        handler: Handler,
        request: ApiMessage,
        context: RequestContext,
        connection: ServerConnection,
    ) -> Reply | None:
        try:
            answer = await finish()
        except KafkaError as error:
            return self._refused(handler, request, context, error, connection)
        except CloseConnectionError as error:
            _close(connection, error)
            return None
        if answer is None:
            return None
        return encode_response(answer, context.api_version, context.correlation_id)

    @staticmethod
    def _completing(begun: Completion[Any], context: RequestContext) -> Completion[Reply | None]:
        """A reply that comes without a task: encoded when its message is there."""
        reply: Completion[Reply | None] = Completion()

        def done(completion: Completion[Any]) -> None:
            try:
                answer = completion.result()
                encoded = encode_response(answer, context.api_version, context.correlation_id) if answer else None
            except Exception as error:  # noqa: BLE001  (the network closes the connection and logs it)
                reply.set_error(error)
            else:
                reply.set_result(encoded)

        begun.on_done(done)
        return reply


def _close(connection: ServerConnection, cause: Exception) -> None:
    logger.warning("%s: the connection is closed: %s", connection.peer, cause)
    connection.close()


def _name(api_key: int) -> str:
    try:
        return f"{api_key} ({ApiKey(api_key).message_name})"
    except ValueError:
        return str(api_key)


def _client_host(peer: str) -> str:
    """The peer's host as Kafka shows it, with a slash in front of it as Java prints addresses."""
    try:
        address = parse_address(peer)
    except KafkaError:
        return "/" + peer
    return "/" + (address.host if address.scheme == "tcp" else str(address))

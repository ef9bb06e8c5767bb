"""From frames to handlers and back: decodes requests, finds the handler, encodes the answers.

`kclient.net.server` reads the frames and keeps the replies of a connection in order; this module knows what is in
them. A request that cannot be understood closes its connection with a line in the log that names the cause; the
other connections go on. Large requests are decoded, and large answers encoded, in steps.
"""

from __future__ import annotations

import logging
from collections.abc import Coroutine
from functools import partial
from types import GeneratorType
from typing import Any, Final, NoReturn

from kclient.concurrency import Completion
from kclient.errors import KafkaError, ProtocolError
from kclient.gateway.clock import Clock
from kclient.gateway.contexts import Advertised, ConnectionContext, RequestContext
from kclient.gateway.discarding import arrays_of, emptied_message
from kclient.gateway.handlers.handler import Begun, Finish, Handler
from kclient.gateway.handlers.table import HandlerTable
from kclient.gateway.identity import Identity
from kclient.gateway.ownership import HeldLease
from kclient.gateway.request_quotas import RequestQuotas
from kclient.net.address import parse_address
from kclient.net.answers import FRAME_READ, CloseConnectionError, Work
from kclient.net.server import Answer, Later, Reply, ServerConnection, Steps
from kclient.protocol.framing import FrameHeader, decode_request_header, encode_response, encode_response_steps
from kclient.protocol.message import ApiMessage
from kclient.protocol.registry import ApiKey, request_class
from kclient.protocol.schema import Declaration

logger: logging.Logger = logging.getLogger("kclient.gateway.server")

_SMALL: Final = 4 * 1024
"""Bytes of a request that is decoded in one go."""
_LONGEST_HEADER: Final = 64 * 1024
"""Bytes of a request's header, tagged fields included: nobody sends so many, and reading them is not free."""
_FEW: Final = 64
"""Elements of a response that is encoded in one go."""


class RequestServer:
    """Answers the frames of all connections (`kclient.net.server.RequestHandler`).

    Args:
        table: Who answers what.
        lease: Nothing is answered once it has run out.
        identity: For the log.
        clock: What time it is.
        quotas: Finds what clients are charged for.
    """

    def __init__(
        self, table: HandlerTable, lease: HeldLease, identity: Identity, clock: Clock, quotas: RequestQuotas
    ) -> None:
        self._table = table
        self._quotas = quotas
        self._lease = lease
        self._clock = clock
        self.counts: dict[int, int] = dict.fromkeys(table.handlers, 0)
        """Requests that have come, by the number of their API."""
        self._extra = identity.log_fields()

    # What the network calls

    def by_name(self) -> dict[str, int]:
        """Requests that have come, by the name of their API; without those that nobody has asked for."""
        return {ApiKey(key).message_name: count for key, count in self.counts.items() if count}

    def connected(self, connection: ServerConnection) -> None:
        """A connection begins: it keeps what its listener advertises."""
        advertised = connection.label
        assert isinstance(advertised, Advertised)
        connection.context = ConnectionContext(
            connection.peer, _client_host(connection.peer), advertised, connection.flow, connection.share
        )
        connection.on_deserted(connection.context.end)
        logger.debug("%s connected", connection.peer, extra=self._extra)

    def disconnected(self, connection: ServerConnection) -> None:
        """A connection has ended: what waits for its sake alone ends too."""
        context: ConnectionContext = connection.context
        context.end()
        logger.debug("%s disconnected", connection.peer, extra=self._extra)

    def memory_short(self) -> None:
        """Connections wait for memory: what is given up without harm is."""
        for handler in self._table.handlers.values():
            handler.memory_short()

    def drain(self) -> None:
        """The gateway closes: what waits is answered at once."""
        for handler in self._table.handlers.values():
            handler.drain()

    def begin(self, frame: memoryview, connection: ServerConnection) -> Answer:
        """Begin one request. Raises `ProtocolError` for bytes that are not a request of a version served here."""
        size = len(frame)
        header, position = decode_request_header(frame) if size <= _LONGEST_HEADER else _read_header(frame)
        key, version, correlation_id, client_id = header
        table = self._table
        handler = table.handlers.get(key) or self._unknown(header)
        self.counts[key] += 1
        place = connection.beginning
        assert place is not None
        context = RequestContext(key, version, correlation_id, client_id, connection.context, place)
        connection.context.api_key = key
        if self._quotas.clients.active:
            context.charge = self._quotas.charge(context, size)
        low, high = table.versions[key]
        if not low <= version <= high:
            return self._unsupported(handler, context)
        if size > _SMALL:
            if context.charge is not None:
                context.charge.pause()
            return Steps(self._begin_large(frame, position, context, handler, connection), not handler.ONLY_READS)
        # Bytes behind the message are ignored, as Kafka does: librdkafka sends some after Metadata requests.
        request, _ = request_class(key).decode_from(frame, position, version)
        if context.charge is None:
            return self._dispatch(request, handler, context, connection)
        try:
            return self._dispatch(request, handler, context, connection)
        finally:
            context.charge.pause()

    def _begin_large(
        self,
        frame: memoryview,
        position: int,
        context: RequestContext,
        handler: Handler,
        connection: ServerConnection,
    ) -> Work:
        request, _ = yield from request_class(context.api_key).decode_steps(frame, position, context.api_version)
        answer = self._dispatch(request, handler, context, connection)
        while isinstance(answer, Steps):
            answer = yield from answer.work
        if isinstance(answer, Coroutine):
            yield FRAME_READ  # it waits for something, and what came with it has been read
            return self._and_discard(answer, request, context)
        if context.place.parked:
            yield FRAME_READ  # for as long as other clients like; what is kept of it has been copied
        context.connection.discard(emptied_message(request))
        return answer

    @staticmethod
    async def _and_discard(
        answer: Coroutine[Any, Any, Reply | Steps | None], request: ApiMessage, context: RequestContext
    ) -> Reply | Steps | None:
        """The answer of a large request, whose many objects are given up in steps when they are not needed any more."""
        reply = await answer
        if isinstance(reply, Steps):  # it may be made of them
            return Steps(_then_discard(reply.work, request, context))
        context.connection.discard(emptied_message(request))
        return reply

    # Requests

    @staticmethod
    def _unknown(header: FrameHeader) -> NoReturn:
        raise ProtocolError(f"the API key {_name(header.api_key)} is not served")

    def _dispatch(
        self, request: ApiMessage, handler: Handler, context: RequestContext, connection: ServerConnection
    ) -> Answer:
        if self._lease.current.expires <= self._clock.now():
            return self._lease_is_over(connection)
        try:
            begun = handler.begin(request, context)
        except (KafkaError, CloseConnectionError) as error:
            return self._refused(handler, request, context, error, connection)
        if isinstance(begun, ApiMessage) and handler.FEW_AT_ONCE:
            if context.charge is not None:
                begun = context.charge.told(begun)
            return encode_response(begun, context.api_version, context.correlation_id)
        return self._follow(begun, handler, request, context, connection)

    def _follow(
        self,
        begun: Begun,
        handler: Handler,
        request: ApiMessage,
        context: RequestContext,
        connection: ServerConnection,
    ) -> Answer:
        """The answer that what a handler returned leads to."""
        if begun is None:
            return None
        if isinstance(begun, ApiMessage):
            return _encoded(begun, context)
        if isinstance(begun, Completion):
            return Later(begun, partial(_made_of, context))
        if isinstance(begun, GeneratorType):
            return Steps(self._in_steps(begun, handler, request, context, connection), not handler.ONLY_READS)
        return self._finish(begun, handler, request, context, connection)  # type: ignore[arg-type]

    def _in_steps(
        self,
        work: Work,
        handler: Handler,
        request: ApiMessage,
        context: RequestContext,
        connection: ServerConnection,
    ) -> Work:
        try:
            begun = yield from work
        except (KafkaError, CloseConnectionError) as error:
            return self._refused(handler, request, context, error, connection)
        if isinstance(begun, ApiMessage):
            if context.charge is not None:
                begun = context.charge.told(begun)
            return (yield from encode_response_steps(begun, context.api_version, context.correlation_id))
        return self._follow(begun, handler, request, context, connection)

    def _unsupported(self, handler: Handler, context: RequestContext) -> Reply:
        """ApiVersions of a version from the future is answered in the format of v0, which every client reads."""
        if context.api_key != ApiKey.API_VERSIONS:
            low, high = self._table.versions[context.api_key]
            raise ProtocolError(
                f"version {context.api_version} of {_name(context.api_key)} is not served, only {low} to {high}"
            )
        answer = handler.fail(None, context, KafkaError("unsupported version"))
        assert answer is not None
        return encode_response(answer, 0, context.correlation_id)

    def _refused(
        self,
        handler: Handler,
        request: ApiMessage,
        context: RequestContext,
        error: KafkaError | CloseConnectionError,
        connection: ServerConnection,
    ) -> Reply | Steps | None:
        """The answer that says what went wrong; raises where there is no place for it."""
        logger.debug("%s: %s is refused: %s", connection.peer, _name(context.api_key), error)
        if isinstance(error, CloseConnectionError):
            raise error
        answer = handler.fail(request, context, error)
        if answer is None:
            raise CloseConnectionError(str(error))
        return _encoded(answer, context)

    async def _finish(
        self,
        finish: Finish,
        handler: Handler,
        request: ApiMessage,
        context: RequestContext,
        connection: ServerConnection,
    ) -> Reply | Steps | None:
        context.connection.api_key = context.api_key
        try:
            answer = await (finish() if context.charge is None else context.charge.timed(finish()))
        except (KafkaError, CloseConnectionError) as error:
            return self._refused(handler, request, context, error, connection)
        if answer is not None and self._lease.current.expires <= self._clock.now():  # what was read may be old by now
            return self._lease_is_over(connection)
        return None if answer is None else _encoded(answer, context)

    @staticmethod
    def _lease_is_over(connection: ServerConnection) -> None:
        """Another gateway may lead: nothing is answered."""
        logger.error("%s: the gateway's lease has run out, the connection is closed", connection.peer)
        connection.close()


def _read_header(frame: memoryview) -> tuple[FrameHeader, int]:
    """The header of a large frame."""
    try:
        return decode_request_header(frame[:_LONGEST_HEADER])
    except ProtocolError as error:
        raise ProtocolError(f"{error.message}; a header has {_LONGEST_HEADER} bytes at most") from None


def _made_of(context: RequestContext, completion: Completion[Any]) -> Reply | Steps | None:
    """The reply that comes without a task: encoded when its message is there."""
    answer = completion.result()
    return _encoded(answer, context) if answer else None


def _encoded(answer: ApiMessage, context: RequestContext) -> Reply | Steps:
    if context.charge is not None:
        answer = context.charge.told(answer)
    if _is_large(answer):
        return Steps(encode_response_steps(answer, context.api_version, context.correlation_id))
    return encode_response(answer, context.api_version, context.correlation_id)


def _is_large(message: ApiMessage) -> bool:
    """Whether a response has so many elements, down to the innermost, that encoding it takes long."""
    return _elements(message, _FEW) > _FEW


def _elements(message: Declaration, most: int) -> int:
    """How many elements a message's arrays have, and theirs; if they are more than `most`, any number above it."""
    count = 0
    for name, nested in arrays_of(type(message)):  # type: ignore[arg-type]  # the class is hashed, not an instance
        rows = getattr(message, name)
        if not rows:
            continue
        count += len(rows)
        if count > most:
            break
        if not nested:
            continue
        if not isinstance(rows, list):
            return most + 1  # they are made while they are encoded: who knows how many they have themselves
        for row in rows:
            count += _elements(row, most - count)
            if count > most:
                return count
    return count


def _then_discard(work: Work, request: ApiMessage, context: RequestContext) -> Work:
    reply = yield from work
    context.connection.discard(emptied_message(request))
    return reply


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

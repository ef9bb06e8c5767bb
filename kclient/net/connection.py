"""A client's connection to one broker: requests written in call order, responses matched in the same order.

Requests are pipelined, up to a limit; those beyond it wait here for their turn, and so do all while the broker asks for
a pause. Each ends in one of four ways: with its response; with `KafkaTimeoutError` when its time is over, which also
ends the connection if it was sent, since nothing behind it could be answered any more; with `BrokerConnectionError`
when the connection ends first, for whatever reason; or its waiter is cancelled: what was not sent is never sent then,
else the response is dropped when it comes. Nothing waits for ever.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self, cast

from kclient.concurrency import Supervisor, Timer, loop_clock
from kclient.errors import (
    AuthenticationError,
    KafkaError,
    KafkaTimeoutError,
    ProtocolError,
)
from kclient.net.address import Address
from kclient.net.arguments import (
    check_config,
    check_login,
    check_seconds,
    check_supervisor,
    named_address,
    open_address,
)
from kclient.net.channel import Channel
from kclient.net.channel_kinds import open_channel
from kclient.net.client_session import ClientSession
from kclient.net.connectors import connect
from kclient.net.disconnect_errors import SASL_HINT, TLS_HINT, ended_error, looks_like_sasl, looks_like_tls
from kclient.net.negotiation import negotiate_versions
from kclient.net.pending import Pending, response_of
from kclient.net.receive_buffers import receive_buffers
from kclient.net.send_queue import SendQueue
from kclient.net.settings import ConnectionConfig, ConnectionSettings
from kclient.net.streams import ByteStream, check_stream
from kclient.net.throttling import requested_pause
from kclient.protocol import framing
from kclient.protocol.message import ApiMessage
from kclient.protocol.messages import ApiVersionsResponse
from kclient.protocol.registry import response_class
from kclient.types import Buffer

if TYPE_CHECKING:
    from kclient.metrics.traffic import BrokerTraffic
    from kclient.net.sasl.login import Login

__all__ = ["Connection", "Pending"]

logger: logging.Logger = logging.getLogger("kclient.net.connection")

# Brokers are trusted with the sizes of their responses, but not with the first one: TLS and HTTP look like frames of
# more than 350 MB, and waiting for those would take until the request's timeout.
_FIRST_LIMIT = 0x14FF_FFFF
_FRAME_LIMIT = 2**31 - 1
_FIRST_ROOM = 64 * 1024 * 1024
_STALL = 0.25  # a timer that is later than this many seconds shows that the loop was blocked
_GRACE = 0.05
_NEVER = float("inf")


class Connection:
    """A pipelined connection to one broker; made by `open` or, over any byte stream, by `over`.

    It belongs to one event loop. All methods but `open`, `negotiate`, `request` and `aclose` return at once.
    """

    def __init__(self, stream: ByteStream, address: Address, config: ConnectionConfig, supervisor: Supervisor) -> None:
        self.address = address
        """Where it was asked to connect to."""
        self.peer: str = stream.peer
        """Where it arrived."""
        self.api_versions: dict[int, tuple[int, int]] = {}
        """The broker's version ranges by api key, once negotiated."""
        self.features: dict[str, int] = {}
        """The levels of the cluster's finalized features by name, as they were when the versions were negotiated."""
        self.closed: bool = False
        self.cause: BaseException | None = None
        """Why it ended; None while it is open, and if it was closed without a fault."""
        self.traffic: BrokerTraffic | None = None
        """Counts what passes; None where nobody wants to know."""
        self._now = loop_clock()
        self.last_used: float = self._now()
        """When the last request or response passed, on the clock of `anyio.current_time`."""
        self._client_id = config.client_id
        self._request_timeout = config.request_timeout_ms / 1000
        self._max_idle = config.connections_max_idle_ms / 1000
        self._correlation_id = 0
        self._in_flight: deque[Pending] = deque()
        self._unwritten: list[Pending] = []  # requests without response, until their bytes have left
        self._answered = 0  # responses since the versions were negotiated
        self._negotiated_at = -_NEVER
        self._hint = ""
        self._in_clear = address.scheme == "tcp" and config.tls_context is None
        self._local = False  # whether this side closed it
        self._stalled = False  # whether a late timer has been given its grace
        self._close_callbacks: list[Callable[[Connection], object]] = []
        self._timer = Timer(supervisor, self._deadline_passed, name=f"timeouts of {address}")
        self._send_queue = SendQueue(
            config.max_in_flight_requests_per_connection,
            address,
            supervisor,
            go_on=self._send_waiting,
            renew=lambda: self._session.renew(),
        )
        self._session = ClientSession(
            self._ask_first, address, self._send_queue, supervisor, over=self._authentication_over
        )
        self._channel: Channel = open_channel(
            stream, self, supervisor, frame_limit=_FIRST_LIMIT, first_room=_FIRST_ROOM
        )
        self._arm()

    @classmethod
    async def open(
        cls,
        address: Address | str,
        config: ConnectionConfig | None = None,
        *,
        supervisor: Supervisor,
        negotiate: bool = True,
        login: Login | None = None,
        traffic: BrokerTraffic | None = None,
    ) -> Self:
        """Connect, ask the broker for its versions, and authenticate.

        Args:
            address: Where to; `host:port`, or a scheme with a connector. A listener's type may stand before it, as in
                `SASL_SSL://host:port`, if it is the connection's: `SSL` with a `tls_context`, `SASL` with a login.
            config: Timeouts, buffer sizes and the client id; the defaults if None.
            supervisor: Runs the tasks, where tasks are needed; its owner outlives the connection.
            negotiate: Whether to fill `api_versions`; with a login it always does.
            login: What to authenticate with (SASL); None for listeners that do not ask for it.
            traffic: Counts what passes, for metrics.

        Raises:
            TypeError: If an argument is of a wrong type.
            ConfigError: If the address is none, or that of a listener of another type.
            BrokerConnectionError: If it failed, with every address that was tried and why.
            KafkaTimeoutError: If the broker accepted, and then did not answer.
            AuthenticationError: If the broker refused the login; one of its subclasses.
        """
        config = ConnectionSettings() if config is None else config
        check_config(config)
        check_supervisor(supervisor)
        if login is not None:
            check_login(login)
        address = open_address(address, tls=config.tls_context is not None, login=login is not None)
        connection = cls.over(await connect(address, config), address, config, supervisor=supervisor)
        connection.traffic = traffic
        try:
            if negotiate or login is not None:
                await connection.negotiate()
            if login is not None:
                await connection.authenticate(login)
        except BaseException:
            connection.close()
            raise
        return connection

    @classmethod
    def over(
        cls,
        stream: ByteStream,
        address: Address | str | None = None,
        config: ConnectionConfig | None = None,
        *,
        supervisor: Supervisor,
    ) -> Self:
        """A connection over a stream that is connected already; the stream belongs to it from now on.

        It asks nothing by itself: `negotiate` and, where the listener asks for it, `authenticate` come first.

        Args:
            stream: Any byte stream of `kclient.net.streams`, or one of your own.
            address: What messages call the broker, an address or its text; the stream's `peer` if None. The type of
                its listener, if named, is not looked at: the stream is encrypted already, or is not.
            config: Timeouts and the client id; the defaults if None.
            supervisor: Runs the tasks, where tasks are needed; its owner outlives the connection.

        Raises:
            TypeError: If the stream is no byte stream, or another argument of a wrong type; what was given stays the
                caller's.
            ConfigError: If the address is none.
        """
        check_stream(stream)
        address = Address(stream.peer, 0, "stream") if address is None else named_address(address)
        config = ConnectionSettings() if config is None else config
        check_config(config)
        check_supervisor(supervisor)
        return cls(stream, address, config, supervisor)

    @property
    def in_flight(self) -> int:
        """Requests whose response has not come yet, with those that wait for their turn to be sent."""
        return len(self._in_flight) + len(self._send_queue.waiting)

    @property
    def waiting(self) -> float:
        """Seconds that the oldest request on its way has waited for its response; 0.0 if none is on its way."""
        if not self._in_flight:
            return 0.0
        oldest = self._in_flight[0]
        return max(self._now() - (oldest.deadline - oldest.timeout), 0.0)

    @property
    def lost(self) -> bool:
        """Whether it ended and this side did not want that: it broke, the broker closed it or did not answer."""
        return self.closed and not self._local

    @property
    def session_lasts(self) -> bool:
        """Whether the broker never asks to authenticate again."""
        return self._session.lasts

    @property
    def throttled_until(self) -> float:
        """Until when the broker wants no requests (KIP-219), on the clock of `anyio.current_time`; 0.0 if it does."""
        return self._send_queue.paused_until

    @property
    def pending_bytes(self) -> int:
        """Bytes of requests that wait to be written."""
        return self._channel.pending_bytes

    def send_nowait(
        self, message: ApiMessage, version: int, *, timeout: float | None = None, expect_response: bool = True
    ) -> Pending:
        """Send a request after all those sent before; does not wait.

        It leaves at once, unless the broker asked for a pause (`throttled_until`), as many requests as allowed
        (`max.in.flight.requests.per.connection`) are on their way, or the connection authenticates again. Then it
        leaves when it can, behind those that wait already. So it is never refused; who uses it bounds what waits.

        Args:
            message: The request. Buffers in it must not change until the response is there.
            version: Its version, see `api_versions`.
            timeout: Seconds until the connection is given up if there is no response; the default is
                `request.timeout.ms`. It counts from the call; a request that could not even be sent within it fails
                alone. To wait for less long, cancel the wait instead.
            expect_response: False for Produce with `acks=0`: done when the bytes have left.

        Raises:
            BrokerConnectionError: If the connection has ended.
            UnsupportedVersionError: If the message has no such version, or holds what that version cannot carry.
            EncodeError: If one of its values cannot be written. Nothing was sent, the connection goes on.
            TypeError, ValueError: If the timeout is no number of seconds.
        """
        if self.closed:
            raise self._ended("the request was not sent")
        queue = self._send_queue
        wait = bool(queue.waiting) or not queue.may_send(len(self._in_flight) + len(self._unwritten))
        return self._submit(message, version, timeout, expect_response, wait=wait)

    def _submit(
        self, message: ApiMessage, version: int, timeout: float | None, expect_response: bool, *, wait: bool
    ) -> Pending:
        if timeout is not None:
            check_seconds(timeout)
        self._correlation_id = correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        parts = framing.encode_request(message, version, correlation_id, self._client_id)
        seconds = self._request_timeout if timeout is None else timeout
        now = self.last_used = self._now()
        response = response_class(cast("int", message.API_KEY)) if expect_response else None
        pending = Pending(type(message).__name__, version, correlation_id, response, seconds, now + seconds)
        if self._timer.when is None or pending.deadline < self._timer.when:
            self._timer.set(pending.deadline)
        if wait:
            self._send_queue.waiting.append((pending, parts))
        else:
            self._write(pending, parts)
        return pending

    def _send_waiting(self) -> None:
        """Send those whose turn it is; in order, but for those whose waiter was cancelled."""
        while (
            not self.closed and (turn := self._send_queue.take(len(self._in_flight) + len(self._unwritten))) is not None
        ):
            self._write(*turn)

    def _write(self, pending: Pending, parts: list[Buffer]) -> None:
        if pending.response is not None:
            self._in_flight.append(pending)
        else:
            self._unwritten.append(pending)
        self._channel.write(parts)
        if self.traffic is not None:
            self.traffic.sent(sum(map(len, parts)))
        if self._unwritten and not self._channel.pending_bytes:
            self._all_written()

    async def request(self, message: ApiMessage, version: int, *, timeout: float | None = None) -> Any:
        """Send a request and wait for its response; for its turn to be sent as well, see `send_nowait`.

        A cancellation ends the wait only: the request may be carried out if it was sent, the connection stays usable.

        Args:
            message: The request.
            version: Its version, see `api_versions`.
            timeout: As for `send_nowait`.

        Returns:
            The response message; its error codes are the caller's business.

        Raises:
            KafkaTimeoutError: If no response came in time; the connection has ended then, unless the request was not
                sent yet.
            BrokerConnectionError: If the connection ended first.
            ProtocolError: If the response made no sense; the connection has ended then.
            UnsupportedVersionError, EncodeError: If the message cannot be encoded, as `send_nowait` says.
            TypeError, ValueError: If the timeout is no number of seconds.
        """
        return await response_of(self.send_nowait(message, version, timeout=timeout))

    async def negotiate(self) -> dict[int, tuple[int, int]]:
        """Ask the broker for its version ranges (KIP-35), and tell it who we are (KIP-511).

        Returns:
            The ranges by api key, also kept in `api_versions`.
        """
        self.api_versions, self.features = await negotiate_versions(self.request, self.address)
        self._answered = 0
        self._negotiated_at = self._now()
        return self.api_versions

    async def authenticate(self, login: Login) -> None:
        """Authenticate with SASL, before any other request; it is repeated when the broker asks for that (KIP-368).

        While it is repeated, new requests wait, and are sent when it has succeeded; if it fails, they fail with its
        error, and the connection ends.

        Args:
            login: What to authenticate with.

        Raises:
            AuthenticationError: If the broker refused: `SaslAuthenticationError`, `UnsupportedSaslMechanismError`,
                or `IllegalSaslStateError` if it does not use SASL on this listener.
            BrokerConnectionError: If the connection ended.
            KafkaTimeoutError: If the broker did not answer.
            TypeError: If it is no login.
        """
        check_login(login)
        await self._session.begin(login, self.api_versions)

    async def _ask_first(self, message: ApiMessage, version: int) -> Any:
        """Ask before those requests that wait for their turn."""
        if self.closed:
            raise self._ended("authentication was not completed")
        return await response_of(self._submit(message, version, None, expect_response=True, wait=False))

    def _authentication_over(self, error: BaseException | None) -> None:
        """The connection has authenticated again, or could not."""
        if self.traffic is not None:
            self.traffic.traffic.reauthenticated(self._session.renewal_seconds, error)
        if isinstance(error, AuthenticationError):
            self.cause = error  # the broker has hung up already perhaps, and this is why
        if error is not None:
            self._channel.close(error)
        self._send_queue.held = False
        if self.closed:
            self._fail_unsent()
        else:
            self._send_waiting()

    def on_close(self, callback: Callable[[Connection], object]) -> None:
        """Call `callback(connection)` when the connection ends, at once if it has; it must not raise."""
        if self.closed:
            callback(self)
        else:
            self._close_callbacks.append(callback)

    def failure(self, what: str) -> KafkaError:
        """A new exception that says why the connection ended.

        Args:
            what: What could not be done, as the beginning of the sentence.

        Returns:
            A `BrokerConnectionError`; or the `AuthenticationError` that it ended with.
        """
        return self._ended(what)

    def close(self, cause: BaseException | None = None) -> None:
        """End the connection at once: requests on their way fail with `BrokerConnectionError`."""
        if not self.closed:
            self._local = True
            self._channel.close(cause)

    async def aclose(self) -> None:
        """End the connection, and wait until its tasks have ended."""
        self.close()
        await self._channel.wait_closed()

    # What the channel reports.

    def frames_received(self, frames: list[memoryview]) -> None:
        self.last_used = self._now()
        for frame in frames:
            if self.closed:
                return
            try:
                self._response_received(frame)
            except Exception as error:  # noqa: BLE001  (whatever it is, nobody may wait for a response that was lost)
                self._channel.close(error)
        if self._send_queue.waiting:
            self._send_waiting()

    def channel_closed(self, cause: BaseException | None) -> None:
        self.closed = True
        self.cause = cause
        self._timer.cancel()
        self._send_queue.close()
        receive_buffers().clear()  # nobody may read in this thread any more
        waiting = [*self._in_flight, *self._unwritten]
        self._session.end()
        if waiting and not self._local:
            self._hint = self._guess(cause)
        self._in_flight, self._unwritten = deque(), []
        if cause is not None and not isinstance(cause, KafkaTimeoutError):
            logger.debug("%s", self._ended("connection ended"))
        for pending in waiting:
            pending.set_error(self._ended(f"{pending.api_name} v{pending.version} got no response"))
        if not self._send_queue.held:  # else they learn it from the task that authenticates
            self._fail_unsent()
        callbacks, self._close_callbacks = self._close_callbacks, []
        for callback in callbacks:
            callback(self)

    def _guess(self, cause: BaseException | None) -> str:
        """Which setting may be behind an end that left requests unanswered."""
        if self.api_versions:
            first = not self._answered and not self._session.authenticated
            return SASL_HINT if first and looks_like_sasl(cause, self._now() - self._negotiated_at) else ""
        return TLS_HINT if self._in_clear and looks_like_tls(cause) else ""

    def _fail_unsent(self) -> None:
        for pending in self._send_queue.take_all():
            pending.set_error(self._ended(f"{pending.api_name} was not sent"))

    def write_drained(self) -> None:
        self._all_written()
        self._send_waiting()

    def _all_written(self) -> None:
        written, self._unwritten = self._unwritten, []
        for pending in written:
            pending.set_result(None)

    def _response_received(self, frame: memoryview) -> None:
        correlation_id = int.from_bytes(frame[:4], "big", signed=True)
        if not self._in_flight or self._in_flight[0].correlation_id != correlation_id:
            expected = self._in_flight[0].correlation_id if self._in_flight else "none"
            raise ProtocolError(
                f"{self.address} sent a response with correlation id {correlation_id}, expected {expected}"
            )
        pending = self._in_flight[0]
        if self.traffic is not None:
            self.traffic.received(len(frame) + 4, self.last_used - pending.deadline + pending.timeout)
        if pending.abandoned:
            self._in_flight.popleft()
            return
        assert pending.response is not None
        try:
            message = self._decode(pending, frame)
        except KafkaError as error:
            self._in_flight.popleft()
            if isinstance(error, ProtocolError):
                text = f"{self.address} sent a malformed response: {error.message}"
                error = ProtocolError(text, position=error.position)
            pending.set_error(error)
            raise error from None
        self._in_flight.popleft()
        self._answered += 1
        pause = requested_pause(message, pending.version)
        if pause:
            self._send_queue.pause(pause)
            logger.debug("%s asks for a pause of %g s (throttle_time_ms of %s)", self.address, pause, pending.api_name)
        pending.set_result(message)

    def _decode(self, pending: Pending, frame: Buffer) -> ApiMessage:
        version = pending.version
        if pending.response is ApiVersionsResponse and frame[4:6] == b"\x00\x23":
            version = 0  # the one response whose version may differ: "your version is unknown to me" is always v0
        assert pending.response is not None
        return framing.decode_response(pending.response, frame, version)[1]

    def _waiting(self) -> list[Pending]:
        return [*self._in_flight, *self._unwritten, *(pending for pending, _ in self._send_queue.waiting)]

    # Time.

    def _deadline_passed(self) -> None:
        """The earliest deadline may have passed: responses that have arrived still count."""
        self._channel.poll()
        if self.closed:
            return
        now = self._now()
        late = [pending for pending in self._waiting() if pending.deadline <= now]
        if not late:
            self._stalled = False
            self._arm()
        elif now - min(pending.deadline for pending in late) > _STALL and not self._stalled:
            # The loop stood still, so the response may lie unread in a stream: let its task run first.
            self._stalled = True
            self._timer.set(now + _GRACE)
        else:
            self._give_up(late)

    def _arm(self) -> None:
        """Set the timer for the earliest deadline, or for the end of an idle connection."""
        waiting = self._waiting()
        deadline = min((pending.deadline for pending in waiting), default=float("inf"))
        if self._max_idle > 0:
            now = self._now()
            idle_end = (now if waiting else self.last_used) + self._max_idle
            if idle_end <= now:
                logger.debug("%s was idle for %g s: the connection is closed", self.address, self._max_idle)
                self.close()
                return
            deadline = min(deadline, idle_end)
        if deadline != float("inf"):
            self._timer.set(deadline)

    def _give_up(self, late: list[Pending]) -> None:
        if not self._send_queue.held:
            late = self._send_queue.give_up(late, len(self._in_flight))
        errors = [
            KafkaTimeoutError(
                f"{self.address} did not answer {pending.api_name} v{pending.version} within {pending.timeout:g} s "
                "(request.timeout.ms)"
            )
            for pending in late
        ]
        for pending, error in zip(late, errors, strict=True):
            pending.set_error(error)
        if errors:
            self._channel.close(errors[0])
        elif not self.closed:
            self._arm()

    def _ended(self, what: str) -> KafkaError:
        return ended_error(what, self.address, self.peer, self.cause, local=self._local, hint=self._hint)

    def __repr__(self) -> str:
        state = "closed" if self.closed else "open"
        return f"<Connection {self.address} {state}, {len(self._in_flight)} in flight>"

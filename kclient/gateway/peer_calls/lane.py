"""Asks one other gateway one kind of thing: calls that come together share requests, on a connection that is kept.

Few requests are under way at a time, each of a bounded size; what comes meanwhile waits here, and goes with the next
one. Large calls go in parts, between which others have their turn. A call is answered, or fails with why the other
could not be asked: then nobody knows whether it was carried out, and it is made again.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from kclient.concurrency import Completion, loop_clock
from kclient.errors import BrokerConnectionError, ErrorCode, KafkaError, UnsupportedVersionError

if TYPE_CHECKING:
    from kclient.gateway.peer_calls.requests import PeerRequest
    from kclient.net.connection import Connection, Pending

logger: logging.Logger = logging.getLogger("kclient.gateway.peers")

W = TypeVar("W")
K = TypeVar("K", bound=Hashable)

MOST_REQUESTS: Final = 4
"""Requests under way."""
MOST_BYTES: Final = 256 * 1024
"""Bytes of a request, but for one call that is larger by itself: a transactional id has 32 KiB at most."""
MOST_OF_ONE: Final = 500
"""Partitions, or groups, of one call in a request."""
_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 1.0
"""Seconds until it is connected to again, after that has failed; who calls meanwhile is told so at once."""


class _Call(Generic[W, K]):
    """What somebody waits for."""

    __slots__ = ("codes", "done", "given_up", "left", "parts", "what")

    def __init__(self, what: W, items: Sequence[K]) -> None:
        self.what = what
        self.left = deque(items)
        """What was not asked for yet."""
        self.parts = 0
        """Requests under way that ask for some."""
        self.codes: dict[K, int] = {}
        self.done: Completion[dict[K, int]] = Completion()
        self.given_up = False


class PeerLane(Generic[W, K]):
    """Asks one gateway one kind of thing, of partitions or of groups.

    Args:
        kind: What is asked.
        name: Of the other, for messages.
        connect: Makes a connection to it.
        spawn: Starts a task of this gateway.
    """

    def __init__(
        self,
        kind: PeerRequest[W, K],
        name: str,
        connect: Callable[[], Awaitable[Connection]],
        spawn: Callable[..., object],
    ) -> None:
        self._kind = kind
        self._name = name
        self._connect = connect
        self._spawn = spawn
        self._now = loop_clock()
        self._waiting: deque[_Call[W, K]] = deque()
        self._under_way: set[_Call[W, K]] = set()
        self._requests = 0
        self._connection: Connection | None = None
        self._running = False
        self._closed = False
        self._pause = _FIRST_PAUSE_S
        self._paused_until = 0.0
        self._refusal: KafkaError | None = None
        """Why it could not be asked last time."""

    async def ask(self, what: W, items: Sequence[K]) -> dict[K, int]:
        """Ask it; the codes of all items. Cancelling it takes back what was not sent.

        Raises:
            BrokerConnectionError: It cannot be reached, or the connection has broken.
            KafkaTimeoutError: It does not answer.
            UnsupportedVersionError: It is of a version that does not know what is asked.
            KafkaError: It does not take the request as a whole.
        """
        if self._closed:
            raise self._gone()
        if self._refusal is not None and self._now() < self._paused_until:
            raise self._refusal.with_traceback(None)
        call = _Call(what, items)
        self._waiting.append(call)
        try:
            self._go_on()
            return await call.done.wait()
        finally:
            call.given_up = True

    def close(self) -> None:
        """The other has left: nobody waits for it any more."""
        self._closed = True
        self._fail(self._gone())
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _gone(self) -> BrokerConnectionError:
        return BrokerConnectionError(f"{self._name} has left, or is lost")

    def _go_on(self) -> None:
        """Send what may be sent, or connect first."""
        connection = self._connection
        if connection is not None and not connection.closed:
            self._send(connection)
        elif not self._running:
            self._running = True
            try:
                self._spawn(self._open, name=f"connect to {self._name}")
            except BaseException:  # the gateway is closing: nobody connects, and whoever asks next tries anew
                self._running = False
                raise

    async def _open(self) -> None:
        connection: Connection | None = None
        try:
            connection = await self._connect()
            lowest, highest = connection.api_versions.get(self._kind.api, (0, -1))
            if not lowest <= self._kind.version <= highest:
                raise UnsupportedVersionError(
                    f"{self._name} is of a version without {self._kind.api.name} {self._kind.version}: it has to be "
                    "upgraded before transactions can go on there"
                )
            if self._closed:
                raise self._gone()
        except (KafkaError, OSError) as error:  # no descriptors are left, perhaps
            if connection is not None:
                connection.close()
            self._running = False
            self._refused(error if isinstance(error, KafkaError) else BrokerConnectionError(f"{self._name}: {error}"))
            return
        except BaseException as error:
            if connection is not None:
                connection.close()
            self._running = False
            self._fail(BrokerConnectionError(f"{self._name} is not connected to: {error!r}"))
            raise
        self._connection, self._running = connection, False
        self._pause, self._refusal = _FIRST_PAUSE_S, None
        self._send(connection)

    def _refused(self, error: KafkaError) -> None:
        if self._closed:
            self._fail(self._gone())
            return
        if self._refusal is None or str(self._refusal) != str(error):
            logger.warning("%s cannot be asked about transactions, it is tried again: %s", self._name, error)
        self._refusal = error
        self._paused_until = self._now() + self._pause
        self._pause = min(2 * self._pause, _LONGEST_PAUSE_S)
        self._fail(error)

    def _fail(self, error: KafkaError) -> None:
        waiting, self._waiting = self._waiting, deque()
        under_way, self._under_way = self._under_way, set()
        for call in (*waiting, *under_way):
            call.done.set_error(error)

    def _send(self, connection: Connection) -> None:
        while self._waiting and self._requests < MOST_REQUESTS and not connection.closed:
            taken = self._take()
            if not taken:
                return
            request = self._kind.request([(call.what, part) for call, part in taken])
            try:
                pending = connection.send_nowait(request, self._kind.version, timeout=self._kind.timeout_s)
            except KafkaError as error:
                for call, _ in taken:
                    call.left.clear()
                    call.done.set_error(error)
                continue
            self._requests += 1
            for call, _ in taken:
                call.parts += 1
                self._under_way.add(call)
            pending.on_done(partial(self._answered, taken))

    def _take(self) -> list[tuple[_Call[W, K], list[K]]]:
        """What goes into one request: of each call in its turn a part, which is not very large."""
        taken: list[tuple[_Call[W, K], list[K]]] = []
        room = MOST_BYTES
        for _ in range(len(self._waiting)):
            call = self._waiting[0]
            if call.given_up or call.done.done:
                self._waiting.popleft()
                continue
            size = self._kind.size(call.what)
            fit = (room - size) // self._kind.item_size
            if fit < 1:
                if taken:
                    break
                fit = 1
            part = [call.left.popleft() for _ in range(min(fit, MOST_OF_ONE, len(call.left)))]
            taken.append((call, part))
            room -= size + self._kind.item_size * len(part)
            self._waiting.popleft()
            if call.left:
                self._waiting.append(call)
        return taken

    def _answered(self, taken: list[tuple[_Call[W, K], list[K]]], pending: Pending) -> None:
        self._requests -= 1
        error = pending.error
        if error is not None:
            known = error if isinstance(error, KafkaError) else BrokerConnectionError(f"{self._name}: {error!r}")
            for call, _ in taken:
                self._under_way.discard(call)
                call.left.clear()
                call.done.set_error(known)
        else:
            whole, answers = self._kind.answers(pending.result())
            for call, part in taken:
                codes = next(answers, {})
                missing = whole or self._kind.unanswered
                for each in part:
                    call.codes[each] = codes.get(each, missing) if whole == ErrorCode.NONE else whole
                call.parts -= 1
                if not call.parts:
                    self._under_way.discard(call)
                    if not call.left:
                        call.done.set_result(call.codes)
        if self._waiting and not self._closed:
            try:
                self._go_on()
            except Exception as failure:  # noqa: BLE001  (the gateway is closing, or has failed)
                self._fail(BrokerConnectionError(f"{self._name} is asked no more: {failure}"))

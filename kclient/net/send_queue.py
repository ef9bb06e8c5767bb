"""When a request may leave: the limit of those on their way, pauses that the broker asks for, and new authentications.

Decisions, and the queue of those that wait. The connection asks before it writes, and is told when to look again. No
pure state machine: it reads the loop's clock, and owns the timer that ends a pause.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable

from kclient.concurrency import Supervisor, Timer, loop_clock
from kclient.errors import KafkaTimeoutError
from kclient.net.pending import Pending
from kclient.types import Buffer

__all__ = ["SendQueue"]

_NEVER = float("inf")


class SendQueue:
    """The requests of one connection that wait for their turn, and when it comes.

    It is made inside of an event loop, whose clock it reads, and owns a timer that may fire until `close` is called.

    Args:
        limit: How many may be on their way; 0 for any number.
        peer: The broker, for messages.
        supervisor: Runs the timer of pauses.
        go_on: Called when a pause is over.
        renew: Called when the session is about to end: begins a new authentication, and sets `held` until it is over.
    """

    def __init__(
        self,
        limit: int,
        peer: object,
        supervisor: Supervisor,
        *,
        go_on: Callable[[], None],
        renew: Callable[[], None],
    ) -> None:
        self.waiting: deque[tuple[Pending, list[Buffer]]] = deque()
        """Encoded, in the order of the calls."""
        self.held: bool = False
        """While the connection authenticates again, nobody's turn comes."""
        self.paused_until: float = 0.0
        """Until when the broker wants no requests, on the clock of `anyio.current_time`; 0.0 if it does."""
        self.session_end: float = _NEVER
        """When to authenticate again, on the same clock."""
        self._limit = limit or sys.maxsize
        self._peer = peer
        self._renew = renew
        self._now = loop_clock()
        self._timer = Timer(supervisor, go_on, name=f"throttling by {peer}")

    def may_send(self, on_their_way: int) -> bool:
        """Whether the next request may leave now.

        If not, a response, the end of a pause or of an authentication lets the connection ask again.

        Args:
            on_their_way: How many requests are.
        """
        if self.held or on_their_way >= self._limit:
            return False
        if self.paused_until:
            if self._now() < self.paused_until:
                if self._timer.when != self.paused_until:
                    self._timer.set(self.paused_until)
                return False
            self.paused_until = 0.0
        if self.session_end != _NEVER and self._now() >= self.session_end:
            self.session_end = _NEVER
            self._renew()
            return False
        return True

    def take(self, on_their_way: int) -> tuple[Pending, list[Buffer]] | None:
        """The next request, if its turn has come; those whose waiter was cancelled are passed over."""
        while self.waiting:
            if self.waiting[0][0].abandoned:
                self.waiting.popleft()
            elif self.may_send(on_their_way):
                return self.waiting.popleft()
            else:
                return None
        return None

    def pause(self, seconds: float) -> None:
        """The broker asks for a pause; the longest counts."""
        self.paused_until = max(self.paused_until, self._now() + seconds)

    def give_up(self, late: list[Pending], on_their_way: int) -> list[Pending]:
        """Fail those that could not be sent in time, alone, since no response is missing; returns the others."""
        unsent = {pending for pending, _ in self.waiting}.intersection(late)
        self.waiting = deque(item for item in self.waiting if item[0] not in unsent)
        why = "the broker asked for a pause" if self.paused_until else f"{on_their_way} others are unanswered"
        others = []
        for pending in late:
            if pending in unsent:
                what = f"{pending.api_name} v{pending.version} could not be sent to {self._peer}"
                text = f"{what} within {pending.timeout:g} s (request.timeout.ms): {why}"
                pending.set_error(KafkaTimeoutError(text))
            else:
                others.append(pending)
        return others

    def take_all(self) -> list[Pending]:
        """Those that wait, to be failed: no turn comes any more."""
        waiting, self.waiting = self.waiting, deque()
        return [pending for pending, _ in waiting]

    def close(self) -> None:
        """The connection has ended: no timer runs on."""
        self._timer.cancel()

    def __repr__(self) -> str:
        state = "held" if self.held else "paused" if self.paused_until else "open"
        return f"<SendQueue {state}, {len(self.waiting)} waiting>"

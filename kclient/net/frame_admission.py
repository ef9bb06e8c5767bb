"""The memory that one connection of a server holds, or waits for, for the request that is being received.

A request that does not come whole is received when there is memory for all of it; until then only what has come of it
is held.
"""

from __future__ import annotations

from collections.abc import Callable

from kclient.concurrency import loop_clock
from kclient.net.memory_budget import Share, TooMuchMemoryError
from kclient.net.reply_order import ReplyOrder

__all__ = ["FrameAdmission"]


class FrameAdmission:
    """Says whether a request may be received; made by a connection, asked by its channel.

    Args:
        share: What the connection holds of the server's memory.
        order: The places of its requests.
        moved: How many bytes have been received and sent.
        alone: Whether the connection holds nothing but what it keeps, and this request.
        refuse: Called with the error when the request can never be received.
        pause: Has the connection read no further.
    """

    __slots__ = (
        "_alone", "_announced", "_announced_moved", "_moved", "_now", "_order", "_pause", "_refuse", "_share",
        "held", "over", "waits",
    )  # fmt: skip

    def __init__(
        self,
        share: Share,
        order: ReplyOrder,
        *,
        moved: Callable[[], int],
        alone: Callable[[], bool],
        refuse: Callable[[TooMuchMemoryError], object],
        pause: Callable[[], object],
    ) -> None:
        self.held: int = 0
        """Bytes that are held for the request."""
        self.waits: int = 0
        """And those that it waits for."""
        self.over: bool = False
        """Whether what follows cannot be taken."""
        self._share = share
        self._order = order
        self._moved = moved
        self._alone = alone
        self._refuse = refuse
        self._pause = pause
        self._now = loop_clock()
        self._announced = 0.0  # when its first bytes came
        self._announced_moved = 0  # what had moved then

    @property
    def announced(self) -> tuple[float, int] | None:
        """When the request began to come that is being received, and what had moved then; None if there is none."""
        return (self._announced, self._announced_moved) if self.held else None

    def admit(self, size: int, here: int) -> bool:
        """Whether a request may be received now of which `here` bytes have come: they are held in any case."""
        self._announced, self._announced_moved = self._now(), self._moved()
        if self._take(size):
            return True
        if not self.over:
            self._share.begin_request(here)
            self.held += here
            self.waits = size - here
            self._pause()
            self._order.hurry()
        return False

    def ask_again(self) -> bool:
        """Whether the request that waits may be received now: there may be memory."""
        if self._take(self.waits):
            self.waits = 0
            self._share.go_on()
            return True
        if self.waits:
            self._order.hurry()
        return False

    def received(self, admitted: int) -> None:
        """So many bytes of what was admitted have become requests: they are counted as those."""
        self.held -= admitted

    def stop(self) -> None:
        """What follows cannot be taken."""
        self.over = True
        if self.waits:
            self.waits = 0
            self._share.go_on()

    def drop(self) -> None:
        """The rest of the request does not come: the client has gone."""
        self._share.go_on()
        self._share.add(-self.held, requests=-self.held)
        self.held = self.waits = 0

    def close(self) -> None:
        """The connection has ended: nothing may keep it."""
        self._moved, self._alone, self._refuse, self._pause = _nothing_moved, _alone, _nothing, _nothing

    def _take(self, size: int) -> bool:
        try:
            taken = self._share.take(size, request=True, last=self._alone())
        except TooMuchMemoryError as error:
            self._refuse(error)
            return False
        if taken:
            self.held += size
        return taken


# What is asked and told of a connection that has ended.


def _nothing_moved() -> int:
    return 0


def _alone() -> bool:
    return True


def _nothing(*_: object) -> None:
    pass

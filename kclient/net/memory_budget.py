"""What all connections of a server may hold in memory together, and who has to wait when it is used up.

Everything that is kept on behalf of a client counts against its connection's *share*: requests that are being received
or wait, what was decoded of them, replies that wait for others or for a slow reader, sessions. What stays without a
connection counts on accounts (`kclient.memory_ledger`). Connections have what these, and other servers of the process,
leave of the total: accounts leave them a quarter and a sixteenth at least.

Small things are always taken: each connection has an allowance, which is the smaller the more connections there are
beyond some number, so that all of them together fit into the budget, too; several servers of the process share what one
has for that. Larger ones are asked for, and wait while the budget is used up. So that somebody can always finish, a
quarter of the budget is kept back for one connection at a time (of the process), the first that would have to wait; and
no connection may hold more than that quarter. What a closed connection held is free at once. That the clients do their
part to finish, or are closed, is not seen to here but by `stalls`.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Final

from kclient.errors import ProtocolError
from kclient.memory_ledger import MemoryLedger, MemoryPart

__all__ = ["ALLOWANCE", "LEAST_ALLOWANCE", "MemoryBudget", "Share", "TooMuchMemoryError", "most_of_one"]

ALLOWANCE: Final = 64 * 1024
"""Bytes that each connection may hold without being asked, if all connections' fit into a quarter of the budget, in
equal parts for the servers of the process."""
LEAST_ALLOWANCE: Final = 4 * 1024
"""The same, however many connections there are."""
DEFAULT_TOTAL: Final = 512 * 1024 * 1024
_WOKEN: Final = 16
_RESERVE: Final = 4
"""One part in so many is for the connection whose turn it is to go beyond; none may hold more."""
_LEFT: Final = 16
"""One part in so many is left to all others than that one, however much is kept beside connections."""


class TooMuchMemoryError(ProtocolError):
    """A request, or its reply, takes more memory than one connection may hold."""


def most_of_one(total: int) -> int:
    """Bytes that one connection may hold of so many."""
    return max(total // _RESERVE, 1)


def _nobody() -> None:
    """Nobody waits for the memory of a connection that has gone."""


class Share:
    """What one connection holds; made by `MemoryBudget.share`."""

    __slots__ = ("_budget", "_closed", "_wake", "held", "kept", "requests", "unfinished")

    def __init__(self, budget: MemoryBudget, wake: Callable[[], object]) -> None:
        self.held: int = 0
        """Bytes, requests included."""
        self.requests: int = 0
        """Bytes of requests that were received, or are being received, and are not answered yet."""
        self.kept: int = 0
        """Of `held`, what stays when all requests are answered."""
        self.unfinished: int = 0
        """Of `held`, what has come of a request that waits for memory to be received."""
        self._budget = budget
        self._wake = wake
        self._closed = False

    @property
    def room(self) -> int:
        """Bytes that could be had now."""
        budget = self._budget
        if not budget.ledger.alone:
            budget.refresh()
        own = budget.most - self.held
        free = budget.limit - budget.used
        favoured = budget.ledger.favoured
        if free < own and favoured is not self and (favoured is not None or free > 0):
            own = max(free, budget.allowance - self.held)
        return own if own > 0 else 0

    def may_begin(self) -> bool:
        """Whether more may be begun for the connection; if not, `wake` is called when to ask again."""
        budget = self._budget
        if self.held <= budget.allowance:
            return True
        if not budget.ledger.alone:
            budget.refresh()
        if self.held < budget.most and (budget.used < budget.limit or budget.favours(self)):
            return True
        budget.wait(self)
        return False

    @property
    def most(self) -> int:
        """Bytes that one connection may hold."""
        return self._budget.most

    @property
    def small(self) -> bool:
        """Whether it holds no more than its allowance."""
        return self.held <= self._budget.allowance

    def unasked(self, most: int) -> int:
        """Bytes that may be read at once, `most` of them or less: what is in them comes without being asked for."""
        budget = self._budget
        if budget.used < budget.limit and not budget.waiting:
            return most
        return min(most, max(budget.allowance - self.held, LEAST_ALLOWANCE))

    def take(
        self, size: int, *, request: bool = False, last: bool = False, over: bool = False, whole: bool = False
    ) -> bool:
        """Hold so many bytes more; False if they have to be waited for: `wake` is called when to ask again.

        Args:
            size: Bytes.
            request: Whether they are of a request that is being received.
            last: Whether nothing that the connection holds comes free before they are had: then it is no use to wait
                for its own share.
            over: Whether they may go beyond the connection's part while there is room for all: what it holds for its
                next requests comes free only when this one has ended.
            whole: Whether they are of something that cannot be had in parts, one stored batch: then the favoured
                connection gets them, however many, one at a time.

        Raises:
            TooMuchMemoryError: One connection may not hold so much, ever.
        """
        if self._closed:
            return True
        if last and self.held + size > self._budget.most:
            raise self._budget.too_much(self.held + size)
        if not self._budget.admits(self, size, request, over, whole):
            return False
        self.add(size, requests=size if request else 0)
        return True

    def add(self, size: int, requests: int = 0) -> None:
        """Hold so many bytes more (or less), without asking; `requests` of them are of requests."""
        if self._closed or not (size or requests):
            return
        self.held += size
        self.requests += requests
        budget = self._budget
        budget.used += size
        budget.requests += requests
        if size < 0 and budget.watched:
            budget.freed(self)

    def keep(self, size: int) -> None:
        """Hold so many bytes more (or less) for longer than a request takes, without asking."""
        if not self._closed:
            self.kept += size
            self.add(size)

    def begin_request(self, size: int) -> None:
        """So many bytes have come of a request for whose rest there was no memory. They are held."""
        if not self._closed:
            self.add(size, size)
            self.unfinished += size
            self._budget.count_unfinished(size)

    def go_on(self) -> None:
        """There is memory for the rest of that request now."""
        if self.unfinished:
            self._budget.count_unfinished(-self.unfinished)
            self.unfinished = 0

    def wait(self) -> None:
        """Have `wake` called when there may be room."""
        self._budget.wait(self)

    def wake(self) -> None:
        """There may be room. Called by the budget."""
        self._wake()

    def asked(self) -> None:
        """After it was woken it has asked for all that it needs: unless it waits again the next may ask."""
        if self not in self._budget.waiting:
            self._budget.wake_next()

    def close(self) -> None:
        """The connection has gone: all that it held is free."""
        if not self._closed:
            self.go_on()
            self.add(-self.held, -self.requests)
            self._closed = True
            self._budget.gone(self)
            self._wake = _nobody


class MemoryBudget:
    """Bounds what all connections hold.

    Args:
        total: Bytes.
        requests: Of these, bytes of requests that may be received before no more are read
            (`queued.max.request.bytes`); None for no limit of their own. A request that has been begun to be read is
            read to its end, as in Kafka.
        part: The server's part of what the process holds, whose total is this one; if None there is nothing else in it.
    """

    def __init__(self, total: int = DEFAULT_TOTAL, requests: int | None = None, part: MemoryPart | None = None) -> None:
        self.total: int = total
        self.most: int = most_of_one(total)
        """Bytes that one connection may hold."""
        self.used: int = 0
        """Bytes that all hold."""
        self.on_short: Callable[[], object] | None = None
        """Called when somebody begins to wait, also in another server of the process: what can be given up may be."""
        self._requests_limit = requests
        self.requests: int = 0
        """Of `used`, bytes of requests."""
        self.waiting: dict[Share, None] = {}
        """Those that wait for memory."""
        self._shares = 0
        self.unfinished: int = 0
        """Of `used`, bytes of requests that wait for memory to be received."""
        self.allowance: int = ALLOWANCE
        """Bytes that each connection may hold without being asked, as many as there are now."""
        self.part: MemoryPart = part or MemoryLedger().part(total)
        self.ledger: MemoryLedger = self.part.ledger
        self.watched: bool = False
        """Whether it matters to anybody that a share holds less."""
        self._least = self.most + total // _LEFT
        self._unasked = 0
        """Bytes that are left for allowances."""
        self.limit: int = total - self.most
        """Bytes that may be held before others than the favoured one have to wait."""
        self.part.connections = self
        self.refresh()

    def share(self, wake: Callable[[], object]) -> Share:
        """The share of a new connection, which `wake` tells that it may ask again."""
        self._count(1)
        return Share(self, wake)

    def _count(self, more: int) -> None:
        """There are so many shares more (or less), whose allowances nobody asks for."""
        self._shares += more
        self._reckon()

    def _reckon(self) -> None:
        """What may be held without being asked, and what that leaves.

        Others cannot have it, used or not: so idle servers keep no more than one does.
        """
        shares, part = self._shares, self.most // self.ledger.count
        self.allowance = min(ALLOWANCE, max(part // max(shares, 1), LEAST_ALLOWANCE))
        self._unasked = max(min(shares * ALLOWANCE, part) - self.unfinished, 0)
        self.limit = self.part.left(self.most + self._unasked, self._least)

    @property
    def favoured(self) -> Share | None:
        """The one that may go on although the budget is used up; of all servers of the process there is one."""
        favoured = self.ledger.favoured
        assert favoured is None or isinstance(favoured, Share)
        return favoured

    @favoured.setter
    def favoured(self, share: Share | None) -> None:
        self.ledger.favour(share, None if share is None else self.part)
        self.watched = True  # whoever frees something finds out whether it still is

    # What the process asks and tells

    @property
    def held(self) -> int:
        """Bytes that all hold, and those that they may take without asking."""
        return self.used + self._unasked

    @property
    def spare(self) -> int:
        """Bytes that are left, below 0 if too much is held."""
        return self.part.left(self.most + self._unasked) - self.used

    @property
    def waits(self) -> bool:
        """Whether anybody waits."""
        return bool(self.waiting)

    @property
    def waited_for(self) -> bool:
        """Whether anybody waits, here or in another server of the process."""
        return bool(self.waiting) or (not self.ledger.alone and self.ledger.waits_beside(self.part))

    def refresh(self) -> None:
        """Others may hold more, or less."""
        before = self.limit
        self._reckon()
        if self.waiting and self.limit > before:
            self._wake_some()

    def others_freed(self) -> None:
        """Other servers hold less, or have nobody in favour any more."""
        self.refresh()
        if self.waiting:
            self._wake_some()

    def look_beside(self) -> None:
        """What others have freed in other threads just when it was asked for nobody has told, nor who is no more."""
        if not self.ledger.alone:
            self.ledger.look_after()
            if self.waiting:
                self.others_freed()

    def others_wait(self) -> None:
        """In another server somebody begins to wait."""
        self.watched = True
        if self.on_short is not None:
            self.on_short()

    # What shares call

    def count_unfinished(self, more: int) -> None:
        """So many bytes more (or less) of requests wait for their rest; they are parts of allowances."""
        self.unfinished += more
        self._reckon()

    def admits(self, share: Share, size: int, request: bool, over: bool, whole: bool = False) -> bool:
        """Whether a share may hold `size` bytes more."""
        if size > self.most and not whole:
            raise self.too_much(size)
        if share.held + size <= self.allowance:
            return True
        if not self.ledger.alone:
            self.refresh()
        fits = self.used + size <= self.limit or (self.ledger.relieve() and self.used + size <= self.limit)
        if share.held + size <= self.most:
            requests_fit = not request or self._requests_limit is None or self.requests < self._requests_limit
            if (requests_fit and fits) or self.favours(share):
                return True
        elif over and fits:
            return True
        elif over and whole and share.held <= self.most and self.favours(share):
            return True  # what it holds already is sent before it gets another
        self.wait(share)
        return False

    def too_much(self, size: int) -> TooMuchMemoryError:
        """The error of a connection that would hold `size` bytes."""
        return TooMuchMemoryError(
            f"it would hold {size} bytes of memory, and one connection may hold {self.most} (a quarter of "
            "connections.max.memory.bytes)"
        )

    def favours(self, share: Share) -> bool:
        """Whether a share may go on although the budget is used up: the first that asks may."""
        if self.ledger.favoured is None:
            self.favoured = share
        return self.ledger.favoured is share

    def freed(self, share: Share) -> None:
        """A share holds less."""
        favoured, ledger = self.ledger.favoured, self.ledger
        if favoured is share or self.waiting:
            # one that always has something to do may not stay in favour for ever
            if (self.used <= self.limit and ledger.favoured_part is self.part) or (
                favoured is share and share.held - share.kept <= self.allowance
            ):
                self.favoured = None
            if self.waiting:
                self._wake_some()
        if not ledger.alone:
            ledger.freed(self.part)
        self.watched = ledger.favoured_part is self.part or self.waited_for

    def wait(self, share: Share) -> None:
        """A share wants to be woken."""
        if share not in self.waiting:
            begins = not self.waiting
            self.waiting[share] = None
            self.watched = True
            self.ledger.relieve()
            if self.on_short is not None:
                self.on_short()
            if begins and not self.ledger.alone:
                self.ledger.begin_to_wait(self.part)

    def gone(self, share: Share) -> None:
        """A share was closed."""
        self._count(-1)
        self.waiting.pop(share, None)
        if self.ledger.favoured is share:
            self.favoured = None
        self._wake_some()
        if not self.ledger.alone:
            self.ledger.freed(self.part)

    def wake_next(self) -> None:
        """Let the one ask again that has waited longest, if there may be something for it."""
        self._wake_some(1)

    def _wake_some(self, most: int = _WOKEN) -> None:
        """Let those ask again that have waited longest; who does not get enough waits again, behind the others."""
        favoured = self.ledger.favoured
        if self.used >= self.limit and favoured is not None and favoured not in self.waiting:
            return
        for share in list(islice(self.waiting, most)):
            del self.waiting[share]
            share.wake()

    def __repr__(self) -> str:
        return f"<MemoryBudget {self.used} of {self.total} bytes, {len(self.waiting)} waiting>"

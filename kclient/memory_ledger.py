"""How much memory the process keeps for clients and for what is stored: one sum that all draw from who keep some.

What clients make a server keep counts on the shares of their connections, and on *accounts* by what it is: members of
groups, committed offsets, caches. Each server has a *part* with the total that its setting names; the process has the
greatest of these, and its servers have no more together. What is on accounts is not there for connections.

What may be refused has a limit of its own, and all of it three eighths of the part; of a little it is sure, whatever
connections hold. What must not be refused is counted all the same. Caches take no more than half of what nobody needs,
and give up what they hold when others need it.

A part and an account belong to one event loop: nobody else calls them, and what a part is told it hears there.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from functools import cache, partial
from typing import Final, Protocol, TypeVar
from weakref import ref

__all__ = [
    "CacheAccount",
    "Connections",
    "LimitedAccount",
    "Loop",
    "MemoryAccount",
    "MemoryLedger",
    "MemoryPart",
    "process_memory",
]

_SURE: Final = 64
"""What may be refused is sure of one part in so many of the total, each kind: all parts together, in equal shares."""
_REFUSABLE: Final = 3 / 8
"""So much of the total may all of it come to together."""
_UNUSED: Final = 2
"""One part in so many of what nobody needs may be taken for a cache."""
_GRAIN: Final = 4096
"""Connections are told when an account has changed by one part in so many of the total."""
_UNLIMITED: Final = 1 << 62
_ASKED_AGAIN: Final = 1.0
"""Seconds after which a server's loop is asked again whether it runs."""
_SILENT: Final = 10.0
"""Seconds after which a loop that has not run what it was asked to stands still."""


class Connections(Protocol):
    """What the connections of one server hold, as far as the rest of the process has to know."""

    @property
    def held(self) -> int:
        """Bytes that they hold, and those that they may take without asking."""
        ...

    @property
    def spare(self) -> int:
        """Bytes that are left for them; below 0 if they hold too much."""
        ...

    @property
    def most(self) -> int:
        """Bytes that are kept back for one connection of the process at a time."""
        ...

    @property
    def waits(self) -> bool:
        """Whether some of them wait for memory."""
        ...

    def refresh(self) -> None:
        """There is more memory for them, or less."""
        ...

    def others_freed(self) -> None:
        """Some of them wait, and those of another server hold less."""
        ...

    def others_wait(self) -> None:
        """Those of another server begin to wait: what can be given up may be."""
        ...


class Loop(Protocol):
    """An event loop, see `kclient.concurrency.LoopHandle`."""

    @property
    def is_current(self) -> bool:
        """Whether the caller runs in it."""
        ...

    def post(self, function: Callable[[], object]) -> bool:
        """Run a function soon in it; from any thread. False if it has ended."""
        ...


class MemoryAccount:
    """What things of one kind take, which cannot be refused."""

    __slots__ = ("__weakref__", "_told", "held", "ledger", "name", "part")

    def __init__(self, name: str, ledger: MemoryLedger, part: MemoryPart | None) -> None:
        self.name: str = name
        self.held: int = 0
        """Bytes."""
        self.ledger: MemoryLedger = ledger
        self.part: MemoryPart | None = part
        """Of whose total it is; None where it is of the process."""
        self._told = 0

    @property
    def claim(self) -> int:
        """Bytes that are not there for others."""
        return self.held

    def add(self, size: int) -> None:
        """Count so many bytes more (or less), whatever is left."""
        self.held = held = self.held + size
        grain = self.ledger.grain
        if not -grain < held - self._told < grain:
            self._told = held
            self.ledger.changed()

    def close(self) -> None:
        """Nothing is held any more, nor will be."""
        self.ledger.forget(self)
        self.held = 0
        self.ledger.changed()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}: {self.held} bytes>"


class LimitedAccount(MemoryAccount):
    """What things of one kind take of which more may be refused."""

    __slots__ = ("limit", "sure")

    def __init__(self, name: str, part: MemoryPart, limit: int) -> None:
        super().__init__(name, part.ledger, part)
        self.limit: int = limit
        """Bytes beyond which there is no room."""
        self.sure: int = 0
        """Bytes up to which there is room in any case: the fewer, the more parts there are."""

    def share_out(self, parts: int) -> None:
        """There are so many parts, which are sure of something each, used or not."""
        assert self.part is not None
        self.sure = min(self.part.total // _SURE // parts, self.limit)

    @property
    def claim(self) -> int:
        """Bytes that are not there for others."""
        return max(self.held, self.sure)

    def has_room(self, size: int) -> bool:
        """Whether there is room for so many bytes more; for less there always is."""
        part, after = self.part, self.held + size
        assert part is not None
        if size <= 0 or after <= self.sure:
            return True
        if after > self.limit or part.refusable + size > part.total * _REFUSABLE:
            return False
        return size <= part.spare or (self.ledger.relieve() and size <= part.spare)


class CacheAccount(MemoryAccount):
    """What a cache takes, which gives it up when it is needed elsewhere."""

    __slots__ = ("_asked", "_give_up", "_loop", "_most", "_share")

    def __init__(
        self,
        name: str,
        ledger: MemoryLedger,
        part: MemoryPart | None,
        give_up: Callable[[], object],
        *,
        share: int,
        most: int,
        loop: Loop | None = None,
    ) -> None:
        super().__init__(name, ledger, part)
        self._give_up = give_up
        self._share = share
        self._most = most
        self._loop = loop
        self._asked = float("-inf")
        """When it was asked in its loop to give up, until that is done."""

    @property
    def limit(self) -> int:
        """Bytes that it takes at most."""
        total = (self.ledger.total or _UNLIMITED) if self.part is None else self.part.total
        return min(total // self._share, self._most)

    def has_room(self, size: int) -> bool:
        """Whether it may take so many bytes more."""
        return self.held + size <= self.limit and size <= self.ledger.spare // _UNUSED

    def relieve(self) -> bool:
        """Give up what can be; False if there is nothing, or that comes to pass later, in another loop."""
        loop = self._loop if self.part is None else self.part.loop
        if not self.held:
            return False
        if loop is None or loop.is_current:
            self._give_up()
            return True
        now = self.ledger.clock()
        if now - self._asked < _SILENT:
            return False
        self._asked = now  # and again some time later: a loop that ends may have heard nothing more before
        if loop.post(self._give_up_asked):
            return False
        self._give_up()  # nobody uses it any more
        self.close()
        return True

    def _give_up_asked(self) -> None:
        self._asked = float("-inf")
        self._give_up()


class MemoryPart:
    """What one server holds, with all that is behind it; made by `MemoryLedger.part`.

    Args:
        ledger: The sum that it is of.
        total: Bytes that it may come to.
        loop: The server's, see `loop`.
    """

    def __init__(self, ledger: MemoryLedger, total: int, loop: Loop | None = None) -> None:
        self.ledger: MemoryLedger = ledger
        self.total: int = total
        self.connections: Connections | None = None
        """Of the server, once it is there."""
        self.loop: Loop | None = loop
        """The server's: what happens in other ones it hears of there, and there its caches are given up. None while it
        has no caches and no connections, and may get a loop yet."""
        self.shares: bool = False
        """Whether it has less than its total because of others, and not of what it keeps itself."""
        self._told: set[Callable[[], object]] = set()
        """What was posted to the loop and has not been heard yet."""
        self._asked = float("-inf")
        self._silent_since: float | None = None

    def account(self, name: str) -> MemoryAccount:
        """An account of what cannot be refused."""
        return self.ledger.keep(MemoryAccount(name, self.ledger, self))

    def limited(self, name: str, share: int) -> LimitedAccount:
        """An account of what may be refused: at the latest when it is one part in `share` of the total."""
        return self.ledger.keep(LimitedAccount(name, self, self.total // share))

    def cache(self, name: str, share: int, give_up: Callable[[], object], most: int = _UNLIMITED) -> CacheAccount:
        """An account of a cache, see `MemoryLedger.cache`."""
        return self.ledger.keep(CacheAccount(name, self.ledger, self, give_up, share=share, most=most))

    @property
    def refusable(self) -> int:
        """Bytes of all that may be refused."""
        return sum(
            each.held for each in self.ledger.accounts() if each.part is self and isinstance(each, LimitedAccount)
        )

    @property
    def spare(self) -> int:
        """Bytes that are left."""
        return self.left(0) if self.connections is None else self.connections.spare

    def held(self) -> dict[str, int]:
        """Bytes that are kept, by what they are for: connections, its accounts, and those of the process."""
        found = {"connections": 0 if self.connections is None else self.connections.held}
        for account in self.ledger.accounts():
            if account.part in (self, None):
                found[account.name] = found.get(account.name, 0) + account.held
        return found

    def beside(self) -> int:
        """Bytes that are kept beside connections: on its accounts and on those of the process."""
        return sum(account.claim for account in self.ledger.accounts() if account.part in (self, None))

    def left(self, kept_back: int, least: int = -_UNLIMITED) -> int:
        """Bytes that its connections may hold together.

        Args:
            kept_back: Bytes of the total that are not for all of them.
            least: Bytes that are left to connections, however much is kept beside them.
        """
        ledger = self.ledger
        own = everything = 0
        for account in ledger.accounts():
            claim = account.claim
            everything += claim
            if account.part is self:
                own += claim
        if ledger.alone:
            self.shares = False
            return max(self.total - everything - kept_back, least)
        most = greatest = 0 if self.connections is None else self.connections.most
        others = 0
        for other in ledger.parts():
            if other is not self and other.connections is not None:
                others += other.connections.held
                greatest = max(greatest, other.connections.most)
        alone = max(self.total - own - kept_back, least)
        # what is on accounts may stay for ever, and what other connections hold comes free
        together = max(ledger.total - everything - kept_back - (greatest - most), least) - others
        self.shares = together < alone
        return min(alone, together)

    def tell(self, what: Callable[[], object]) -> None:
        """Call something soon in the event loop of the server, once however often it is told meanwhile.

        A loop that stands still gathers no calls so. Nothing is called if it has ended.
        """
        if self.loop is None or self.loop.is_current:
            what()
        elif what not in self._told:
            try:
                self._told.add(what)
                self._post(partial(self._hear, what))
            except BaseException:  # a signal handler's: it may not have been posted, and is told again the next time
                self._told.discard(what)
                raise

    def _hear(self, what: Callable[[], object]) -> None:
        self._told.discard(what)  # before: it may be told again from now on
        what()

    def _post(self, what: Callable[[], object]) -> None:
        if self.loop is None or self.loop.is_current:
            what()
        elif not self.loop.post(what):
            self.close()  # nobody has

    def answers(self, now: float) -> bool:
        """Whether the server's loop runs, as far as is known: now and then it is asked. If it has ended this closes."""
        since = self._silent_since
        if now - self._asked >= (_ASKED_AGAIN if since is None else _SILENT):
            self._asked = now
            if since is None:
                self._silent_since = since = now
            self._post(self._answered)
        return since is None or now - since < _SILENT

    def _answered(self) -> None:
        self._silent_since = None

    def close(self) -> None:
        """The server has closed, and holds nothing any more."""
        self.ledger.leave(self)

    def __repr__(self) -> str:
        held = [
            f"{each.name} {each.held}" for each in self.ledger.accounts() if each.part in (self, None) and each.held
        ]
        others = len(self.ledger.parts()) - 1
        return f"<MemoryPart of {self.total} bytes beside {others} others: {', '.join(held) or 'nothing'}>"


A = TypeVar("A", bound=MemoryAccount)


class MemoryLedger:
    """The sum of a process, or of a test.

    Args:
        clock: Monotonic time in seconds, the same in all threads.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.total: int = 0
        """Bytes that everything may come to: the greatest total of a part; 0 while there is none, for no limit."""
        self.grain: int = 1
        """Bytes: accounts tell of no smaller changes."""
        self.alone: bool = True
        """Whether there is one part at most."""
        self.count: int = 1
        """How many parts there are, 1 at least."""
        self.favoured: object = None
        """The share of the connection that goes on whatever the others hold."""
        self.favoured_part: MemoryPart | None = None
        """Where that is."""
        self.clock: Callable[[], float] = clock
        """What time it is, in seconds."""
        self._lock = threading.RLock()  # a part may be collected while one is counted
        # replaced, never changed: other threads may look at them
        self._parts: tuple[ref[MemoryPart], ...] = ()
        self._accounts: tuple[ref[MemoryAccount], ...] = ()

    def part(self, total: int, loop: Loop | None = None) -> MemoryPart:
        """The part of a new server, whose total is so many bytes, and which runs in this loop."""
        made = MemoryPart(self, total, loop)
        with self._lock:
            self._set_parts((*self._parts, ref(made, self._collected)))
        return made

    def account(self, name: str) -> MemoryAccount:
        """An account of the process, of what cannot be refused."""
        return self.keep(MemoryAccount(name, self, None))

    def cache(
        self, name: str, share: int, give_up: Callable[[], object], most: int = _UNLIMITED, loop: Loop | None = None
    ) -> CacheAccount:
        """An account of a cache of the process.

        Args:
            name: What is in it.
            share: It takes one part in so many of the total at most.
            give_up: Gives up all that can be.
            most: It takes so many bytes at most, also where nobody has set a total.
            loop: Where `give_up` is called; anywhere if None.
        """
        return self.keep(CacheAccount(name, self, None, give_up, share=share, most=most, loop=loop))

    def keep(self, account: A) -> A:
        """Count an account with the others, as long as somebody has it."""
        with self._lock:
            self._accounts = (*(each for each in self._accounts if each() is not None), ref(account))
            if isinstance(account, LimitedAccount):
                account.share_out(self.count)
        self.changed()
        return account

    def forget(self, account: MemoryAccount) -> None:
        """Count an account no more."""
        with self._lock:
            self._accounts = tuple(each for each in self._accounts if each() not in (None, account))

    def leave(self, part: MemoryPart) -> None:
        """Count a part, and its accounts, no more."""
        with self._lock:
            kept = ((each, each()) for each in self._accounts)
            self._accounts = tuple(each for each, account in kept if account is not None and account.part is not part)
            self._set_parts(tuple(each for each in self._parts if each() not in (None, part)))
        if self.favoured_part is part:
            self.favour(None, None)
        self.changed()
        for other in self.parts():  # it may have been the favour alone that kept them waiting
            if other.connections is not None and other.connections.waits:
                other.tell(other.connections.others_freed)

    def _set_parts(self, parts: tuple[ref[MemoryPart], ...]) -> None:
        self._parts = parts
        while True:
            totals = [part.total for part in self.parts()]
            self.total = max(totals, default=0)
            self.grain = max(min(totals, default=0) // _GRAIN, 1)
            self.alone = len(totals) <= 1
            self.count = max(len(totals), 1)
            for account in self.accounts():
                if isinstance(account, LimitedAccount):
                    account.share_out(self.count)
            if len(totals) == len(self.parts()):  # else one was collected meanwhile
                return

    def _collected(self, _: ref[MemoryPart]) -> None:
        """A part has gone that nobody closed; this is called in any thread, amid whatever it does."""
        if not self._lock.acquire(timeout=1.0):
            return  # this is a forked child, and a thread of the parent held it
        try:
            self._set_parts(tuple(each for each in self._parts if each() is not None))
        finally:
            self._lock.release()
        for part in self.parts():
            if part.loop is not None and part.connections is not None:
                part.loop.post(part.connections.others_freed)

    def parts(self) -> list[MemoryPart]:
        """Of the servers that there are."""
        return [part for each in self._parts if (part := each()) is not None]

    def accounts(self) -> list[MemoryAccount]:
        """All of them."""
        return [account for each in self._accounts if (account := each()) is not None]

    @property
    def spare(self) -> int:
        """Bytes that any part may take yet."""
        return min((part.spare for part in self.parts()), default=_UNLIMITED)

    def favour(self, share: object, part: MemoryPart | None) -> None:
        """A connection may go on whatever the others hold; None for none."""
        self.favoured, self.favoured_part = share, part

    # What becomes of it

    def changed(self) -> None:
        """Accounts hold more, or less: there is less for connections, or more."""
        for part in self.parts():
            if part.connections is not None:
                part.tell(part.connections.refresh)

    def freed(self, part: MemoryPart) -> None:
        """Connections of a part hold less: those of others that wait may have it."""
        for other in self.parts():
            if other is not part and other.shares and other.connections is not None and other.connections.waits:
                other.tell(other.connections.others_freed)

    def begin_to_wait(self, part: MemoryPart) -> None:
        """Connections of a part have to wait: if others hold what they wait for, these give up what they can."""
        if part.shares:
            for other in self.parts():
                if other is not part and other.connections is not None:
                    other.tell(other.connections.others_wait)

    def waits_beside(self, part: MemoryPart) -> bool:
        """Whether connections of another part wait for what this one may hold."""
        return any(
            other.shares and other.connections.waits
            for other in self.parts()
            if other is not part and other.connections is not None
        )

    def look_after(self) -> bool:
        """Count those parts no more whose loops have ended, and take the favour from one whose loop stands still.

        What a loop that stands still holds counts on, since it is there. But as others may go on one by one, in favour,
        nobody waits for it for ever. False if all parts still count.
        """
        if self.alone:
            return False
        before, now = self._parts, self.clock()
        for part in self.parts():
            if not part.answers(now) and self.favoured_part is part:
                self.favour(None, None)
        return self._parts is not before

    def relieve(self) -> bool:
        """Have all caches, and servers that are no more, give up what they can; False if none does now."""
        ended = self.look_after()
        relieved = [each.relieve() for each in self.accounts() if isinstance(each, CacheAccount)]
        return ended or any(relieved)

    def __repr__(self) -> str:
        return f"<MemoryLedger of {self.total} bytes, {len(self.parts())} parts, {self.accounts()}>"


@cache
def process_memory() -> MemoryLedger:
    """The one of this process."""
    return MemoryLedger()


def _begin() -> None:
    """Make it while one thread runs: of two that ask first at the same time each would get its own."""
    process_memory.cache_clear()
    process_memory()


_begin()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin)  # what the parent keeps is not the child's

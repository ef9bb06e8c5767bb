"""The transactional ids of this gateway: what their rows say, and the commits that change them.

Rows are read when they are asked for, so memory holds what is open or being ended, and the ids that were used last. All
that is written for an id expects its row as it was read, and that no other gateway coordinates it by now. Where the
store does not say whether it has made a commit, the row is read again before anything else is done with the id.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

import anyio

from kclient.errors import NotCoordinatorError
from kclient.gateway.coordination import CoordinatorType
from kclient.gateway.rows.keys import TRANSACTIONS, parse_transaction_key, transaction_key
from kclient.gateway.rows.transactions import decode_transaction, encode_transaction
from kclient.gateway.transactions.outcomes import OutcomeRows
from kclient.htp.errors import ConflictError
from kclient.htp.rows import scan_pages
from kclient.net.fair_queue import Pace

if TYPE_CHECKING:
    from kclient.gateway.groups.writer import Claims
    from kclient.gateway.leadership import Leadership
    from kclient.gateway.ownership import HeldLease
    from kclient.gateway.producer_ids import ProducerIds
    from kclient.gateway.shields import Shields
    from kclient.gateway.transaction import Transaction
    from kclient.htp.port import Manager
    from kclient.memory_ledger import MemoryAccount
    from kclient.net.fair_queue import Flow

logger: logging.Logger = logging.getLogger("kclient.gateway.transactions")

_IDLE: Final = 10_000
"""Ids that are kept in memory though nothing is open: the next request of one need not read its row."""
_ENTRY: Final = 2_000
"""About how many bytes of memory an id takes, beside what has joined."""
_PARTITION: Final = 200
_GROUP: Final = 100
"""The same of a partition, and of a group beside its name."""

Decision: TypeAlias = "Callable[[Transaction | None, int | None], Transaction | None]"
"""What is to become of an id: is given what its row says (None if there is none), and a producer id if another one is
needed. Returns the same object if nothing is to change, and None to forget the id."""

Beside: TypeAlias = "Callable[[Transaction], Awaitable[OutcomeRows]]"
_ALONE: Final = OutcomeRows({}, {})


class Watcher(Protocol):
    """Is told what has become of ids; must not wait."""

    def changed(self, transaction: Transaction) -> None:
        """This is durable."""
        ...

    def doubted(self, transactional_id: str) -> None:
        """It is not known what is stored."""
        ...


class _Entry:
    """What is known of one id."""

    __slots__ = ("ended", "held", "known", "lock", "transaction", "transactional_id", "users", "version")

    def __init__(self, transactional_id: str) -> None:
        self.transactional_id = transactional_id
        self.lock = anyio.Lock()
        self.transaction: Transaction | None = None
        self.version = 0
        """Of its row."""
        self.known = False
        """Whether that is what is stored."""
        self.users = 0
        self.held = 0
        self.ended: anyio.Event | None = None
        """For those who wait until its ends are durable."""


class TransactionTable:
    """The transactional ids that this gateway coordinates.

    Args:
        manager: Keeps their rows.
        lease: Under which they are written.
        claims: Tell which rows say that an id is coordinated here.
        leadership: Tells which ids are.
        producer_ids: Gives out producer ids.
        shields: Keep commits from being cancelled with the requests that wait for them.
        flow: In whose turns all rows are looked through.
        memory: Where the ids count.
    """

    def __init__(
        self,
        manager: Manager,
        lease: HeldLease,
        claims: Claims,
        leadership: Leadership,
        producer_ids: ProducerIds,
        shields: Shields,
        flow: Flow,
        memory: MemoryAccount,
    ) -> None:
        self._flow = flow
        self._manager = manager
        self._lease = lease
        self._claims = claims
        self._leadership = leadership
        self._producer_ids = producer_ids
        self._shields = shields
        self._memory = memory
        self._entries: dict[str, _Entry] = {}
        self._idle: OrderedDict[str, None] = OrderedDict()
        """Those that nobody uses and of which nothing is open, the longest unused first."""
        self._round = 0
        """Grows with each generation: what was read before may be another gateway's by now."""
        self._closed = False
        self.watcher: Watcher | None = None
        leadership.on_change(self._forget)

    def __len__(self) -> int:
        return len(self._entries)

    def close(self) -> None:
        """Take nothing any more."""
        self._closed = True

    def _forget(self) -> None:
        self._round += 1
        for entry in list(self._entries.values()):
            entry.known = False
            if not entry.users:
                self._drop(entry)

    def peek(self, transactional_id: str) -> Transaction | None:
        """What is known of an id that is coordinated here, without waiting; None if it has to be read."""
        entry = self._entries.get(transactional_id)
        if (
            entry is None
            or not entry.known
            or not self._leadership.coordinates(CoordinatorType.TRANSACTION, transactional_id)
        ):
            return None
        return entry.transaction

    async def get(self, transactional_id: str) -> Transaction | None:
        """What the row of an id says; None if there is none.

        Raises:
            NotCoordinatorError: Another gateway coordinates it.
            HtpError: The store failed.
        """
        return await self.change(transactional_id, lambda found, _: found)

    async def change(
        self, transactional_id: str, decide: Decision, *, fresh: bool = False, beside: Beside | None = None
    ) -> Transaction | None:
        """Change an id: what comes back is durable. Of several changes one begins when the one before is through.

        Args:
            transactional_id: The id.
            decide: Says what it is to become; what it raises is raised. It may be called again, if the row has changed.
            fresh: Whether it is given a producer id, where the id is new or has used up its epochs.
            beside: Tells, of what the id was, what else the commit writes and expects; it is asked again if that was
                not so.

        Raises:
            NotCoordinatorError: Another gateway coordinates it.
            HtpError: The store failed; it may have been changed.
        """
        with self._using(transactional_id) as entry:
            async with entry.lock:
                with self._shields.shield():
                    return await self._change(entry, decide, fresh, beside)
        raise AssertionError("what is shielded raises where it is given up")

    async def _change(self, entry: _Entry, decide: Decision, fresh: bool, beside: Beside | None) -> Transaction | None:
        while True:
            self._check(entry.transactional_id)
            if not entry.known:
                await self._read(entry)
            found = entry.transaction
            fresh_id = None
            if fresh and (found is None or found.exhausted):
                fresh_id = await self._producer_ids.take()
                if not entry.known:
                    continue
            new = decide(found, fresh_id)
            if new is found:
                return new
            rows = _ALONE if beside is None or found is None else await beside(found)
            if entry.known and await self._commit(entry, new, rows):
                return new

    async def _commit(self, entry: _Entry, new: Transaction | None, beside: OutcomeRows) -> bool:
        """Store what an id has become; False if the row or who coordinates has changed meanwhile."""
        transactional_id = entry.transactional_id
        key = transaction_key(transactional_id)
        claimed = self._claims.of(transactional_id)
        if claimed is None:
            return False
        now = self._round
        row = None if new is None else encode_transaction(new)
        expected = {**beside.expected, **claimed, key: entry.version}
        entry.known = False
        try:
            version = await self._manager.commit({**beside.writes, key: row}, expected, lease=self._lease.current)
        except ConflictError as conflict:
            if conflict.key in claimed:
                await self._claims.renew()
            return False
        except BaseException:  # given up, too
            if self.watcher is not None:
                self.watcher.doubted(transactional_id)
            raise
        entry.transaction, entry.version = new, 0 if new is None else version
        entry.known = now == self._round
        self._count(entry)
        if entry.ended is not None and (new is None or not new.prepared):
            entry.ended.set()
            entry.ended = None
        if new is not None and self.watcher is not None:
            self.watcher.changed(new)
        return True

    async def _read(self, entry: _Entry) -> None:
        key = transaction_key(entry.transactional_id)
        while not entry.known:
            now = self._round
            row = (await self._manager.get([key])).get(key)
            entry.transaction, entry.version = None, 0
            if row is not None:
                entry.version = row.version
                try:
                    entry.transaction = decode_transaction(row.value, entry.transactional_id)
                except ValueError as error:
                    logger.error(
                        "the row of transactional.id %s cannot be read: its next producer begins with a new producer "
                        "id. If a transaction of it was open, it has to be aborted by hand (%s)",
                        entry.transactional_id[:300], error,
                    )  # fmt: skip
            entry.known = now == self._round
            self._count(entry)
            self._check(entry.transactional_id)

    def _check(self, transactional_id: str) -> None:
        if self._closed:
            raise NotCoordinatorError("the gateway is closing")
        if not self._leadership.coordinates(CoordinatorType.TRANSACTION, transactional_id):
            other = self._leadership.coordinator_id(CoordinatorType.TRANSACTION, transactional_id)
            raise NotCoordinatorError(f"the gateway with node.id={other} coordinates {transactional_id[:300]!r}")

    async def look_through(self, look: Callable[[Transaction], object]) -> None:
        """Read the rows of all ids that are coordinated here, in slices. Raises `HtpError` if the store fails.

        Args:
            look: Is given each; must not wait.
        """
        pace = Pace(self._flow)
        async for page in scan_pages(self._manager, TRANSACTIONS):
            for key, row in page.items():
                transactional_id = parse_transaction_key(key)
                if self._leadership.coordinates(CoordinatorType.TRANSACTION, transactional_id):
                    try:
                        look(decode_transaction(row.value, transactional_id))
                    except ValueError as error:
                        logger.error("%s cannot be read: a transaction of it is not ended (%s)", key[:300], error)
                if pace.over:
                    await pace.pause()

    async def ended(self, transactional_id: str, seconds: float) -> bool:
        """Wait until no ends of an id are being written; whether that is so in time."""
        with self._using(transactional_id) as entry, anyio.move_on_after(max(seconds, 0.0)):
            while entry.known and entry.transaction is not None and entry.transaction.prepared:
                entry.ended = entry.ended or anyio.Event()
                await entry.ended.wait()
            return True
        return False

    # What is kept in memory

    @contextmanager
    def _using(self, transactional_id: str) -> Iterator[_Entry]:
        entry = self._entries.get(transactional_id)
        if entry is None:
            entry = self._entries[transactional_id] = _Entry(transactional_id)
        self._idle.pop(transactional_id, None)
        entry.users += 1
        try:
            yield entry
        finally:
            entry.users -= 1
            if not entry.users and self._entries.get(transactional_id) is entry:
                self._rest(entry)

    def _rest(self, entry: _Entry) -> None:
        found = entry.transaction
        if not entry.known or found is None:
            self._drop(entry)
        elif found.idle:
            self._idle[entry.transactional_id] = None
            if len(self._idle) > _IDLE:
                self._drop(self._entries[next(iter(self._idle))])

    def _drop(self, entry: _Entry) -> None:
        self._idle.pop(entry.transactional_id, None)
        del self._entries[entry.transactional_id]
        self._memory.add(-entry.held)
        entry.held = 0

    def _count(self, entry: _Entry) -> None:
        found = entry.transaction
        held = _ENTRY + 4 * len(entry.transactional_id)
        if found is not None:
            held += _PARTITION * len(found.partitions) + sum(_GROUP + 4 * len(each) for each in found.groups)
        self._memory.add(held - entry.held)
        entry.held = held

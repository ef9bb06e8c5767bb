"""Ends transactions: writes the ends of those that are decided, and aborts those whose time is over.

What is decided is finished, whatever happens: the ends of a transaction are asked for again until each is durable,
wherever its partition has moved, and by whoever coordinates the id by then.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

import anyio

from kclient.errors import ClosedError, ErrorCode, KafkaError, NotCoordinatorError
from kclient.gateway.coordination import CoordinatorType
from kclient.gateway.groups.clockwork import Clockwork
from kclient.gateway.peers import EndOfTransaction
from kclient.gateway.transaction_states import CoordinatedState
from kclient.htp.errors import FencedError
from kclient.records import EndMarker

if TYPE_CHECKING:
    from kclient.gateway.clock import Clock
    from kclient.gateway.leadership import Leadership
    from kclient.gateway.partition_id import PartitionId
    from kclient.gateway.peers import Peers
    from kclient.gateway.transaction import ProducerIdentity, Transaction
    from kclient.gateway.transactions.outcomes import GroupOutcomes
    from kclient.gateway.transactions.table import TransactionTable

logger: logging.Logger = logging.getLogger("kclient.gateway.transactions")

_FIRST_PAUSE_S: Final = 0.02
_LONGEST_PAUSE_S: Final = 1.0
"""Seconds until what has failed is tried again."""
_TOLD_AFTER: Final = 5
"""So many tries fail before the log says so: a partition that moves takes a moment."""
_SETTLED: Final = frozenset(
    {
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,  # it was deleted
        ErrorCode.INVALID_PRODUCER_EPOCH,  # a later end is there, which has ended this one too
    }
)
"""Outcomes of a partition for which nothing is left to do."""


class TransactionEnding:
    """Ends the transactions of this gateway. Implements `Watcher`.

    Args:
        table: The transactional ids.
        leadership: Tells which ids are coordinated here.
        peers: Have the leaders of partitions append ends.
        outcomes: Applies the offsets of groups.
        clock: What time it is.
        spawn: Starts a task of the gateway.
    """

    def __init__(
        self,
        table: TransactionTable,
        leadership: Leadership,
        peers: Peers,
        outcomes: GroupOutcomes,
        clock: Clock,
        spawn: Callable[..., object],
    ) -> None:
        self._table = table
        self._leadership = leadership
        self._peers = peers
        self._outcomes = outcomes
        self._clock = clock
        self._spawn = spawn
        self._clockwork: Clockwork[str] = Clockwork(clock)
        self._finishing: set[str] = set()
        self._again: set[str] = set()
        """Of those the ones that are to be looked at once more, since something has come meanwhile."""
        self._loaded = 0
        """What is coordinated here since this generation, or an earlier one, has been looked through."""
        self._news = anyio.Event()
        leadership.on_change(self._tell)
        table.watcher = self

    def _tell(self) -> None:
        news, self._news = self._news, anyio.Event()
        news.set()

    async def start(self) -> None:
        """Take up what is open or decided. Raises `HtpError` if the store fails."""
        await self._load()
        self._spawn(self._follow, name="transactions that move")
        self._spawn(self._keep_time, name="transaction time-outs")

    async def _keep_time(self) -> None:
        await self._clockwork.run(self._time_over)

    async def _follow(self) -> None:
        while True:
            news = self._news
            try:
                await self._load()
            except ClosedError:
                return
            except KafkaError as error:
                logger.warning("the transactions that move here cannot be read, it is tried again: %s", error)
                await anyio.sleep(_LONGEST_PAUSE_S)
                continue
            await news.wait()

    async def _load(self) -> None:
        number = self._leadership.generation
        if number <= self._loaded:
            return
        await self._table.look_through(self._take_up)
        self._loaded = number

    def _take_up(self, transaction: Transaction) -> None:
        if not transaction.idle:
            self.changed(transaction)

    def changed(self, transaction: Transaction) -> None:
        """Heed a transaction's time, or write its ends."""
        transactional_id = transaction.transactional_id
        if transaction.state is CoordinatedState.ONGOING:
            left = transaction.start_ms + transaction.timeout_ms - self._clock.wall_ms()
            self._clockwork.schedule(transactional_id, self._clock.now() + max(left, 0) / 1000)
            return
        self._clockwork.cancel(transactional_id)
        if transaction.prepared:
            self._finish_soon(transactional_id)

    def doubted(self, transactional_id: str) -> None:
        """Look at the row until it can be read."""
        self._finish_soon(transactional_id)

    def _finish_soon(self, transactional_id: str) -> None:
        if transactional_id in self._finishing:
            self._again.add(transactional_id)
        else:
            self._finishing.add(transactional_id)
            self._spawn(self._finish, transactional_id, name="end a transaction")

    async def _finish(self, transactional_id: str) -> None:
        try:
            while True:
                self._again.discard(transactional_id)
                await self._finish_all(transactional_id)
                if transactional_id not in self._again:
                    return
        finally:
            self._finishing.discard(transactional_id)
            self._again.discard(transactional_id)

    async def _finish_all(self, transactional_id: str) -> None:
        written: set[PartitionId] = set()
        whose: tuple[ProducerIdentity | None, int] | None = None
        pause, tries = _FIRST_PAUSE_S, 0
        while True:
            try:
                found = await self._table.get(transactional_id)
                if found is None or not found.prepared:
                    if found is not None and not found.idle:
                        self.changed(found)  # the outcome of a commit was not known: its time counts
                    return
                if whose != (found.marker, found.start_ms):
                    written, whose = set(), (found.marker, found.start_ms)
                written |= await self._write(found, found.partitions - written)
                if written >= found.partitions:
                    await self._table.change(transactional_id, self._completed, beside=self._outcomes.rows)
                    self._peers.tell_outcome(found.groups)
                    return
                problem = f"{len(found.partitions - written)} partitions have no durable end yet"
            except (NotCoordinatorError, FencedError, ClosedError):
                return  # whoever coordinates it goes on
            except KafkaError as error:
                problem = str(error)
            tries += 1
            if tries == _TOLD_AFTER:
                logger.warning("the transaction of %s is not ended yet: %s", transactional_id[:300], problem)
            await anyio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE_S)

    def _completed(self, found: Transaction | None, _fresh_id: int | None) -> Transaction | None:
        return found.completed(self._clock.wall_ms()) if found is not None and found.prepared else found

    async def _write(self, transaction: Transaction, partitions: Iterable[PartitionId]) -> set[PartitionId]:
        """Have the ends of a transaction appended; where they are durable, or not needed any more."""
        wanted = sorted(partitions)
        marker = transaction.marker
        if not wanted or marker is None:
            return set()
        epoch = self._leadership.coordinator_epoch(CoordinatorType.TRANSACTION, transaction.transactional_id)
        end = EndOfTransaction(
            marker.producer_id,
            marker.epoch,
            EndMarker(transaction.committed, coordinator_epoch=epoch),
            wanted,
            transaction.version,
        )
        (outcomes,) = await self._peers.write_markers([end])
        return {each for each, code in outcomes.items() if code in _SETTLED}

    def _time_over(self, transactional_id: str, now: float) -> None:
        self._spawn(self._abort, transactional_id, name="abort a transaction")

    async def _abort(self, transactional_id: str) -> None:
        def decide(found: Transaction | None, fresh_id: int | None) -> Transaction | None:
            now_ms = self._clock.wall_ms()
            if found is None or not found.timed_out(now_ms):
                return found
            logger.info("%s was open for longer than %d ms and is aborted", found, found.timeout_ms)
            return found.fenced(now_ms, fresh_id, recoverable=True)

        try:
            found = await self._table.change(transactional_id, decide, fresh=True)
        except (NotCoordinatorError, FencedError, ClosedError):
            return
        except KafkaError as error:
            logger.warning("a transaction whose time is over cannot be aborted, it is tried again: %s", error)
            self._clockwork.schedule(transactional_id, self._clock.now() + _LONGEST_PAUSE_S)
            return
        if found is not None and found.state is CoordinatedState.ONGOING:
            self.changed(found)

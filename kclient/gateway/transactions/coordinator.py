"""The transaction coordinator of one gateway: what producers and leaders of partitions ask of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from kclient.errors import (
    ConcurrentTransactionsError,
    ErrorCode,
    InvalidPidMappingError,
    InvalidRequestError,
    InvalidTxnTimeoutError,
)
from kclient.gateway.transaction import ProducerIdentity, Transaction
from kclient.gateway.transactions.ending import TransactionEnding
from kclient.gateway.transactions.expiry import TransactionExpiry
from kclient.gateway.transactions.outcomes import GroupOutcomes
from kclient.gateway.transactions.table import TransactionTable

if TYPE_CHECKING:
    from kclient.gateway.clock import Clock
    from kclient.gateway.config import Live
    from kclient.gateway.groups.writer import Claims
    from kclient.gateway.leadership import Leadership
    from kclient.gateway.ownership import HeldLease
    from kclient.gateway.partition_id import PartitionId
    from kclient.gateway.peers import Outcomes, Peers, TransactionOf
    from kclient.gateway.producer_ids import ProducerIds
    from kclient.gateway.shields import Shields
    from kclient.gateway.transactions.settings import TransactionSettings
    from kclient.htp.port import Manager
    from kclient.memory_ledger import MemoryAccount
    from kclient.net.fair_queue import Flow

T = TypeVar("T")

_PATIENCE_S: Final = 0.1
"""Seconds that a request waits for the transaction before to be completed, before its client is told to ask again."""


class Joining(NamedTuple):
    """What waits to join a transaction."""

    partitions: Collection[PartitionId]
    groups: Collection[str]


class TransactionCoordinator:
    """Coordinates the transactions whose ids are this gateway's. Implements `peers.TransactionVerifier`.

    Args:
        settings: Those of the broker, as they are at the time.
        leadership: Tells which ids are coordinated here.
        manager: Keeps their rows.
        lease: Under which they are written.
        claims: Tell which rows say that an id is coordinated here.
        producer_ids: Gives out producer ids.
        shields: Keep commits from being cancelled.
        flow: In whose turns all rows are looked through.
        clock: What time it is.
        memory: Where ids count.
        spawn: Starts a task of the gateway.
    """

    def __init__(
        self,
        settings: Live[TransactionSettings],
        leadership: Leadership,
        *,
        manager: Manager,
        lease: HeldLease,
        claims: Claims,
        producer_ids: ProducerIds,
        shields: Shields,
        flow: Flow,
        clock: Clock,
        memory: MemoryAccount,
        spawn: Callable[..., object],
    ) -> None:
        self._settings = settings
        self._leadership = leadership
        self._clock = clock
        self._spawn = spawn
        self._outcomes = GroupOutcomes(manager, flow)
        self._joining: dict[tuple[str, ProducerIdentity, int], list[Joining]] = {}
        """What waits to join, of each producer and version of the protocol."""
        self.table: TransactionTable = TransactionTable(
            manager, lease, claims, leadership, producer_ids, shields, flow, memory
        )
        self._expiry = TransactionExpiry(self.table, clock, settings)

    def reconfigure(self) -> None:
        """Take over changed broker settings."""
        self._expiry.reconfigure()

    async def start(self, peers: Peers) -> None:
        """Take up what is open or decided; the catalogue of topics has been loaded before.

        Args:
            peers: Know the leaders of partitions.

        Raises:
            HtpError: The store failed.
        """
        ending = TransactionEnding(self.table, self._leadership, peers, self._outcomes, self._clock, self._spawn)
        await ending.start()
        self._spawn(self._expiry.run, name="transactional ids that expire")

    def close(self) -> None:
        """Take nothing any more. What is decided stays in its row, and is finished by whoever goes on."""
        self.table.close()

    async def initialize(
        self, transactional_id: str, expected: ProducerIdentity | None, timeout_ms: int
    ) -> ProducerIdentity:
        """Give a producer its identity.

        Args:
            transactional_id: Of the producer.
            expected: The one that it has, if it asks for the next one.
            timeout_ms: How long its transactions may be open.

        Raises:
            KafkaError: See `Transaction.initialized`; or the id or the time-out is none.
            HtpError: The store failed.
        """
        if not transactional_id:
            raise InvalidRequestError("transactional.id is empty")
        longest = self._settings().transaction_max_timeout_ms
        if not 0 < timeout_ms <= longest:
            raise InvalidTxnTimeoutError(
                f"transaction.timeout.ms={timeout_ms} is not between 1 and transaction.max.timeout.ms={longest}"
            )

        def decide(found: Transaction | None, fresh_id: int | None) -> Transaction:
            now_ms = self._clock.wall_ms()
            if found is None:
                assert fresh_id is not None, "the table takes one for an id that is new"
                found = Transaction.new(transactional_id, fresh_id, timeout_ms, now_ms)
            return found.initialized(expected, timeout_ms, now_ms, fresh_id)

        async def attempt() -> ProducerIdentity:
            new = await self.table.change(transactional_id, decide, fresh=True)
            assert new is not None, "it is not forgotten"
            if new.prepared:  # what was open is being aborted
                raise ConcurrentTransactionsError(f"{new}: the transaction before is being aborted")
            return new.producer

        return await self._patiently(transactional_id, attempt)

    async def join(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        partitions: Collection[PartitionId],
        groups: Collection[str] = (),
        *,
        version: int,
    ) -> None:
        """Add partitions and groups to a producer's transaction, durably. Raises as `Transaction.joined`.

        Those that wait while a commit is under way all join by the next one: a producer of many partitions sends the
        first batch of each at the same time.

        Args:
            transactional_id: Of the producer.
            producer: Which it is.
            partitions: Which partitions.
            groups: Which groups.
            version: Of the protocol.
        """

        def decide(found: Transaction | None, _: int | None) -> Transaction:
            known = _known(found, transactional_id)
            if known.has_joined(producer, partitions, groups):
                return known
            joining = self._joining[whose]
            return known.joined(
                producer,
                set(partitions).union(*(each.partitions for each in joining)),
                set(groups).union(*(each.groups for each in joining)),
                version=version,
                now_ms=self._clock.wall_ms(),
            )

        async def attempt() -> None:
            await self.table.change(transactional_id, decide)

        whose = (transactional_id, producer, version)
        found = self.table.peek(transactional_id)
        if found is not None and found.has_joined(producer, partitions, groups):
            return
        mine = Joining(partitions, groups)
        self._joining.setdefault(whose, []).append(mine)
        try:
            await self._patiently(transactional_id, attempt)
        finally:
            waiting = self._joining[whose]
            waiting.remove(mine)
            if not waiting:
                del self._joining[whose]

    async def verify(self, transaction: TransactionOf, partitions: Collection[PartitionId], *, add: bool) -> Outcomes:
        """Whether partitions are in a transaction; TRANSACTION_ABORTABLE for those that are not, and are not added."""
        transactional_id, producer = transaction.transactional_id, ProducerIdentity(*transaction[1:])
        if add:
            await self.join(transactional_id, producer, partitions, version=2)
            return dict.fromkeys(partitions, ErrorCode.NONE)
        found = self.table.peek(transactional_id) or await self.table.get(transactional_id)
        missing = set(_known(found, transactional_id).verify(producer, partitions))
        return {each: ErrorCode.TRANSACTION_ABORTABLE if each in missing else ErrorCode.NONE for each in partitions}

    async def join_group(self, transaction: TransactionOf, group_id: str) -> None:
        """Add a group to a transaction, of version 2. Raises as `join`."""
        await self.join_groups(transaction, (group_id,))

    async def join_groups(self, transaction: TransactionOf, group_ids: Collection[str]) -> None:
        """Add groups to a transaction, of version 2. Raises as `join`."""
        transactional_id, producer = transaction.transactional_id, ProducerIdentity(*transaction[1:])
        await self.join(transactional_id, producer, (), group_ids, version=2)

    async def end(
        self, transactional_id: str, producer: ProducerIdentity, *, commit: bool, version: int
    ) -> ProducerIdentity:
        """Commit or abort a producer's transaction: it is decided, durably, when this returns.

        Args:
            transactional_id: Of the producer.
            producer: Which it is.
            commit: Which of both.
            version: Of the protocol.

        Returns:
            What the producer is from now on.

        Raises:
            KafkaError: See `Transaction.ended`.
            HtpError: The store failed.
        """

        def decide(found: Transaction | None, fresh_id: int | None) -> Transaction:
            return _known(found, transactional_id).ended(
                producer, commit=commit, version=version, now_ms=self._clock.wall_ms(), fresh_id=fresh_id
            )

        new = await self.table.change(transactional_id, decide, fresh=True)
        assert new is not None, "it is not forgotten"
        return new.producer

    def open_for(self, transaction: Transaction, duration_ms: int) -> bool:
        """Whether a transaction has been open, or is being ended, for longer than this."""
        return transaction.start_ms >= 0 and self._clock.wall_ms() - transaction.start_ms > duration_ms

    async def _patiently(self, transactional_id: str, attempt: Callable[[], Awaitable[T]]) -> T:
        """Ask again once the transaction before is completed, which mostly takes a moment."""
        until = self._clock.now() + _PATIENCE_S
        while True:
            try:
                return await attempt()
            except ConcurrentTransactionsError:
                if not await self.table.ended(transactional_id, until - self._clock.now()):
                    raise
                if self._clock.now() >= until:
                    raise


def _known(found: Transaction | None, transactional_id: str) -> Transaction:
    if found is None:
        raise InvalidPidMappingError(f"transactional.id {transactional_id[:300]!r} is not known, or has been forgotten")
    return found

"""The state machine of one transactional id, without I/O or clock.

It is a value: what happens makes another one of it, which counts once its row is durable. What must not happen raises
Kafka's error, and changes nothing.

A producer is known by its id and epoch, its *identity*. With version 2 of the protocol (KIP-890) each end gives it the
next one, so that whatever was delayed is known to be of an earlier transaction; the identity before is kept for
requests that are sent again because their answer was lost. With version 1 an end leaves it as it is.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, NoReturn

from kclient.errors import (
    ConcurrentTransactionsError,
    InvalidPidMappingError,
    InvalidTxnStateError,
    ProducerFencedError,
    TransactionAbortableError,
)
from kclient.gateway.partition_id import PartitionId
from kclient.gateway.transaction_states import (
    COMMITTING,
    COORDINATED_TABLE,
    IDLE,
    PREPARED,
    CoordinatedEvent,
    CoordinatedState,
)
from kclient.state_tables import next_state

LAST_EPOCH: Final = 32766
"""The greatest epoch that a producer is given. One more is left to write the ends of its last transaction under."""

_MAX_GROUPS: Final = 1 << 20
"""So long all ids of a transaction's groups may be, `_GROUP` added to each: all are written anew when one joins."""
_GROUP: Final = 100


class ProducerIdentity(NamedTuple):
    """What tells a producer from those before it."""

    producer_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Transaction:
    """A transactional id: its producer, and its transaction.

    Args:
        transactional_id: The id.
        state: Of its transaction.
        producer: Who may use it; its epoch is -1 until it is told to anybody.
        last: The identity before, as long as a request of it may be sent again; None if it would be a zombie's.
        marker: Under which the ends are written; None unless they are to be.
        version: Of the protocol by which the transaction was begun, and then by which it ended, 1 or 2: with 2 its ends
            have a greater epoch than its batches.
        timeout_ms: How long a transaction may be open.
        start_ms: When it began, by the wall clock; -1 if none is open or ending.
        update_ms: When it changed last.
        partitions: Those that have joined.
        groups: The groups whose offsets have joined.
    """

    transactional_id: str
    state: CoordinatedState
    producer: ProducerIdentity
    timeout_ms: int
    update_ms: int
    last: ProducerIdentity | None = None
    marker: ProducerIdentity | None = None
    version: int = 1
    start_ms: int = -1
    partitions: frozenset[PartitionId] = frozenset()
    groups: frozenset[str] = frozenset()

    @classmethod
    def new(cls, transactional_id: str, producer_id: int, timeout_ms: int, now_ms: int) -> Transaction:
        """One that nobody has used before, or not for long."""
        return cls(transactional_id, CoordinatedState.EMPTY, ProducerIdentity(producer_id, -1), timeout_ms, now_ms)

    @property
    def prepared(self) -> bool:
        """Whether it is decided, and its ends are being written."""
        return self.state in PREPARED

    @property
    def idle(self) -> bool:
        """Whether nothing belongs to a transaction."""
        return self.state in IDLE

    @property
    def committed(self) -> bool:
        """Whether it is, or was, committed."""
        return self.state in COMMITTING

    @property
    def exhausted(self) -> bool:
        """Whether the next identity needs another producer id."""
        return self.producer.epoch >= LAST_EPOCH

    def _with(self, event: CoordinatedEvent, now_ms: int) -> Transaction:
        state = next_state(COORDINATED_TABLE, self.state, event, f"transactional.id {self.transactional_id!r}")
        return replace(self, state=state, update_ms=now_ms)

    def _next(self, fresh_id: int | None) -> ProducerIdentity:
        if not self.exhausted:
            return ProducerIdentity(self.producer.producer_id, self.producer.epoch + 1)
        assert fresh_id is not None, "the epochs of this producer id are used up"
        return ProducerIdentity(fresh_id, 0)

    # InitProducerId

    def initialized(
        self, expected: ProducerIdentity | None, timeout_ms: int, now_ms: int, fresh_id: int | None = None
    ) -> Transaction:
        """Give a producer the next identity.

        An open transaction is aborted first: what comes back is prepared then, and has to be completed before this is
        called again.

        Args:
            expected: The identity that the producer has, to get the next one after an error (KIP-360); None for one
                that begins, and fences who was there before.
            timeout_ms: How long its transactions may be open.
            now_ms: The time.
            fresh_id: A producer id that nobody had, if `exhausted`.

        Raises:
            ConcurrentTransactionsError: The transaction before is being ended.
            ProducerFencedError: Another producer has taken it over.
        """
        known = expected is not None and self.producer.epoch >= 0
        if known and expected not in {self.producer, self.last}:
            self._fenced_out(expected)
        if self.prepared:
            raise ConcurrentTransactionsError(f"{self!s}: its transaction is being ended")
        again = known and expected == self.last
        if self.state is CoordinatedState.ONGOING:
            if again:  # it has been begun by whoever got that identity
                self._fenced_out(expected)
            return self.fenced(now_ms, fresh_id, recoverable=known)
        started = replace(self._with(CoordinatedEvent.INITIALIZED, now_ms), timeout_ms=timeout_ms)
        if again:
            return started
        return replace(started, producer=self._next(fresh_id), last=self.producer if known else None)

    def fenced(self, now_ms: int, fresh_id: int | None = None, *, recoverable: bool) -> Transaction:
        """Abort an open transaction, though its producer has not asked for it, and give it the next identity.

        Args:
            now_ms: The time.
            fresh_id: A producer id that nobody had, if `exhausted`.
            recoverable: Whether the producer may still end its transaction, by which it learns of the identity.
        """
        ends = replace(self._with(CoordinatedEvent.ABORTED, now_ms), last=self.producer if recoverable else None)
        return replace(ends, producer=self._next(fresh_id), marker=self._bumped(), version=2)

    def timed_out(self, now_ms: int) -> bool:
        """Whether it is open for longer than it may be."""
        return self.state is CoordinatedState.ONGOING and now_ms - self.start_ms >= self.timeout_ms

    # What belongs to it

    def joined(
        self,
        producer: ProducerIdentity,
        partitions: Collection[PartitionId],
        groups: Collection[str],
        *,
        version: int,
        now_ms: int,
    ) -> Transaction:
        """Partitions and groups join its transaction, which begins with the first.

        Args:
            producer: Who asks.
            partitions: Which partitions.
            groups: Which groups.
            version: Of the protocol.
            now_ms: The time.

        Returns:
            This one, if all have joined already.

        Raises:
            InvalidPidMappingError, ProducerFencedError: It is another producer's.
            ConcurrentTransactionsError: The transaction before is being ended.
            TransactionAbortableError: There are too many groups in it.
        """
        if self.has_joined(producer, partitions, groups):
            return self
        self._check(producer)
        together = self.groups.union(groups)
        if len(together) > len(self.groups) and sum(map(len, together)) + _GROUP * len(together) > _MAX_GROUPS:
            raise TransactionAbortableError(
                f"{self!s}: {len(self.groups)} groups have joined, and no more fit in: commit their offsets by several "
                "transactions, or with shorter group ids"
            )
        start_ms = self.start_ms if self.state is CoordinatedState.ONGOING else now_ms
        return replace(
            self._with(CoordinatedEvent.JOINED, now_ms),
            partitions=self.partitions.union(partitions),
            groups=together,
            version=version,
            start_ms=start_ms,
        )

    def has_joined(
        self, producer: ProducerIdentity, partitions: Collection[PartitionId], groups: Collection[str]
    ) -> bool:
        """Whether all of these belong to its open transaction, which is this producer's."""
        return (
            self.state is CoordinatedState.ONGOING
            and producer == self.producer
            and self.partitions.issuperset(partitions)
            and self.groups.issuperset(groups)
        )

    def verify(self, producer: ProducerIdentity, partitions: Collection[PartitionId]) -> list[PartitionId]:
        """Which of these partitions are not in its transaction. Raises as `joined`."""
        self._check(producer)
        return [each for each in partitions if each not in self.partitions]

    def _check(self, producer: ProducerIdentity) -> None:
        if producer != self.producer:
            self._refused(producer)
        if self.prepared:
            raise ConcurrentTransactionsError(f"{self!s}: the transaction before is being ended")

    # Its end

    def ended(
        self, producer: ProducerIdentity, *, commit: bool, version: int, now_ms: int, fresh_id: int | None = None
    ) -> Transaction:
        """Its producer commits or aborts its transaction.

        Args:
            producer: Who asks.
            commit: Which of both.
            version: Of the protocol by which it asks: with 2 it gets the next identity.
            now_ms: The time.
            fresh_id: A producer id that nobody had, if `exhausted`.

        Returns:
            One that is prepared, or, where nothing had joined, aborted. This one, if it was asked for again.

        Raises:
            InvalidPidMappingError, ProducerFencedError: It is another producer's, or a later transaction.
            InvalidTxnStateError: There is none, or the opposite has been decided.
            ConcurrentTransactionsError: The transaction before is being ended.
        """
        again = version >= 2 and producer == self.last
        if not again and producer != self.producer:
            self._refused(producer)
        if self.state is CoordinatedState.ONGOING:
            if again:
                self._fenced_out(producer)
            event = CoordinatedEvent.COMMITTED if commit else CoordinatedEvent.ABORTED
            ends = replace(self._with(event, now_ms), version=version)
            if version < 2:
                return replace(ends, marker=self.producer)
            return replace(ends, producer=self._next(fresh_id), last=self.producer, marker=self._bumped())
        if self.state is CoordinatedState.EMPTY and again:
            self._fenced_out(producer)
        if self.state is not CoordinatedState.EMPTY and (again or version < 2):  # it is asked for again
            if self.committed is commit:
                return self
            raise InvalidTxnStateError(f"{self!s}: the opposite has been decided")
        if self.prepared:
            raise ConcurrentTransactionsError(f"{self!s}: the transaction before is being ended")
        if commit or version < 2:
            raise InvalidTxnStateError(f"{self!s}: there is no transaction to end")
        # It does not know whether anything has joined. What comes late of it is refused from now on.
        aborted = replace(self._with(CoordinatedEvent.NOTHING_ABORTED, now_ms), version=version)
        return replace(aborted, producer=self._next(fresh_id), last=self.producer)

    def _bumped(self) -> ProducerIdentity:
        return ProducerIdentity(self.producer.producer_id, self.producer.epoch + 1)

    def completed(self, now_ms: int) -> Transaction:
        """All ends are durable."""
        done = self._with(CoordinatedEvent.ENDED, now_ms)
        return replace(done, marker=None, start_ms=-1, partitions=frozenset(), groups=frozenset())

    def expired(self, now_ms: int, expiration_ms: int) -> bool:
        """Whether it may be forgotten, since nobody has used it for so long."""
        return self.idle and now_ms - self.update_ms >= expiration_ms

    # What is refused

    def _refused(self, producer: ProducerIdentity) -> NoReturn:
        ids = {self.producer.producer_id, self.last.producer_id if self.last else self.producer.producer_id}
        if producer.producer_id not in ids:
            raise InvalidPidMappingError(f"{self!s}: producer id {producer.producer_id} is not its own")
        self._fenced_out(producer)

    def _fenced_out(self, producer: ProducerIdentity | None) -> NoReturn:
        raise ProducerFencedError(f"{self!s}: {producer} is not the newest")

    def __str__(self) -> str:
        return f"transactional.id {self.transactional_id[:300]!r} ({self.state.value}, {self.producer})"

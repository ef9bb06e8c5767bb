"""A producer's transactions: a state machine without I/O or clock.

The meaning is that of Java's `TransactionManager`. It decides whether a call or a batch may go on, and what has to be
asked of the coordinator; `TransactionDriver` asks. Its methods belong to the event loop's thread, except `refusal`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kclient.errors import IllegalStateError, KafkaError, TransactionAbortableError, TransactionAbortedError
from kclient.producer.producer_id import NO_PRODUCER_ID, ProducerIdAndEpoch
from kclient.producer.states import TRANSACTION_TABLE, TransactionEvent, TransactionState
from kclient.producer.transaction_errors import FATAL, TransactionRequest, kind_of
from kclient.state_tables import next_state

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from kclient.producer.batch import ProducerBatch
    from kclient.producer.producer_id import ProducerIdState
    from kclient.types import TopicPartition

V1: Final = 1
"""Partitions and groups are added before what they hold is sent; the epoch stays."""
V2: Final = 2
"""Produce and TxnOffsetCommit add them; each end bumps the epoch (KIP-890)."""

_ADDING: Final = frozenset(
    {TransactionState.IN_TRANSACTION, TransactionState.COMMITTING, TransactionState.HANDING_OVER}
)
_GIVING_UP: Final = frozenset({TransactionState.ABORTABLE_ERROR, TransactionState.ABORTING})

_CALLS: Final = {
    TransactionEvent.INIT: "init_transactions",
    TransactionEvent.BEGIN: "begin_transaction",
    TransactionEvent.COMMIT: "commit_transaction",
    TransactionEvent.ABORT: "abort_transaction",
    TransactionEvent.HAND_OVER: "hand_over",
}
_REASONS: Final = {
    TransactionState.UNINITIALIZED: "init_transactions has not been called",
    TransactionState.INITIALIZING: "init_transactions is under way; call it again to wait for it",
    TransactionState.READY: "no transaction is open; call begin_transaction",
    TransactionState.IN_TRANSACTION: "a transaction is open; commit or abort it",
    TransactionState.COMMITTING: "the transaction is being committed; call commit_transaction again to wait for it",
    TransactionState.ABORTING: "the transaction is being aborted; call abort_transaction again to wait for it",
    TransactionState.HANDING_OVER: "the transaction is being handed over; call hand_over again to wait for it",
    TransactionState.HANDED_OVER: "the transaction was handed over for another producer to end; close this one",
}


class TransactionManager:
    """The transactions of one producer.

    Args:
        transactional_id: `transactional.id`.
        producer_id_state: Numbers the batches.
    """

    def __init__(self, transactional_id: str, producer_id_state: ProducerIdState) -> None:
        self.transactional_id: str = transactional_id
        self.state: TransactionState = TransactionState.UNINITIALIZED
        self.version: int = V1
        """Which generation of the protocol the present transaction speaks."""
        self.error: KafkaError | None = None
        """Why the transaction has to be aborted, or the producer cannot go on."""
        self.listeners: list[Callable[[], None]] = []
        """Called after each change of the state."""
        self.number: int = 0
        """Grows with each transaction."""
        self._ids = producer_id_state
        self._new: dict[TopicPartition, None] = {}
        """Partitions that wait to be added, in the order in which they were wanted."""
        self._asked: frozenset[TopicPartition] = frozenset()
        """Partitions that the coordinator is being asked to add."""
        self._added: set[TopicPartition] = set()
        self._groups: set[str] = set()
        self._started = False
        """Whether the coordinator may know of the transaction."""
        self._gap = False
        """Whether leaders may miss batches, so that what follows needs a new epoch (version 1)."""
        self._bump_wanted = False
        """Whether a new epoch would keep late requests out (version 1)."""

    def _on(self, event: TransactionEvent) -> None:
        self.state = next_state(TRANSACTION_TABLE, self.state, event, "transaction")
        for listener in self.listeners:
            listener()

    # ------------------------------------------------------------------ calls

    @property
    def identity(self) -> ProducerIdAndEpoch:
        """The producer's id and epoch."""
        return self._ids.identity

    def check(self, event: TransactionEvent) -> None:
        """Raise if a call is not allowed now.

        Raises:
            KafkaError: Why the producer cannot go on, or the transaction has to be aborted.
            IllegalStateError: The call does not fit the state.
        """
        if event not in TRANSACTION_TABLE[self.state]:
            raise self._not_now(_CALLS[event], self.state)

    def _not_now(self, call: str, state: TransactionState) -> KafkaError:
        reason = _REASONS.get(state)
        if reason is None:
            error = self.error
            if error is not None:
                return error.with_traceback(None)  # else it keeps the frames of all calls that it was raised by
            reason = "the transaction has just been aborted"  # by the loop's thread, while another one asked
        if state is TransactionState.UNINITIALIZED:
            reason += ": it comes first"
        return IllegalStateError(f"{call} is not possible: {reason}")

    def refusal(self) -> KafkaError | None:
        """Why records and offsets cannot be added now; None if they can. Any thread may ask."""
        state = self.state  # once: the loop's thread may change it
        if state is TransactionState.IN_TRANSACTION:
            return None
        return self._not_now("Sending", state)

    def init(self) -> None:
        """`init_transactions` begins."""
        self.check(TransactionEvent.INIT)
        self._ids.initializing()
        self._on(TransactionEvent.INIT)

    def initialized(self, producer_id: int, epoch: int, version: int) -> None:
        """The coordinator gave out an id and an epoch."""
        self._ids.renew(producer_id, epoch)
        self.version = version
        self._gap = self._bump_wanted = False
        self._on(TransactionEvent.GIVEN_OUT)

    def begin(self) -> None:
        """`begin_transaction`."""
        self.check(TransactionEvent.BEGIN)
        self.number += 1
        self._on(TransactionEvent.BEGIN)

    def commit(self) -> None:
        """`commit_transaction` begins."""
        self.check(TransactionEvent.COMMIT)
        self._on(TransactionEvent.COMMIT)

    def abort(self) -> None:
        """`abort_transaction` begins."""
        self.check(TransactionEvent.ABORT)
        self._on(TransactionEvent.ABORT)

    def hand_over(self) -> None:
        """`hand_over` begins: this producer adds nothing more, and does not end the transaction."""
        self.check(TransactionEvent.HAND_OVER)
        self._on(TransactionEvent.HAND_OVER)

    def handed_over(self) -> None:
        """Everything that was sent is there."""
        self._on(TransactionEvent.ALL_THERE)

    @property
    def started(self) -> bool:
        """Whether there is something to end: the coordinator may know of the transaction."""
        return self._started

    def ended(self, identity: ProducerIdAndEpoch = NO_PRODUCER_ID, *, version: int, can_bump: bool) -> bool:
        """The transaction is decided.

        Args:
            identity: The id and epoch that the coordinator gave for the next one (version 2).
            version: Which generation of the protocol the next one is to speak.
            can_bump: Whether the coordinator can bump epochs (KIP-360).

        Returns:
            Whether the epoch has to be bumped before the next one: ask for it, then call `initialized`.
        """
        if identity.valid:
            self._ids.renew(*identity)
            self._gap = self._bump_wanted = False
        upgraded = self.version == V1 and version == V2  # batches of this one must not join the next (KIP-890)
        bump = self._gap or (can_bump and (self._bump_wanted or upgraded))
        self.version = version
        self.error = None
        self._new.clear()
        self._added.clear()
        self._groups.clear()
        self._started = False
        self._on(TransactionEvent.ENDED_WITH_BUMP if bump else TransactionEvent.ENDED)
        return bump

    # ------------------------------------------------------------------ errors

    def fail(self, error: KafkaError) -> None:
        """What the transaction holds cannot be committed any more."""
        if self.state not in {*_ADDING, TransactionState.ABORTING}:
            return
        self._bump_wanted = self._bump_wanted or self.version == V1
        if self.state is TransactionState.ABORTING:
            return
        if isinstance(error, TransactionAbortableError):
            self.error = error
        else:
            self.error = TransactionAbortableError(
                f"The transaction cannot be committed any more; call abort_transaction. The cause: {error}"
            )
            self.error.__cause__ = error
        self._on(TransactionEvent.FAILED)

    def fail_for_good(self, error: KafkaError) -> None:
        """The producer cannot go on."""
        if TransactionEvent.FATAL not in TRANSACTION_TABLE[self.state]:
            return
        error.fatal = True
        self.error = error
        self._on(TransactionEvent.FATAL)

    def delivery_failed(self, batch: ProducerBatch, error: KafkaError) -> None:
        """A batch was given up."""
        if isinstance(error, TransactionAbortedError) and not batch.has_sequence:
            return  # it never left: nothing is missing, and nothing may come late
        if batch.has_sequence and self.version == V1:
            self._gap = True
        if kind_of(TransactionRequest.PRODUCE, error) in FATAL:
            self.fail_for_good(error)
        else:
            self.fail(error)

    def sequence_lost(self) -> None:
        """A leader will not take what follows: it has forgotten the producer, or its log was made anew."""
        self._gap = self._gap or self.version == V1
        self.fail(KafkaError("A topic was deleted and created again, or a broker has forgotten this producer"))

    # ------------------------------------------------------------------ partitions

    @property
    def giving_up(self) -> KafkaError | None:
        """The error for batches that have not left, where none may leave any more."""
        if self.state not in _GIVING_UP:
            return None
        error = TransactionAbortedError("The record was not sent: its transaction is aborted")
        error.__cause__ = self.error
        return error

    def may_leave(self, tp: TopicPartition) -> bool:
        """Whether a batch of a partition may leave now; one that has to be added first is noted."""
        if self.state not in _ADDING:
            return False
        if self.version != V1 or tp in self._added:
            return True
        if tp not in self._asked:
            self._new[tp] = None
        return False

    def departed(self) -> None:
        """A batch leaves, or offsets do (version 2): the coordinator comes to know of the transaction."""
        self._started = True

    @property
    def wants_to_add(self) -> bool:
        """Whether partitions wait to be added, and none are being added."""
        return bool(self._new) and not self._asked and self.state in _ADDING

    def take_new(self) -> list[TopicPartition]:
        """The partitions to ask the coordinator to add now."""
        if not self.wants_to_add:
            return []
        found = list(self._new)
        self._new.clear()
        self._asked = frozenset(found)
        return found

    def added(self, partitions: Iterable[TopicPartition]) -> None:
        """The coordinator has added partitions."""
        self._asked = frozenset()
        self._added.update(partitions)
        self._started = True

    def not_added(self) -> None:
        """It has not, and is asked no more."""
        self._asked = frozenset()

    # ------------------------------------------------------------------ offsets

    @property
    def adding(self) -> bool:
        """Whether partitions and offsets may still join the transaction."""
        return self.state in _ADDING

    def must_add_group(self, group_id: str) -> bool:
        """Whether a group has to be added before its offsets are sent."""
        return self.version == V1 and group_id not in self._groups

    def group_added(self, group_id: str) -> None:
        """The coordinator has added a group."""
        self._groups.add(group_id)
        self._started = True

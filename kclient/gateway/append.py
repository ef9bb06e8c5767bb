"""One batch on its way into a partition's log: its states, and who waits for them."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import TYPE_CHECKING, Final

from kclient.errors import KafkaError
from kclient.state_tables import PlainEnum, StateTable, next_state

if TYPE_CHECKING:
    from kclient.gateway.log_transactions import EndedTransaction
    from kclient.gateway.producer_windows import FirstBatch, ProducerWindow

_NO_PRODUCER: Final = -1


class AppendState(IntEnum):
    """The life of an append, in its order: whoever waits for a state has waited enough at any later one."""

    QUEUED = 0
    """Its partition is not open yet."""
    PREPARED = 1
    """It has its offsets; the store has not taken it yet."""
    STORED = 2
    """The store has taken it, a sync is on its way (`acks=1` is answered)."""
    DURABLE = 3
    """It is below the high watermark (`acks=all` is answered)."""
    FAILED = 4
    """It was refused, or its sync failed: it has no offsets, or they are given again."""


class AppendEvent(PlainEnum):
    """What happens to an append; the values are the labels of the diagram in the docs."""

    PLACED = "its partition is open, and it gets its offsets"
    STORED = "HTP has taken it, or it was found there"
    SYNCED = "a sync covers it, or it was found there"
    FAILED = "refused, not stored, or looked for in vain"


APPEND_TABLE: Final[StateTable[AppendState, AppendEvent]] = {
    AppendState.QUEUED: {
        AppendEvent.PLACED: AppendState.PREPARED,
        AppendEvent.STORED: AppendState.STORED,  # this and the next as the repeat of another one
        AppendEvent.SYNCED: AppendState.DURABLE,
        AppendEvent.FAILED: AppendState.FAILED,
    },
    AppendState.PREPARED: {
        AppendEvent.STORED: AppendState.STORED,
        AppendEvent.FAILED: AppendState.FAILED,
    },
    AppendState.STORED: {
        AppendEvent.SYNCED: AppendState.DURABLE,
        AppendEvent.FAILED: AppendState.FAILED,
    },
    AppendState.DURABLE: {},
    AppendState.FAILED: {},
}

_LEADS_TO: Final = {
    AppendState.STORED: AppendEvent.STORED,
    AppendState.DURABLE: AppendEvent.SYNCED,
    AppendState.FAILED: AppendEvent.FAILED,
}
"""What has happened to an append that is in this state: its repeat goes there, too."""


class Append:
    """One batch on its way into the log, with its place, the way to undo it, and who waits for it.

    The log moves it; the partition has those told who wait when the log is whole again (`tell`).
    """

    __slots__ = (
        "_waiting", "base_offset", "begins", "crc", "ends", "error", "length", "next_offset", "producer_id", "state",
        "timestamp", "undo",
    )  # fmt: skip

    def __init__(self) -> None:
        self.state: AppendState = AppendState.QUEUED
        self.base_offset: int = -1
        self.next_offset: int = -1
        self.length: int = 0
        self.crc: int = 0
        """The batch's, as it is stored."""
        self.timestamp: int = -1
        """The log append time to be stamped, or -1."""
        self.error: KafkaError | None = None
        """Why it failed."""
        self.producer_id: int = _NO_PRODUCER
        self.undo: ProducerWindow | None = None
        """The producer's window before this append."""
        self.begins: FirstBatch | None = None
        """Where the producer was not known before."""
        self.ends: EndedTransaction | None = None
        """The transaction that ends with it, if it is a control record of the transaction's coordinator."""
        self._waiting: list[tuple[AppendState, Callable[[], object]]] | None = None

    def move(self, event: AppendEvent) -> None:
        """Go where an event leads; IllegalStateError when that must not happen to an append in its state."""
        try:
            self.state = APPEND_TABLE[self.state][event]  # three times for each batch: a call more could be measured
        except KeyError:
            next_state(APPEND_TABLE, self.state, event, "append")

    def fail(self, error: KafkaError) -> None:
        """It was refused before it had offsets, or is given up with its partition."""
        self.error = error
        self.move(AppendEvent.FAILED)

    def watch(self, wanted: AppendState, callback: Callable[[], object]) -> None:
        """Have `callback` called once when a state not before `wanted` is reached, which is not yet."""
        if self._waiting is None:
            self._waiting = [(wanted, callback)]
        else:
            self._waiting.append((wanted, callback))

    def tell(self) -> None:
        """Call those who have waited enough."""
        waiting = self._waiting
        if waiting is None:
            return
        state = self.state
        if len(waiting) == 1:  # nearly always
            wanted, callback = waiting[0]
            if wanted <= state:
                self._waiting = None
                callback()
            return
        self._waiting = [each for each in waiting if each[0] > state] or None
        for wanted, callback in waiting:
            if wanted <= state:
                callback()

    def follow(self, first: Append) -> None:
        """It is the repeat of another one, which is as far or on its way: what becomes of that becomes of this."""
        self.base_offset, self.timestamp = first.base_offset, first.timestamp
        if first.state > AppendState.PREPARED:
            self.error = first.error
            self.move(_LEADS_TO[first.state])
            self.tell()
        if first.state < AppendState.DURABLE:
            wanted = AppendState.STORED if first.state is AppendState.PREPARED else AppendState.DURABLE
            first.watch(wanted, lambda: self.follow(first))

    def __repr__(self) -> str:
        return f"<Append {self.base_offset}..{self.next_offset - 1} {self.state.name}>"

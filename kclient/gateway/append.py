"""One batch on its way into a partition's log: its states, and who waits for them."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import TYPE_CHECKING, Final

from kclient.errors import KafkaError
from kclient.state_tables import successor

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


SUCCESSORS: Final[dict[AppendState, frozenset[AppendState]]] = {
    AppendState.QUEUED: frozenset(
        {AppendState.PREPARED, AppendState.STORED, AppendState.DURABLE, AppendState.FAILED}
    ),  # the second and third as the repeat of another one
    AppendState.PREPARED: frozenset({AppendState.STORED, AppendState.FAILED}),
    AppendState.STORED: frozenset({AppendState.DURABLE, AppendState.FAILED}),
    AppendState.DURABLE: frozenset(),
    AppendState.FAILED: frozenset(),
}


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

    def move(self, state: AppendState) -> None:
        """Go on to another state; IllegalStateError when that is no way an append goes."""
        self.state = successor(SUCCESSORS, self.state, state, "append")

    def fail(self, error: KafkaError) -> None:
        """It was refused before it had offsets, or is given up with its partition."""
        self.error = error
        self.move(AppendState.FAILED)

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
            self.move(first.state)
            self.tell()
        if first.state < AppendState.DURABLE:
            wanted = AppendState.STORED if first.state is AppendState.PREPARED else AppendState.DURABLE
            first.watch(wanted, lambda: self.follow(first))

    def __repr__(self) -> str:
        return f"<Append {self.base_offset}..{self.next_offset - 1} {self.state.name}>"

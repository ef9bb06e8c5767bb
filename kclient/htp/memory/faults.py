"""Has the memory backend fail on purpose: `open_store("memory:NAME", faults=True).faults`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from kclient.htp.errors import OutcomeUnknownError, StorageError, StorageFullError
from kclient.htp.memory.topic import MemorySent, MemoryTopic
from kclient.htp.port import FAULT_FULL, FAULT_UNKNOWN, FAULT_WRITE

if TYPE_CHECKING:
    from kclient.htp.memory.state import MemoryLog, MemoryState
    from kclient.htp.port import Place
    from kclient.types import Buffer


class MemoryFaults:
    """Implements `kclient.htp.port.Faults`: memory is not synced, and cannot be damaged."""

    kinds: frozenset[str] = frozenset({FAULT_WRITE, FAULT_FULL, FAULT_UNKNOWN})

    def __init__(self) -> None:
        self.next_write_fails: bool = False
        self.next_answer_lost: bool = False
        self.space: int | None = None
        """Bytes that may still be sent, if there is a limit."""

    def topic(self, state: MemoryState, log: MemoryLog, epoch: int) -> MemoryTopic:
        """A topic that fails as it is told here."""
        return FaultyTopic(state, log, epoch, self)

    def fail_write(self) -> None:
        """The next send is refused."""
        self.next_write_fails = True

    def fail_sync(self) -> None:
        """There is none."""
        self._refuse("what was sent to memory needs no sync")

    def fill(self, space: int = 0) -> None:
        """There is space for so many bytes."""
        self.space = space

    def lose_answer(self) -> None:
        """The next send is stored, and its sender is not told."""
        self.next_answer_lost = True

    async def damage(self, place: Place, position: int) -> None:
        """There is none."""
        self._refuse(f"what memory keeps of {place} at {position} cannot be damaged")

    def _refuse(self, why: str) -> NoReturn:
        raise NotImplementedError(f"the memory backend does not have this fault: {why}")

    def clear(self) -> None:
        """Nothing fails any more."""
        self.next_write_fails = self.next_answer_lost = False
        self.space = None


class FaultyTopic(MemoryTopic):
    """A topic of the memory backend that fails on demand.

    Args:
        state: What is stored under the name.
        log: The topic's.
        epoch: That the topic was opened under.
        faults: What fails.
    """

    __slots__ = ("_faults",)

    def __init__(self, state: MemoryState, log: MemoryLog, epoch: int, faults: MemoryFaults) -> None:
        super().__init__(state, log, epoch)
        self._faults = faults

    def send_nowait(self, messages: Sequence[Buffer]) -> MemorySent:
        """Append whole messages, all or none, or fail."""
        faults = self._faults
        if faults.next_write_fails:
            faults.next_write_fails = False
            raise StorageError(f"{self.place} could not be written")
        length = sum(map(len, messages))
        if faults.space is not None and length > faults.space:
            raise StorageFullError(f"{self.place} could not be written: no space left")
        sent = super().send_nowait(messages)
        if faults.space is not None:
            faults.space -= length
        if faults.next_answer_lost:
            faults.next_answer_lost = False
            raise OutcomeUnknownError(f"{self.place}: no answer came")
        return sent

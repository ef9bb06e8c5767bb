"""The bytes of `buffer.memory`, and who waits for some; guarded by the batch buffer's lock."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class BufferPool:
    """Counts what is free; it holds no memory itself.

    Args:
        total: Bytes in all.
    """

    __slots__ = ("_wanted", "free", "waiters")

    def __init__(self, total: int) -> None:
        self.free: int = total
        """Bytes that are free."""
        self.waiters: list[Callable[[], object]] = []
        """Called once when there may be room."""
        self._wanted = 0

    def take(self, size: int) -> bool:
        """Reserve some bytes; False if there are not as many."""
        if self.free < size:
            self._wanted = size
            return False
        self.free -= size
        return True

    def give(self, size: int) -> None:
        """Bytes are free again."""
        self.free += size

    @property
    def has_room(self) -> bool:
        """Whether what was last found missing is there now."""
        return self.free >= self._wanted

    def to_wake(self) -> list[Callable[[], object]]:
        """The waiters to be called now, under no lock; they wait no more."""
        if not self.waiters or not self.has_room:
            return []
        return self.all_waiters()

    def all_waiters(self) -> list[Callable[[], object]]:
        """All waiters, room or not; they wait no more."""
        waiters, self.waiters = self.waiters, []
        return waiters

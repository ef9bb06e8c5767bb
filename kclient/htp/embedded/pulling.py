"""Reading one segment of a log on behalf of a reader: in the event loop, or in a worker thread."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

from kclient.htp.embedded import reading
from kclient.htp.errors import DamagedError, PositionError
from kclient.htp.port import Found, Pulled

if TYPE_CHECKING:
    from kclient.htp.embedded.segment import Segment
    from kclient.htp.embedded.services import LogPlace, Services
    from kclient.htp.errors import StorageError
    from kclient.htp.port import Framing, TopicSettings
    from kclient.types import Buffer

T = TypeVar("T")

_CURSORS: Final = 64


class SegmentReplacedError(Exception):
    """A segment was replaced by another one before it could be read; never leaves this package."""


class Cursors:
    """Where readers went on last: who reads on from there needs no index. Only for the event loop's thread."""

    __slots__ = ("_places",)

    def __init__(self) -> None:
        self._places: dict[int, tuple[Segment, int]] = {}

    def find(self, segment: Segment, position: int) -> int | None:
        """The place of an ordinal in a segment, if it is known."""
        found = self._places.get(position)
        return found[1] if found is not None and found[0] is segment else None

    def leave(self, segment: Segment, position: int, place: int) -> None:
        """Remember the place of an ordinal."""
        self._places[position] = (segment, place)
        if len(self._places) > _CURSORS:
            del self._places[next(iter(self._places))]

    def clear(self) -> None:
        """Forget everything."""
        self._places.clear()


class ReadableLog(Protocol):
    """What reading asks of a log; see `TopicLog`."""

    name: str
    framing: Framing
    settings: TopicSettings
    services: Services
    next: int
    cursors: Cursors

    @property
    def start(self) -> int: ...

    @property
    def visible(self) -> LogPlace: ...

    def storage_error(self, what: str, error: Exception) -> StorageError: ...


class SegmentRequest(ABC, Generic[T]):
    """One segment to be read. It is entered and left in the event loop, and `run` where one likes."""

    __slots__ = ("_bound", "_fd", "_log", "_segment", "_size")

    def __init__(self, log: ReadableLog, segment: Segment, size: int, bound: int) -> None:
        self._log = log
        self._segment = segment
        self._size = size
        self._bound = bound
        self._fd = -1

    @property
    def at_hand(self) -> bool:
        """Whether it may be entered: the file is open, or the disk that it is to be opened on answers."""
        return self._segment.handle.fd >= 0 or time.monotonic() <= self._log.services.liveness.until

    async def disk_answered(self) -> None:
        """Until it is worth looking again whether it is at hand."""
        await self._log.services.liveness.answered()

    def __enter__(self) -> None:
        if self._segment.replaced and self._segment.handle.fd < 0:
            raise SegmentReplacedError
        try:
            self._fd = self._log.services.open_files.pin(self._segment.handle)
        except OSError as error:
            if self._segment.handle.removed:  # trimmed while an earlier segment was read
                start, end = self._log.start, self._log.next
                raise PositionError(f"{self._log.name} was trimmed to {start}", start=start, end=end) from error
            raise self._log.storage_error("could not be read", error) from error

    def __exit__(self, *_: object) -> None:
        self._log.services.open_files.unpin(self._segment.handle)

    def run(self, read: Callable[[int, int, int], Buffer]) -> T | None:
        """Read with `read(fd, length, place)`; None if the segment does not have it.

        Raises:
            NotCachedError: If `read` reads from the page cache only, and that is not enough.
            StorageError: If reading failed.
            DamagedError: If what is there are no messages.
        """
        try:
            return self._run(partial(read, self._fd))
        except OSError as error:
            raise self._log.storage_error("could not be read", error) from error
        except DamagedError as error:
            raise DamagedError(f"{self._log.name}, {self._segment.path}: {error.message}") from error

    @abstractmethod
    def _run(self, read: reading.Read) -> T | None: ...


class PullRequest(SegmentRequest[Pulled]):
    """Messages from a position on."""

    __slots__ = ("_after", "_max_bytes", "_max_messages", "_place", "_position", "_proven")

    def __init__(
        self,
        log: ReadableLog,
        segment: Segment,
        position: int,
        size: int,
        bound: int,
        max_bytes: int,
        max_messages: int | None,
    ) -> None:
        super().__init__(log, segment, size, bound)
        self._position = position
        self._max_bytes = max_bytes
        self._max_messages = max_messages
        self._place = log.cursors.find(segment, position)
        self._after: tuple[int, int] | None = None
        self._proven: tuple[int, int] | None = None

    def _run(self, read: reading.Read) -> Pulled | None:
        framing, dense = self._log.framing, self._log.settings.dense
        found = reading.pull(
            read,
            framing,
            self._segment.index,
            self._position,
            place=self._place,
            limit=self._size,
            max_bytes=self._max_bytes,
            max_messages=self._max_messages,
            bound=self._bound,
            dense=dense,
        )
        if found is None:
            return None
        pulled, begin, end = found
        if dense and (pulled.last >= self._bound or not self._segment.is_proven(begin, end)):
            pulled = reading.dense_until(framing, pulled, self._bound)
            end = begin + len(pulled.data)
            self._proven = (begin, end)
        self._after = (pulled.last + 1, end)
        return pulled

    def __exit__(self, *details: object) -> None:
        super().__exit__(*details)
        if self._after is not None:
            self._log.cursors.leave(self._segment, *self._after)
        if self._proven is not None:
            self._segment.prove(*self._proven)


class SearchRequest(SegmentRequest[Found]):
    """The first message at or after a time."""

    __slots__ = ("_blocks", "_start", "_timestamp")

    def __init__(
        self,
        log: ReadableLog,
        segment: Segment,
        blocks: list[tuple[int, int, int]],
        size: int,
        bound: int,
        timestamp: int,
        start: int,
    ) -> None:
        super().__init__(log, segment, size, bound)
        self._blocks = blocks
        self._timestamp = timestamp
        self._start = start

    def _run(self, read: reading.Read) -> Found | None:
        return reading.find_by_timestamp(
            read,
            self._log.framing,
            self._blocks,
            self._timestamp,
            self._start,
            self._size,
            bound=self._bound,
            dense=self._log.settings.dense,
        )

"""One segment of a topic: a file of messages as they were sent, named by its first ordinal, and its index."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from kclient.htp.embedded.handles import Handle
from kclient.htp.embedded.index import SegmentIndex
from kclient.htp.port import SegmentInfo

_SUFFIX = ".log"
INDEX_SUFFIX = ".index"


def file_name(base: int) -> str:
    """The name of a segment's file: names sort as ordinals do."""
    return f"{base:020d}{_SUFFIX}"


def base_of(name: str) -> int | None:
    """The first ordinal that a file name tells; None if it is not the name of a segment."""
    digits = name.removesuffix(_SUFFIX)
    return int(digits) if digits != name and len(digits) == 20 and digits.isdigit() else None


@dataclass(slots=True, eq=False)
class Segment:
    """A segment and what is known of its content."""

    directory: str
    base: int
    index: SegmentIndex
    handle: Handle = field(init=False)
    exists: bool = False
    """Whether it has a file; the active segment gets one when the first message comes."""
    modified_ms: int = 0
    max_timestamp: int = -1
    sound: int = 0
    """Bytes from here on are known to hold messages without gaps: they were scanned or written since the opening."""
    proven: tuple[int, int] = (0, 0)
    """So are the bytes between these, of which somebody has read."""
    created: float = 0.0
    """When it was begun, on the monotonic clock."""
    counted: int = 0
    """Bytes of memory for which it was counted last."""
    replaced: bool = False
    """Whether another one has taken its place: who opens its file finds the other's messages."""

    def __post_init__(self) -> None:
        self.handle = Handle(self.path)

    @property
    def path(self) -> str:
        """The file of messages."""
        return f"{self.directory}/{file_name(self.base)}"

    @property
    def index_path(self) -> str:
        """The file of the index, which may not exist."""
        return self.path.removesuffix(_SUFFIX) + INDEX_SUFFIX

    @property
    def size(self) -> int:
        """Bytes of messages."""
        return self.index.covered

    @property
    def next(self) -> int:
        """The ordinal after its last message."""
        return self.index.next

    def prove(self, begin: int, end: int) -> None:
        """Remember that messages between two places were found to have no gaps."""
        low, high = self.proven
        self.proven = (min(low, begin), max(high, end)) if begin <= high and end >= low else (begin, end)

    def is_proven(self, begin: int, end: int) -> bool:
        """Whether messages between two places are known to have no gaps."""
        return begin >= self.sound or (self.proven[0] <= begin and end <= self.proven[1])

    def info(self, following: int, *, active: bool) -> SegmentInfo:
        """What retention decides upon; `following` is the position where the next segment begins."""
        return SegmentInfo(self.base, following, self.size, self.max_timestamp, self.modified_ms, active)

    @classmethod
    def empty(cls, directory: str, base: int, interval: int) -> Segment:
        """A segment to be filled; it has no file yet."""
        return cls(directory, base, SegmentIndex(base, interval), created=time.monotonic())

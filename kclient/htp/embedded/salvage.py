"""What lies behind damage in a segment: a torn end, or messages that were whole and acknowledged.

A process or a machine that dies leaves a torn end: nothing whole follows it. Where whole messages follow, something
else has happened to the disk, and what follows is not thrown away: it is copied to a file of its own, for whoever can
make use of it, and its ordinals are never given again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from kclient.errors import KafkaError
from kclient.htp.embedded.files import Files, SyncPoint
from kclient.htp.embedded.reading import NotCachedError, Read, SegmentWindow
from kclient.htp.rows import GREATEST

if TYPE_CHECKING:
    from kclient.htp.port import Framing, MessageInfo

KEPT: Final = ".damaged"
"""The end of the name of such a file; nothing ever removes it but the deletion of its topic."""
_SEARCH_BYTES: Final = 2 << 20
"""How far a message is looked for where no length leads to it; what is not decided by then is kept."""
_MOST: Final = 64 << 20
"""Bytes of a message that is looked for, at most."""
_COPY_BYTES: Final = 1 << 20


class Rest(NamedTuple):
    """What lies behind damage."""

    next: int
    """The ordinal after the last message in it."""
    kept: bool
    """Whether it is, or may be, more than a torn end."""


class _Search:
    def __init__(self, read: Read, framing: Framing, size: int, bound: int | None, dense: bool) -> None:
        self._window = SegmentWindow(read, framing, size)
        self._framing = framing
        self._size = size
        self._bound = bound
        self._dense = dense

    def run(self, place: int, expected: int) -> Rest:
        """Look at everything from the damage at `place` on, where ordinal `expected` should be."""
        following, kept = expected, False
        skipped = False
        while place < self._size:
            info = self._whole(place)
            if info is None:
                skipped = True
                found = self._next(place)
                if found is None:
                    break
                if found < 0:
                    return Rest(following, kept=True)
                place = found
                continue
            if self._bound is not None and following >= self._bound:
                break
            absurd = info.last >= GREATEST  # as no ordinal may be: no row could tell the next one
            if info.first == following or (info.first > following and (skipped or not self._dense) and not absurd):
                following, kept = info.last + 1, True
            elif self._dense:  # whole, and with a wrong place: only how many ordinals it takes is believed
                following, kept = following + info.last - info.first + 1, True
            skipped = absurd
            place += info.length
        return Rest(following, kept)

    def _whole(self, place: int) -> MessageInfo | None:
        """The message at a place, if it is whole and its CRC right."""
        window = self._window
        try:
            length = self._length(place)
            if length is None or length > _MOST or window.length_at(place, _COPY_BYTES) is None:
                return None
            if not self._framing.verify(window.buffer, place - window.begin):
                return None
            info = window.inspect(place)
        except (ValueError, KafkaError, NotCachedError):
            return None
        return info if info.first <= info.last else None

    def _length(self, place: int) -> int | None:
        prefix = self._framing.prefix
        if place + prefix > self._size:
            return None
        self._window.fill(place, prefix if self._window.end - place >= prefix else _COPY_BYTES)
        try:
            length = self._framing.measure(self._window.buffer, place - self._window.begin)
        except (ValueError, KafkaError):
            return None
        return length if length >= prefix and place + length <= self._size else None

    def _next(self, place: int) -> int | None:
        """Where the next whole message begins; None if there is none, -1 if that would take too long to find out."""
        length = self._length(place)
        if length is not None and self._whole(place + length) is not None:
            return place + length
        last = self._size - self._framing.prefix
        tries = _SEARCH_BYTES
        place += 1
        while place <= last and tries:
            if skip := self._zeros(place):
                place += skip
                continue
            if self._whole(place) is not None:
                return place
            place += 1
            tries -= 1
        return -1 if place <= last else None

    def _zeros(self, place: int) -> int:
        """How many zeros may be passed over: no message begins with more of them than its head is long."""
        window, prefix = self._window, self._framing.prefix
        window.fill(place, prefix if window.end - place >= prefix else _COPY_BYTES)
        here = memoryview(window.buffer)[place - window.begin :]
        if any(here[: prefix + 1]):
            return 0
        content = bytes(here)
        return max(0, len(content) - len(content.lstrip(b"\0")) - prefix)


def look_behind(
    read: Read, framing: Framing, place: int, size: int, *, expected: int, bound: int | None, dense: bool
) -> Rest:
    """Look at everything from the damage at `place` on, where ordinal `expected` should be.

    Args:
        read: Reads the segment.
        framing: The topic's.
        place: Where the messages that hold end.
        size: Bytes of the segment.
        expected: The ordinal after those.
        bound: Where the next segment begins, if there is one: the end of what is this segment's.
        dense: Whether no ordinals are left out within the segment.
    """
    return _Search(read, framing, size, bound, dense).run(place, expected)


def keep(files: Files, fd: int, path: str, begin: int, end: int) -> str:
    """Copy a part of a segment to a file beside it, durably but for its entry; the file's path."""
    target = f"{path}.{begin}{KEPT}"
    temporary = f"{target}.tmp"
    files.remove(temporary)
    copy = files.open(temporary, create=True)
    try:
        for place in range(begin, end, _COPY_BYTES):
            files.write(copy, [files.read(fd, min(_COPY_BYTES, end - place), place)], place - begin)
        files.sync(copy, SyncPoint.RECOVERED)
    finally:
        files.close(copy)
    files.rename(temporary, target)
    return target

"""Reading messages out of a segment: finding a position or a time, and cutting at whole messages.

Nothing here keeps state, so it runs in the event loop (from the page cache) and in worker threads (from the disk).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from kclient.errors import KafkaError
from kclient.htp.errors import DamagedError
from kclient.htp.port import Found, Framing, MessageInfo, Pulled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kclient.htp.embedded.index import SegmentIndex
    from kclient.types import Buffer

Read: TypeAlias = "Callable[[int, int], Buffer]"
"""`read(length, place)`: the bytes of a segment, up to so many."""

_SCAN_BYTES = 1 << 20
_LOOK_BYTES = 1 << 16
_CHECKED_AT_ONCE = 256
"""Messages of one pull that are checked one by one, at most: that takes a millisecond of the event loop."""


class NotCachedError(Exception):
    """The bytes must come from the disk first."""


class SegmentWindow:
    """A part of a segment in memory, moved over it as needed."""

    __slots__ = ("_framing", "_read", "begin", "buffer", "end", "limit")

    def __init__(self, read: Read, framing: Framing, limit: int) -> None:
        self._read = read
        self._framing = framing
        self.limit: int = limit
        """Bytes of the segment that may be looked at."""
        self.buffer: Buffer = b""
        self.begin: int = 0
        self.end: int = 0

    def fill(self, place: int, wanted: int) -> None:
        """Have at least one byte from `place` on, and `wanted` ones if that goes at once."""
        if self.begin <= place and min(place + wanted, self.limit) <= self.end:
            return
        self.buffer = self._read(min(wanted, self.limit - place), place)
        self.begin = place
        self.end = place + len(self.buffer)

    def length_at(self, place: int, ahead: int) -> int | None:
        """Length of the message at `place`, which then is wholly in the window; None if it is not whole.

        Raises:
            ValueError, KafkaError: If there is no message.
            NotCachedError: If the disk would have to be asked.
        """
        prefix = self._framing.prefix
        if place + prefix > self.limit:
            return None
        if not self.begin <= place <= self.end - prefix:
            self.fill(place, max(prefix, ahead))
            if self.end - place < prefix:
                raise NotCachedError
        length = self._framing.measure(self.buffer, place - self.begin)
        if length < prefix:
            raise ValueError(f"a message of {length} bytes")
        if place + length > self.limit:
            return None
        if place + length > self.end:
            self.fill(place, max(length, ahead))
            if place + length > self.end:
                raise NotCachedError
        return length

    def inspect(self, place: int) -> MessageInfo:
        """What the message at `place` says, which is wholly in the window."""
        return self._framing.inspect(self.buffer, place - self.begin)


def pull(
    read: Read,
    framing: Framing,
    index: SegmentIndex,
    position: int,
    *,
    place: int | None,
    limit: int,
    max_bytes: int,
    max_messages: int | None,
    bound: int,
    dense: bool,
) -> tuple[Pulled, int, int] | None:
    """Messages from an ordinal on, and where they begin and end; None if the segment has none.

    Args:
        read: Reads the segment.
        framing: The topic's.
        index: The segment's.
        position: The ordinal.
        place: Where that ordinal is, if it is known.
        limit: Bytes of the segment that are visible.
        max_bytes: As for `Broker.pull`.
        max_messages: As for `Broker.pull`.
        bound: Where the next segment, or what is not visible, begins: no ordinal may reach it.
        dense: Whether a gap is damage.

    Raises:
        NotCachedError: If `read` did not return enough.
        DamagedError: If what is there are no messages.
    """
    ahead = max_bytes if place is not None else max(_LOOK_BYTES, max_bytes)
    where, expected = index.entry_of(position) if place is None else (place, position)
    window = SegmentWindow(read, framing, limit)
    try:
        while True:
            length = window.length_at(where, ahead)
            if length is None:
                if where >= limit:
                    return None
                raise ValueError("a message that is not whole")
            info = window.inspect(where)
            _check(info, expected, bound, dense)
            if info.last >= position:
                break
            expected = info.last + 1
            where += length
        if window.end - where < max_bytes // 2:  # else what is there already will do
            window.fill(where, max(length, max_bytes))
            if where + length > window.end:
                raise NotCachedError
        stop = min(max(where + length, where + max_bytes), window.end)
        end, last = _cut(window, framing, index, where, length, stop, max_messages)
        last_ordinal = info.last if last == where else window.inspect(last).last
        if last_ordinal >= bound and not dense:  # else `dense_until` tells how far they are sound
            raise ValueError(f"a message with ordinal {last_ordinal}, though {bound} begins behind it")
    except (ValueError, KafkaError) as error:
        raise DamagedError(f"damaged at byte {where}: {error}") from error
    data = window.buffer
    if window.begin != where or window.end != end:
        data = memoryview(data)[where - window.begin : end - window.begin]
    return Pulled(data, info.first, last_ordinal), where, end


def _check(info: MessageInfo, expected: int, bound: int, dense: bool) -> None:
    """Whether a message is where it belongs: its CRC need not cover its ordinals."""
    first, last = info.first, info.last
    if first < expected or (dense and first != expected) or not first <= last < bound:
        raise ValueError(
            f"a message of the ordinals {first} to {last} where {expected} is due, and {bound} not reached"
        )


def dense_until(framing: Framing, pulled: Pulled, bound: int) -> Pulled:
    """Those of some messages, the first at least, that follow on each other without a gap; some hundreds at most."""
    data = pulled.data
    info = framing.inspect(data, 0)
    place, expected = info.length, info.last + 1
    try:
        for _ in range(_CHECKED_AT_ONCE):
            if place >= len(data):
                return pulled
            info = framing.inspect(data, place)
            _check(info, expected, bound, dense=True)
            place, expected = place + info.length, info.last + 1
    except (ValueError, KafkaError):
        pass  # whoever asks for what comes next is told
    return Pulled(memoryview(data)[:place], pulled.first, expected - 1)


def _cut(
    window: SegmentWindow,
    framing: Framing,
    index: SegmentIndex,
    where: int,
    length: int,
    stop: int,
    max_messages: int | None,
) -> tuple[int, int]:
    """End and last message of what fits before `stop`; the first message, at `where`, always does."""
    if max_messages is not None:
        return _walk(window, framing, where, stop, max(1, max_messages))
    candidate = stop
    while (candidate := index.place_before(candidate)) > where:
        end, last = _walk(window, framing, candidate, stop, None)
        if last >= 0:
            return end, last
    end, last = _walk(window, framing, where, stop, None)
    return (end, last) if last >= 0 else (where + length, where)


def _walk(window: SegmentWindow, framing: Framing, place: int, stop: int, most: int | None) -> tuple[int, int]:
    """End and place of the last of the whole messages from `place` on that fit before `stop`; -1 if none does."""
    last = -1
    buffer, begin, prefix, measure = window.buffer, window.begin, framing.prefix, framing.measure
    while place + prefix <= stop and (most is None or most > 0):
        following = place + measure(buffer, place - begin)
        if following > stop:
            break
        if following <= place:
            raise ValueError("a message without length")
        last, place = place, following
        if most is not None:
            most -= 1
    return place, last


def find_by_timestamp(
    read: Read,
    framing: Framing,
    blocks: list[tuple[int, int, int]],
    timestamp: int,
    start: int,
    limit: int,
    *,
    bound: int,
    dense: bool,
) -> Found | None:
    """The first message in some blocks that holds or follows `start` with a timestamp not below the given one."""
    window = SegmentWindow(read, framing, limit)
    for begin, end, first in blocks:
        place, expected = begin, first
        while place < min(end, limit):
            try:
                length = window.length_at(place, _LOOK_BYTES)
                if length is None:
                    return None
                info = window.inspect(place)
                _check(info, expected, bound, dense)
            except (ValueError, KafkaError) as error:
                raise DamagedError(f"damaged at byte {place}: {error}") from error
            expected = info.last + 1
            if info.last >= start and info.max_timestamp >= timestamp:
                return Found(info.first, info.last, info.max_timestamp)
            place += length
    return None


def scan(read: Read, framing: Framing, place: int, size: int, verify_from: int) -> Iterator[MessageInfo]:
    """The messages from `place` on up to the first that is torn; CRCs are checked from byte `verify_from` on."""
    window = SegmentWindow(read, framing, size)
    while True:
        try:
            length = window.length_at(place, _SCAN_BYTES)
            if length is None:
                return
            if place >= verify_from and not framing.verify(window.buffer, place - window.begin):
                return
            info = window.inspect(place)
        except (ValueError, KafkaError, NotCachedError):
            return
        yield info
        place += length

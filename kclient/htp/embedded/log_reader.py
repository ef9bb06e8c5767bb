"""Which segments of a log are read, and up to where: messages from a position on, or from a time on.

Each is asked by a request of `pulling`, in the event loop if the page cache has it, else in a worker thread.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import TYPE_CHECKING

from kclient.htp.embedded import reading
from kclient.htp.embedded.pulling import PullRequest, ReadableLog, SearchRequest
from kclient.htp.errors import PositionError
from kclient.htp.port import Pulled

if TYPE_CHECKING:
    from kclient.htp.embedded.segment import Segment


class LogReader:
    """Reads one log. Only for the event loop's thread, but for what the requests say.

    Args:
        log: What is read.
        segments: The log's own list, in order and never empty; the log changes it.
    """

    __slots__ = ("_files", "_log", "_segments")

    def __init__(self, log: ReadableLog, segments: list[Segment]) -> None:
        self._log = log
        self._segments = segments
        self._files = log.services.open_files.files

    def pull_cached(self, position: int, max_bytes: int, max_messages: int | None) -> Pulled | None:
        """What there is from a position on; None if the disk has to be asked."""
        for request in self.requests(position, max_bytes, max_messages):
            if not request.at_hand:
                return None
            with request:
                try:
                    pulled = request.run(self._files.read_cached)
                except reading.NotCachedError:
                    return None
            if pulled is not None:
                return pulled
        return Pulled(b"", position, position - 1)

    def requests(self, position: int, max_bytes: int, max_messages: int | None) -> Iterator[PullRequest]:
        """The segments to be asked, one after the other until one has something."""
        log, start = self._log, self._segments[0].base
        if not start <= position <= log.next:
            raise PositionError(
                f"{log.name}: position {position} is not within {start} to {log.next}", start=start, end=log.next
            )
        end, last, limit = log.visible
        if position >= end:
            return
        begin = max(0, bisect_right(self._segments, position, key=_base) - 1)
        segments = self._segments[begin:]
        for number, segment in enumerate(segments, 1):
            size, bound = (limit, end) if segment is last else (segment.size, segments[number].base)
            if size:
                yield PullRequest(log, segment, position, size, bound, max_bytes, max_messages)
            if segment is last:
                return

    def searches(self, timestamp: int, start: int) -> Iterator[SearchRequest]:
        """The segments in which a time may be found, one after the other until it is."""
        log = self._log
        end, last, limit = log.visible
        segments = list(self._segments)
        for number, segment in enumerate(segments):
            if segment.max_timestamp >= timestamp:
                blocks = segment.index.blocks_since(timestamp, segment.index.place_of(start))
                size, bound = (limit, end) if segment is last else (segment.size, segments[number + 1].base)
                yield SearchRequest(log, segment, blocks, size, bound, timestamp, start)
            if segment is last:
                return


def _base(segment: Segment) -> int:
    return segment.base

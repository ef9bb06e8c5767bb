"""Opening the segments of a topic: what is there, where it ends, and what has to be cut.

Everything before the last checkpoint was synced and is trusted. From there on every message's CRC is checked, and that
it follows on the one before; the first that does not hold ends the segment. If whole messages follow it, it is not torn
but damaged, and they are kept in a file of their own. What may remain of a segment is bounded by the name of the next
one: after a failed sync the old end of a segment may come back, and is cut again. If the checkpoint and the segments so
far end before the next segment begins, messages in between were lost; what follows was never reported as synced (a sync
covers all segments in order), and is set aside. The first segment that is there is always taken for the start.

What recovery makes visible it syncs first: it may still be in the page cache only, left there by a process that
was killed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from kclient.htp.embedded.files import Files, SyncPoint
from kclient.htp.embedded.index import SegmentIndex
from kclient.htp.embedded.reading import scan
from kclient.htp.embedded.salvage import keep, look_behind
from kclient.htp.embedded.segment import INDEX_SUFFIX, Segment, base_of
from kclient.htp.port import Framing, TopicSettings
from kclient.htp.rows import (
    GREATEST_EPOCH,
    check_format,
    dump,
    parse_number,
    parse_object,
    seal,
    string,
    unsealed,
    whole,
)

logger: logging.Logger = logging.getLogger(__name__)

SET_ASIDE: Final = ".orphan"
"""Messages after a gap: never reported as synced, they are kept for some days for whoever misses them."""
SET_ASIDE_MS: Final = 7 * 24 * 3600 * 1000


_FORMAT: Final = 2
"""Of a checkpoint; the first had no number."""


@dataclass(slots=True)
class SyncCheckpoint:
    """What is known to be synced; kept by the manager, one per topic."""

    next: int = 0
    """The next ordinal is not below this."""
    segment: int = 0
    """Base of the segment up to which ..."""
    position: int = 0
    """... so many bytes are synced, and all segments before it; more of it may be, if `next` is above its base."""
    start: int = 0
    """Segments that lie wholly before this were trimmed; some of them may come back. -1: nobody knows."""
    limits: dict[int, int] = field(default_factory=dict)
    """Segments, by base, of which only so many bytes count: a sync of what followed failed, or it was damaged, or the
    next ordinal was raised."""
    fence: int = -1
    """The epoch that the topic was opened under last: older ones are refused."""
    framing: str = ""
    """Name of the framing that its messages were written with; empty if nobody has said so yet."""

    @property
    def filled(self) -> bool:
        """Whether messages were synced in its segment."""
        return self.position > 0 or self.next > self.segment

    @property
    def bare(self) -> bool:
        """Whether no message that is not trimmed is known to have been synced."""
        return self.next <= self.start and not self.filled

    def lost(self, bases: Sequence[int]) -> Iterator[tuple[int | None, str]]:
        """What is missing where a topic has these segments, as far as their names tell.

        Args:
            bases: Of its segments, sorted; none where the directory is missing.

        Yields:
            The segment that is missing, or None if it is not known which, and a sentence without its subject.
        """
        if not bases and 0 <= self.start < self.next:
            yield None, f"its files are missing: it had the messages from {self.start} to {self.next - 1}"
        elif bases and 0 <= self.start < bases[0] and not self.bare:
            yield None, f"the messages from {self.start} to {bases[0] - 1} are missing"
        if bases and self.filled and self.segment not in bases:
            yield self.segment, "is missing, and held messages that were synced"

    def encode(self) -> bytes:
        """As the manager keeps it."""
        limits = {str(base): size for base, size in self.limits.items()}
        row = {
            "format": _FORMAT,
            "next": self.next,
            "segment": self.segment,
            "position": self.position,
            "start": self.start,
            "limits": limits,
            "fence": self.fence,
            "framing": self.framing,
        }
        return seal(dump(row))

    @classmethod
    def decode(cls, value: bytes) -> SyncCheckpoint:
        """From what the manager kept.

        Raises:
            ValueError: If that is no checkpoint.
        """
        try:
            row = parse_object(unsealed(value))
            check_format(row.get("format", 1), _FORMAT)
            limits = {parse_number(base.encode()): whole(size) for base, size in row["limits"].items()}
            fence = whole(row.get("fence", -1), -1, GREATEST_EPOCH)  # the first versions kept none
            start = whole(row["start"], -1)
            framing = string(row.get("framing", ""))  # nor that
            return cls(whole(row["next"]), whole(row["segment"]), whole(row["position"]), start, limits, fence, framing)
        except (ValueError, LookupError, AttributeError) as error:
            raise ValueError(f"{value[:200]!r} is not a checkpoint: {error!r}") from error


@dataclass(slots=True)
class Recovered:
    """The outcome: segments in order (none, or the last of them may be appended to)."""

    segments: list[Segment]
    next: int
    appendable: bool = True
    """Whether the last segment may be written to; not after a sync of it failed."""
    damaged: bool = False
    """Whether a segment was limited to what lies before damage: the checkpoint has to say so."""
    end: int = 0
    """The ordinal after the last message that is there: below `next` if some were lost, or it goes on further on."""


def recover(
    files: Files, directory: str, framing: Framing, settings: TopicSettings, checkpoint: SyncCheckpoint | None
) -> Recovered:
    """Open the segments of a topic. Reads and syncs; runs in a worker thread.

    Where it finds damage that has to be remembered, it adds to the checkpoint's `limits`.

    Raises:
        OSError: If something could not be read, cut or synced.
    """
    return _Recovery(files, directory, framing, settings, checkpoint).run()


def sweep_set_aside(files: Files, directory: str) -> None:
    """Remove what was set aside more than a week ago."""
    before = time.time_ns() // 1_000_000 - SET_ASIDE_MS
    for name in files.list_directory(directory):
        path = f"{directory}/{name}"
        if name.endswith(SET_ASIDE) and files.changed_ms(path) < before:
            files.remove(path)


class _Recovery:
    def __init__(
        self, files: Files, directory: str, framing: Framing, settings: TopicSettings, checkpoint: SyncCheckpoint | None
    ) -> None:
        self._files = files
        self._directory = directory
        self._framing = framing
        self._interval = settings.index_interval_bytes
        self._dense = settings.dense
        self._checkpoint = checkpoint or SyncCheckpoint()
        # none of the segment that is written to: earlier versions began one of the name of one that held nothing sound
        self._checkpoint.limits.pop(self._checkpoint.segment, None)
        self._given = 0
        """No ordinal below this may be given again: it was found behind damage."""
        self._damaged = False

    def run(self) -> Recovered:
        sweep_set_aside(self._files, self._directory)
        bases = self._bases()
        trusted = self._first_to_scan(bases)
        if not bases and 0 <= self._checkpoint.start < self._checkpoint.next:
            raise FileNotFoundError(
                f"{self._directory} holds no messages any more, and had those from {self._checkpoint.start} to "
                f"{self._checkpoint.next - 1}: restore it from a backup, or delete the topic"
            )
        if self._dense and bases and 0 <= self._checkpoint.start < bases[0]:
            self._tell_missing(self._checkpoint.start, bases[0])
        segments: list[Segment] = []
        reached = self._checkpoint.next
        scanned = False
        for number, base in enumerate(bases):
            if segments and base > reached:
                self._set_aside(bases[number:], reached, base)
                scanned = True
                break
            bound = bases[number + 1] if number + 1 < len(bases) else None
            if base < trusted and bound is not None:
                segments.append(self._open_sealed(base, bound))
            else:
                segments.append(self._open_scanned(base, bound))
                scanned = True
            reached = max(reached, segments[-1].next, self._given)
        if scanned:
            self._files.sync_directory(self._directory, SyncPoint.RECOVERED_ENTRIES)
        found = segments[-1].next if segments else 0
        following = max(found, self._checkpoint.next, self._given)
        known = max(found, self._checkpoint.start)  # what was trimmed may have come back, and is no loss
        if segments and known < self._checkpoint.next and not self._damaged and not self._is_whole(segments[-1]):
            logger.error(
                "%s ends at %d, but everything below %d was synced once: the messages between are lost",
                self._directory, found, self._checkpoint.next,
            )  # fmt: skip
        appendable = bool(segments) and segments[-1].base not in self._checkpoint.limits and found == following
        end = next((each.next for each in reversed(segments) if each.size), segments[0].base if segments else following)
        return Recovered(segments, following, appendable, self._damaged, end)

    def _bases(self) -> list[int]:
        names = self._files.list_directory(self._directory)
        bases = [base for base in map(base_of, names) if base is not None]
        while len(bases) > 1 and bases[1] <= self._checkpoint.start:
            self._files.remove(Segment.empty(self._directory, bases.pop(0), self._interval).path)
        for name in names:
            stray = name.endswith(INDEX_SUFFIX) and base_of(name.replace(INDEX_SUFFIX, ".log")) not in bases
            if stray or name.endswith(".tmp"):
                self._files.remove(f"{self._directory}/{name}")
        return bases

    def _first_to_scan(self, bases: list[int]) -> int:
        """The base from which on segments are not trusted."""
        known = self._checkpoint.segment
        if known in bases or not self._checkpoint.filled:
            return known
        missing = Segment.empty(self._directory, known, self._interval).path
        if not bases or bases[-1] < known:  # nobody knows how many messages it had, and so where to go on
            raise FileNotFoundError(
                f"{missing}, which holds messages, is missing: restore it from a backup, or delete the topic"
            )
        logger.error("%s, which held messages, is missing", missing)
        return max((base for base in bases if base < known), default=0)

    def _tell_missing(self, begin: int, end: int) -> None:
        if self._checkpoint.bare:  # a power cut leaves any of the files whose names were not synced
            logger.warning(
                "%s: the messages from %d to %d were never synced and are lost; it begins at %d",
                self._directory, begin, end - 1, end,
            )  # fmt: skip
            return
        logger.error(
            "%s: the messages from %d to %d are missing: the files that held them are gone, or shorter. Restore the "
            "data directory from a backup; until then, who reads passes over them",
            self._directory, begin, end - 1,
        )  # fmt: skip

    def _segment(self, fd: int, base: int, size: int, *, closed: bool) -> Segment:
        segment = Segment.empty(self._directory, base, self._interval)
        index = SegmentIndex.load(self._files.load(segment.index_path), base, self._interval, size)
        if index is not None and (not closed or self._goes_with(fd, index, size)):
            segment.index = index
            segment.sound = index.covered
        segment.exists = True
        segment.modified_ms = self._files.modified_ms(fd)
        age = max(0.0, time.time() - segment.modified_ms / 1000)
        segment.created = time.monotonic() - age
        return segment

    def _goes_with(self, fd: int, index: SegmentIndex, size: int) -> bool:
        """Whether the index of a closed segment may be of this file: what it does not cover begins with what is due.

        A backup may have taken the index of a segment before that was rewritten, and the segment afterwards.
        """
        if index.covered == size:
            return True
        due = next(scan(partial(_read, self._files, fd), self._framing, index.covered, size, index.covered), None)
        return due is not None and due.first >= index.next

    def _open_sealed(self, base: int, bound: int) -> Segment:
        """A segment before the checkpoint: its index tells all, and is made again if it cannot be used."""
        fd = self._open(base)
        try:
            size = self._limited(fd, base)
            segment = self._segment(fd, base, size, closed=True)
            self._extend(fd, segment, size, bound, verify_from=size)
            if segment.size == size:
                if self._dense and segment.next < bound and not self._is_whole(segment):
                    self._tell_missing(segment.next, bound)
            else:
                logger.error(
                    "%s is damaged at byte %d of %d: the messages up to %d cannot be read",
                    segment.path, segment.size, size, bound,
                )  # fmt: skip
        finally:
            self._files.close(fd)
        segment.max_timestamp = segment.index.max_timestamp
        return segment

    def _open_scanned(self, base: int, bound: int | None) -> Segment:
        """A segment after the checkpoint, or the one in it: messages are verified, what is torn is cut."""
        fd = self._open(base)
        try:
            size = self._limited(fd, base)
            verify_from = self._checkpoint.position if base == self._checkpoint.segment else 0
            segment = self._segment(fd, base, size, closed=bound is not None)
            if segment.size > verify_from:
                # the index file was written before the messages were synced: it proves nothing about them
                segment.index = SegmentIndex(base, self._interval)
                segment.sound = 0
            self._extend(fd, segment, size, bound, verify_from)
            if segment.size < size and not self._keep_rest(fd, segment, size, bound):
                logger.warning(
                    "%s: cutting %d bytes that are not whole messages, or whose place is another segment's",
                    segment.path, size - segment.size,
                )  # fmt: skip
                self._files.truncate(fd, segment.size)
            self._files.sync(fd, SyncPoint.RECOVERED)
        finally:
            self._files.close(fd)
        segment.max_timestamp = segment.index.max_timestamp
        return segment

    def _is_whole(self, segment: Segment) -> bool:
        """Whether a segment ends where its limit says: nothing is missing, or it was told."""
        return self._checkpoint.limits.get(segment.base) == segment.size

    def _keep_rest(self, fd: int, segment: Segment, size: int, bound: int | None) -> bool:
        """Copy what lies behind damage, unless it is just a torn end, or an old end that has come back.

        Returns:
            Whether the segment must not be cut yet: the limit does that at the next opening, when the checkpoint has it
            and what is next.
        """
        if bound is not None and segment.next >= bound:
            return False
        read = partial(_read, self._files, fd)
        rest = look_behind(
            read, self._framing, segment.size, size, expected=segment.next, bound=bound, dense=self._dense
        )
        if not rest.kept:
            return False
        copy = keep(self._files, fd, segment.path, segment.size, size)
        following = f"the whole ones among those up to {rest.next - 1} that follow"
        logger.error(
            "%s is damaged at byte %d: the messages from %d on are lost, and %s are kept in %s. Check the disk; who "
            "needs them restores the data directory from a backup, or reads them out of that file",
            segment.path, segment.size, segment.next, following if rest.next > segment.next else "its last bytes", copy,
        )  # fmt: skip
        if max(rest.next, self._checkpoint.next) == segment.base:
            # Nothing of this segment was given: the next one will have its name, which no limit may bound. There is
            # nothing to be remembered either, but the copy goes first.
            self._files.sync_directory(self._directory, SyncPoint.RECOVERED_ENTRIES)
            return False
        self._given = max(self._given, rest.next)
        self._checkpoint.limits[segment.base] = segment.size
        self._damaged = True
        return True

    def _open(self, base: int) -> int:
        return self._files.open(Segment.empty(self._directory, base, self._interval).path)

    def _limited(self, fd: int, base: int) -> int:
        size = self._files.size(fd)
        limit = self._checkpoint.limits.get(base, size)
        if size > limit:
            self._files.truncate(fd, limit)
        return min(size, limit)

    def _extend(self, fd: int, segment: Segment, size: int, bound: int | None, verify_from: int) -> None:
        """Cover with the index what it does not cover yet."""

        index = segment.index
        read = partial(_read, self._files, fd)
        for info in scan(read, self._framing, index.covered, size, verify_from):
            if info.first < index.next or info.last < info.first or (bound is not None and info.last >= bound):
                return
            if self._dense and info.first != index.next:
                return
            index.add(info.first, info.last, info.length, info.max_timestamp)

    def _set_aside(self, bases: list[int], end: int, bound: int) -> None:
        logger.warning(
            "%s: the messages from %d to %d were never synced and are lost; setting aside %d segments after them "
            "(their files end in %s, and stay for a week)",
            self._directory, end, bound - 1, len(bases), SET_ASIDE,
        )  # fmt: skip
        for base in bases:
            path = Segment.empty(self._directory, base, self._interval).path
            self._files.rename(path, path + SET_ASIDE)


def _read(files: Files, fd: int, length: int, place: int) -> bytes | bytearray | memoryview:
    return files.read(fd, length, place)

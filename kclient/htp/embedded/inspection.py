"""Looks through a data directory that nobody uses: what the manager says against what is on the disk.

Nothing is changed, so it serves for copies on media that cannot be written to as well.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from sqlalchemy import Connection, inspect, select, text
from sqlalchemy.exc import DatabaseError

from kclient.htp.brokers import FIRST_BROKER
from kclient.htp.embedded.checkpoints import checkpoint_key
from kclient.htp.embedded.engines import sqlite_engine
from kclient.htp.embedded.index import SegmentIndex
from kclient.htp.embedded.listing import StoredMessage, stored_messages
from kclient.htp.embedded.reading import scan
from kclient.htp.embedded.recovery import SET_ASIDE, SyncCheckpoint
from kclient.htp.embedded.segment import Segment, base_of
from kclient.htp.embedded.shard import OWNER_FILE, Shard, called, owner_of, topic_directory
from kclient.htp.embedded.sharing import check_data_directory, locks_shared, shards_of
from kclient.htp.embedded.tables import bindings, counter, entries, topic_infos, topics
from kclient.htp.errors import StorageError, UnknownFramingError
from kclient.htp.findings import Finding, error, note
from kclient.htp.framings import find_framing
from kclient.htp.port import Framing, Place

if TYPE_CHECKING:
    from types import TracebackType

_INTERVAL: Final = 1 << 14


class TopicReport(NamedTuple):
    """What is there of one topic."""

    place: Place
    segments: int
    messages: int
    size: int
    """Bytes of whole messages."""
    findings: list[Finding]


class Inspection:
    """A data directory that is looked at: `with Inspection(path, framing) as inspection: ...`.

    Args:
        path: The directory.
        framing: The name of the framing of topics of which nothing says it, as of those that the first versions wrote.
        dense: Whether no ordinal was left out by who sent messages, as `TopicSettings.dense` has it: a gap is a loss.

    Raises:
        FormatVersionError: It is not a data directory, or one of a newer version.
        LockedError: Somebody uses it.
        StorageError: What the manager knows cannot be read at all.
        OSError: The file system refuses.
    """

    def __init__(self, path: str, framing: str, *, dense: bool = False) -> None:
        self.path: str = str(Path(path).absolute())
        self._framing = framing
        self._dense = dense
        self.places: dict[int, Place] = {}
        """The topics that the manager knows, at each broker that they are bound to, by incarnation."""
        self.findings: list[Finding] = []
        """What is wrong with the manager's database."""
        self._last = self._store = 0
        self._opened = ExitStack()
        self._manager: Connection | None = None

    def __enter__(self) -> Self:
        try:
            check_data_directory(self.path)
            self._opened.enter_context(locks_shared(self.path))
            self._open_manager()
        except BaseException:
            self._opened.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._opened.close()

    # What the manager says

    def _open_manager(self) -> None:
        """Of a copy: opening the database itself may write, as when it takes over what a crash has left in its log."""
        folder = self._opened.enter_context(tempfile.TemporaryDirectory(prefix="kclient-verify-"))
        for name in ("mgr.db", "mgr.db-wal"):
            with suppress(FileNotFoundError):
                shutil.copyfile(f"{self.path}/mgr/{name}", f"{folder}/{name}")
        if not Path(folder, "mgr.db").exists():
            raise StorageError(f"{self.path}/mgr/mgr.db is missing: restore it from a backup")
        engine = sqlite_engine(f"{folder}/mgr.db")
        self._opened.callback(engine.dispose)
        try:
            self._manager = self._opened.enter_context(closing(engine.connect()))
            for (told,) in self._manager.execute(text("PRAGMA integrity_check")):
                if told != "ok":
                    self.findings.append(error("mgr/mgr.db", str(told)))
            further = []
            if inspect(self._manager).has_table(bindings.name):  # there is none up to format 3
                further = list(self._manager.execute(select(bindings).order_by(bindings.c.incarnation)))
            for info in topic_infos(self._manager.execute(select(topics)), further):
                self.places |= {place.incarnation: place for place in info.places}
            self._last = counter(self._manager, "incarnation")
            self._store = counter(self._manager, "store")
        except DatabaseError as raised:
            raise StorageError(
                f"{self.path}/mgr/mgr.db is damaged: restore it from a backup ({raised.orig})"
            ) from raised

    def rows(self) -> Iterator[tuple[str, bytes]]:
        """The manager's key-value part, sorted."""
        assert self._manager is not None
        for row in self._manager.execute(select(entries).order_by(entries.c.key)):
            yield row.key, row.value

    def _value(self, key: str) -> bytes | None:
        assert self._manager is not None
        value: bytes | None = self._manager.scalar(select(entries.c.value).where(entries.c.key == key))
        return value

    # What is on the disk

    def directories(self) -> Iterator[Finding]:
        """Directories of messages that the manager knows nothing of, and what deletions have left."""
        for shard in shards_of(self.path):
            yield from self._owner(shard)
            folder = f"{self.path}/{shard}/topics"
            for name in _names(folder):
                number, where = Shard.incarnation_of(name), f"{shard}/topics/{name}"
                if number < 0:
                    yield note(where, "belongs to no topic: it was set aside, or somebody else put it there")
                elif name.endswith(".deleted"):
                    yield note(where, "was deleted: the next start removes it")
                elif number > self._last:
                    yield error(where, "holds messages of a topic that the manager has never heard of")
                elif number not in self.places:
                    yield note(where, "holds messages of no topic: the next start sets it aside")

    def _owner(self, shard: str) -> Iterator[Finding]:
        """Whether a shard is another store's, or another of this one; a copy may not tell."""
        with suppress(FileNotFoundError, ValueError):
            store, name = owner_of(Path(self.path, shard, OWNER_FILE).read_bytes())
            if store != self._store:
                yield error(shard, "belongs to another store than mgr: no gateway opens this directory")
            elif name != shard:
                yield error(shard, f"holds what {name} keeps: no gateway opens this directory")

    def messages(self, place: Place) -> Iterator[StoredMessage]:
        """The messages of a topic at a broker, one by one; where its checkpoint is damaged, as if there were none.

        Raises:
            UnknownFramingError: Nobody knows how they are framed.
            OSError: A file cannot be read.
        """
        checkpoint = self._checkpoint_of(place) or SyncCheckpoint()
        return stored_messages(self._directory_of(place), find_framing(checkpoint.framing or self._framing), checkpoint)

    def framing_of(self, place: Place) -> str:
        """The name of the framing of a topic's messages; that which was given to this, if nothing says so."""
        checkpoint = self._checkpoint_of(place)
        return (None if checkpoint is None else checkpoint.framing) or self._framing

    def _checkpoint_of(self, place: Place) -> SyncCheckpoint | None:
        row = self._value(checkpoint_key(place.broker or FIRST_BROKER, place.incarnation))
        with suppress(ValueError):
            return None if row is None else SyncCheckpoint.decode(row)
        return None

    def _directory_of(self, place: Place) -> str:
        return f"{self.path}/{place.broker or FIRST_BROKER}/topics/{topic_directory(place)}"

    def topic(self, place: Place, progress: Callable[[int], object]) -> TopicReport:
        """Read all messages of a topic at a broker.

        Args:
            place: The topic.
            progress: Is told of bytes that were read.
        """
        shard, where = place.broker or FIRST_BROKER, called(place)
        directory = self._directory_of(place)
        row = self._value(checkpoint_key(shard, place.incarnation))
        try:
            checkpoint = SyncCheckpoint() if row is None else SyncCheckpoint.decode(row)
        except ValueError as raised:
            return TopicReport(place, 0, 0, 0, [error(where, f"its checkpoint is damaged: {raised}")])
        try:
            framing = find_framing(checkpoint.framing or self._framing)
        except UnknownFramingError as raised:
            return TopicReport(place, 0, 0, 0, [error(where, f"its messages cannot be read: {raised}")])
        return _TopicReader(place, directory, checkpoint, framing, progress, dense=self._dense).read()


class _TopicReader:
    """Reads one topic from its first message to its last."""

    def __init__(
        self,
        place: Place,
        directory: str,
        checkpoint: SyncCheckpoint,
        framing: Framing,
        progress: Callable[[int], object],
        *,
        dense: bool,
    ) -> None:
        self._place = place
        self._directory = directory
        self._checkpoint = checkpoint
        checkpoint.limits.pop(checkpoint.segment, None)  # as recovery has it
        self._framing = framing
        self._progress = progress
        self._dense = dense
        self._findings: list[Finding] = []
        self._messages = self._size = 0
        self._next: int | None = None
        """The ordinal after the last message; None before the first segment."""
        self._whole = True
        """Whether the last segment ends where its limit says: what is missing was told when that was found."""

    def read(self) -> TopicReport:
        names = _names(self._directory)
        bases = [base for base in map(base_of, names) if base is not None]
        for name in names:
            if name.endswith(SET_ASIDE):
                self._findings.append(note(f"{called(self._place)}: {name}", "was set aside; it stays for a week"))
        self._compare_beginning(bases)
        for number, base in enumerate(bases):
            bound = bases[number + 1] if number + 1 < len(bases) else None
            try:
                self._read_segment(base, bound)
            except OSError as raised:  # as a disk does that is failing: the others are looked at all the same
                self._findings.append(error(f"{called(self._place)}: {self._file(base)}", f"cannot be read: {raised}"))
                self._next, self._whole = bound, True  # nobody knows more
        self._compare_end(bases)
        return TopicReport(self._place, len(bases), self._messages, self._size, self._findings)

    def _compare_beginning(self, bases: list[int]) -> None:
        where = called(self._place)
        for segment, what in self._checkpoint.lost(bases):
            self._findings.append(error(where if segment is None else f"{where}: {self._file(segment)}", what))

    def _compare_end(self, bases: list[int]) -> None:
        lost, start = self._checkpoint.next, self._checkpoint.start  # what was trimmed may have come back: no loss
        if bases and self._next is not None and max(self._next, start) < lost and not self._whole:
            what = f"ends at {self._next}, and everything below {lost} was synced: the messages between are lost"
            self._findings.append(error(called(self._place), what))

    def _file(self, base: int) -> str:
        return Path(Segment.empty(self._directory, base, _INTERVAL).path).name

    def _read_segment(self, base: int, bound: int | None) -> None:
        segment, where = Segment.empty(self._directory, base, _INTERVAL), f"{called(self._place)}: {self._file(base)}"
        with Path(segment.path).open("rb", buffering=0) as file:
            fd = file.fileno()
            size = os.fstat(fd).st_size
            limit = min(size, self._checkpoint.limits.get(base, size))
            expected, covered = base, 0
            index = _IndexCheck(segment, base, limit)
            for info in scan(lambda length, place: os.pread(fd, length, place), self._framing, 0, limit, 0):
                if info.first < expected or info.last < info.first or (bound is not None and info.last >= bound):
                    break
                if info.first > expected and self._dense:
                    break
                if info.first > expected and self._messages:
                    what = f"there is no message from {expected} to {info.first - 1}"
                    self._findings.append(note(where, what))
                index.message(info.first, covered)
                expected, covered = info.last + 1, covered + info.length
                self._messages += 1
                self._progress(info.length)
        self._size += covered
        self._next, self._whole = expected, self._checkpoint.limits.get(base) == covered
        self._findings += [Finding(found.severity, where, found.what) for found in index.findings(covered)]
        if size < self._checkpoint.limits.get(base, 0):
            had = self._checkpoint.limits[base]
            what = f"has {size} bytes, and had {had}: the messages from {expected} on are missing"
            self._findings.append(error(where, what))
        if covered < limit:
            self._findings.append(self._rest(where, base, covered, limit, expected))
        elif limit < size:
            self._findings.append(note(where, f"{size - limit} bytes at its end do not count, and will be cut"))
        if self._dense and bound is not None and expected < bound and not self._whole:
            self._findings.append(self._gap(where, expected, bound))

    def _gap(self, where: str, expected: int, bound: int) -> Finding:
        """No messages lie between a segment and the next one, which begins further on."""
        begin, end = max(expected, self._checkpoint.start), min(bound, self._checkpoint.next)
        if begin < end:
            return error(
                where, f"ends at {expected}, and the next one begins at {bound}: the messages between are lost"
            )
        return note(where, f"ends at {expected}, and the next one begins at {bound}: what is between was never synced")

    def _rest(self, where: str, base: int, covered: int, limit: int, expected: int) -> Finding:
        """What lies behind the last whole message that follows on the ones before."""
        checkpoint = self._checkpoint
        synced = limit if base < checkpoint.segment else checkpoint.position if base == checkpoint.segment else 0
        if covered < synced:
            return error(where, f"is damaged at byte {covered} of {limit}: no message from {expected} on can be read")
        what = (
            f"{limit - covered} bytes at its end are not whole messages and were never synced: the next start cuts them"
        )
        return note(where, what)


class _IndexCheck:
    """Whether the entries of an index file are places of messages; a sealed segment is read by them alone."""

    def __init__(self, segment: Segment, base: int, size: int) -> None:
        self._usable = True
        self._wrong: int | None = None
        content = None
        with suppress(FileNotFoundError):
            content = Path(segment.index_path).read_bytes()
        index = None if content is None else SegmentIndex.load(content, base, _INTERVAL, size)
        self._damaged = content is not None and index is None
        self._entries = iter(()) if index is None else index.entries()
        self._due = next(self._entries, None)

    def message(self, ordinal: int, place: int) -> None:
        """A message begins there."""
        due = self._due
        if due is not None and due[1] <= place:
            if due != (ordinal, place) and self._wrong is None:
                self._wrong = due[1]
            self._due = next(self._entries, None)

    def findings(self, covered: int) -> Iterator[Finding]:
        """What is wrong with it, after all messages."""
        if self._damaged:
            yield note("", "its index cannot be used: it is made anew")
        wrong = self._wrong
        if wrong is None and self._due is not None and self._due[1] < covered:
            wrong = self._due[1]
        if wrong is not None:
            yield error("", f"its index tells of a message at byte {wrong}, where none begins: remove the index file")


def _names(directory: str) -> list[str]:
    """What is in a directory, sorted; nothing if there is none."""
    try:
        return sorted(path.name for path in Path(directory).iterdir())
    except FileNotFoundError:
        return []

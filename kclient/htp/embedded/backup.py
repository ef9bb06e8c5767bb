"""Takes a backup of a data directory, whether or not somebody uses it."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from kclient.htp.embedded.copying import Copier
from kclient.htp.embedded.files import Files
from kclient.htp.embedded.manifest import DATA, MANIFEST, BackedUpFile, BackupManifest
from kclient.htp.embedded.moment import FoundTopic, Moment
from kclient.htp.embedded.sharing import check_data_directory, locks_shared
from kclient.htp.errors import LockedError, StorageError, StorageFullError

_FORMAT_FILE = "format.json"
_DATABASE = "mgr/mgr.db"


class BackupReport(NamedTuple):
    """What a backup holds."""

    topics: int
    """Topics of HTP that have messages, or had."""
    files: int
    size: int
    """Bytes of all files."""
    taken_ms: int
    """When it was the state of the store, milliseconds since the epoch."""
    in_use: bool
    """Whether somebody had the store open."""
    exact: bool
    """Whether all logs were looked at in the same moment. Else, as with an owner that tells no ends, they were looked
    at one after another within milliseconds: a log may have messages that are younger than the end of another one. So
    they are where several processes have the store open."""
    lost: list[str]
    """What the store had lost already, and the backup lacks, too: directories and segments of topics, in sentences."""


def back_up(
    path: str,
    target: str,
    *,
    total: Callable[[int], object] = lambda _: None,
    progress: Callable[[int], object] = lambda _: None,
    files: Files | None = None,
) -> BackupReport:
    """Copy a data directory as it is at one moment; blocks.

    Rows and messages are what a crash at that moment would leave: everything that was acknowledged before the call is
    in it, and whatever a row refers to. Somebody who has the store open goes on all the while. If anything fails, an
    interrupt too, what was copied is removed again.

    Args:
        path: The data directory.
        target: Where to; absent or empty, and not in `path`.
        total: Is told how many bytes there are to be copied.
        progress: Is told how many bytes were copied, again and again.
        files: Stands in for the operating system's files (fault injection).

    Raises:
        FormatVersionError: `path` is not a data directory, or a newer version's.
        StorageError: It cannot be read, is damaged, or `target` cannot be written.
        StorageFullError: `target` has no space left.
    """
    source, target = os.path.realpath(path), os.path.realpath(target)
    check_data_directory(source)
    if Path(target).is_relative_to(source) or Path(source).is_relative_to(target):
        raise StorageError(f"{target} and {source} lie in one another: name another directory for the backup")
    with Copier(target, files or Files(), progress) as copier, ExitStack() as stack:
        in_use = False
        try:
            stack.enter_context(locks_shared(source))
        except LockedError:
            in_use = True
        moment = stack.enter_context(Moment(source, in_use=in_use))
        return _Backup(source, target, moment, copier).take(total)


class _Backup:
    def __init__(self, source: str, target: str, moment: Moment, copier: Copier) -> None:
        self._source = source
        self._target = target
        self._moment = moment
        self._copier = copier
        self._manifest = BackupManifest(check_data_directory(source), moment.taken_ms)

    def take(self, total: Callable[[int], object]) -> BackupReport:
        database = f"{self._target}/{DATA}/{_DATABASE}"
        self._make_directory("mgr")
        self._copy_rows(database)
        found = list(self._moment.topics(database))
        topics = [topic for topic in found if topic.files is not None]
        size = sum(file.length for topic in topics for file in topic.files or ())
        self._copier.check_space(size)
        total(size)
        self._note_database(database)
        self._copy(f"{self._source}/{_FORMAT_FILE}", _FORMAT_FILE, None, self._moment.taken_ms)
        for shard in self._moment.shards:
            self._make_directory(f"{shard}/topics")
        for topic in topics:
            self._copy_topic(topic)
        self._copier.finish(MANIFEST, self._manifest.encode())
        manifest, moment = self._manifest, self._moment
        return BackupReport(
            len(topics), len(manifest.files), manifest.size, moment.taken_ms, moment.in_use, moment.exact,
            [each for topic in found for each in topic.lost],
        )  # fmt: skip

    def _copy_rows(self, database: str) -> None:
        try:
            self._moment.copy_rows(database)
        except OSError as error:
            raise self._copier.trouble("cannot be written to", error) from error
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_FULL:
                raise StorageFullError(
                    f"{self._target}: no space is left on its file system for {_DATABASE}"
                ) from error
            raise StorageError(f"{database} cannot be written: {error}") from error

    def _note_database(self, database: str) -> None:
        """The rows are there already; what the manifest says of them is read back."""
        length, crc = self._copier.read_back(database)
        self._manifest.files.append(BackedUpFile(_DATABASE, length, crc, self._moment.taken_ms))

    def _copy_topic(self, topic: FoundTopic) -> None:
        self._make_directory(topic.path)
        for file in topic.files or ():
            self._copy(file.source, f"{topic.path}/{file.name}", file.length, file.modified_ms)

    def _make_directory(self, name: str) -> None:
        self._copier.make_directory(f"{DATA}/{name}")
        self._manifest.directories.append(name)

    def _copy(self, source: str, name: str, length: int | None, modified_ms: int) -> None:
        if length is None:
            length = Path(source).stat().st_size
        copied, crc = self._copier.copy(source, f"{DATA}/{name}", length, modified_ms)
        if copied < length:
            raise StorageError(
                f"{self._source}/{name} has become shorter than the {length} bytes that it had, as after a failed "
                "sync: look at the gateway's log, and take the backup again"
            )
        self._manifest.files.append(BackedUpFile(name, length, crc, modified_ms))

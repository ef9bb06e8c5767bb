"""Makes a data directory of a backup."""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple

from kclient.htp.brokers import FIRST_BROKER
from kclient.htp.embedded.copying import Copier
from kclient.htp.embedded.directory import FORMAT
from kclient.htp.embedded.files import Files
from kclient.htp.embedded.manifest import DATA, BackedUpFile, BackupManifest, read_manifest
from kclient.htp.embedded.shard import shard_number
from kclient.htp.errors import DamagedError, FormatVersionError, StorageError

_FORMAT_FILE = "format.json"
_DATABASE = "mgr/mgr.db"
_TOPICS = "topics"


class RestoreReport(NamedTuple):
    """What was restored."""

    files: int
    size: int
    """Bytes of all files."""
    taken_ms: int
    """When it was the state of the store, milliseconds since the epoch."""
    lost: list[str]
    """Brokers that hold topics, and whose directories the store had lost when the backup was taken: empty ones were
    made, so that the other topics can be used."""


def restore(
    backup: str,
    path: str,
    *,
    total: Callable[[int], object] = lambda _: None,
    progress: Callable[[int], object] = lambda _: None,
    files: Files | None = None,
) -> RestoreReport:
    """Copy a backup into a directory, which a gateway opens then as after a crash; blocks.

    Every file is compared with the manifest while it is copied. If anything fails, an interrupt too, what was copied is
    removed again; the backup is not changed.

    Args:
        backup: The directory of the backup.
        path: The data directory to be; absent or empty.
        total: Is told how many bytes there are to be copied.
        progress: Is told how many bytes were copied, again and again.
        files: Stands in for the operating system's files (fault injection).

    Raises:
        FormatVersionError: `backup` is no backup, or of a newer version.
        DamagedError: A file of it is missing or damaged; the text names it.
        StorageError: The manifest is damaged, or `path` is not empty or cannot be written.
        StorageFullError: `path` has no space left.
    """
    backup, path = os.path.realpath(backup), os.path.realpath(path)
    manifest = read_manifest(backup)
    if manifest.data_format > FORMAT:
        raise FormatVersionError(
            f"{backup} holds data of format {manifest.data_format}; this version of kclient knows formats up to "
            f"{FORMAT}: use a newer one (pip install --upgrade htp-kclient)"
        )
    if Path(path).is_relative_to(backup) or Path(backup).is_relative_to(path):
        raise StorageError(f"{path} and {backup} lie in one another: name another directory for the data")
    with Copier(path, files or Files(), progress) as copier:
        copier.check_space(manifest.size)
        total(manifest.size)
        for directory in manifest.directories:
            copier.make_directory(directory)
        last: bytes | None = None
        for file in manifest.files:
            source = f"{backup}/{DATA}/{file.path}"
            _check_length(source, file)
            copied = copier.copy(source, file.path, file.length, file.modified_ms)
            if copied != (file.length, file.crc):
                raise _damaged(source, "its bytes are not those that were backed up")
            if file.path == _FORMAT_FILE:
                # without it nobody takes the directory for a whole one
                last = Path(path, _FORMAT_FILE).read_bytes()
                Path(path, _FORMAT_FILE).unlink()
        if last is None:
            raise _damaged(f"{backup}/{DATA}/{_FORMAT_FILE}", "the manifest does not name it")
        lost = _lost_shards(f"{path}/{_DATABASE}", manifest)
        for shard in lost:
            copier.make_directory(f"{shard}/{_TOPICS}")
        copier.finish(_FORMAT_FILE, last)
    return RestoreReport(len(manifest.files), manifest.size, manifest.taken_ms, lost)


def _lost_shards(database: str, manifest: BackupManifest) -> list[str]:
    """The brokers that the rows know topics of, and of which the backup has not even the directory."""
    with suppress(sqlite3.Error), closing(sqlite3.connect(f"{Path(database).as_uri()}?mode=ro", uri=True)) as rows:
        bound = {name or FIRST_BROKER for (name,) in rows.execute("SELECT broker FROM topics")}
        with suppress(sqlite3.OperationalError):  # the table came with format 4
            bound |= {name for (name,) in rows.execute("SELECT broker FROM bindings")}
        there = {each.partition("/")[0] for each in manifest.directories}
        return sorted(name for name in bound - there if shard_number(name) is not None)
    return []


def _check_length(source: str, file: BackedUpFile) -> None:
    try:
        found = Path(source).stat()
    except FileNotFoundError:
        raise _damaged(source, "it is missing") from None
    except OSError as error:
        raise StorageError(f"{source} cannot be read: {error}") from error
    if not stat.S_ISREG(found.st_mode):  # who opens a pipe may wait for ever
        raise _damaged(source, "it is not a file")
    if found.st_size != file.length:
        raise _damaged(source, f"it has {found.st_size} bytes, and had {file.length}")


def _damaged(source: str, what: str) -> DamagedError:
    return DamagedError(f"{source} is damaged: {what}. Nothing was restored; use another backup")

"""Brings a data directory that nobody uses to the format of this version, without a gateway."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from kclient.htp.embedded.directory import FORMAT, DataDirectory
from kclient.htp.embedded.files import Files
from kclient.htp.embedded.manifest import check_is_data_directory
from kclient.htp.embedded.space import opening_error
from kclient.htp.embedded.writer import DatabaseWriter
from kclient.htp.errors import StorageError


class Upgraded(NamedTuple):
    """What an upgrade has done."""

    before: int
    """The format in which the directory was found."""
    after: int
    """The format that it has now."""


def upgrade(path: str, files: Files | None = None) -> Upgraded:
    """Bring a data directory to the format of this version, and its database with it; blocks.

    One that has this format is opened all the same: an upgrade that was cut off is finished by the next one.

    Args:
        path: The directory.
        files: Stands in for the operating system's files (fault injection).

    Raises:
        FormatVersionError: It is not a data directory, or one of a newer version.
        LockedError: Somebody uses it; the text says which process.
        StorageError: Its database is missing, damaged, or cannot be opened.
        StorageFullError: There is no space left for what has to be written.
    """
    absolute = str(Path(path).absolute())
    check_is_data_directory(absolute)
    directory = DataDirectory(absolute, files or Files())
    database = f"{directory.manager_path}/mgr.db"
    if not Path(database).exists():  # opening it would make an empty one, in which no topic is known
        raise StorageError(f"{database} is missing: restore the data directory from a backup")
    try:
        try:
            directory.open()
        except OSError as error:
            raise opening_error(absolute, error, str(error)) from error
        _open_and_close(database)
    finally:
        directory.close()
    return Upgraded(directory.found_format, FORMAT)


def _open_and_close(database: str) -> None:
    """The database is migrated when it is opened, after the check that it is sound."""
    failures: list[StorageError] = []

    def at_once(call: Callable[[], object]) -> None:
        call()

    writer = DatabaseWriter(database, at_once, failures.append)
    try:
        writer.start()
    finally:
        writer.stop()
    if failures:
        raise failures[0]

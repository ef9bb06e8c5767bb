"""The low watermark of disk space: with less than that left, messages are refused while rows are still written.

A thread for each file system that brokers lie on asks it, the oftener the nearer the watermark is, but twenty times a
second at most; an append looks at a flag. So deletions, trims and commits have space left when messages have none any
more.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterable
from enum import Enum
from typing import TYPE_CHECKING, Final

from kclient.htp.errors import StorageFullError
from kclient.htp.port import DiskSpace

if TYPE_CHECKING:
    from kclient.htp.embedded.files import Files

logger: logging.Logger = logging.getLogger(__name__)

_BYTES_PER_S: Final = 1_000_000_000
"""More than that is hardly written, so the next look comes before the watermark is reached."""
_SOONEST_S: Final = 0.05
_LATEST_S: Final = 5.0
_WHILE_LOW_S: Final = 0.25
_SPARE: Final = 8 << 20
"""Bytes that what takes the place of other messages leaves for new ones, if the watermark is lower."""


class Level(Enum):
    """How much space is left."""

    PLENTY = "plenty"
    SCARCE = "scarce"
    """Less than twice the watermark: somebody has been warned."""
    LOW = "low"
    """Less than the watermark: messages are refused."""


def level_of(free: int, least: int, before: Level) -> Level:
    """The level of so much space; to go back up takes a tenth more, so that it does not change with every message.

    Args:
        free: Bytes that are left.
        least: The watermark.
        before: The level so far.
    """
    if free < least + (least // 10 if before is Level.LOW else 0):
        return Level.LOW
    if free < 2 * least + (0 if before is Level.PLENTY else least // 5):
        return Level.SCARCE
    return Level.PLENTY


class Watermark:
    """Watches the space of one file system.

    Args:
        files: The file system.
        directory: A directory in it.
        least: Bytes below which messages are refused; 0 for never, then nobody looks.
    """

    def __init__(self, files: Files, directory: str, least: int) -> None:
        self.low: bool = False
        """Whether messages are refused; set by the thread, read by every append."""
        self._files = files
        self._directory = directory
        self._least = least
        self._free = 0
        self._level = Level.PLENTY
        self._stop = threading.Event()
        # a daemon, like the threads that write
        self._thread = threading.Thread(target=self._run, name="kclient-htp-space", daemon=True)

    def start(self) -> None:
        """Look, and begin to look again and again; blocks for the first time."""
        if self._least:
            self.look()
            self._thread.start()

    def stop(self) -> None:
        """Look no more; blocks until the thread has ended."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def look(self) -> None:
        """Ask the file system, and tell what has changed."""
        self._free = free = self._files.free_bytes(self._directory)
        before, self._level = self._level, level_of(free, self._least, self._level)
        self.low = self._level is Level.LOW
        if self._level is not before:
            self._tell(before, free)

    def space(self) -> DiskSpace:
        """What is left, as it was looked at last; where nobody looks, now."""
        if not self._least:
            self._free = self._files.free_bytes(self._directory)
        free = self._free
        return DiskSpace(None if free >= sys.maxsize else free, self._least, self.low)

    def refusal(self, name: str) -> StorageFullError:
        """What is said to whoever wants to append.

        Args:
            name: Of the topic.
        """
        return StorageFullError(
            f"{name} could not be written: {self._directory} has {self._free:,} bytes left, and below {self._least:,} "
            "messages are refused (min_free_bytes; a gateway's log.dir.min.free.bytes). Make space: delete topics or "
            "records, or shorten their retention"
        )

    def check_spare(self, name: str, size: int) -> None:
        """Refuse what only takes the place of other messages, where new ones would be refused because of it.

        Where they are anyway, it may have what the watermark keeps: it gives back more in the end. The file system is
        asked, so this is not for the event loop's thread.

        Args:
            name: Of the topic.
            size: Bytes that are to be written.

        Raises:
            StorageFullError: So much must not be written.
        """
        free = self._files.free_bytes(self._directory)
        spare = _SPARE if self.low else max(self._least + self._least // 10, _SPARE)
        if free - size < spare:
            raise StorageFullError(
                f"{name} could not be rewritten: {self._directory} has {free:,} bytes left, of which {spare:,} are "
                "kept for new messages. Make space: delete topics or records, or shorten their retention"
            )

    def _tell(self, before: Level, free: int) -> None:
        where, least = self._directory, self._least
        if self._level is Level.LOW:
            logger.error(
                "%s has %d bytes left, less than min_free_bytes=%d: messages are refused until there is a tenth more "
                "than that. Deletions, trims and commits go on",
                where, free, least,
            )  # fmt: skip
        elif self._level is Level.SCARCE and before is Level.PLENTY:
            logger.warning(
                "%s has %d bytes left, less than twice min_free_bytes=%d, below which messages are refused: make space",
                where, free, least,
            )  # fmt: skip
        elif before is Level.LOW:
            logger.warning("%s has %d bytes left: messages are taken again", where, free)
        else:
            logger.warning("%s has %d bytes left: that is enough again", where, free)

    def _run(self) -> None:
        while not self._stop.wait(self._pause()):
            try:
                self.look()
            except Exception:
                logger.exception("the space of %s cannot be looked at; it is tried again", self._directory)

    def _pause(self) -> float:
        if self.low:
            return _WHILE_LOW_S
        return min(max((self._free - self._least) / _BYTES_PER_S, _SOONEST_S), _LATEST_S)


class Watermarks:
    """The watermark of each file system that holds directories of brokers.

    Args:
        files: The file systems.
        data: The data directory.
        least: Bytes below which messages are refused; 0 for never.
    """

    def __init__(self, files: Files, data: str, least: int) -> None:
        self._files = files
        self._data = data
        self._least = least
        self._by_system: dict[int, Watermark] = {}
        self._by_directory: dict[str, Watermark] = {}

    def start(self, directories: Iterable[str]) -> None:
        """Begin to look at the file systems of these directories; blocks for the first time."""
        for directory in (self._data, *directories):
            system = self._files.file_system(directory)
            watermark = self._by_system.get(system)
            if watermark is None:
                watermark = self._by_system[system] = Watermark(self._files, directory, self._least)
                watermark.start()
            self._by_directory[directory] = watermark

    @property
    def of_data(self) -> Watermark:
        """That of the data directory, whether or not a broker lies there."""
        return self._by_directory[self._data]

    def of(self, directory: str) -> Watermark:
        """That of a directory which was named at the start."""
        return self._by_directory[directory]

    def stop(self) -> None:
        """Look no more; blocks until the threads have ended."""
        for watermark in self._by_system.values():
            watermark.stop()

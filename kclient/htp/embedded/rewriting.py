"""Other messages in place of those of a closed segment: written beside it, synced, and put there by one rename.

Until the rename the old file is there, afterwards the new one: a crash at any step leaves one of them, whole. Readers
that are at work in the old one keep it open; who comes later finds that its segment was replaced, and looks again.

The index of the old segment must never be taken for that of the new one. So it is removed before, durably, and nothing
that was to be written of it before comes afterwards: what waits in the syncer's thread beside is waited for.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, Any, Final

import anyio.lowlevel

from kclient.concurrency import to_the_end
from kclient.errors import IllegalStateError
from kclient.htp.appending import inspect_all
from kclient.htp.embedded.files import SyncPoint
from kclient.htp.embedded.index import SegmentIndex
from kclient.htp.embedded.segment import Segment
from kclient.htp.errors import OrderError, StorageError

if TYPE_CHECKING:
    from kclient.htp.embedded.files import Files
    from kclient.htp.embedded.liveness import DiskLiveness
    from kclient.htp.embedded.log import TopicLog
    from kclient.htp.embedded.threads import DiskThreads
    from kclient.types import Buffer

logger: logging.Logger = logging.getLogger(__name__)

_NUMBERS: Final = count()


class SegmentRewriting:
    """Implements `kclient.htp.port.Rewriting`. One task uses it at a time.

    Args:
        use: The topic's log. Raises why it may not be used any more.
        segment: Of that log.
        files: The file system.
        threads: Wait for the disk.
        replacing: Has a segment replaced while nobody else changes the log; the broker's.
    """

    def __init__(
        self,
        use: Callable[[], TopicLog],
        segment: Segment,
        files: Files,
        threads: DiskThreads,
        replacing: Callable[[SegmentRewriting], Coroutine[Any, Any, None]],
    ) -> None:
        log = use()
        self._use = use
        self._files = files
        self._threads = threads
        self._replacing = replacing
        self._name = log.name
        self._framing = log.framing
        self._dense = log.settings.dense
        self._watermark = log.services.watermark
        self.old: Segment = segment
        self._index = SegmentIndex(segment.base, log.settings.index_interval_bytes)
        self._greatest = -1
        self._path = f"{segment.path}.{os.getpid()}.{next(_NUMBERS)}.tmp"  # recovery removes what ends like this
        self._fd = -1
        self._ended = False

    @property
    def size(self) -> int:
        """Bytes of the messages so far."""
        return self._index.covered

    async def append(self, messages: Sequence[Buffer]) -> None:
        """Add messages behind those so far; nothing is seen of them before `commit`."""
        await anyio.lowlevel.checkpoint_if_cancelled()
        self._check()
        if messages:
            try:
                await self._threads.run_to_the_end(self._write, messages)
            except OSError as error:
                raise self._use().storage_error("could not be rewritten", error) from error

    def _check(self) -> None:
        if self._ended:
            raise IllegalStateError(f"{self._name}: this rewriting of a segment has ended; begin another")
        self._use()

    def _write(self, messages: Sequence[Buffer]) -> None:
        index = self._index
        infos = inspect_all(self._name, self._framing, messages, index.next, dense=self._dense)
        if infos[-1].last >= self.old.next:
            raise OrderError(
                f"{self._name}: ordinal {infos[-1].last} lies behind the segment, which ends before {self.old.next}"
            )
        self._watermark.check_spare(self._name, sum(info.length for info in infos))
        if self._fd < 0:
            self._fd = self._files.open(self._path, create=True)
        self._files.write(self._fd, messages, index.covered)
        for info in infos:
            index.add(info.first, info.last, info.length, info.max_timestamp)
            self._greatest = max(self._greatest, info.max_timestamp)

    async def commit(self) -> None:
        """Have the messages take the place of the segment's, durably."""
        await anyio.lowlevel.checkpoint_if_cancelled()
        self._check()
        if not self.size or self._index.next != self.old.next:
            raise OrderError(
                f"{self._name}: the messages end before {self._index.next}, those of the segment before {self.old.next}"
            )
        self._ended = True
        try:
            await self._threads.run_to_the_end(self._files.sync, self._fd, SyncPoint.REWRITTEN)
            await self._replacing(self)
        except OSError as error:
            raise StorageError(f"{self._name} could not be rewritten: {error}") from error
        finally:
            await to_the_end(self._clear_up)

    async def discard(self) -> None:
        """Give up what was appended; afterwards, and after `commit`, this does nothing."""
        self._ended = True
        await to_the_end(self._clear_up)

    async def _clear_up(self) -> None:
        await self._threads.run(self._remove)

    def _remove(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            with suppress(OSError):  # nothing that counts is in it, or it is synced
                self._files.close(fd)
            try:
                self._files.remove(self._path)
            except OSError as error:
                logger.warning("%s could not be removed, the next opening of the topic does: %s", self._path, error)

    def at_hand(self, liveness: DiskLiveness) -> bool:
        """Whether the old file is open, or the disk that it is to be opened on answers."""
        return self.old.handle.fd >= 0 or time.monotonic() <= liveness.until

    # --- what the broker does while nobody else changes the log ---

    def swap_files(self) -> None:
        """Put the new file in the old one's place; waits for the disk. What had to be done in its order is done.

        Raises:
            OSError: The old file is still there.
        """
        files, directory = self._files, self.old.directory
        files.set_modified_ms(self._fd, self.old.modified_ms)
        files.remove(self.old.index_path)
        files.sync_directory(directory, SyncPoint.REWRITTEN_ENTRY)
        files.rename(self._path, self.old.path)

    def settle_files(self) -> None:
        """Make the new file's entry durable, and write its index. Raises `OSError` if it may not be durable."""
        self._files.sync_directory(self.old.directory, SyncPoint.REWRITTEN_ENTRY)
        with suppress(OSError):  # it is made again where it is missing
            self._files.store(self.old.index_path, self._index.dump(self.old.base))

    def segment(self) -> Segment:
        """The new segment."""
        old = self.old
        return Segment(
            old.directory, old.base, self._index, exists=True, modified_ms=old.modified_ms,
            max_timestamp=self._greatest, created=old.created,
        )  # fmt: skip

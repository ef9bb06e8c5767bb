"""What a start finds that belongs to no topic: deletions that were cut off, and messages that nobody has deleted."""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from kclient.htp.embedded.links import remove_left_behind
from kclient.htp.errors import StorageError

if TYPE_CHECKING:
    from kclient.htp.embedded.checkpoints import SyncCheckpoints
    from kclient.htp.embedded.files import Files
    from kclient.htp.embedded.shard import Shard
    from kclient.htp.embedded.threads import DiskThreads

logger: logging.Logger = logging.getLogger(__name__)


class Leftovers:
    """Finishes deletions, and sets aside what may be missed.

    Args:
        shard: Whose owner this process is.
        checkpoints: Of its topics.
        files: The file system.
        threads: Wait for the disk.
        chore: Has a function called in another thread, some time.
    """

    def __init__(
        self,
        shard: Shard,
        checkpoints: SyncCheckpoints,
        files: Files,
        threads: DiskThreads,
        chore: Callable[[Callable[[], object]], object],
    ) -> None:
        self._shard = shard
        self._checkpoints = checkpoints
        self._files = files
        self._threads = threads
        self._chore = chore

    async def clear_up(self, known: Container[int], last: int) -> None:
        """Look through the directories of all topics, before any is opened.

        Args:
            known: The incarnations of all topics that there are.
            last: The greatest that was ever given.

        Raises:
            StorageError: If there are messages that the manager has never heard of, or the file system refuses.
        """
        found = await self._threads.run(self._shard.incarnations)
        for path, incarnation in found.items():
            if incarnation is not None and incarnation > last:
                raise StorageError(
                    f"{path} holds messages of a topic that {self._shard.data_path}/mgr has never heard of: "
                    "was it replaced by an older one? Restore both from one backup"
                )
        self._chore(partial(remove_left_behind, self._shard.path))
        unknown = {path: number for path, number in found.items() if number is not None and number not in known}
        await self._forget(unknown.values())  # first: later nobody would find them
        await self._set_aside(list(unknown))
        await self._finish_deletions([path for path, number in found.items() if number is None], set(found.values()))

    async def _set_aside(self, paths: Sequence[str]) -> None:
        """Messages that nobody has deleted, of topics that are not there: never remove what may be missed."""
        if not paths:
            return
        try:
            empty = await self._threads.run(self._empty, paths)
            self.remove_later(empty)  # made for a topic that was deleted meanwhile
            full = [path for path in paths if path not in empty]
            await self._threads.run_to_the_end(self._shard.set_aside, full)
        except OSError as error:
            raise StorageError(f"{self._shard.topics_path}: setting aside failed: {error}") from error
        for path in full:
            logger.error(
                "%s holds messages of no topic that %s knows: either that was damaged, or the topic's deletion was cut "
                "off. It is renamed and ends in .orphan now: remove it if the topic was deleted, else restore the data "
                "directory from a backup",
                path, f"{self._shard.data_path}/mgr",
            )  # fmt: skip

    def _empty(self, paths: Sequence[str]) -> set[str]:
        return {path for path in paths if not self._files.list_directory(path)}

    async def _finish_deletions(self, paths: Sequence[str], present: Container[int | None]) -> None:
        """Remove what is marked as deleted, first the checkpoints: without, there would be topics of no directory."""
        incarnations = map(self._shard.incarnation_of, paths)
        await self._forget(number for number in incarnations if number not in present)
        self.remove_later(paths)

    async def _forget(self, incarnations: Iterable[int]) -> None:
        """Remove the checkpoints of topics that are not there any more."""
        if rows := await self._checkpoints.there_are(incarnations):
            await self._checkpoints.remove(rows)

    def remove_later(self, paths: Iterable[str]) -> None:
        """Remove directories whose names say that they were deleted; at the next start, if not by then."""
        self._chore(partial(self._remove, paths))

    def _remove(self, paths: Iterable[str]) -> None:
        for path in paths:
            self._files.remove_tree(path)

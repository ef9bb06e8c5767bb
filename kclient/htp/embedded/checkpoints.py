"""The checkpoints of the topics' logs: rows of the manager, which also say who may open a topic, and how."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

import anyio

from kclient.concurrency import to_the_end
from kclient.htp.embedded.recovery import SyncCheckpoint
from kclient.htp.errors import FencedError, StorageError, StoreClosedError
from kclient.htp.framings import check_framing

if TYPE_CHECKING:
    from kclient.htp.embedded.files import Files
    from kclient.htp.embedded.log import TopicLog
    from kclient.htp.embedded.manager import SqliteManager
    from kclient.htp.embedded.services import SyncedLog
    from kclient.htp.embedded.threads import DiskThreads
    from kclient.htp.port import Framing, Place

logger: logging.Logger = logging.getLogger(__name__)

_GIVE_UP_S: Final = 5.0
"""Seconds that another process has to give the files of a topic up."""
_ASK_AGAIN_S: Final = 0.25
"""Seconds until it is looked whether that process is there at all."""
_PREFIX: Final = "brk/"
"""Keys of the manager that belong to the broker: `brk/SHARD/INCARNATION`, a topic's checkpoint."""


def checkpoint_key(shard: str, incarnation: int) -> str:
    """The key of a topic's checkpoint."""
    return f"{_PREFIX}{shard}/{incarnation}"


class SyncCheckpoints:
    """Reads and writes the checkpoints of one shard.

    Args:
        manager: Keeps them.
        shard: Its name.
        files: The file system, which holds the index files beside them.
        threads: Wait for the disk.
    """

    def __init__(self, manager: SqliteManager, shard: str, files: Files, threads: DiskThreads) -> None:
        self._manager = manager
        self._shard = shard
        self._files = files
        self._threads = threads
        self._sealing: dict[str, SyncedLog | None] = {}
        """Rows that are being sealed, each with the log of it whose checkpoint has to wait for that."""

    def key(self, incarnation: int) -> str:
        """Of a topic's checkpoint."""
        return checkpoint_key(self._shard, incarnation)

    async def seal(
        self, place: Place, epoch: int, framing: Framing, *, log: SyncedLog | None = None, new: bool = False
    ) -> SyncCheckpoint | None:
        """Refuse older epochs and other framings from now on, durably.

        Args:
            place: The topic.
            epoch: The opener's.
            framing: The opener's.
            log: The topic's, if it is open: its checkpoints keep the new epoch, whatever becomes of the opener.
            new: Whether to make a checkpoint where there is none.

        Returns:
            The topic's checkpoint, None if it has none and is not `new`.

        Raises:
            UnknownTopicError: If there is no such topic.
            FencedError: If it was opened under a newer epoch.
            StorageError: If another process has its files, and does not give them up.
            FramingMismatchError: If it was written with another framing.
        """
        found: SyncCheckpoint | None = None

        def change(row: bytes | None) -> bytes | None:
            nonlocal found
            if row is None and not new:
                found = None
                return None
            found = _decoded(place, row)
            if found.fence > epoch:
                raise fenced(place, epoch, found.fence)
            check_framing(place, found.framing or framing.name, framing.name)
            if (found.fence, found.framing) == (epoch, framing.name):
                return None
            found.fence, found.framing = epoch, framing.name
            return found.encode()

        key = self.key(place.incarnation)

        async def commit() -> None:
            await self._until_taken(
                partial(self._manager.change_of, place, key, change, epoch),
                [place.incarnation],
                f"the files of {place.topic} are in use",
            )
            if log is not None and found is not None:
                log.fence = found.fence

        self._sealing[key] = None
        try:
            await (commit() if log is None else to_the_end(commit))
        finally:
            late = self._sealing.pop(key)
            if late is not None:
                self.write_soon(late)
        return found

    async def take(self, places: Sequence[Place], epoch: int) -> None:
        """Have the files of some topics, which are about to be deleted; raises `StorageError` if that cannot be."""
        # whoever has opened one under this epoch, and no newer one, gives it up too
        wanted = {place.incarnation: epoch + 1 for place in places}
        used = f"the files of {len(places)} topics are in use"
        await self._until_taken(partial(self._manager.take, wanted), list(wanted), used)

    async def _until_taken(
        self, take: Callable[[], Awaitable[int | None]], incarnations: Sequence[int], used: str
    ) -> None:
        until = anyio.current_time() + _GIVE_UP_S
        while (holder := await take()) is not None:
            left = until - anyio.current_time()
            if left <= 0:
                raise StorageError(
                    f"{used} by process {holder or '(unknown)'}, which does not give them up: if it hangs or is "
                    f"stopped, kill it (kill -9 {holder or 'PID'}); nothing that it has acknowledged is lost by that"
                )
            await self._manager.given_up(incarnations, min(left, _ASK_AGAIN_S))

    async def give_up(self, places: Iterable[Place]) -> None:
        """Let other processes have the files of topics, which are used no more."""
        await self._manager.give_up(place.incarnation for place in places)

    async def fences(self, places: Iterable[Place]) -> dict[Place, int]:
        """The epochs under which topics were opened last, of those that have ever been."""
        keys = {self.key(place.incarnation): place for place in places}
        rows = await self._manager.get(keys) if keys else {}
        return {keys[key]: _decoded(keys[key], row.value).fence for key, row in rows.items()}

    async def write(self, log: TopicLog) -> None:
        """Write the checkpoint of a log; returns when it is durable."""
        assert log.key is not None
        await self._manager.commit({log.key: log.checkpoint().encode()})

    def write_soon(self, log: SyncedLog, *, trusted: bool = True) -> None:
        """Have the checkpoint of a log written; `trusted` is as for `TopicLog.checkpoint`."""
        if log.key is None:
            return
        if log.key in self._sealing:  # it would come after the new epoch, and bring back the old one
            self._sealing[log.key] = log
            return

        def done(error: Exception | None) -> None:
            if error is not None:
                log.checkpoint_due = True
                logger.warning("the checkpoint of %s could not be written: %s", log.name, error)

        try:
            self._manager.commit_soon({log.key: log.checkpoint(trusted=trusted).encode()}, done)
        except (StoreClosedError, StorageError) as error:
            done(error)

    async def write_all(self, logs: Sequence[TopicLog]) -> None:
        """Make the next opening fast: checkpoints and index files of logs that are idle."""
        due = {log.key: log for log in logs if log.checkpoint_due and log.key is not None}
        indexes = [index for log in due.values() for index in log.indexes()]
        try:
            await self._threads.run(self._store_indexes, indexes)
            if due:
                await self._manager.commit({key: log.checkpoint().encode() for key, log in due.items()})
        except (OSError, StorageError) as error:
            logger.warning("checkpoints could not be written, the next opening will take longer: %s", error)
            return
        for log in due.values():
            log.checkpoint_due = False

    def _store_indexes(self, indexes: Sequence[tuple[str, bytes]]) -> None:
        for path, content in indexes:
            self._files.store(path, content)

    async def there_are(self, incarnations: Iterable[int]) -> list[int]:
        """Those of the topics that have one."""
        keys = {self.key(incarnation): incarnation for incarnation in incarnations}
        return [keys[key] for key in await self._manager.get(keys)]

    async def remove(self, incarnations: Iterable[int]) -> None:
        """Remove those of some topics, in one commit; one that is not there is no error."""
        await self._manager.commit(dict.fromkeys(map(self.key, incarnations)))


def fenced(place: Place, older: int, newer: int) -> FencedError:
    """What is said to an epoch that a newer one has followed."""
    return FencedError(f"{place}: epoch {older} is older than {newer}", epoch=newer)


def _decoded(place: Place, row: bytes | None) -> SyncCheckpoint:
    if row is None:
        return SyncCheckpoint()
    try:
        return SyncCheckpoint.decode(row)
    except ValueError as error:
        logger.error(
            "%s: its checkpoint cannot be read, every message is verified instead; nothing has to be done (%s)",
            place, error,
        )  # fmt: skip
        return SyncCheckpoint(start=-1)

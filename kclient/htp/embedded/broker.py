"""The messages of the embedded backend: one shard of topics, each a log of segments."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Container, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

import anyio
import anyio.lowlevel

from kclient.concurrency import NamedLocks, thread_to_the_end, to_the_end
from kclient.htp.embedded.handles import OpenFiles
from kclient.htp.embedded.log import TopicLog
from kclient.htp.embedded.recovery import Recovered, SyncCheckpoint, recover
from kclient.htp.embedded.services import Services, SyncedLog
from kclient.htp.embedded.syncer import Syncer, SyncOutcome
from kclient.htp.embedded.topic import EmbeddedTopic
from kclient.htp.errors import FencedError, StorageError, StoreClosedError, UnknownTopicError
from kclient.htp.framings import check_framing
from kclient.htp.loop import Signal, current_poster
from kclient.htp.port import (
    CAP_EXCLUSIVE,
    CAP_FENCED_SENDS,
    CAP_FIND_BY_TIMESTAMP,
    CAP_NOWAIT,
    CAP_ORDINAL_POSITIONS,
    CAP_POSITIONS,
    CAP_SEGMENTS,
    Framing,
    Place,
    Topic,
    TopicSettings,
)

if TYPE_CHECKING:
    from kclient.errors import KafkaError
    from kclient.htp.embedded.directory import DataDirectory
    from kclient.htp.embedded.files import Files
    from kclient.htp.embedded.manager import SqliteManager

logger: logging.Logger = logging.getLogger(__name__)

_AT_ONCE: Final = 256
"""Logs that are given up in one turn of the event loop."""
_TURN_S: Final = 0.002
"""Seconds of one turn of the event loop that are for what syncing thousands of topics takes there."""
CHECKPOINT_PREFIX: Final = "brk/"
"""Keys of the manager that belong to the broker: `brk/SHARD/INCARNATION`, a topic's checkpoint."""


class EmbeddedBroker:
    """Implements `kclient.htp.port.Broker`.

    Args:
        directory: The open data directory.
        manager: Of the same store.
        files: The file system.
        failed: Called in the event loop if nothing can be synced any more.
        durability: `synced` or `written`.
        settings: Layout of topics that are opened without settings of their own.
        group_sync: How the syncer syncs.
        max_open_files: Of segments, at a time; if None, as many as the process may open and leaves to them.
    """

    capabilities: frozenset[str] = frozenset(
        {
            CAP_POSITIONS,
            CAP_ORDINAL_POSITIONS,
            CAP_NOWAIT,
            CAP_FIND_BY_TIMESTAMP,
            CAP_SEGMENTS,
            CAP_FENCED_SENDS,
            CAP_EXCLUSIVE,
        }
    )

    def __init__(
        self,
        directory: DataDirectory,
        manager: SqliteManager,
        files: Files,
        failed: Callable[[StorageError], object],
        *,
        durability: str,
        settings: TopicSettings,
        group_sync: str,
        max_open_files: int | None,
    ) -> None:
        self._directory = directory
        self._manager = manager
        self._files = files
        self._failed = failed
        self._settings = settings
        self._outcomes: deque[SyncOutcome] = deque()
        self._post = current_poster()
        self._round_over = Signal(self._settle, self._post)
        self._syncer = Syncer(files, self._deliver, self._syncer_failed, directory.topics_path, mode=group_sync)
        self._services = Services(
            OpenFiles(files, max_open_files), self._syncer, durability, self._checkpoint_soon, self._want_sync
        )
        self._unsynced: deque[SyncedLog] = deque()
        self._turn_over = Signal(self._request_syncs, self._post)
        self._held: dict[int, EmbeddedTopic] = {}
        """What is open, by incarnation."""
        self._newest: dict[Topic, Place] = {}
        """The incarnation of each name that is open."""
        self._locks: NamedLocks[Topic] = NamedLocks()
        self._refusal: Callable[[], KafkaError] | None = None
        """What is said to every call once the store was closed, has failed, or stayed behind in the parent."""
        self._abandoned: list[TopicLog] = []
        """Logs of a store that has failed: their files may be in use until the syncer has stopped."""
        directory.on_fork = self._fork

    def _fork(self) -> None:
        path = self._directory.path
        self._refuse(lambda: StoreClosedError(f"{path} is open in the parent process, not in this forked one"))

    @property
    def sync_rounds(self) -> int:
        """How many rounds of group commit were made: fewer than sends, because those that wait share one."""
        return self._syncer.rounds

    # --- life ---

    async def begin(self) -> None:
        """Finish what deletions have left behind, set aside what belongs to no topic, and begin to sync."""
        known, last = await self._manager.incarnations()
        found = await anyio.to_thread.run_sync(self._directory.incarnations)
        for path, incarnation in found.items():
            if incarnation is not None and incarnation > last:
                raise StorageError(
                    f"{path} holds messages of a topic that {self._directory.manager_path} has never heard of: "
                    "was it replaced by an older one? Restore both from one backup"
                )
        await self._set_aside([path for path, number in found.items() if number is not None and number not in known])
        await self._finish_deletions([path for path, number in found.items() if number is None], set(found.values()))
        try:
            self._syncer.start()
        except OSError as error:
            raise StorageError(f"{self._directory.topics_path} cannot be opened: {error}") from error

    async def _set_aside(self, paths: Sequence[str]) -> None:
        """Messages that nobody has deleted, of topics that are not there: never remove what may be missed."""
        if not paths:
            return
        try:
            empty = await anyio.to_thread.run_sync(self._empty, paths)
            self._syncer.chore(partial(self._remove_trees, empty))  # made for a topic that was deleted meanwhile
            full = [path for path in paths if path not in empty]
            await thread_to_the_end(self._directory.set_aside, full)
        except OSError as error:
            raise StorageError(f"{self._directory.topics_path}: setting aside failed: {error}") from error
        for path in full:
            logger.error(
                "%s holds messages of no topic that %s knows: either that was damaged, or the topic's deletion was cut "
                "off. It is renamed and ends in .orphan now: remove it if the topic was deleted, else restore the data "
                "directory from a backup",
                path, self._directory.manager_path,
            )  # fmt: skip

    def _empty(self, paths: Sequence[str]) -> set[str]:
        return {path for path in paths if not self._files.list_directory(path)}

    async def _finish_deletions(self, paths: Sequence[str], present: Container[int | None]) -> None:
        """Remove what is marked as deleted, first the checkpoints: without, there would be topics of no directory."""
        incarnations = {path: self._directory.incarnation_of(path) for path in paths}
        keys = [self._key_of(number) for number in incarnations.values() if number not in present]
        rows = await self._manager.get(keys)
        if rows:
            await self._manager.commit(dict.fromkeys(rows))
        self._syncer.chore(partial(self._remove_trees, paths))

    async def aclose(self) -> None:
        """Sync everything, write checkpoints and indexes, and end the thread. The manager must still be open."""
        await to_the_end(self._aclose)

    async def _aclose(self) -> None:
        try:
            if self._refusal is None:
                path = self._directory.path
                await self._finish(self._refuse(lambda: StoreClosedError(f"{path} was closed")))
        finally:
            await thread_to_the_end(self._syncer.stop)
            for log in self._abandoned:
                log.release()
            self._abandoned.clear()
            self._services.open_files.close()

    def fail(self, error: StorageError) -> None:
        """Nothing can be stored any more: whoever waits hears of it, and so does every later call."""
        if self._refusal is None:
            reason = str(error)
            self._abandoned = self._refuse(lambda: StorageError(reason))
            for log in self._abandoned:
                log.abandon(reason)

    def _refuse(self, refusal: Callable[[], KafkaError]) -> list[TopicLog]:
        """Refuse every further call; the logs that were open."""
        self._refusal = refusal
        held = list(self._held.values())
        self._held.clear()
        self._newest.clear()
        return [log for topic in held if (log := topic.give_up(refusal)) is not None]

    def _check(self) -> None:
        if self._refusal is not None:
            raise self._refusal()

    async def _finish(self, logs: Sequence[TopicLog]) -> None:
        """Sync what was written to logs that nobody uses any more, write their checkpoints, and release them."""
        for log in logs:
            log.sync()
        for log in logs:
            await self._idle(log)
        await self._write_down(logs)
        for log in logs:
            log.key = None
            log.release()

    async def _write_down(self, logs: Sequence[TopicLog]) -> None:
        """Make the next opening fast: index files and checkpoints of logs that are idle."""
        due = {log.key: log for log in logs if log.checkpoint_due and log.key is not None}
        indexes = [index for log in due.values() for index in log.indexes()]
        try:
            await anyio.to_thread.run_sync(self._store_indexes, indexes)
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

    # --- topics ---

    async def open(
        self,
        place: Place,
        framing: Framing,
        *,
        epoch: int,
        settings: TopicSettings | None = None,
        next_position: int = 0,
    ) -> EmbeddedTopic:
        """Take a topic over under an epoch; recovers it if need be."""
        self._check()
        if not self._keeps(place):
            raise UnknownTopicError(f"There is no topic {place}: this is {self._directory.shard}")
        async with self._locks.hold(place.topic):
            sealed = await self._seal(place, epoch, framing)
            if sealed is None:
                sealed = await self._begin(place, epoch, framing)
            topic = self._held.get(place.incarnation)
            if topic is None:
                await self._end_namesake(place.topic)
                log = await self._recover(place, framing, settings or self._settings, next_position, sealed)
                self._check()
                topic = self._hold(place, epoch, log)
            else:
                log = topic.use()
                if settings is not None:
                    log.settings = settings
                if epoch > topic.epoch:
                    topic.give_up(partial(_fenced, place, topic.epoch, epoch))
                    log.fence = epoch
                    topic = self._hold(place, epoch, log)
                    await to_the_end(self._idle, log)  # what the other one sent is decided before anybody looks
            if next_position > log.next:
                await self._idle(log)
                log.raise_next(next_position)
                await self._checkpoint(log)
            return topic

    async def _seal(self, place: Place, epoch: int, framing: Framing, *, new: bool = False) -> SyncCheckpoint | None:
        """Refuse older epochs and other framings from now on, durably.

        Returns:
            The topic's checkpoint, None if it has none and is not `new`.
        """
        found: SyncCheckpoint | None = None

        def change(row: bytes | None) -> bytes | None:
            nonlocal found
            if row is None and not new:
                found = None
                return None
            found = self._checkpoint_of(place, row)
            if found.fence > epoch:
                raise _fenced(place, epoch, found.fence)
            check_framing(place, found.framing or framing.name, framing.name)
            if (found.fence, found.framing) == (epoch, framing.name):
                return None
            found.fence, found.framing = epoch, framing.name
            return found.encode()

        await self._manager.change_of(place, self._key(place), change)
        return found

    async def _begin(self, place: Place, epoch: int, framing: Framing) -> SyncCheckpoint:
        """Make the directory of a topic that was never opened, and only then its checkpoint.

        So whoever finds a checkpoint knows that a directory that is not there was lost.
        """
        path = self._directory.topic_path(place)
        try:
            await thread_to_the_end(self._directory.make_topic, path)
        except OSError as error:
            raise StorageError(f"{place.topic} cannot be opened: {error}") from error
        sealed = await self._seal(place, epoch, framing, new=True)
        assert sealed is not None
        return sealed

    @staticmethod
    def _checkpoint_of(place: Place, row: bytes | None) -> SyncCheckpoint:
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

    def _key(self, place: Place) -> str:
        return self._key_of(place.incarnation)

    def _key_of(self, incarnation: int) -> str:
        return f"{CHECKPOINT_PREFIX}{self._directory.shard}/{incarnation}"

    def _hold(self, place: Place, epoch: int, log: TopicLog) -> EmbeddedTopic:
        topic = EmbeddedTopic(place, epoch, log, self._files, self._close, self._trim)
        self._held[place.incarnation] = topic
        self._newest[place.topic] = place
        return topic

    async def _recover(
        self, place: Place, framing: Framing, settings: TopicSettings, next_position: int, sealed: SyncCheckpoint
    ) -> TopicLog:
        path = self._directory.topic_path(place)

        def find() -> Recovered:
            if not self._files.exists(path):
                raise FileNotFoundError(
                    f"{path}, which holds its messages, is missing: restore it from a backup, or delete the topic"
                )
            return recover(self._files, path, framing, settings, sealed)

        try:
            recovered = await thread_to_the_end(find)  # it cuts files, which nobody may have opened meanwhile
        except OSError as error:
            raise StorageError(f"{place.topic} cannot be opened: {error}") from error
        if next_position > recovered.next:
            recovered.next = next_position
            recovered.appendable = False
        log = TopicLog(str(place.topic), path, framing, settings, self._services, recovered, sealed)
        log.key = self._key(place)
        if recovered.damaged or (not recovered.appendable and log.next > 0):
            # before anything is appended: recovery must not take the gap for a loss
            await self._checkpoint(log)
        return log

    async def _end_namesake(self, name: Topic) -> None:
        """What the name stood for before has gone, if that is still open."""
        place = self._newest.pop(name, None)
        if place is not None:
            await self._drop([self._held.pop(place.incarnation)])

    async def _drop(self, topics: Sequence[EmbeddedTopic]) -> None:
        """Nobody is to use some topics any more, nor keep anything of them."""
        logs = []
        for topic in topics:
            log = topic.give_up(partial(_deleted, topic.place))
            if log is not None:
                log.key = None
                logs.append(log)
        await to_the_end(self._release, logs)

    async def _release(self, logs: Sequence[TopicLog]) -> None:
        for number, log in enumerate(logs, 1):
            await self._idle(log)
            log.release()
            if number % _AT_ONCE == 0:
                await anyio.lowlevel.checkpoint()

    async def _close(self, topic: EmbeddedTopic) -> None:
        await anyio.lowlevel.checkpoint()
        place = topic.place
        async with self._locks.hold(place.topic):
            if self._held.get(place.incarnation) is not topic:
                return
            del self._held[place.incarnation], self._newest[place.topic]
            log = topic.give_up(partial(_closed, place))
            if log is not None:
                await to_the_end(self._finish, [log])

    def _keeps(self, place: Place) -> bool:
        return place.broker in ("", self._directory.shard)

    async def delete(self, places: Iterable[Place], *, epoch: int) -> None:
        """Drop all messages of some topics."""
        await anyio.lowlevel.checkpoint()
        self._check()
        wanted = sorted({place for place in places if self._keeps(place)})
        async with self._locks.hold(*dict.fromkeys(place.topic for place in wanted)):
            await self._check_fences(wanted, epoch)
            await to_the_end(self._delete, wanted)

    async def _delete(self, places: Sequence[Place]) -> None:
        held = [topic for place in places if (topic := self._held.pop(place.incarnation, None)) is not None]
        for topic in held:
            del self._newest[topic.place.topic]
        await self._drop(held)
        try:
            paths = [self._directory.topic_path(place) for place in places]
            deleted = await anyio.to_thread.run_sync(self._directory.set_deleted, paths)
        except OSError as error:
            raise StorageError(f"{len(places)} topics cannot be deleted: {error}") from error
        await self._manager.commit(dict.fromkeys(self._key(place) for place in places))
        self._syncer.chore(partial(self._remove_trees, deleted))

    async def _check_fences(self, places: Sequence[Place], epoch: int) -> None:
        fences = {place: self._held[place.incarnation].epoch for place in places if place.incarnation in self._held}
        unknown = {self._key(place): place for place in places if place not in fences}
        if unknown:
            rows = await self._manager.get(unknown)
            fences |= {unknown[key]: self._checkpoint_of(unknown[key], row.value).fence for key, row in rows.items()}
        for place, fence in fences.items():
            if fence > epoch:
                raise _fenced(place, epoch, fence)

    # --- syncing ---

    def _want_sync(self, log: SyncedLog) -> None:
        # Not at once: what the other tasks append in this turn of the loop goes into the same round. A round that
        # begins with the first append would hold up the others' writes, on the file system and for the GIL.
        self._unsynced.append(log)
        self._turn_over.fire()

    def _request_syncs(self) -> None:
        plans = []
        until = time.perf_counter() + _TURN_S
        while self._unsynced:
            plan = self._unsynced.popleft().plan()
            if plan is not None:
                plans.append(plan)
            if time.perf_counter() >= until and self._unsynced:
                self._turn_over.fire()
                break
        if plans:
            self._syncer.request(plans)

    def _deliver(self, outcomes: Sequence[SyncOutcome]) -> None:
        """In the syncer's thread: a round is over."""
        self._outcomes.extend(outcomes)
        self._round_over.fire()

    def _settle(self) -> None:
        until = time.perf_counter() + _TURN_S
        while self._outcomes:
            plan, error = self._outcomes.popleft()
            assert isinstance(plan.owner, TopicLog)
            try:
                plan.owner.settled(plan, error)
            except Exception as unexpected:
                logger.critical("%s: settling a sync failed", plan.owner.name, exc_info=unexpected)
                self._failed(StorageError(f"{plan.owner.name}: settling a sync failed: {unexpected!r}"))
            if time.perf_counter() >= until and self._outcomes:
                self._round_over.fire()
                break

    def _syncer_failed(self, error: BaseException) -> None:
        """In the syncer's thread: it ends."""
        reason = f"{self._directory.path}: the thread that syncs has ended: {error!r}; open the store again"
        self._post(lambda: self._failed(StorageError(reason)))

    def _remove_trees(self, paths: Iterable[str]) -> None:
        for path in paths:
            self._files.remove_tree(path)

    async def _idle(self, log: TopicLog) -> None:
        if log.idle:
            return
        idle = anyio.Event()
        log.when_idle(idle.set)
        await idle.wait()

    async def _decided(self, log: TopicLog) -> None:
        """Until what is to be synced now is, or has failed; not what comes meanwhile, maybe without a pause."""
        decided = anyio.Event()
        log.when_synced(decided.set)
        await decided.wait()

    def _checkpoint_soon(self, log: SyncedLog, *, trusted: bool = True) -> None:
        if log.key is None:
            return

        def done(error: Exception | None) -> None:
            if error is not None:
                log.checkpoint_due = True
                logger.warning("the checkpoint of %s could not be written: %s", log.name, error)

        try:
            self._manager.commit_soon({log.key: log.checkpoint(trusted=trusted).encode()}, done)
        except (StoreClosedError, StorageError) as error:
            done(error)

    async def _checkpoint(self, log: TopicLog) -> None:
        assert log.key is not None
        await self._manager.commit({log.key: log.checkpoint().encode()})

    # --- retention ---

    async def _trim(self, topic: EmbeddedTopic, before: int) -> int:
        await anyio.lowlevel.checkpoint()
        async with self._locks.hold(topic.place.topic):  # not while it is deleted: its rows would come back
            log = topic.use()
            while (prepared := log.prepare_trim(before)) is None:
                await self._services.open_files.room()
                topic.use()
            if prepared:
                await to_the_end(self._cut, topic, log)
            return log.start

    async def _cut(self, topic: EmbeddedTopic, log: TopicLog) -> None:
        await self._decided(log)
        topic.use()
        await self._checkpoint(log)
        log.trim()


def _fenced(place: Place, older: int, newer: int) -> FencedError:
    return FencedError(f"{place}: epoch {older} is older than {newer}", epoch=newer)


def _closed(place: Place) -> UnknownTopicError:
    return UnknownTopicError(f"{place} was closed")


def _deleted(place: Place) -> UnknownTopicError:
    return UnknownTopicError(f"{place} was deleted")

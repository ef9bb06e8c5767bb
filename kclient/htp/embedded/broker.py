"""The messages of the embedded backend: one shard of topics, each a log of segments."""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

import anyio
import anyio.lowlevel

from kclient.htp.embedded.handles import OpenFiles
from kclient.htp.embedded.log import TopicLog
from kclient.htp.embedded.recovery import Checkpoint, recover
from kclient.htp.embedded.services import Services
from kclient.htp.embedded.syncer import Outcome, Syncer
from kclient.htp.errors import StorageError, StoreClosedError, UnknownTopicError
from kclient.htp.loop import Signal, current_poster
from kclient.htp.port import (
    CAP_FENCED_SENDS,
    CAP_FIND_BY_TIMESTAMP,
    CAP_NOWAIT,
    CAP_ORDINAL_POSITIONS,
    CAP_POSITIONS,
    CAP_SEGMENTS,
    Found,
    Framing,
    Pulled,
    SegmentInfo,
    Topic,
    TopicSettings,
    TopicStatus,
)
from kclient.htp.waiting import pull_waiting

if TYPE_CHECKING:
    from kclient.htp.embedded.directory import DataDirectory
    from kclient.htp.embedded.files import Files
    from kclient.htp.embedded.manager import SqliteManager
    from kclient.htp.embedded.tickets import Ticket
    from kclient.types import Buffer

logger: logging.Logger = logging.getLogger(__name__)

T = TypeVar("T")

CHECKPOINT_PREFIX: Final = "brk/"
"""Keys of the manager that belong to the broker: `brk/SHARD/INCARNATION`, a topic's checkpoint."""


class EmbeddedBroker:
    """Implements `kclient.htp.port.DirectBroker`.

    Args:
        directory: The open data directory.
        manager: Of the same store.
        files: The file system.
        durability: `synced` or `written`.
        settings: Layout of topics that are opened without settings of their own.
        group_sync: How the syncer syncs.
        max_open_files: Of segments; half of what the process may open if None.
    """

    capabilities: frozenset[str] = frozenset(
        {CAP_POSITIONS, CAP_ORDINAL_POSITIONS, CAP_NOWAIT, CAP_FIND_BY_TIMESTAMP, CAP_SEGMENTS, CAP_FENCED_SENDS}
    )

    def __init__(
        self,
        directory: DataDirectory,
        manager: SqliteManager,
        files: Files,
        *,
        durability: str,
        settings: TopicSettings,
        group_sync: str,
        max_open_files: int | None,
    ) -> None:
        self.durability = durability
        self._directory = directory
        self._manager = manager
        self._files = files
        self._settings = settings
        self._outcomes: deque[Outcome] = deque()
        self._post = current_poster()
        self._round_over = Signal(self._settle, self._post)
        self._syncer = Syncer(files, self._deliver, mode=group_sync)
        self._services = Services(
            OpenFiles(files, max_open_files), self._syncer, durability, self._checkpoint_soon, self._want_sync
        )
        self._unsynced: dict[TopicLog, None] = {}
        self._turn_over = Signal(self._request_syncs, self._post)
        self._logs: dict[Topic, TopicLog] = {}
        self._keys: dict[TopicLog, str] = {}
        self._signals: dict[Topic, list[Signal]] = {}
        self._locks: dict[Topic, anyio.Lock] = {}
        self._shut = False
        self._forked = False
        directory.on_fork = self._fork

    def _fork(self) -> None:
        self._shut = self._forked = True

    @property
    def sync_rounds(self) -> int:
        """How many rounds of group commit were made: fewer than sends, because those that wait share one."""
        return self._syncer.rounds

    # --- life ---

    async def begin(self) -> None:
        """Sweep away what deleted topics left behind, and begin to sync."""
        known, last = await self._manager.incarnations()
        for path, incarnation in self._directory.incarnations().items():
            if incarnation is not None and incarnation > last:
                raise StorageError(
                    f"{path} holds messages of a topic that {self._directory.manager_path} has never heard of: "
                    "was it replaced by an older one? Restore both from one backup"
                )
            if incarnation is None or incarnation not in known:
                self._syncer.chore(partial(self._files.remove_tree, path))
        self._syncer.start()

    async def aclose(self) -> None:
        """Sync everything, write checkpoints and indexes, and end the thread. The manager must still be open."""
        if self._shut:
            return
        with anyio.CancelScope(shield=True):
            for topic in list(self._logs):
                self._end_watches(topic)
            self._shut = True
            logs = list(self._logs.values())
            for log in logs:
                log.sync()
            for log in logs:
                await self._idle(log)
            await self._write_down(logs)
            for log in logs:
                log.release()
            self._logs.clear()
            await anyio.to_thread.run_sync(self._syncer.stop)
            self._services.open_files.close()

    async def _write_down(self, logs: Sequence[TopicLog]) -> None:
        """Make the next opening fast: index files and checkpoints of logs that are idle."""
        due = [log for log in logs if log.checkpoint_due]
        indexes = [index for log in due for index in log.indexes()]
        try:
            await anyio.to_thread.run_sync(self._store_indexes, indexes)
            if due:
                await self._manager.commit({self._keys[log]: log.checkpoint().encode() for log in due})
        except (OSError, StorageError) as error:
            logger.warning("checkpoints could not be written, the next opening will take longer: %s", error)
            return
        for log in due:
            log.checkpoint_due = False

    def _store_indexes(self, indexes: Sequence[tuple[str, bytes]]) -> None:
        for path, content in indexes:
            self._files.store(path, content)

    def _check(self) -> None:
        if self._forked:
            raise StoreClosedError(f"{self._directory.path} is open in the parent process, not in this forked one")
        if self._shut:
            raise StoreClosedError(f"{self._directory.path} was closed")

    def _log(self, topic: Topic) -> TopicLog:
        log = self._logs.get(topic)
        if log is None or self._shut:
            self._check()
            raise UnknownTopicError(f"Topic {topic} is not open")
        return log

    # --- topics ---

    async def open(
        self,
        topic: Topic,
        framing: Framing,
        *,
        settings: TopicSettings | None = None,
        next_position: int = 0,
    ) -> TopicStatus:
        """Make a topic ready for use; recovers it if need be."""
        self._check()
        async with self._lock(topic):
            log = self._logs.get(topic)
            if log is None:
                log = await self._recover(topic, framing, settings or self._settings, next_position)
            elif settings is not None:
                log.settings = settings
            if next_position > log.next:
                await self._idle(log)
                log.raise_next(next_position)
                await self._checkpoint(log)
            return log.status()

    @contextlib.asynccontextmanager
    async def _lock(self, topic: Topic) -> AsyncIterator[None]:
        """Opening, closing and deleting a topic come one after the other."""
        lock = self._locks.setdefault(topic, anyio.Lock())
        try:
            async with lock:
                yield
        finally:
            statistics = lock.statistics()
            if not statistics.locked and not statistics.tasks_waiting:
                self._locks.pop(topic, None)

    async def _recover(self, topic: Topic, framing: Framing, settings: TopicSettings, next_position: int) -> TopicLog:
        incarnation = (await self._manager.describe_topic(topic)).incarnation
        key = f"{CHECKPOINT_PREFIX}{self._directory.shard}/{incarnation}"
        row = (await self._manager.get([key])).get(key)
        checkpoint = None if row is None else Checkpoint.decode(row.value)
        path = self._directory.topic_path(topic, incarnation)
        try:
            await anyio.to_thread.run_sync(self._directory.make_topic, path)
            recovered = await anyio.to_thread.run_sync(
                recover, self._files, path, framing, settings.index_interval_bytes, checkpoint
            )
        except OSError as error:
            raise StorageError(f"{topic} cannot be opened: {error}") from error
        if next_position > recovered.next:
            recovered.next = next_position
            recovered.appendable = False
        limits = checkpoint.limits if checkpoint is not None else {}
        log = TopicLog(str(topic), path, framing, settings, self._services, recovered, limits)
        self._keys[log] = key
        if not recovered.appendable and log.next > 0:
            # before anything is appended: recovery must not take the gap for a loss
            await self._checkpoint(log)
        self._check()
        self._logs[topic] = log
        return log

    async def close(self, topic: Topic) -> None:
        """Sync a topic and give up what is held for it."""
        await anyio.lowlevel.checkpoint()
        async with self._lock(topic):
            log = self._logs.get(topic)
            if log is None:
                return
            with anyio.CancelScope(shield=True):
                self._end_watches(topic)
                log.sync()
                del self._logs[topic]
                await self._idle(log)
                await self._write_down([log])
                log.release()
                del self._keys[log]

    async def delete(self, topic: Topic) -> None:
        """Close a topic and drop all its messages."""
        await anyio.lowlevel.checkpoint()
        self._check()
        async with self._lock(topic):
            with anyio.CancelScope(shield=True):
                self._end_watches(topic)
                log = self._logs.pop(topic, None)
                if log is not None:
                    await self._idle(log)
                    log.release()
                    del self._keys[log]
                try:
                    incarnation = (await self._manager.describe_topic(topic)).incarnation
                except UnknownTopicError:
                    return  # what it left is swept away at the next start
                await self._manager.commit({f"{CHECKPOINT_PREFIX}{self._directory.shard}/{incarnation}": None})
                path = self._directory.topic_path(topic, incarnation)
                try:
                    deleted = await anyio.to_thread.run_sync(self._directory.set_deleted, path)
                except OSError as error:
                    raise StorageError(f"{topic} cannot be deleted: {error}") from error
                self._syncer.chore(partial(self._files.remove_tree, deleted))

    # --- syncing ---

    def _want_sync(self, log: TopicLog) -> None:
        # Not at once: what the other tasks append in this turn of the loop goes into the same round. A round that
        # begins with the first append would hold up the others' writes, on the file system and for the GIL.
        self._unsynced[log] = None
        self._turn_over.fire()

    def _request_syncs(self) -> None:
        logs, self._unsynced = self._unsynced, {}
        self._syncer.request([plan for log in logs if (plan := log.plan()) is not None])

    def _deliver(self, outcomes: Sequence[Outcome]) -> None:
        """In the syncer's thread: a round is over."""
        self._outcomes.extend(outcomes)
        self._round_over.fire()

    def _settle(self) -> None:
        while self._outcomes:
            plan, error = self._outcomes.popleft()
            assert isinstance(plan.owner, TopicLog)
            plan.owner.settled(plan, error)

    async def _idle(self, log: TopicLog) -> None:
        idle = anyio.Event()
        log.when_idle(idle.set)
        await idle.wait()

    def _checkpoint_soon(self, log: TopicLog) -> None:
        key = self._keys.get(log)
        if key is None:
            return

        def done(error: Exception | None) -> None:
            if error is not None:
                log.checkpoint_due = True
                logger.warning("the checkpoint of %s could not be written: %s", log.name, error)

        try:
            self._manager.commit_soon({key: log.checkpoint().encode()}, done)
        except StoreClosedError as error:
            done(error)

    async def _checkpoint(self, log: TopicLog) -> None:
        await self._manager.commit({self._keys[log]: log.checkpoint().encode()})

    # --- messages ---

    def send_nowait(self, topic: Topic, messages: Sequence[Buffer], *, fence: int | None = None) -> Ticket:
        """Append whole messages, all or none."""
        return self._log(topic).append(messages, fence)

    async def send(self, topic: Topic, messages: Sequence[Buffer], *, fence: int | None = None) -> Ticket:
        """Append whole messages, all or none."""
        await anyio.lowlevel.checkpoint_if_cancelled()
        ticket = self._log(topic).append(messages, fence)
        await anyio.lowlevel.cancel_shielded_checkpoint()
        return ticket

    def pull_nowait(
        self, topic: Topic, position: int, *, max_bytes: int = 1 << 20, max_messages: int | None = None
    ) -> Pulled | None:
        """The messages from a position on; None if the disk has to be asked."""
        return self._log(topic).pull_cached(position, max_bytes, max_messages)

    async def pull(
        self,
        topic: Topic,
        position: int,
        *,
        max_bytes: int = 1 << 20,
        max_messages: int | None = None,
        wait: float = 0.0,
    ) -> Pulled:
        """The messages from a position on; waits for one."""
        await anyio.lowlevel.checkpoint()
        once = partial(self._pull, topic, position, max_bytes, max_messages)
        return await pull_waiting(self, topic, once, wait)

    async def _pull(self, topic: Topic, position: int, max_bytes: int, max_messages: int | None) -> Pulled:
        log = self._log(topic)
        pulled = log.pull_cached(position, max_bytes, max_messages)
        if pulled is not None:
            return pulled
        for request in log.requests(position, max_bytes, max_messages):
            with request:
                pulled = await anyio.to_thread.run_sync(request.run, self._files.read)
            if pulled is not None:
                return pulled
        return Pulled(b"", position, position - 1)

    async def find_by_timestamp(self, topic: Topic, timestamp: int, *, start: int = 0) -> Found | None:
        """The first visible message with a timestamp not below the given one."""
        await anyio.lowlevel.checkpoint()
        for request in self._log(topic).searches(timestamp, start):
            with request:
                found = await anyio.to_thread.run_sync(request.run, self._files.read)
            if found is not None:
                return found
        return None

    def watch(self, topic: Topic, callback: Callable[[int], object]) -> Callable[[], None]:
        """Have `callback(end)` called whenever the visible end has moved."""
        log = self._log(topic)
        signal = Signal(lambda: callback(log.end), self._post)
        log.signals.append(signal)
        signals = self._signals.setdefault(topic, [])
        signals.append(signal)

        def stop() -> None:
            signal.stop()
            if signal in log.signals:
                log.signals.remove(signal)
            if signal in signals:
                signals.remove(signal)

        return stop

    def _end_watches(self, topic: Topic) -> None:
        log = self._logs.get(topic)
        for signal in self._signals.pop(topic, []):
            if log is not None and signal in log.signals:
                log.signals.remove(signal)
            signal.fire()  # a waiting pull finds out that the topic is closed

    # --- status and retention ---

    def status_nowait(self, topic: Topic) -> TopicStatus:
        """Start, end, next ordinal and size."""
        return self._log(topic).status()

    async def status(self, topic: Topic) -> TopicStatus:
        """Start, end, next ordinal and size."""
        await anyio.lowlevel.checkpoint()
        return self._log(topic).status()

    async def start(self, topic: Topic) -> int:
        """The first position that can be read."""
        return (await self.status(topic)).start

    async def end(self, topic: Topic) -> int:
        """The position after the last visible message."""
        return (await self.status(topic)).end

    async def segments(self, topic: Topic) -> list[SegmentInfo]:
        """The segments of a topic in order."""
        await anyio.lowlevel.checkpoint()
        return self._log(topic).segments()

    async def roll(self, topic: Topic) -> None:
        """Begin another segment, unless the active one is empty."""
        await anyio.lowlevel.checkpoint()
        self._log(topic).roll()

    async def trim(self, topic: Topic, before: int) -> int:
        """Drop whole segments that lie before a position."""
        await anyio.lowlevel.checkpoint()
        log = self._log(topic)
        if log.prepare_trim(before):
            await self._idle(log)
            await self._checkpoint(log)
            log.trim()
        return log.start

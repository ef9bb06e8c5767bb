"""A broker of the embedded backend: one shard of topics, each a log of segments."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Container, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.lowlevel

from kclient.concurrency import NamedLocks, side_by_side, thread_to_the_end, to_the_end
from kclient.htp.embedded.checkpoints import SyncCheckpoints, fenced
from kclient.htp.embedded.group_commit import GroupCommit
from kclient.htp.embedded.leftovers import Leftovers
from kclient.htp.embedded.liveness import DiskLiveness
from kclient.htp.embedded.log import TopicLog
from kclient.htp.embedded.recovery import Recovered, SyncCheckpoint, recover
from kclient.htp.embedded.services import Services
from kclient.htp.embedded.shard import called
from kclient.htp.embedded.threads import DiskThreads
from kclient.htp.embedded.topic import EmbeddedTopic
from kclient.htp.errors import PositionError, StorageError, StoreClosedError, UnknownTopicError
from kclient.htp.port import (
    CAP_DURABLE,
    CAP_EXCLUSIVE,
    CAP_FENCED_SENDS,
    CAP_FIND_BY_TIMESTAMP,
    CAP_NOWAIT,
    CAP_ORDINAL_POSITIONS,
    CAP_POSITIONS,
    CAP_REWRITE,
    CAP_SEGMENTS,
    CAP_SHARED,
    Framing,
    Place,
    Topic,
    TopicSettings,
)
from kclient.htp.rows import check_opening

if TYPE_CHECKING:
    from kclient.errors import KafkaError
    from kclient.htp.embedded.ends import Ends
    from kclient.htp.embedded.files import Files
    from kclient.htp.embedded.manager import SqliteManager
    from kclient.htp.embedded.rewriting import SegmentRewriting
    from kclient.htp.embedded.shard import Shard
    from kclient.htp.embedded.shared import SharedByBrokers
    from kclient.htp.embedded.watermark import Watermark

_GIVEN_UP: Final = 64
"""Topics that are given up together because other processes want them."""
_AT_ONCE: Final = 256
"""Logs that are given up in one turn of the event loop."""


class EmbeddedBroker:
    """Implements `kclient.htp.port.Broker`.

    Args:
        shard: What it keeps, whose owner this process is.
        manager: Of the same store.
        files: The file system.
        failed: Called in the event loop if nothing can be synced any more.
        durability: `synced` or `written`.
        settings: Layout of topics that are opened without settings of their own.
        group_sync: How the syncer syncs.
        watermark: Whether there is space for messages.
        shared: What it has in common with the other brokers of the store; closed after all of them.
        brokers: How many these are, with this one.
        together: Whether other processes have the store open too.
    """

    capabilities: frozenset[str] = frozenset(
        {
            CAP_POSITIONS,
            CAP_ORDINAL_POSITIONS,
            CAP_NOWAIT,
            CAP_FIND_BY_TIMESTAMP,
            CAP_SEGMENTS,
            CAP_REWRITE,
            CAP_FENCED_SENDS,
            CAP_EXCLUSIVE,
            CAP_SHARED,
            CAP_DURABLE,
        }
    )

    def __init__(
        self,
        shard: Shard,
        manager: SqliteManager,
        files: Files,
        failed: Callable[[StorageError], object],
        *,
        durability: str,
        settings: TopicSettings,
        group_sync: str,
        watermark: Watermark,
        shared: SharedByBrokers,
        brokers: int = 1,
        together: bool = False,
    ) -> None:
        if together:
            self.capabilities = type(self).capabilities - {CAP_EXCLUSIVE}
        self._together = together
        self._opening: Counter[int] = Counter()
        """Incarnations that are being opened, or deleted, and may have been taken for that."""
        self._shard = shard
        self._manager = manager
        self._files = files
        self._settings = settings
        self._liveness = DiskLiveness(shard.prove if brokers > 1 else None)
        commits = GroupCommit(files, shard.topics_path, failed, mode=group_sync, liveness=self._liveness)
        self._syncer = commits.syncer
        self._threads = DiskThreads(brokers)
        self._checkpoints = SyncCheckpoints(manager, shard.name, files, self._threads)
        self._leftovers = Leftovers(shard, self._checkpoints, files, self._threads, self._syncer.chore)
        self._services = Services(
            shared.open_files(), self._syncer, durability, self._checkpoints.write_soon, commits.want, shared.indexes,
            watermark, self._liveness,
        )  # fmt: skip
        self._held: dict[int, EmbeddedTopic] = {}
        """What is open, by incarnation."""
        self._newest: dict[Topic, Place] = {}
        """The incarnation of each name that is open."""
        self._locks: NamedLocks[Topic] = NamedLocks()
        self._refusal: Callable[[], KafkaError] | None = None
        """What is said to every call once the store was closed, has failed, or stayed behind in the parent."""
        self._logs: dict[TopicLog, None] = {}
        """Whose files may be open: those of what is held, and those that are being closed or deleted."""
        self._failed = False
        """Whether nothing is synced any more: files may be in use until the syncer has stopped."""
        shard.on_fork = self._fork

    def _fork(self) -> None:
        path = self._shard.data_path
        self._refuse(lambda: StoreClosedError(f"{path} is open in the parent process, not in this forked one"))
        self._logs.clear()  # the parent's: nothing of them is touched here
        self._locks = NamedLocks()  # whoever holds one works there

    @property
    def sync_rounds(self) -> int:
        """How many rounds of group commit were made: fewer than sends, because those that wait share one."""
        return self._syncer.rounds

    def log_of(self, place: Place) -> TopicLog:
        """The log of a topic that is open. Raises `UnknownTopicError` for another one."""
        topic = self._held.get(place.incarnation)
        if topic is None or topic.place != place:
            raise UnknownTopicError(f"{place} is not open")
        return topic.use()

    # --- life ---

    async def begin(self, known: Container[int], last: int, *, joined: bool = False) -> None:
        """Finish what deletions have left behind, set aside what belongs to no topic, and begin to sync.

        Args:
            known: The incarnations of all topics that there are.
            last: The greatest that was ever given.
            joined: Whether other processes use the shard: then only the last is done.
        """
        if not joined:
            await self._leftovers.clear_up(known, last)
        try:
            self._syncer.start()
        except OSError as error:
            raise StorageError(f"{self._shard.topics_path} cannot be opened: {error}") from error

    def ends(self) -> Ends:
        """Where the logs end that may be written to; called in the event loop."""
        return {incarnation: topic.use().written_end for incarnation, topic in self._held.items()}

    async def aclose(self) -> None:
        """Sync everything, write checkpoints and indexes, and end the thread. The manager must still be open."""
        await to_the_end(self._aclose)

    async def _aclose(self) -> None:
        try:
            if self._refusal is None:
                path = self._shard.data_path
                logs = self._refuse(lambda: StoreClosedError(f"{path} was closed"))
                self._services.open_files.tell_room()  # who waits for some is refused
                self._liveness.tell()
                await self._locks.all_free()
                await self._finish(logs)
        finally:
            # whoever is at work, maybe in a thread, would go on in the files of the next owner
            await self._locks.all_free()
            await thread_to_the_end(self._syncer.stop)
            for log in self._logs:
                log.release()
            self._logs.clear()

    def fail(self, error: StorageError) -> None:
        """Nothing can be stored any more: whoever waits hears of it, and so does every later call."""
        if self._failed:
            return
        self._failed = True
        reason = str(error)
        if self._refusal is None:
            self._refuse(lambda: StorageError(reason))
        self._services.open_files.tell_room()
        self._liveness.tell()
        for log in list(self._logs):  # also while the store is being closed, which waits for what they sync
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
            log.unsynced.sync()
        for log in logs:
            await self._idle(log)
        await self._checkpoints.write_all(logs)
        for log in logs:
            log.key = None
            self._let_go(log)

    def _let_go(self, log: TopicLog) -> None:
        """A log is not used any more."""
        if not self._failed and log in self._logs:
            del self._logs[log]
            log.release()

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
        check_opening(epoch, next_position)
        self._check()
        if not self._keeps(place):
            raise UnknownTopicError(f"There is no topic {place}: this is {self._shard.name}")
        async with self._locks.hold(place.topic):
            with self._in_hand([place]):
                return await self._open(place, framing, epoch, settings, next_position)

    async def _open(
        self, place: Place, framing: Framing, epoch: int, settings: TopicSettings | None, next_position: int
    ) -> EmbeddedTopic:
        self._check()
        held = self._held.get(place.incarnation)
        if held is not None and held.epoch > epoch:  # whatever has become of its row
            raise fenced(place, epoch, held.epoch)
        in_use = None if held is None else held.use()
        sealed = await self._checkpoints.seal(place, epoch, framing, log=in_use)
        if sealed is None:
            sealed = await self._begin(place, epoch, framing)
        self._check()
        topic = self._held.get(place.incarnation)
        if topic is None:
            await self._end_namesake(place.topic)
            log = await self._recover(place, framing, settings or self._settings, next_position, sealed)
            topic = self._hold(place, epoch, log)
        else:
            log = topic.use()
            if settings is not None:
                log.settings = settings
            if epoch > topic.epoch:
                topic.give_up(partial(fenced, place, topic.epoch, epoch))
                log.fence = epoch
                topic = self._hold(place, epoch, log)
                await to_the_end(self._idle, log)  # what the other one sent is decided before anybody looks
        if next_position > log.next:
            await self._raise_next(log, next_position)
        self._check()
        return topic

    @contextmanager
    def _in_hand(self, places: Iterable[Place]) -> Iterator[None]:
        """While something is done with topics that others might want."""
        numbers = [place.incarnation for place in places]
        self._opening.update(numbers)
        try:
            yield
        finally:
            self._opening.subtract(numbers)
            for number in numbers:
                if not self._opening[number]:
                    del self._opening[number]

    async def give_up(self, wanted: Mapping[int, int]) -> bool:
        """Give up the topics that other processes open under newer epochs.

        Args:
            wanted: The epochs, by incarnation. What this broker does not have open is none of its affairs.

        Returns:
            False if some are just being opened or deleted, and could not be given up now.
        """
        in_hand = any(each in self._opening for each in wanted)
        unused = [each for each in wanted if each not in self._held and each not in self._opening]
        if unused:
            await self._manager.give_up(unused)
        given = [
            (topic, partial(fenced, topic.place, topic.epoch, epoch), epoch)
            for each, epoch in wanted.items()
            if (topic := self._held.get(each)) is not None and topic.epoch < epoch
        ]
        async with side_by_side() as begin:
            for first in range(0, len(given), _GIVEN_UP):
                await begin(self._give_up, given[first : first + _GIVEN_UP])
        return not in_hand

    async def _give_up(self, given: Sequence[tuple[EmbeddedTopic, Callable[[], KafkaError], int]]) -> None:
        async with self._locks.hold(*dict.fromkeys(topic.place.topic for topic, _, _ in given)):
            still = {
                topic: refusal
                for topic, refusal, epoch in given
                if self._held.get(topic.place.incarnation) is topic and topic.epoch < epoch
            }
            await to_the_end(self._hand_over, still)

    async def _hand_over(self, topics: Mapping[EmbeddedTopic, Callable[[], KafkaError]]) -> None:
        """Use the files of some topics no more, and let others have them; what refuses their users is said of each."""
        logs = []
        for topic, refusal in topics.items():
            del self._held[topic.place.incarnation], self._newest[topic.place.topic]
            log = topic.give_up(refusal)
            if log is not None:
                logs.append(log)
        await self._finish(logs)
        await self._checkpoints.give_up(topic.place for topic in topics)

    async def _raise_next(self, log: TopicLog, next_position: int) -> None:
        """Let a log give no ordinal below a position from now on, durably; nothing is appended meanwhile."""
        log.paused = True
        try:
            while log.unsynced:
                log.unsynced.sync()
                await self._idle(log)
                self._check()
            if next_position > log.next:
                await to_the_end(self._write_gap, log, next_position)
        finally:
            log.paused = False
            self._services.open_files.tell_room()

    async def _write_gap(self, log: TopicLog, next_position: int) -> None:
        take_back = log.raise_next(next_position)
        try:
            await self._checkpoints.write(log)
        except BaseException:
            take_back()  # what is appended behind a gap that nobody knows of would be taken for lost
            raise

    async def _begin(self, place: Place, epoch: int, framing: Framing) -> SyncCheckpoint:
        """Make the directory of a topic that was never opened, and only then its checkpoint.

        So whoever finds a checkpoint knows that a directory that is not there was lost.
        """
        path = self._shard.topic_path(place)
        try:
            await self._threads.run_to_the_end(self._shard.make_topic, path)
        except OSError as error:
            raise StorageError(f"{place.topic} cannot be opened: {error}") from error
        sealed = await self._checkpoints.seal(place, epoch, framing, new=True)
        assert sealed is not None
        return sealed

    def _hold(self, place: Place, epoch: int, log: TopicLog) -> EmbeddedTopic:
        topic = EmbeddedTopic(place, epoch, log, self._files, self._threads, self._close, self._trim, self._replace)
        self._held[place.incarnation] = topic
        self._newest[place.topic] = place
        return topic

    async def _recover(
        self, place: Place, framing: Framing, settings: TopicSettings, next_position: int, sealed: SyncCheckpoint
    ) -> TopicLog:
        path = self._shard.topic_path(place)

        def find() -> Recovered:
            if not self._files.exists(path):
                raise FileNotFoundError(
                    f"{path}, which holds its messages, is missing: restore it from a backup, or delete the topic"
                )
            return recover(self._files, path, framing, settings, sealed)

        try:
            recovered = await self._threads.run_to_the_end(
                find
            )  # it cuts files, which nobody may have opened meanwhile
        except OSError as error:
            raise StorageError(f"{place.topic} cannot be opened: {error}") from error
        log = TopicLog(called(place), path, framing, settings, self._services, recovered, sealed)
        log.key = self._checkpoints.key(place.incarnation)
        self._logs[log] = None
        unrecorded = recovered.damaged or (not recovered.appendable and log.next > 0)
        try:
            if next_position > log.next:
                log.raise_next(next_position)
                unrecorded = True
            if unrecorded:
                # before anything is appended: recovery must not take the gap for a loss
                await self._checkpoints.write(log)
            self._check()
        except BaseException:
            self._let_go(log)
            raise
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
            self._let_go(log)
            if number % _AT_ONCE == 0:
                await anyio.lowlevel.checkpoint()

    async def _close(self, topic: EmbeddedTopic) -> None:
        await anyio.lowlevel.checkpoint()
        place = topic.place
        async with self._locks.hold(place.topic):
            if self._held.get(place.incarnation) is topic:
                await to_the_end(self._hand_over, {topic: partial(_closed, place)})

    def _keeps(self, place: Place) -> bool:
        return place.broker in ("", self._shard.name)

    async def delete(self, places: Iterable[Place], *, epoch: int) -> None:
        """Drop all messages of some topics."""
        await anyio.lowlevel.checkpoint()
        async with self.deletion(places, epoch=epoch) as delete:
            await delete()

    @asynccontextmanager
    async def deletion(
        self, places: Iterable[Place], *, epoch: int
    ) -> AsyncIterator[Callable[[], Coroutine[Any, Any, None]]]:
        """A deletion that nothing of a newer epoch stands against: what is called to carry it out.

        Raises:
            FencedError: If one of the topics was opened under a newer epoch.
        """
        self._check()
        wanted = sorted({place for place in places if self._keeps(place)})
        async with self._locks.hold(*dict.fromkeys(place.topic for place in wanted)):
            with self._in_hand(wanted):
                self._check()
                await self._check_fences(wanted, epoch)
                if self._together:
                    await self._checkpoints.take(wanted, epoch)
                    await self._check_fences(wanted, epoch)
                yield partial(to_the_end, self._delete, wanted)

    async def _delete(self, places: Sequence[Place]) -> None:
        held = [topic for place in places if (topic := self._held.pop(place.incarnation, None)) is not None]
        for topic in held:
            del self._newest[topic.place.topic]
        await self._drop(held)
        try:
            paths = [self._shard.topic_path(place) for place in places]
            deleted = await self._threads.run(self._shard.set_deleted, paths)
        except OSError as error:
            raise StorageError(f"{len(places)} topics cannot be deleted: {error}") from error
        await self._checkpoints.remove(place.incarnation for place in places)
        await self._checkpoints.give_up(places)
        self._leftovers.remove_later(deleted)

    async def _check_fences(self, places: Sequence[Place], epoch: int) -> None:
        fences = {place: self._held[place.incarnation].epoch for place in places if place.incarnation in self._held}
        fences |= await self._checkpoints.fences(place for place in places if place not in fences)
        for place, fence in fences.items():
            if fence > epoch:
                raise fenced(place, epoch, fence)

    async def _idle(self, log: TopicLog) -> None:
        if log.unsynced.idle:
            return
        idle = anyio.Event()
        log.unsynced.when_idle(idle.set)
        await idle.wait()

    async def _decided(self, log: TopicLog) -> None:
        """Until what is to be synced now is, or has failed; not what comes meanwhile, maybe without a pause."""
        decided = anyio.Event()
        log.unsynced.when_synced(decided.set)
        await decided.wait()

    # --- retention ---

    async def _trim(self, topic: EmbeddedTopic, before: int) -> int:
        await anyio.lowlevel.checkpoint()
        async with self._locks.hold(topic.place.topic):  # not while it is deleted: its rows would come back
            log = topic.use()
            while (start := log.prepare_trim(before)) is None:
                await log.can_append()
                topic.use()
            if start > log.start:
                await to_the_end(self._cut, topic, log, start)
            return log.start

    # --- rewriting ---

    async def _replace(self, topic: EmbeddedTopic, rewriting: SegmentRewriting) -> None:
        async with self._locks.hold(topic.place.topic):  # not while it is trimmed, given up or deleted
            while not rewriting.at_hand(self._liveness):
                topic.use()
                await self._liveness.answered()
            await to_the_end(self._swap, topic.use(), rewriting)

    async def _swap(self, log: TopicLog, rewriting: SegmentRewriting) -> None:
        old, open_files = rewriting.old, self._services.open_files
        if not log.replaceable(old, rewriting.size):
            raise PositionError(f"{log.name} was changed at {old.base} meanwhile", start=log.start, end=log.end)
        open_files.pin(old.handle)  # who reads it goes on there, and nobody opens the other one by its name
        try:
            await self._threads.run(self._syncer.chores_done())
            await self._threads.run(rewriting.swap_files)
            log.replace(old, rewriting.segment())
        finally:
            open_files.unpin(old.handle)
        await self._threads.run(rewriting.settle_files)

    async def _cut(self, topic: EmbeddedTopic, log: TopicLog, start: int) -> None:
        await self._decided(log)
        topic.use()
        log.trimming = start
        try:
            await self._checkpoints.write(log)
        except BaseException:
            log.trimming = 0
            self._checkpoints.write_soon(log)  # one that was written meanwhile would have the next opening trim it
            raise
        log.trim()


def _closed(place: Place) -> UnknownTopicError:
    return UnknownTopicError(f"{place} was closed")


def _deleted(place: Place) -> UnknownTopicError:
    return UnknownTopicError(f"{place} was deleted")

"""The mirror: follows topics of a cluster, batch by batch, until it is told to stop.

How far it has come only the store knows: where a partition's log ends there, its mirror goes on. So it may be killed at
any time. Each broker has tasks of its own, so that one that is slow or gone holds up nobody else. Nor does a disk of
the store that hangs: a partition several of whose answers are not durable is fetched on when they are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import anyio

from kclient.errors import (
    CorruptRecordError,
    InconsistentTopicIdError,
    KafkaError,
    OffsetOutOfRangeError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)
from kclient.gateway.append import AppendState
from kclient.gateway.partition_states import PartitionPhase
from kclient.migration.errors import MigrationError
from kclient.migration.missing import SURE, MissingOffsets
from kclient.migration.source import (
    PARTITION_BYTES,
    RESPONSE_BYTES,
    Bounds,
    Fetched,
    SourceCluster,
    SourceTopic,
    topics_of,
)
from kclient.migration.states import MirroredPartition, MirroredTopic
from kclient.migration.target import Appended, FoundBatches, Target, conflict, durable, find_batches, refused_settings
from kclient.migration.throttle import Throttle
from kclient.records import CURRENT_MAGIC
from kclient.types import TopicPartition

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from kclient.cluster.metadata import ClusterSnapshot
    from kclient.gateway.partition import Partition

_REFRESH_S: Final = 10.0
"""After so many seconds it is looked for new topics and partitions, and for those that have gone."""
_RETRY_S: Final = 0.5
"""After so many seconds what has failed is tried again."""
_IDLE_S: Final = 0.2
_PATIENCE_S: Final = 1.0
"""So long others of the broker wait until what was appended is durable."""
MEMORY: Final = 128 << 20
"""Bytes of records in memory, if nothing else is said."""
LEAST_MEMORY: Final = 4 << 20
_LANES: Final = 2
"""Requests that each broker is sent at a time: it answers one while what another was answered with is received, and
appended. Each is for some of the partitions, always the same."""
_RESPONSES: Final = 2 * _LANES
"""So many answers of a broker are in memory: of each request, that one that is appended, and that which follows."""
_SETTLING: Final = 4
"""So many answers of a partition may be appended and not durable: they are synced while others are appended."""
_PASSING: Final = (UnknownTopicOrPartitionError, UnknownTopicIdError, InconsistentTopicIdError)


class Mirror:
    """Follows topics of a cluster.

    Args:
        source: The cluster.
        target: Where to.
        selects: Which topics, by name.
        throttle: How fast; as fast as possible by default.
        note: Is told in a sentence what people should know.
        refresh: Seconds between two looks for new topics and partitions.
        memory: Bytes of records that may be in memory, about, while they arrive and are appended, all brokers together;
            a batch that is larger than its share is moved all the same.

    Raises:
        ValueError: The memory is less than `LEAST_MEMORY`.
    """

    def __init__(
        self,
        source: SourceCluster,
        target: Target,
        selects: Callable[[str], bool],
        *,
        throttle: Throttle | None = None,
        note: Callable[[str], object] = lambda _: None,
        refresh: float = _REFRESH_S,
        memory: int = MEMORY,
    ) -> None:
        if memory < LEAST_MEMORY:
            raise ValueError(f"memory is {LEAST_MEMORY} bytes at least, not {memory}")
        self._source = source
        self._target = target
        self._selects = selects
        self._throttle = throttle or Throttle(None, 0.0)
        self._note = note
        self._refresh = refresh
        self._memory = memory
        self.queued: int = 0
        """Bytes that the store has not taken yet."""
        self._cluster_id = ""
        self.topics: dict[str, MirroredTopic] = {}
        """What is mirrored, by name."""
        self.taken_over: set[str] = set()
        """Topics that were selected, and have been taken over before."""
        self._told: dict[str, str] = {}
        self._failure: Exception | None = None
        self._working: set[int] = set()
        """Brokers that have tasks."""
        self._made = 0
        """Partitions that have been added."""
        self._turns = 0
        self._missing: MissingOffsets = MissingOffsets(source, target, self._tell, note, refresh)
        self._look_now = anyio.Event()
        self._stop = anyio.Event()
        self._tasks: TaskGroup | None = None

    # What is to be done

    async def prepare(self) -> None:
        """Find the topics at the source and make their mirrors; all or none.

        Raises:
            MigrationError: What the store has under some of the names are no mirrors of them; nothing was made then.
            KafkaError: The source cannot be asked, or the store refuses a topic.
        """
        snapshot = await self._source.look()
        self._cluster_id = snapshot.cluster_id or ""
        wanted = {name: topic for name, topic in topics_of(snapshot).items() if self._selects(name)}
        problems = [problem for topic in wanted.values() if (problem := await self._conflict(topic)) is not None]
        if problems:
            raise MigrationError("\n".join(problems))
        await self._add(wanted)

    async def _conflict(self, topic: SourceTopic) -> str | None:
        record = self._target.topic(topic.name)
        if record is None:
            try:
                await self._target.check_new(topic)
            except KafkaError as error:
                return f"topic {topic.name} cannot be made in the store: {error}"
            return None
        return conflict(record.mirror, topic, self._cluster_id)

    async def _add(self, wanted: dict[str, SourceTopic]) -> None:
        settings = await self._source.settings(wanted) if wanted else {}
        for name, topic in wanted.items():
            own = settings.get(name, {})
            refused = refused_settings(own)
            taken = {setting: value for setting, value in own.items() if setting not in refused}
            record = await self._target.mirror(topic, self._cluster_id, taken)
            if not record.mirrored:
                self.taken_over.add(name)
                continue
            if record.partitions < topic.partitions:
                await self._target.grow(record, topic.partitions)
            state = MirroredTopic(topic, record, remote=own.get("remote.storage.enable") == "true")
            self._add_partitions(state)
            self.topics[name] = state

    def _add_partitions(self, topic: MirroredTopic) -> None:
        for number in range(len(topic.partitions), topic.source.partitions):
            partition = self._target.partition(topic.record, number)
            partition.open_soon()
            lane, self._made = self._made % _LANES, self._made + 1
            topic.partitions.append(
                MirroredPartition(TopicPartition(topic.name, number), partition, topic.source.topic_id, lane)
            )

    # Running

    def stop(self) -> None:
        """Have `run` end; what has come is kept."""
        self._stop.set()

    async def run(self) -> None:
        """Follow the topics until `stop`. Call `prepare` before.

        Raises:
            KafkaError: It cannot go on at all; single topics that cannot tell why (`MirroredTopic.problems`).
        """
        async with anyio.create_task_group() as self._tasks:
            tasks = self._tasks
            self._begin_workers(tasks)
            tasks.start_soon(self._guarded, self._keep_fresh, tasks)
            await self._stop.wait()
            tasks.cancel_scope.cancel()
        if self._failure is not None:
            raise self._failure

    async def _guarded(self, work: Callable[..., Awaitable[None]], *args: object) -> None:
        """A task whose failure ends the run."""
        try:
            await work(*args)
        except Exception as error:  # noqa: BLE001  (raised by `run`)
            self._failure = self._failure or error
            self._stop.set()

    def _begin_workers(self, tasks: TaskGroup) -> None:
        for node_id in self._source.snapshot.nodes.keys() - self._working:
            self._working.add(node_id)
            for lane in range(_LANES):
                tasks.start_soon(self._guarded, self._work, node_id, lane)

    @property
    def lag(self) -> int | None:
        """How many offsets all topics are behind that are mirrored; None where that is not known yet."""
        total = 0
        for state in self.states():
            lag = state.lag
            if lag is None:
                return None
            total += lag
        return total

    def states(self) -> Iterator[MirroredPartition]:
        """Every partition that is mirrored: of those with problems none."""
        for topic in self.topics.values():
            if topic.problem is None:
                yield from (state for state in topic.partitions if state.problem is None)

    @property
    def problems(self) -> list[str]:
        """Why some topics or partitions are not mirrored any more."""
        return [problem for topic in self.topics.values() for problem in topic.problems]

    def _tell(self, about: str, text: str) -> None:
        """Tell people, unless they have just been told the same."""
        if self._told.get(about) != text:
            self._told[about] = text
            self._note(text)

    def _is_well(self, about: str) -> None:
        self._told.pop(about, None)

    # What is new at the source

    async def _keep_fresh(self, tasks: TaskGroup) -> None:
        while True:
            with anyio.move_on_after(self._refresh):
                await self._look_now.wait()
            self._look_now = anyio.Event()
            try:
                snapshot = await self._source.look()
                await self._follow(snapshot)
            except KafkaError as error:
                if not error.retriable:
                    raise
                self._tell("source", f"the source cannot be asked for its topics, it is tried again: {error}")
            else:
                self._is_well("source")
            self._begin_workers(tasks)

    async def _follow(self, snapshot: ClusterSnapshot) -> None:
        """Take note of topics and partitions that have come or gone."""
        if snapshot.cluster_id and self._cluster_id and snapshot.cluster_id != self._cluster_id:
            raise MigrationError(
                f"the source was the cluster {self._cluster_id}, and answers as {snapshot.cluster_id} now: nothing of "
                "that was moved; see that --from names brokers of one cluster"
            )
        found = topics_of(snapshot)
        for name, topic in self.topics.items():
            self._look_after(topic, found.get(name), known=name not in snapshot.errors)
            if topic.problem is None and topic.source.partitions > len(topic.partitions):
                if topic.source.partitions > topic.record.partitions:
                    await self._target.grow(topic.record, topic.source.partitions)
                self._add_partitions(topic)
        for state in self.states():
            about = f"leader of {state.tp}"
            if snapshot.leader_id(state.tp) is None:
                self._tell(about, f"{state.tp} has no leader at the source: it is waited for")
            else:
                self._is_well(about)
        new = {name: topic for name, topic in found.items() if self._selects(name) and self._is_new(name)}
        for name, made in list(new.items()):
            if (problem := await self._conflict(made)) is not None:
                self._tell(name, problem)
                del new[name]
        await self._add(new)

    def _is_new(self, name: str) -> bool:
        return name not in self.topics and name not in self.taken_over

    def missing(self, found: Iterable[str]) -> list[str]:
        """Those of the source's topics that are to be mirrored, and have come since it was looked for new ones."""
        return [name for name in found if self._selects(name) and self._is_new(name) and name not in self._told]

    def _look_after(self, topic: MirroredTopic, found: SourceTopic | None, *, known: bool) -> None:
        """What the source says of a topic now.

        Args:
            topic: What is mirrored.
            found: What the source has of that name.
            known: Whether the source could tell.
        """
        name = topic.name
        if topic.record.gone:
            problem: str | None = f"topic {name} was deleted in the store, and is not mirrored any more"
        elif found is None:
            if not known:
                return
            problem = f"topic {name} was deleted at the source: the store keeps what was moved"
        elif found.topic_id != topic.source.topic_id:
            problem = conflict(topic.record.mirror, found, self._cluster_id)
        elif found.partitions < topic.source.partitions:
            problem = (
                f"topic {name} has {found.partitions} partitions at the source, and had {topic.source.partitions}: it "
                "was deleted there and created again. Delete the topic in the store to mirror the new one"
            )
        else:
            problem, topic.source = None, found
        if problem is not None:
            self._tell(name, problem)
        topic.problem = problem

    # One broker

    async def _work(self, node_id: int, lane: int) -> None:
        ahead: dict[TopicPartition, Fetched] | None = None
        settling: deque[list[anyio.Event]] = deque()
        while True:
            fetched = ahead if ahead is not None else await self._fetch(node_id, lane, {})
            ahead = None
            if fetched:
                found = {tp: await find_batches(answer.records) for tp, answer in fetched.items()}
                following = self._following(fetched, found)
                if following is None:
                    await self._take(fetched, found, settling)
                else:
                    ahead = await self._take_and_fetch(node_id, lane, fetched, found, following, settling)

    async def _fetch(
        self, node_id: int, lane: int, following: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, Fetched]:
        """What a broker has of its partitions: nothing where it failed, or there are none.

        Args:
            node_id: The broker.
            lane: Of the partitions.
            following: Where to go on with partitions of which something is being appended.
        """
        about = f"node {node_id}"
        offsets, ids, opening = self._due(node_id, lane, following)
        if not offsets:
            await self._idle(opening)
            return {}
        if (delay := self._throttle.delay(anyio.current_time())) > 0:
            await anyio.sleep(delay)
        size = self._throttle.most(min(RESPONSE_BYTES, self._memory // (_RESPONSES * max(len(self._working), 1))))
        try:
            fetched = await self._source.fetch(
                node_id, offsets, ids, lane=lane, response_bytes=size, partition_bytes=min(size, PARTITION_BYTES)
            )
        except KafkaError as error:
            if not error.retriable:
                raise
            self._source.request_update()
            self._tell(about, f"{about} of the source does not answer, it is tried again: {error}")
            await anyio.sleep(_RETRY_S)
            return {}
        self._is_well(about)
        self._throttle.moved(sum(len(each.records) for each in fetched.values()), anyio.current_time())
        return fetched

    @staticmethod
    async def _idle(opening: list[Partition]) -> None:
        """Nothing can be asked for: wait a moment, or until what is being opened is open."""
        with anyio.move_on_after(_IDLE_S):
            with suppress(KafkaError):
                for partition in opening:
                    await partition.ready()
            if any(partition.state is not PartitionPhase.OPEN for partition in opening) or not opening:
                await anyio.sleep(_IDLE_S)

    @staticmethod
    def _following(
        fetched: Mapping[TopicPartition, Fetched], found: Mapping[TopicPartition, FoundBatches]
    ) -> dict[TopicPartition, int] | None:
        """The offsets behind what has come, if something has come of each partition: else nothing is fetched ahead."""
        following: dict[TopicPartition, int] = {}
        for tp, answer in fetched.items():
            _, batches, damage = found[tp]
            if answer.error is not None or damage is not None or not batches:
                return None
            last = batches[-1][1]
            if last.magic != CURRENT_MAGIC:
                return None
            following[tp] = last.next_offset
        return following

    async def _take_and_fetch(
        self,
        node_id: int,
        lane: int,
        fetched: dict[TopicPartition, Fetched],
        found: dict[TopicPartition, FoundBatches],
        following: dict[TopicPartition, int],
        settling: deque[list[anyio.Event]],
    ) -> dict[TopicPartition, Fetched]:
        """As `_take`, and what follows on what has come, which is fetched meanwhile."""
        ahead: dict[TopicPartition, Fetched] = {}
        failures: list[Exception] = []

        async def fetch() -> None:
            try:
                ahead.update(await self._fetch(node_id, lane, following))
            except Exception as error:  # noqa: BLE001  (raised below, outside of the group, which would wrap it)
                failures.append(error)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(fetch)
            try:
                await self._take(fetched, found, settling)
            except Exception as error:  # noqa: BLE001  (the same)
                failures.append(error)
                tasks.cancel_scope.cancel()
        if failures:
            raise failures[0]
        return ahead

    def _state(self, tp: TopicPartition) -> MirroredPartition:
        return self.topics[tp.topic].partitions[tp.partition]

    def _due(
        self, node_id: int, lane: int, following: Mapping[TopicPartition, int]
    ) -> tuple[dict[TopicPartition, int], dict[str, bytes], list[Partition]]:
        """What to ask a broker for: offsets by partition, and the topics' ids; `following` as for `_fetch`.

        And what cannot be asked for yet, since it is being opened.
        """
        snapshot, now = self._source.snapshot, anyio.current_time()
        due: list[MirroredPartition] = []
        opening: list[Partition] = []
        for state in self.states():
            if state.lane != lane or state.retry_at > now or snapshot.leader_id(state.tp) != node_id:
                continue
            if state.settling >= _SETTLING:
                continue
            if state.partition.state is not PartitionPhase.OPEN:
                self._open(state)
                opening.append(state.partition)
                continue
            if self._has_lost(state):
                continue
            due.append(state)
        alone = next((state for state in due if state.empty), None)
        if alone is not None:  # beside others it might have got nothing for want of room
            due = [alone]
        elif due:
            self._turns += 1
            begin = self._turns % len(due)
            due = due[begin:] + due[:begin]
        ids = {state.tp.topic: self.topics[state.tp.topic].source.topic_id for state in due}
        return {state.tp: following.get(state.tp, state.position) for state in due}, ids, opening

    def _has_lost(self, state: MirroredPartition) -> bool:
        """Whether the store has lost the end of a partition: it gives none of those offsets again."""
        log = state.partition.log
        if log.pending or log.high_watermark >= log.next_offset:
            return False
        state.problem = (
            f"{state.tp} is mirrored up to offset {log.high_watermark - 1} only: the store has lost what it had up to "
            f"offset {log.next_offset - 1} (damage, or a power cut under --durability written; see the log). Delete "
            "the topic in the store to mirror it from its beginning"
        )
        self._tell(str(state.tp), state.problem)
        return True

    def _open(self, state: MirroredPartition) -> None:
        if state.partition.state is PartitionPhase.GONE:
            self._look_now.set()
        state.partition.open_soon()

    async def _take(
        self,
        fetched: dict[TopicPartition, Fetched],
        found: dict[TopicPartition, FoundBatches],
        settling: deque[list[anyio.Event]],
    ) -> None:
        """Append what a broker has sent, and wait until not too much is not durable yet, but for a disk that hangs.

        `settling` has for each answer, the oldest first, what tells of its partitions that they are durable.
        """
        made_durable: list[anyio.Event] = []
        for tp, answer in fetched.items():
            state = self._state(tp)
            if answer.asked > state.position or state.settling >= _SETTLING:
                continue  # what it follows on could not be stored, or not yet: it is asked for again
            if self.queued >= self._memory and state.partition.queues:
                state.retry_at = anyio.current_time() + _RETRY_S  # the disks of others take what they get
                continue
            if answer.error is not None:
                settles = await self._refused(state, answer.error)
            else:
                state.source = Bounds(answer.start, answer.end, answer.stable)
                made = await self._append(state, answer, found[tp])
                settles = None if made is None else (made, state.source)
            if settles is not None:
                made_durable.append(self._settle_soon(state, *settles))
        settling.append(made_durable)
        if len(settling) == _SETTLING:
            oldest = settling.popleft()
            with anyio.move_on_after(_PATIENCE_S):
                for each in oldest:
                    await each.wait()

    def _settle_soon(self, state: MirroredPartition, made: Appended, source: Bounds) -> anyio.Event:
        """Have what was appended to a partition settled in a task of its own."""
        assert self._tasks is not None
        over = anyio.Event()
        state.settling += 1
        queued = made.size if made.last is not None and made.last.state < AppendState.STORED else 0
        self.queued += queued
        self._tasks.start_soon(self._guarded, self._settle, state, made, source, queued, over)
        return over

    async def _settle(
        self, state: MirroredPartition, made: Appended, source: Bounds, queued: int, over: anyio.Event
    ) -> None:
        """Until what was appended is durable, and the log begins where its source does."""
        try:
            if made.last is not None:
                await durable(made.last)
                state.records += made.records
                state.size += made.size
            if source.start > state.partition.log.start_offset:
                await state.partition.trim(source.start)
            if state.source is None or state.source.end < source.end:  # else a later answer has told more
                state.source = source
        except KafkaError as error:
            self._failed(state, error)
        finally:
            state.settling -= 1
            self.queued -= queued
            over.set()

    async def _append(self, state: MirroredPartition, answer: Fetched, found: FoundBatches) -> Appended | None:
        """Append what came of one partition; None if that failed."""
        try:
            made = await self._target.append(state.partition, found)
            if made.last is not None:
                state.empty = state.damaged = 0
            elif answer.end > state.position:
                made = (
                    await self._missing.found_nothing(state, answer, remote=self.topics[state.tp.topic].remote) or made
                )
            else:
                state.empty = 0
        except CorruptRecordError as error:
            state.damaged += 1
            if state.damaged >= SURE:
                state.problem = (
                    f"{state.tp} is mirrored up to offset {state.position - 1} only: what the source has there is "
                    f"damaged. {error} Delete the records up to there at the source (kafka-delete-records) to go on"
                )
                self._tell(str(state.tp), state.problem)
            state.retry_at = anyio.current_time() + _RETRY_S
            return None
        except KafkaError as error:
            self._failed(state, error)
            return None
        self._is_well(str(state.tp))
        return made

    def _failed(self, state: MirroredPartition, error: KafkaError) -> None:
        """The store did not take something; what was not stored is asked for again."""
        if not error.retriable:
            state.problem = f"{state.tp} is mirrored up to offset {state.position - 1} only: {error}"
            self._tell(str(state.tp), state.problem)
            return
        self._tell(str(state.tp), f"{state.tp}: the store does not take its records, it is tried again: {error}")
        state.retry_at = anyio.current_time() + _RETRY_S
        self._look_now.set()

    async def _refused(self, state: MirroredPartition, error: KafkaError) -> tuple[Appended, Bounds] | None:
        """The source has refused a partition; what was appended instead, if that is right, and what the source has."""
        state.retry_at = anyio.current_time() + _RETRY_S
        if isinstance(error, OffsetOutOfRangeError):
            try:
                return await self._missing.out_of_range(state)
            except KafkaError as failure:
                self._tell(str(state.tp), f"{state.tp}: where it begins is not known, it is asked again: {failure}")
        elif isinstance(error, _PASSING):  # it may have been deleted, or the broker does not know it yet
            self._look_now.set()
        elif error.retriable:
            self._source.request_update()
        else:
            state.problem = f"{state.tp} is mirrored up to offset {state.position - 1} only: {error}"
            self._tell(str(state.tp), state.problem)
        return None

"""The mirror: follows topics of a cluster, batch by batch, until it is told to stop.

How far it has come only the store knows: where a partition's log ends there, its mirror goes on. So it may be killed at
any time. Each broker has a task of its own, so that one that is slow or gone holds up nobody else. Nor does a disk of
the store that hangs: a partition whose records are not durable within a second is fetched on when they are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
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
from kclient.gateway.partition_states import State
from kclient.migration.errors import MigrationError
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
from kclient.migration.target import Appended, Target, conflict, durable, refused_settings
from kclient.migration.throttle import Throttle
from kclient.records import CURRENT_MAGIC, iter_headers
from kclient.types import TopicPartition

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from kclient.cluster.metadata import ClusterSnapshot

REFRESH_S: Final = 10.0
"""After so many seconds it is looked for new topics and partitions, and for those that have gone."""
_RETRY_S: Final = 0.5
"""After so many seconds what has failed is tried again."""
_IDLE_S: Final = 0.2
_LOOKING_UP_S: Final = 2.0
"""Others of the broker wait meanwhile."""
_PATIENCE_S: Final = 1.0
"""So long others of the broker wait until what was appended is durable."""
_SURE: Final = 3
"""So often a broker must have nothing before that counts, or send what is damaged."""
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
    """

    def __init__(
        self,
        source: SourceCluster,
        target: Target,
        selects: Callable[[str], bool],
        *,
        throttle: Throttle | None = None,
        note: Callable[[str], object] = lambda _: None,
        refresh: float = REFRESH_S,
    ) -> None:
        self._source = source
        self._target = target
        self._selects = selects
        self._throttle = throttle or Throttle(None, 0.0)
        self._note = note
        self._refresh = refresh
        self._cluster_id = ""
        self.topics: dict[str, MirroredTopic] = {}
        """What is mirrored, by name."""
        self.taken_over: set[str] = set()
        """Topics that were selected, and have been taken over before."""
        self._told: dict[str, str] = {}
        self._failure: Exception | None = None
        self._working: set[int] = set()
        """Brokers that have a task."""
        self._turns = 0
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
            topic.partitions.append(MirroredPartition(TopicPartition(topic.name, number), partition))

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
            tasks.start_soon(self._guarded, self._work, node_id)

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

    async def _work(self, node_id: int) -> None:
        ahead: dict[TopicPartition, Fetched] | None = None
        while True:
            fetched = ahead if ahead is not None else await self._fetch(node_id, {})
            ahead = None
            if fetched:
                following = self._following(fetched)
                if following is None:
                    await self._take(fetched)
                else:
                    ahead = await self._take_and_fetch(node_id, fetched, following)

    async def _fetch(self, node_id: int, following: Mapping[TopicPartition, int]) -> dict[TopicPartition, Fetched]:
        """What a broker has of its partitions: nothing where it failed, or there are none.

        Args:
            node_id: The broker.
            following: Where to go on with partitions of which something is being appended.
        """
        about = f"node {node_id}"
        offsets, ids = self._due(node_id, following)
        if not offsets:
            await anyio.sleep(_IDLE_S)
            return {}
        if (delay := self._throttle.delay(anyio.current_time())) > 0:
            await anyio.sleep(delay)
        most = self._throttle.most
        try:
            fetched = await self._source.fetch(
                node_id, offsets, ids, response_bytes=most(RESPONSE_BYTES), partition_bytes=most(PARTITION_BYTES)
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
    def _following(fetched: Mapping[TopicPartition, Fetched]) -> dict[TopicPartition, int] | None:
        """The offsets behind what has come, if something has come of each partition: else nothing is fetched ahead."""
        following: dict[TopicPartition, int] = {}
        for tp, answer in fetched.items():
            if answer.error is not None:
                return None
            try:
                last = deque(iter_headers(answer.records), maxlen=1)
            except CorruptRecordError:
                return None
            if not last or last[0][1].magic != CURRENT_MAGIC:
                return None
            following[tp] = last[0][1].next_offset
        return following

    async def _take_and_fetch(
        self, node_id: int, fetched: dict[TopicPartition, Fetched], following: dict[TopicPartition, int]
    ) -> dict[TopicPartition, Fetched]:
        """Append what has come, and fetch what follows on it meanwhile."""
        ahead: dict[TopicPartition, Fetched] = {}
        failures: list[Exception] = []

        async def fetch() -> None:
            try:
                ahead.update(await self._fetch(node_id, following))
            except Exception as error:  # noqa: BLE001  (raised below, outside of the group, which would wrap it)
                failures.append(error)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(fetch)
            try:
                await self._take(fetched)
            except Exception as error:  # noqa: BLE001  (the same)
                failures.append(error)
                tasks.cancel_scope.cancel()
        if failures:
            raise failures[0]
        # where something could not be appended, what follows on it is fetched again later
        return {
            tp: answer
            for tp, answer in ahead.items()
            if tp not in following or self._may_follow(self._state(tp), following[tp])
        }

    @staticmethod
    def _may_follow(state: MirroredPartition, offset: int) -> bool:
        return state.position == offset and not state.settling

    def _state(self, tp: TopicPartition) -> MirroredPartition:
        return self.topics[tp.topic].partitions[tp.partition]

    def _due(
        self, node_id: int, following: Mapping[TopicPartition, int]
    ) -> tuple[dict[TopicPartition, int], dict[str, bytes]]:
        """What to ask a broker for: offsets by partition, and the topics' ids; `following` as for `_fetch`."""
        snapshot, now = self._source.snapshot, anyio.current_time()
        due: list[MirroredPartition] = []
        for state in self.states():
            if state.retry_at > now or snapshot.leader_id(state.tp) != node_id:
                continue
            if state.settling and state.tp not in following:
                continue
            if state.partition.state is not State.OPEN:
                self._open(state)
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
        return {state.tp: following.get(state.tp, state.position) for state in due}, ids

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
        if state.partition.state is State.GONE:
            self._look_now.set()
        state.partition.open_soon()

    async def _take(self, fetched: dict[TopicPartition, Fetched]) -> None:
        """Append what a broker has sent, and wait until it is durable, but for a disk that hangs."""
        settled: list[anyio.Event] = []
        for tp, answer in fetched.items():
            state = self._state(tp)
            if answer.error is not None:
                settles = await self._refused(state, answer.error)
            else:
                state.source = Bounds(answer.start, answer.end, answer.stable)
                made = await self._append(state, answer)
                settles = None if made is None else (made, state.source)
            if settles is not None:
                settled.append(self._settle_soon(state, *settles))
        with anyio.move_on_after(_PATIENCE_S):
            for each in settled:
                await each.wait()

    def _settle_soon(self, state: MirroredPartition, made: Appended, source: Bounds) -> anyio.Event:
        """Have what was appended to a partition settled in a task of its own; it is fetched no more meanwhile."""
        assert self._tasks is not None
        over, state.settling = anyio.Event(), True
        self._tasks.start_soon(self._guarded, self._settle, state, made, source, over)
        return over

    async def _settle(self, state: MirroredPartition, made: Appended, source: Bounds, over: anyio.Event) -> None:
        """Until what was appended is durable, and the log begins where its source does."""
        try:
            if made.last is not None:
                await durable(made.last)
                state.records += made.records
                state.size += made.size
            if source.start > state.partition.log.start_offset:
                await state.partition.trim(source.start)
            state.source = source
        except KafkaError as error:
            self._failed(state, error)
        finally:
            state.settling = False
            over.set()

    async def _append(self, state: MirroredPartition, answer: Fetched) -> Appended | None:
        """Append what came of one partition; None if that failed."""
        try:
            made = await self._target.append(state.partition, answer.records)
            if made.last is not None:
                state.empty = state.damaged = 0
            elif answer.end > state.position:
                made = await self._found_nothing(state, answer) or made
            else:
                state.empty = 0
        except CorruptRecordError as error:
            state.damaged += 1
            if state.damaged >= _SURE:
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

    async def _found_nothing(self, state: MirroredPartition, answer: Fetched) -> Appended | None:
        """A broker sends nothing though the partition's end is further on: what was there may be compacted away."""
        state.empty += 1
        if state.empty <= _SURE or len(answer.records):
            return None
        state.empty = 0
        if self.topics[state.tp.topic].remote:
            why = "its remote storage does not answer"
        else:
            try:
                if await self._is_hole(state, answer.start):
                    return self._target.skip(state.partition, answer.end)
                why = "it does not show that it can read the partition"
            except KafkaError as error:
                why = str(error)
        state.retry_at = anyio.current_time() + self._refresh
        self._tell(
            str(state.tp),
            f"{state.tp}: the source sends nothing from offset {state.position} on, though it goes up to {answer.end}: "
            f"{why}. It is tried again",
        )
        return None

    async def _is_hole(self, state: MirroredPartition, start: int) -> bool:
        """Whether a broker that sends nothing of a partition can read it: else there may be records all the same.

        A gateway's store may not answer at the moment, or there is no memory to read into.
        """
        if start < state.position and await self._reads(state, start):
            return not await self._reads(state, state.position) and await self._reads(state, start)
        # nothing at all is known to be there: looking up the first timestamp means reading, too
        return (await self._source.list_offsets({state.tp: 0}, timeout=_LOOKING_UP_S))[state.tp] is None

    async def _reads(self, state: MirroredPartition, offset: int) -> bool:
        """Whether there is a batch from an offset on."""
        leader = self._source.snapshot.leader_id(state.tp)
        if leader is None:
            return False
        topic = self.topics[state.tp.topic].source
        asked = await self._source.fetch(
            leader, {state.tp: offset}, {topic.name: topic.topic_id}, response_bytes=1, partition_bytes=1
        )
        answer = asked[state.tp]
        if answer.error is not None:
            raise answer.error
        return len(answer.records) > 0

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
                return await self._out_of_range(state)
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

    async def _out_of_range(self, state: MirroredPartition) -> tuple[Appended, Bounds] | None:
        """The source has nothing (any more) at the offset that is next."""
        bounds = (await self._source.bounds([state.tp]))[state.tp]
        there = state.partition.log.next_offset
        if bounds.end < there:
            state.problem = (
                f"{state.tp} ends at offset {bounds.end} at the source, and the store has it up to {there}: the source "
                "has lost records (an unclean leader election), or the topic was made anew. Delete the topic in the "
                "store to mirror it from its beginning"
            )
            self._tell(str(state.tp), state.problem)
        elif bounds.start > there:
            if there > 0:
                self._note(
                    f"{state.tp}: the source has deleted the offsets {there} to {bounds.start - 1} before they were "
                    "moved (retention, or a deletion of records): they are not in the store either"
                )
            state.begin, state.retry_at = bounds.start, 0.0
            if bounds.start >= bounds.end:
                return self._target.skip(state.partition, bounds.start), bounds
        return None

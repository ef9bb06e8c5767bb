"""A client in the lives of `lives`: what it does, and what it has to see."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from copy import copy
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, TypeAlias

import trio

from kclient.errors import ErrorCode
from kclient.gateway import Gateway
from kclient.htp import LeaseHeldError, StorageError
from kclient.protocol.messages.fetch import FetchRequest, FetchRequestPartition, FetchRequestTopic
from kclient.protocol.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from kclient.protocol.messages.topics import CreatePartitionsRequest, CreatePartitionsTopic
from tests.gateway_wire import Wire, connect
from tests.simulation.inline_threads import START_S
from tests.simulation.lives_model import NAMES, Committed, Incarnation, Violated, promise, within
from tests.simulation.lives_producer import Producer

if TYPE_CHECKING:
    from tests.simulation.lives import World

Settings: TypeAlias = Sequence[tuple[str, ...]]

EARLIEST, LATEST = -2, -1
TOPIC, BROKER = 2, 4
RETENTIONS_MS = (20_000, 120_000, -1)
OFFSETS_KEPT_S = 20 * 60
"""How long committed offsets are kept."""
_OPENING_S = 60
"""A partition is open by then, however slow its store is."""
TOPIC_SETTINGS = (
    ("max.message.bytes", "index.interval.bytes"), ("segment.bytes", "file.delete.delay.ms"),
    ("flush.ms", "flush.messages"), ("min.insync.replicas", "segment.jitter.ms"),
    ("segment.index.bytes", "delete.retention.ms"),
)  # fmt: skip
"""Each client changes two of them, at times both at once, so that it knows what must be there."""
BROKER_SETTINGS = (
    ("fetch.max.bytes", "log.index.size.max.bytes"), ("group.max.size", "log.flush.interval.messages"),
    ("offset.metadata.max.bytes", "log.segment.delete.delay.ms"),
    ("log.index.interval.bytes", "log.cleaner.delete.retention.ms"),
    ("message.max.bytes", "log.flush.interval.ms"),
)  # fmt: skip
_HELD_S = 5
"""So long a pass of retention may take to come to a topic."""


async def insisting(ask: Callable[[], Awaitable[Any]]) -> Any:
    """The row that answers a question that is asked again, as by clients, while a partition is still being opened."""
    until = trio.current_time() + _OPENING_S
    while True:
        row = await within(ask())
        if row.error_code != ErrorCode.KAFKA_STORAGE_ERROR or trio.current_time() >= until:
            return row
        await trio.sleep(0.1)


class Client:
    """Does one thing after the other."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.model = world.model
        self.number = number
        self.dice = Random(world.dice.getrandbits(40))
        self.names = [name for index, name in enumerate(NAMES) if index % world.clients == number]
        """The topics that this one makes and deletes."""
        self.wire: Wire
        self.only: Incarnation | None = None
        """The one topic that it is to work with, if there is one."""
        self.producer = Producer(world, number, Random(self.dice.getrandbits(40)))
        self.seen: dict[tuple[bytes, int], tuple[int, int]] = {}
        """Log start and end of a partition as this one has seen them last: they never fall."""

    async def live(self, count: int) -> None:
        self.wire = connect(self.world.gateway)
        if self.names and self.dice.random() < (0.8 if self.world.opens_slowly else 0.4):
            await self.make_anew()  # while what was there at the start is still being opened
        for _ in range(count):
            await self.step()
            await trio.sleep(self.dice.choice([0.0, 0.0, 0.01, 1.0]) * self.dice.random())
        await self.wire.aclose()

    async def ask(self, request: Any, version: int) -> Any:
        return await within(self.wire(request, version))

    async def step(self) -> None:
        choices: list[tuple[int, Callable[[], Any]]] = [
            (30, self.produce), (10, self.fetch), (6, self.commit), (4, self.fetch_committed), (4, self.alter_topic),
            (3, self.alter_broker), (5, self.delete_records), (3, self.retention), (3, self.look), (2, self.intrude),
            (2, self.wait), (2, self.outdate),
        ]  # fmt: skip
        if self.world.compacting:
            choices += [(10, self.compact)]
        if self.names:
            choices += [(10, self.make_or_delete), (4, self.grow), (6, self.make_anew)]
        weights, actions = zip(*choices, strict=True)
        (action,) = self.dice.choices(actions, weights)
        await action()

    # --- topics ---

    async def make_or_delete(self) -> None:
        name = self.dice.choice(self.names)
        if name in self.model.live:
            await self.delete(name)
            if self.dice.random() < 0.8:
                await self.make(name)
        else:
            await self.make(name)

    async def make_anew(self) -> None:
        """Delete a topic and make it again while others are at work on it, and fill it at once."""
        name = self.dice.choice(self.names)
        if name not in self.model.live:
            return
        old = self.model.live[name]
        work = [Client.commit, Client.delete_records, Client.alter_topic, Client.fetch, Client.retention]
        work += [Client.compact] * 2 if self.world.compacting else []
        gate = None
        async with trio.open_nursery() as nursery:
            if self.dice.random() < 0.4:
                gate = self.world.hold(name)
                nursery.start_soon(self._aside, Client.retention, old)
                with trio.move_on_after(_HELD_S):
                    await gate.reached.wait()
            for action in (Client.outdate, *self.dice.sample(work, 2)):
                nursery.start_soon(self._aside, action, old)
            await trio.sleep(self.dice.choice([0.0, 0.1, 1.0]) * self.dice.random())
            await self.delete(name)
            if name not in self.model.live:
                await self.make(name, other_than=old.retention_ms)
            topic = self.model.live.get(name)
            if topic is not None:
                outdated = gate is not None and self.dice.random() < 0.5
                await self.producer.produce(topic, range(topic.partitions), old=outdated)
            if gate is not None:
                gate.open()
        if topic is not None and gate is not None:  # what has held on to the old one is over
            for partition in range(topic.partitions):
                await self.fetch_from(topic, partition)

    async def _aside(self, action: Callable[[Client], Awaitable[None]], topic: Incarnation) -> None:
        """Do something with a topic on another connection, while this one does something else."""
        other = copy(self)
        other.only = topic
        other.wire = connect(self.world.gateway)
        await action(other)
        await other.wire.aclose()

    async def make(self, name: str, *, other_than: int | None = None) -> None:
        """Make a topic, with another retention than that of the one which had its name."""
        partitions = self.dice.choice([1, 2, 8, 12])
        retention_ms = self.dice.choice([each for each in RETENTIONS_MS if each != other_than])
        configs = {"retention_ms": str(retention_ms), "segment_ms": str(self.dice.choice([1, 10_000, 10**9]))}
        policy = self.dice.choice(["compact", "compact", "compact,delete", "delete"]) if self.world.compacting else None
        if policy is not None:
            configs |= {"cleanup_policy": policy, "min_cleanable_dirty_ratio": "0"}
        compacted = policy is not None and "compact" in policy
        if policy == "compact":
            retention_ms = -1
            configs["retention_ms"] = "-1"
        self.model.changing[name] += 1
        row = await insisting(lambda: self.wire.create(name, partitions, **configs))
        if row.error_code:
            promise(self.world.faults or name in self.model.unsure, f"{name} could not be created: {row}")
            await self.find_out(name)
        else:
            self.model.born(name, bytes(row.topic_id), partitions, retention_ms, compacted=compacted)
            await self.check_born(name)

    async def find_out(self, name: str) -> None:
        """What a name stands for, where a request failed or was not answered."""
        topic = (await within(self.wire.metadata(name))).topics[0]
        known, topic_id = self.model.live.get(name), bytes(topic.topic_id)
        if topic.error_code:
            promise(topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic}")
            promise(known is None or self.world.faults or name in self.model.unsure, f"{name} has gone")
            self.model.dies(name)
        elif known is not None:
            promise(topic_id == known.topic_id, f"{name} is another topic than the one that was made")
            promise(len(topic.partitions) >= known.partitions, f"{name} has lost partitions")
            known.partitions = len(topic.partitions)
        elif topic_id in self.model.all:  # its deletion did not happen
            known = self.model.live[name] = self.model.all[topic_id]
            known.partitions = len(topic.partitions)
            self.model.changing[name] += 1
        else:
            found = await within(self.wire.configs(TOPIC, name))
            retention, policy = found["retention.ms"][0], found["cleanup.policy"][0] or ""
            compacted = "compact" in policy
            self.model.born(name, topic_id, len(topic.partitions), int(retention or -1), compacted=compacted)
            self.model.live[name].jumps = True  # who knows what it has seen
        self.model.unsure.discard(name)

    async def check_born(self, name: str) -> None:
        """A new topic begins with nothing, whatever others have sent to it and had removed since."""
        new = self.model.live[name]
        found = await within(self.wire.configs(TOPIC, name))
        own = {key for key, (_, source) in found.items() if source == 1}
        foreign = own - {"retention.ms", "segment.ms"}.union(*TOPIC_SETTINGS)
        if self.world.compacting:
            foreign -= {"cleanup.policy", "min.cleanable.dirty.ratio"}
        promise(not foreign, f"{name} was born with the settings {foreign}")
        promise(found["retention.ms"][0] == str(new.retention_ms), f"{name} was born with {found['retention.ms']}")
        for partition in range(new.partitions):
            start = await self.offset(name, EARLIEST, partition)
            promise(
                start is None or new.trimmed[partition] or start <= self.model.outlived(new, partition, self.now_ms()),
                f"{name}-{partition} was born with start {start}",
            )

    async def offset(self, name: str, timestamp: int, partition: int) -> int | None:
        row = await insisting(lambda: self.wire.offset(name, timestamp, partition))
        if row.error_code:
            promise(self.world.faults or self.world.uncertain, f"{name}-{partition}: {row}")
            return None
        return int(row.offset)

    async def delete(self, name: str) -> None:
        self.model.dies(name)
        error = await within(self.wire.delete(name))
        if error:
            promise(self.world.faults or name in self.model.unsure, f"{name} could not be deleted: {error}")
            await self.find_out(name)

    async def grow(self) -> None:
        name = self.dice.choice(self.names)
        topic = self.model.live.get(name)
        if topic is None:
            return
        wanted = topic.partitions + self.dice.choice([1, 2])
        request = CreatePartitionsRequest(
            topics=[CreatePartitionsTopic(name=name, count=wanted, assignments=None)], timeout_ms=10_000
        )
        error = (await self.ask(request, 3)).results[0].error_code
        if not error:
            topic.partitions = wanted
            return
        text = f"{name} could not be grown to {wanted}: {error}"
        promise(self.world.faults or name in self.model.unsure, text)
        await self.find_out(name)

    # --- records ---

    def choose(self) -> tuple[Incarnation, int] | None:
        """A topic that is there, or was a moment ago, and one of its partitions."""
        known = list(self.model.live.values()) if self.only is None else [self.only]
        if not known:
            return None
        topic = self.dice.choice(known)
        return topic, self.dice.randrange(topic.partitions)

    async def produce(self) -> None:
        unfinished = self.producer.unfinished()
        chosen = unfinished or self.choose()
        if chosen is None:
            return
        topic, partition = chosen
        others = self.dice.sample(range(topic.partitions), min(topic.partitions, self.dice.choice([0, 0, 1, 3])))
        partitions = [partition, *(each for each in others if each != partition)]
        await self.producer.produce(topic, partitions, again=unfinished is not None)

    async def fetch(self) -> None:
        chosen = self.choose()
        if chosen is None:
            return
        await self.fetch_from(*chosen)

    async def fetch_from(self, topic: Incarnation, partition: int) -> None:
        """Read something near the beginning of a partition, which must be where it is told to be."""
        before = self.model.changing[topic.name]
        start = await self.offset_of(topic, partition, EARLIEST)
        if start is None:
            return
        offset = start + self.dice.choice([0, 0, 0, 1, 3])
        wait_ms = self.dice.choice([0, 0, 0, 2000])
        row = await self.fetch_at(topic, partition, offset, wait_ms=wait_ms)
        if row is None or before != self.model.changing[topic.name]:
            return
        if row.error_code == ErrorCode.OFFSET_OUT_OF_RANGE and offset == start:
            after = await self.offset_of(topic, partition, EARLIEST)
            if before == self.model.changing[topic.name] and after is not None:
                promise(
                    after > start, f"{topic.name}-{partition}: a fetch at the earliest offset {start} is out of range"
                )
        if row.error_code:
            return
        where = f"{topic.name}-{partition}"
        seen = self.seen.get((topic.topic_id, partition), (0, 0))
        self.seen[topic.topic_id, partition] = start, end = row.log_start_offset, row.high_watermark
        promise(start >= seen[0] and end >= seen[1], f"{where}: start and end fell from {seen} to {start, end}")
        self.world.check_records(topic, partition, row, at_least=offset)

    async def offset_of(self, topic: Incarnation, partition: int, timestamp: int) -> int | None:
        row = await insisting(lambda: self.wire.offset(topic.name, timestamp, partition))
        return None if row.error_code else int(row.offset)

    async def fetch_at(self, topic: Incarnation, partition: int, offset: int, *, wait_ms: int = 0) -> Any:
        """One partition's answer, by the topic's id; None if the topic has gone."""
        wanted = FetchRequestPartition(partition=partition, fetch_offset=offset, partition_max_bytes=1 << 20)
        request = FetchRequest(
            max_wait_ms=wait_ms,
            min_bytes=1,
            max_bytes=1 << 24,
            topics=[FetchRequestTopic(topic=topic.name, topic_id=topic.topic_id, partitions=[wanted])],
        )

        async def ask() -> Any:
            return (await self.wire(request, 13)).responses[0].partitions[0]

        row = await insisting(ask)
        if row.error_code == ErrorCode.UNKNOWN_TOPIC_ID:
            promise(self.model.live.get(topic.name) is not topic, f"{topic.name} is there, and not found by its id")
            return None
        return row

    async def delete_records(self) -> None:
        chosen = self.choose()
        if chosen is None:
            return
        topic, partition = chosen
        end = await self.offset_of(topic, partition, LATEST)
        if end is None:
            return
        before = self.model.changing[topic.name]
        offset = self.dice.choice([end, end // 2, max(0, end - 1)])
        for each in [topic, *([self.model.live[topic.name]] if topic.name in self.model.live else [])]:
            each.trimmed[partition] = max(each.trimmed[partition], offset)  # by name: whichever it is by then
        row = await within(self.wire.delete_records(topic.name, offset, partition))
        now = self.model.live.get(topic.name)
        if now is not None and now is not topic:
            now.trimmed[partition] = max(now.trimmed[partition], offset)
        if not row.error_code and before == self.model.changing[topic.name] and not self.world.cut:
            promise(
                row.low_watermark >= offset, f"{topic.name}-{partition}: records below {offset} were not deleted: {row}"
            )
            topic.starts[partition] = max(topic.starts[partition], offset)

    async def retention(self) -> None:
        await within(self.world.gateway.apply_retention())

    async def compact(self) -> None:
        for _ in range(self.dice.choice([1, 1, 5])):
            if not await within(self.world.gateway.parts.cleaner.clean_dirtiest()):
                return

    async def outdate(self) -> None:
        """Send records that are old, while retention looks for such."""
        chosen = self.choose()
        if chosen is None:
            return
        topic, partition = chosen
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(self.producer.produce, topic, [partition], old=True))
            for _ in range(self.dice.choice([1, 3])):
                await trio.sleep(self.dice.choice([0.0, 0.1, 2.0]) * self.dice.random())
                await self.retention()

    async def wait(self) -> None:
        await trio.sleep(self.dice.choice([5, 40, 400]))

    # --- offsets ---

    async def commit(self) -> None:
        chosen = self.choose()
        if chosen is None:
            return
        topic, partition = chosen
        group, offset = f"g{self.number}", self.dice.randrange(1000)
        known = self.model.offsets.setdefault((group, topic.topic_id, partition), Committed({-1}, 0.0))
        known.values.add(offset)
        known.since = trio.current_time()
        wanted = OffsetCommitRequestPartition(partition_index=partition, committed_offset=offset)
        request = OffsetCommitRequest(
            group_id=group,
            generation_id_or_member_epoch=-1,
            member_id="",
            topics=[OffsetCommitRequestTopic(topic_id=topic.topic_id, partitions=[wanted])],
        )
        error = (await self.ask(request, 10)).topics[0].partitions[0].error_code
        if not error and not self.world.cut:
            known.values = {offset}
        known.since = trio.current_time()

    async def fetch_committed(self) -> None:
        chosen = self.choose()
        if chosen is not None:
            await self.check_committed(*chosen)

    async def check_committed(self, topic: Incarnation, partition: int) -> None:
        group = f"g{self.number}"
        wanted = OffsetFetchRequestTopics(topic_id=topic.topic_id, partition_indexes=[partition])
        request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=[wanted])])
        row = (await self.ask(request, 10)).groups[0].topics[0].partitions[0]
        if row.error_code:
            promise(self.model.live.get(topic.name) is not topic, f"offsets of {topic.name}, which is there: {row}")
            return
        known = self.model.offsets.get((group, topic.topic_id, partition), Committed({-1}, 0.0))
        allowed = set(known.values)
        if trio.current_time() - known.since >= OFFSETS_KEPT_S:
            allowed.add(-1)
        if self.model.live.get(topic.name) is not topic:
            allowed.add(-1)
        where = f"{group} at {topic.name}-{partition}"
        promise(
            row.committed_offset in allowed, f"{where}: committed {row.committed_offset}, expected {sorted(allowed)}"
        )

    # --- settings ---

    async def alter_topic(self) -> None:
        chosen = self.choose()
        if chosen is None:
            return
        topic, _ = chosen
        await self._alter(TOPIC_SETTINGS, partial(self._alter_topic, topic))
        await self.check_settings(topic)

    async def _alter(self, settings: Settings, alter: Callable[[Wire, str], Awaitable[None]]) -> None:
        """Change one of the two settings that are this client's, or both at the same time."""
        names = settings[self.number % len(settings)]
        async with trio.open_nursery() as nursery:
            for name in self.dice.choice([names, names[:1], names[1:]]):
                nursery.start_soon(alter, connect(self.world.gateway), name)

    async def _alter_topic(self, topic: Incarnation, wire: Wire, name: str) -> None:
        value = str(2_000_000 + self.dice.randrange(1000))
        before = self.model.changing[topic.name]
        topic.settings.setdefault(name, {None}).add(value)
        error = await within(wire.alter(TOPIC, topic.name, (name, 0, value)))
        await wire.aclose()
        live_now = self.model.live.get(topic.name)
        if live_now is not None and live_now is not topic:  # it may have been that one
            live_now.settings.setdefault(name, {None}).add(value)
        if not error and before == self.model.changing[topic.name] and not self.world.cut:
            topic.settings[name] = {value}

    async def check_settings(self, topic: Incarnation) -> None:
        before = self.model.changing[topic.name]
        if self.model.live.get(topic.name) is not topic:
            return
        found = await within(self.wire.configs(TOPIC, topic.name))
        if before != self.model.changing[topic.name]:
            return
        for name in TOPIC_SETTINGS[self.number % len(TOPIC_SETTINGS)]:
            value, source = found[name]
            allowed = topic.settings.get(name, {None})
            shown = value if source == 1 else None
            promise(shown in allowed, f"{name} of {topic.name} is {shown}, expected one of {allowed}")

    async def alter_broker(self) -> None:
        await self._alter(BROKER_SETTINGS, self._alter_broker)
        await self.check_broker()

    async def _alter_broker(self, wire: Wire, name: str) -> None:
        value = str(self.dice.randrange(2_000_000, 2_001_000))
        self.model.broker.setdefault(name, {None}).add(value)
        error = await within(wire.alter(BROKER, "", (name, 0, value)))
        await wire.aclose()
        if not error and not self.world.cut:
            self.model.broker[name] = {value}

    async def check_broker(self) -> None:
        found = await within(self.wire.configs(BROKER, ""))
        for name in BROKER_SETTINGS[self.number % len(BROKER_SETTINGS)]:
            value, source = found[name]
            shown = value if source == 3 else None
            allowed = self.model.broker.get(name, {None})
            promise(shown in allowed, f"the broker setting {name} is {shown}, expected one of {allowed}")

    # --- others ---

    async def look(self) -> None:
        response = await within(self.wire.metadata(*NAMES))
        for topic in response.topics:
            for partition in topic.partitions:
                key, epoch = (bytes(topic.topic_id), partition.partition_index), partition.leader_epoch
                where = f"{topic.name}-{partition.partition_index}"
                promise(epoch >= self.model.epochs.get(key, -1), f"{where}: the leader epoch went backwards")
                promise(epoch >= self.world.epoch, f"{where}: its leader epoch is below the gateway's")
                self.model.epochs[key] = epoch

    async def intrude(self) -> None:
        """A second gateway of another number on the same store is refused."""
        other: Any = Gateway(self.world.store, listen=None, config={"node.id": 1000 + self.number})
        try:
            await other.start()
        except (LeaseHeldError, StorageError):
            return
        await other.close(0.0)
        raise Violated("a second gateway was let in")

    def now_ms(self) -> int:
        return int((START_S + trio.current_time()) * 1000)

    # --- when all is quiet ---

    async def check_own(self) -> None:
        """What only this client knows, when nothing else is going on."""
        for topic in list(self.model.live.values()):
            for partition in range(topic.partitions):
                await self.check_committed(topic, partition)
            await self.check_settings(topic)
        await self.check_broker()

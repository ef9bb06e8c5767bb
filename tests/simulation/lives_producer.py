"""How a client in the lives of `lives` sends records: several batches before it reads an answer, and again what was not
answered, because the connection broke or it had waited for long enough.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf
from random import Random
from typing import TYPE_CHECKING, Any

import trio

from kclient.errors import ErrorCode
from kclient.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.gateway_wire import Wire, batch_of, connect
from tests.simulation.inline_threads import START_S
from tests.simulation.lives_model import PATIENCE_S, Incarnation, Sent, promise, within

if TYPE_CHECKING:
    from tests.simulation.lives import World

LATEST = -1
IN_FLIGHT = 5
"""Batches that an idempotent producer has on their way to a partition: as many as are remembered of it."""
OLD_MS = 200_000
KEYS = 4
"""So many keys there are where topics are compacted."""
HASTE_MS = 50
"""The `timeout.ms` of a request whose answer may come before its batches are durable."""
GONE = (ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NOT_LEADER_OR_FOLLOWER)


@dataclass(eq=False)
class Batch:
    """Some records that are sent together."""

    records: list[Sent]
    content: bytes
    number: int
    """In its lane."""
    changing: int
    """How often its topic's name had changed its meaning when it was sent first."""


@dataclass(eq=False)
class Lane:
    """The batches that one producer has for one partition, in their order."""

    topic: Incarnation
    partition: int
    acks: int
    by_id: bool
    producer_id: int
    """-1 for one that is not idempotent."""
    line: int
    count: int = 0
    sequence: int = 0
    unanswered: list[Batch] = field(default_factory=list)
    busy: bool = False

    @property
    def idempotent(self) -> bool:
        return self.producer_id >= 0

    def has_room(self) -> bool:
        return not self.unanswered or self.count - self.unanswered[0].number < IN_FLIGHT


Rows = list[tuple[Lane, Batch]]
"""What one request carries."""


class Producer:
    """Sends what one client has to send.

    An idempotent lane keeps what was not answered, and sends it again in the same order and under the same sequence
    numbers, in the next life too. Any other sends it again for a while, and then gives it up.
    """

    def __init__(self, world: World, number: int, dice: Random) -> None:
        self.world = world
        self.model = world.model
        self.number = number
        self.dice = dice
        self.producer_id = -1
        self.lanes: dict[tuple[bytes, int], Lane] = {}
        """The idempotent ones."""
        self.given_up: set[tuple[bytes, int]] = set()
        """Where there was one, and the topic seemed to have gone: if it comes back, another producer goes on."""

    def unfinished(self) -> tuple[Incarnation, int] | None:
        """A partition that something has to be sent to again."""
        lanes = [lane for lane in self.lanes.values() if lane.unanswered and not lane.busy]
        if not lanes or self.dice.random() < 0.1:
            return None
        lane = self.dice.choice(lanes)
        return lane.topic, lane.partition

    async def produce(
        self, topic: Incarnation, partitions: Sequence[int], *, again: bool = False, old: bool = False
    ) -> None:
        """Send something to partitions of a topic.

        Args:
            topic: Where to.
            partitions: Of this topic.
            again: Whether there is something that has to be sent again.
            old: Whether the records are so old that retention may remove them at once.
        """
        idempotent = again or self.dice.random() < 0.5
        acks = -1 if idempotent else self.dice.choice([-1, -1, 1])
        by_id = idempotent or self.dice.random() < 0.5
        lanes = [await self._lane(topic, index, acks, by_id=by_id, idempotent=idempotent) for index in partitions]
        with _busy([lane for lane in lanes if lane is not None and not lane.busy]) as mine:
            left: list[Wire] = []
            for _ in range(self.dice.choice([1, 1, 2, 3])):
                self._fill(mine, old=old)
                await self._connect(mine, left)
            for wire in left:
                await wire.aclose()

    async def _lane(
        self, topic: Incarnation, partition: int, acks: int, *, by_id: bool, idempotent: bool
    ) -> Lane | None:
        key = topic.topic_id, partition
        if not idempotent:
            return Lane(topic, partition, acks, by_id, -1, 0)
        if key not in self.lanes:
            if self.producer_id < 0 or key in self.given_up:
                wire = connect(self.world.gateway)
                self.producer_id = await within(wire.producer_id())
                await wire.aclose()
            if self.producer_id < 0:
                return None
            # another may have made it meanwhile
            self.given_up.discard(key)
            lane = Lane(topic, partition, acks, by_id, self.producer_id, next(self.model.lines))
            self.lanes.setdefault(key, lane)
        return self.lanes[key]

    def _fill(self, lanes: list[Lane], *, old: bool) -> None:
        for lane in lanes:
            for _ in range(self.dice.choice([1, 1, 2, 4, 5] if len(lanes) < 3 else [1, 1, 2])):
                if lane.has_room():
                    lane.unanswered.append(
                        self._batch(lane, OLD_MS if old else self.dice.choice([0, 0, 15_000, OLD_MS]))
                    )

    def _batch(self, lane: Lane, age_ms: int) -> Batch:
        stamp = self.now_ms() - age_ms
        key = b"%d" % self.dice.randrange(KEYS) if self.world.compacting else None
        records = [
            Sent(next(self.model.serials), self.number, lane.topic.name, lane.partition,
                 lane.topic.topic_id if lane.by_id else None, stamp, lane.acks, lane.line, lane.idempotent, key=key)
            for _ in range(self.dice.choice([1, 1, 3]))
        ]  # fmt: skip
        self.model.sent.update((sent.serial, sent) for sent in records)
        numbers: dict[str, Any] = {}
        if lane.idempotent:
            numbers = {"producer_id": lane.producer_id, "producer_epoch": 0, "sequence": lane.sequence}
            lane.sequence += len(records)
        content = batch_of(*(b"%d" % sent.serial for sent in records), timestamp=stamp, key=key, **numbers)
        lane.count += 1
        return Batch(records, bytes(content), lane.count - 1, self.model.changing[lane.topic.name])

    async def _connect(self, lanes: list[Lane], left: list[Wire]) -> None:
        """Send everything on a new connection, and read as many answers as chance will have it."""
        wire = connect(self.world.gateway)
        requests = list(self._requests(lanes))
        line = next(self.model.lines)
        hasty = self.dice.random() < 0.1
        for rows, _ in requests:
            await wire.send(self._request(rows, line, hasty=hasty), _version(rows))
            if self.dice.random() < 0.2:
                await trio.sleep(self.dice.choice([0.0, 0.01]))
        heard = self.dice.choice([len(requests)] * 3 + [0, self.dice.randrange(len(requests) + 1)])
        with trio.move_on_after(self.dice.choice([inf] * 4 + [0.0, 0.02, self.dice.random()])):
            for rows, request in requests[:heard]:
                answer = await within(wire.read(request, _version(rows)))
                await self._answered(rows, answer, hasty=hasty)
            if heard < len(requests):
                await trio.sleep(self.dice.choice([0.0, 0.001, 0.05]) * self.dice.random())
        if self.dice.random() < 0.3:
            left.append(wire)  # nobody listens to it any more
        else:
            await wire.aclose()

    def _requests(self, lanes: list[Lane]) -> Iterator[tuple[Rows, ProduceRequest]]:
        """What has to be sent, the batches of each lane in their order."""
        together = self.dice.random() < 0.3
        for turn in range(max((len(lane.unanswered) for lane in lanes), default=0)):
            rows = [(lane, lane.unanswered[turn]) for lane in lanes if turn < len(lane.unanswered)]
            yield from ((each, ProduceRequest()) for each in ([rows] if together else [[row] for row in rows]))

    def _request(self, rows: Rows, line: int, *, hasty: bool) -> ProduceRequest:
        lane = rows[0][0]
        for _, batch in rows:
            for sent in batch.records:
                sent.attempts += 1
                sent.line = sent.line or line
        data = [PartitionProduceData(index=lane.partition, records=bytearray(batch.content)) for lane, batch in rows]
        topic_id = lane.topic.topic_id if lane.by_id else bytes(16)
        return ProduceRequest(
            acks=lane.acks,
            timeout_ms=HASTE_MS if hasty else int(PATIENCE_S * 1000),
            transactional_id=None,
            topic_data=[TopicProduceData(name=lane.topic.name, topic_id=topic_id, partition_data=data)],
        )

    async def _answered(self, rows: Rows, response: Any, *, hasty: bool) -> None:
        found = response.responses[0].partition_responses
        for (lane, batch), row in zip(rows, found, strict=True):
            promise(row.index == lane.partition, f"{lane.partition} was asked for, {row} was answered")
            if self.world.cut:
                return
            if row.error_code:
                self._refused(lane, batch, row, hasty=hasty)
            else:
                self._stored(lane, batch, row.base_offset)
                self.world.heard(again=batch.records[0].attempts > 1)
        for lane, batch in rows:
            again = batch.records[0].attempts > 1
            if batch.records[0].sure and lane.acks == -1 and self.dice.random() < (0.8 if again else 0.1):
                await self._check_visible(lane, batch)

    def _stored(self, lane: Lane, batch: Batch, offset: int) -> None:
        if batch in lane.unanswered:
            lane.unanswered.remove(batch)
        for number, sent in enumerate(batch.records):
            sent.offset = offset + number
            if sent.topic_id is None and batch.changing == self.model.changing[sent.name]:
                live = self.model.live.get(sent.name)
                sent.topic_id = live.topic_id if live is not None else None
            if sent.topic_id is not None:
                sent.sure = sent.acks == -1 or not self.world.uncertain  # what is written may be lost
                ends = self.model.all[sent.topic_id].ends
                if sent.acks == -1:
                    ends[sent.partition] = max(ends[sent.partition], sent.offset + 1)

    def _refused(self, lane: Lane, batch: Batch, row: Any, *, hasty: bool) -> None:
        """What an error tells: what was not stored stays to be sent again, unless its topic or its turn has gone."""
        text = f"{batch.records[0]} of {lane} was refused: {row}"
        if row.error_code in GONE:
            live = self.model.live.get(lane.topic.name)
            alive = live is lane.topic and lane.partition < live.partitions
            promise(not alive or self.world.faults, text)
            if not alive:
                self._give_up(lane)
        elif row.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            promise(lane.idempotent and (self.world.faults or self.world.uncertain), text)  # one before it has failed
            if lane.unanswered and lane.unanswered[0] is batch:
                self._give_up(lane)
                self.producer_id = -1
        elif row.error_code == ErrorCode.REQUEST_TIMED_OUT:
            promise(hasty, text)
        else:
            troubled = self.world.faults or self.world.uncertain
            promise(row.error_code == ErrorCode.KAFKA_STORAGE_ERROR and troubled, text)

    def _give_up(self, lane: Lane) -> None:
        lane.unanswered.clear()
        key = lane.topic.topic_id, lane.partition
        if self.lanes.get(key) is lane:
            del self.lanes[key]
            self.given_up.add(key)

    async def _check_visible(self, lane: Lane, batch: Batch) -> None:
        """What was acknowledged as durable can be read."""
        before = self.model.changing[lane.topic.name]
        if self.model.live.get(lane.topic.name) is not lane.topic:
            return
        wire = connect(self.world.gateway)
        row = await within(wire.offset(lane.topic.name, LATEST, lane.partition))
        await wire.aclose()
        if row.error_code or self.world.cut or before != self.model.changing[lane.topic.name]:
            return
        promise(row.offset > batch.records[-1].offset, f"{batch.records[-1]} is acknowledged, and the end is {row}")

    def now_ms(self) -> int:
        return int((START_S + trio.current_time()) * 1000)


def _version(rows: Rows) -> int:
    return 13 if rows[0][0].by_id else 9


@contextmanager
def _busy(lanes: list[Lane]) -> Iterator[list[Lane]]:
    """Lanes that nobody else uses meanwhile."""
    for lane in lanes:
        lane.busy = True
    try:
        yield lanes
    finally:
        for lane in lanes:
            lane.busy = False

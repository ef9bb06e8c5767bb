"""A consumer's fetches in simulated time: one fetcher against brokers that park, hang, cut connections and give their
partitions away, and a user who polls, pauses and seeks. Nothing waits; the events lie in a heap."""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

from kclient.cluster import Backoff, ClusterSnapshot, PartitionMetadata, TopicMetadata
from kclient.consumer.fetch.fetcher import LANES, Fetcher, FetchSettings, PlannedFetch
from kclient.consumer.metrics import FetchMetrics
from kclient.consumer.reset import ResetPolicy
from kclient.consumer.subscription import SubscriptionState
from kclient.metrics.windows import MetricWindows
from kclient.protocol.messages import FetchableTopicResponse, FetchResponse, FetchResponsePartitionData
from kclient.records import BatchBuilder, decode_some
from kclient.types import Node, TopicPartition

TOPIC_ID = b"\x05" * 16
MAX_WAIT = 0.5
LATENCY = 0.05
POLL = 0.2
TIMEOUT = 3.0
"""Seconds after which a fetch that is not answered fails."""
NEWS = 0.5
"""Seconds until the client has metadata that it asked for."""


def _template(records: int, size: int) -> bytes:
    builder = BatchBuilder(limit=1 << 24)
    for _ in range(records):
        builder.append(1000, None, bytes(size))
    return bytes(builder.build(base_offset=0, partition_leader_epoch=1))


class Log:
    """One partition: batches of equal size, from 0 to `batches`."""

    def __init__(self, number: int, records: int, size: int) -> None:
        self.tp = TopicPartition("t", number)
        self.records = records
        self.template = _template(records, size)
        self.batches = 0
        self.seen = 0
        """The offset that the user is to get next."""
        self.moved_at = 0.0
        """When it last moved, or had nothing that was to be read, or could not be read."""

    @property
    def end(self) -> int:
        return self.batches * self.records

    def read(self, offset: int, most: int, *, whole: bool) -> bytes:
        first = offset // self.records
        count = min(self.batches - first, most // len(self.template))
        if count <= 0 and whole and first < self.batches:
            count = 1
        return b"".join(
            (number * self.records).to_bytes(8, "big") + self.template[8:] for number in range(first, first + count)
        )


class Broker:
    """Serves fetches as Kafka does: sessions, a first batch whatever its size, partitions with records come last."""

    def __init__(self, node_id: int, *, has_sessions: bool) -> None:
        self.node_id = node_id
        self.has_sessions = has_sessions
        self.hung = False
        self.session: dict[int, tuple[int, int]] = {}
        self.session_id = 0
        self.epoch = 0
        self.parked: list[tuple[PlannedFetch, dict[int, tuple[int, int]]]] = []

    def asked(self, plan: PlannedFetch) -> dict[int, tuple[int, int]]:
        request = plan.request
        named = {
            item.partition: (item.fetch_offset, item.partition_max_bytes)
            for topic in request.topics
            for item in topic.partitions
        }
        if request.session_epoch < 0 or not self.has_sessions:
            return named
        if request.session_epoch == 0:
            self.session, self.session_id, self.epoch = {}, self.session_id + 1, 0
        else:
            assert (request.session_id, request.session_epoch) == (self.session_id, self.epoch), "lost its session"
        self.epoch += 1
        self.session |= named
        for topic in request.forgotten_topics_data:
            for number in topic.partitions:
                del self.session[number]
        return self.session


class World:
    """Brokers, a consumer and its user, the network and the time."""

    def __init__(self, seed: int) -> None:
        self.random = chance = random.Random(seed)
        self.now = 100.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        sessions = chance.random() < 0.7
        self.brokers = {number: Broker(number, has_sessions=sessions) for number in range(1, chance.randint(1, 10) + 1)}
        partitions = chance.randint(1, chance.choice([3, 12, 40]))
        records, size = chance.randint(1, 5), chance.choice([10, 300, 3000])
        self.logs = [Log(number, records, size) for number in range(partitions)]
        self.leaders = {log.tp.partition: chance.choice(list(self.brokers)) for log in self.logs}
        self.epochs = dict.fromkeys(self.leaders, 1)
        share = chance.choice([0.1, 0.5, 1])
        self.busy = [log for log in self.logs if chance.random() < share] or self.logs[:1]
        self.news = chance.choice([0, 0, 0.003, 0.1])
        """How often there is something new in one of the others."""
        self.pauses = chance.choice([0, 0.02, 0.2])
        self.cuts = chance.choice([0, 0, 0.02])
        self.hangs = chance.choice([0, 0, 0.003])
        self.batch = len(self.logs[0].template)
        self.settings = FetchSettings(
            max_wait_ms=round(MAX_WAIT * 1000),
            max_bytes=chance.choice([1, 1000, self.batch, 4 * self.batch, 20 * self.batch, 1 << 24]),
            max_partition_bytes=chance.choice([1, 1000, self.batch, 4 * self.batch, 1 << 20]),
            retry_backoff=Backoff(100, 1000, random=chance),
        )
        self.subscriptions = SubscriptionState(ResetPolicy.parse("none"))
        self.fetcher = Fetcher(self.settings, self.subscriptions, FetchMetrics(MetricWindows(lambda: self.now)))
        self.subscriptions.assign([log.tp for log in self.logs])
        for log in self.logs:
            self.subscriptions.seek(log.tp, 0)
            log.moved_at = self.now
        self.snapshot = self._snapshot()
        self.rounds = 0
        self._refreshing = False
        self._answers: dict[PlannedFetch, Callable[[FetchResponse], None]] = {}
        self._produce()
        self._poll()
        self._look()

    # ---- time ----

    def after(self, delay: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + delay, next(self._order), action))

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self._events and self._events[0][0] <= end:
            self.now, _, action = heapq.heappop(self._events)
            action()
            self._check()
        self.now = end

    @property
    def patience(self) -> float:
        """Seconds within which every partition that can be read has to move: a round for each that shares its broker,
        and some for what is on its way, for polls that take little, and for a back-off."""
        crowd = max(Counter(self.leaders.values()).values())
        return (crowd + 6) * (MAX_WAIT + 2 * LATENCY + POLL)

    def _check(self) -> None:
        held = {
            id(completed.frame): completed.frame
            for completed in self.fetcher.buffer._ready
            if completed.frame is not None
        }
        assert sum(frame.size for frame in held.values()) == self.fetcher.buffer.size
        overdraft = LANES * len(self.brokers) * self.batch  # one batch is returned whatever its size
        assert self.fetcher.buffer.size <= self.settings.max_bytes + overdraft

    def starving(self) -> list[Log]:
        """The partitions that could have been read for too long, and were not."""
        for log in self.logs:
            state = self.subscriptions.state(log.tp)
            if state.paused or log.seen >= log.end or self.brokers[self.leaders[log.tp.partition]].hung:
                log.moved_at = self.now
        return [log for log in self.logs if self.now - log.moved_at > self.patience]

    # ---- the cluster ----

    def _snapshot(self) -> ClusterSnapshot:
        partitions = {
            number: PartitionMetadata("t", number, leader_id=leader, leader_epoch=self.epochs[number])
            for number, leader in self.leaders.items()
        }
        return ClusterSnapshot(
            nodes={node: Node(node, f"b{node}", 9092) for node in self.brokers},
            topics={"t": TopicMetadata("t", TOPIC_ID, False, partitions)},
            names={TOPIC_ID: "t"},
        )

    def _produce(self) -> None:
        for log in self.logs:
            if log in self.busy:
                log.batches = log.seen // log.records + 50  # always ahead
            elif self.random.random() < self.news:
                log.batches += 1
        for broker in self.brokers.values():
            self._serve_parked(broker)
        self.after(self.random.uniform(0, 0.3), self._produce)

    def hang(self, broker: Broker) -> None:
        """It answers nothing any more; some of its partitions find another leader."""
        broker.hung = True
        broker.parked.clear()
        others = [node for node, other in self.brokers.items() if not other.hung]
        for number, leader in self.leaders.items():
            if leader == broker.node_id and others and self.random.random() < 0.8:
                self.leaders[number] = self.random.choice(others)
                self.epochs[number] += 1
        for log in self.logs:
            log.moved_at = self.now + TIMEOUT + NEWS  # that long it takes to be noticed
        self.after(self.random.uniform(1, 20), lambda: setattr(broker, "hung", False))

    def refresh(self) -> None:
        if not self._refreshing:
            self._refreshing = True
            self.after(self.random.uniform(0, NEWS), self._learn)

    def _learn(self) -> None:
        self._refreshing = False
        self.snapshot = self._snapshot()
        self._look()

    # ---- the client's driver ----

    def _look(self) -> None:
        plans, leaderless = self.fetcher.plan(self.snapshot, self.now)
        assert not leaderless
        for plan in plans:
            self._send(plan)
        due = self.fetcher.next_retry(self.now)
        if due is not None:
            self.after(due - self.now + 1e-6, self._look)

    def _send(self, plan: PlannedFetch) -> None:
        self.rounds += 1
        done = [False]

        def fail() -> None:
            if not done[0]:
                done[0] = True
                self.fetcher.failed(plan, self.now)
                self.refresh()
                self._look()

        def answer(response: FetchResponse) -> None:
            if not done[0]:
                done[0] = True
                news = self.fetcher.received(plan, response, self.now)
                if news.refresh_metadata:
                    self.refresh()
                self._look()

        self._answers[plan] = answer
        self.after(TIMEOUT, fail)
        if self.random.random() < self.cuts:
            self.after(LATENCY, fail)  # the connection is cut, on the way there or back
        self.after(self.random.uniform(0, LATENCY), lambda: self._arrive(plan))

    # ---- a broker's side ----

    def _arrive(self, plan: PlannedFetch) -> None:
        broker = self.brokers[plan.node_id]
        if broker.hung:
            return
        asked = broker.asked(plan)
        if not self._serve(broker, plan, asked, at_last=False):
            broker.parked.append((plan, asked))
            self.after(MAX_WAIT, lambda: self._give_up(broker, plan))

    def _give_up(self, broker: Broker, plan: PlannedFetch) -> None:
        for parked in broker.parked:
            if parked[0] is plan:
                broker.parked.remove(parked)
                self._serve(broker, plan, parked[1], at_last=True)
                return

    def _serve_parked(self, broker: Broker) -> None:
        for parked in list(broker.parked):
            if self._serve(broker, *parked, at_last=False):
                broker.parked.remove(parked)

    def _serve(self, broker: Broker, plan: PlannedFetch, asked: dict[int, tuple[int, int]], *, at_last: bool) -> bool:
        left = plan.request.max_bytes
        answers: list[Any] = []
        found = False
        for number, (offset, most) in list(asked.items()):
            log = self.logs[number]
            if self.leaders[number] != broker.node_id:
                answers.append(FetchResponsePartitionData(partition_index=number, error_code=6, high_watermark=-1))
                at_last = True
                continue
            data = log.read(offset, min(most, left), whole=not found)
            left -= len(data)
            answers.append(FetchResponsePartitionData(partition_index=number, high_watermark=log.end, records=data))
            if data:
                found = True
                asked[number] = asked.pop(number)
        if not (found or at_last):
            return False
        session = broker.session_id if plan.request.session_epoch >= 0 and broker.has_sessions else 0
        response = FetchResponse(
            session_id=session, responses=[FetchableTopicResponse(topic_id=TOPIC_ID, partitions=answers)]
        )
        self.after(self.random.uniform(0, LATENCY), lambda: self._answers[plan](response))
        return True

    # ---- the user ----

    def _poll(self) -> None:
        if self.fetcher.buffer.crowded:
            self.fetcher.buffer.drop_paused()
        most = self.random.choice([1, 10, 10**9]) if self.settings.max_bytes < 1 << 24 else 10**9
        self.take(most)
        self._meddle()
        self._look()
        self.after(self.random.uniform(0, POLL), self._poll)

    def take(self, most: int) -> None:
        # a user who takes little drains one completed fetch each time
        while most > 0 and (completed := self.fetcher.buffer.head()) is not None:
            assert completed.error is None, completed.error
            if completed.records is None:
                completed.decode(decode_some)
            assert completed.records is not None
            part = completed.records[completed.index : completed.index + most]
            log = self.logs[completed.state.tp.partition]
            for record in part:
                assert record.offset == log.seen, f"{log.tp}: {record.offset} instead of {log.seen}"
                log.seen += 1
            log.moved_at = max(log.moved_at, self.now)
            most -= max(len(part), 1)
            self.fetcher.buffer.advance(completed, len(part))

    def _meddle(self) -> None:
        log = self.random.choice(self.logs)
        state = self.subscriptions.state(log.tp)
        if self.random.random() < self.pauses:
            if self.subscriptions.paused and self.random.random() < 0.3:
                self.subscriptions.resume(self.subscriptions.paused)
            else:
                share = self.random.random()
                self.subscriptions.pause([other.tp for other in self.logs if self.random.random() < share])
        if self.random.random() < self.pauses / 10:
            log.seen = self.random.randint(0, state.position)
            self.subscriptions.seek(log.tp, log.seen)
            self.fetcher.buffer.drop_stale()
        if self.random.random() < self.hangs:
            self.hang(self.random.choice(list(self.brokers.values())))

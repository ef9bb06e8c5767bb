"""All our clients at work on one topic of a cluster, and a checker of what came of it.

Nothing acknowledged is lost, doubled or reordered; no client dies; no partition waits long for a leader that is well.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self

import anyio

from kclient import Admin, Consumer, ConsumerRecord, Producer
from kclient.admin import NewTopic, OffsetSpec
from kclient.errors import ClosedError, CommitFailedError, KafkaError, RebalanceInProgressError
from kclient.sync import Consumer as BlockingConsumer
from kclient.sync import Producer as BlockingProducer
from kclient.types import TopicPartition

API_TIMEOUT = 45.0
"""`default.api.timeout.ms` of the admin client, in seconds."""
PAUSE = 0.5
"""Seconds between two records of a producer for a partition."""


class Waits:
    """How long partitions wait: for an acknowledgement, or for records that are there."""

    def __init__(self) -> None:
        self.well: dict[int, float] = {}
        """Since when each partition has had its leader, where that one and all replicas in sync are well."""
        self._due: dict[str, dict[int, float]] = defaultdict(dict)
        self.longest: dict[str, tuple[float, int, float]] = {}
        """By client, the longest wait in seconds, the partition, and when that was."""
        self._forgiven: dict[str, float] = {}
        self._leaders: dict[int, int] = {}
        self._lock = threading.Lock()

    def due(self, client: str, partition: int) -> None:
        """Something is due to this client from now on, if it was not before."""
        self._due[client].setdefault(partition, time.monotonic())

    def came(self, client: str, partition: int, more: bool) -> None:
        """Something came; more is due, or nothing for now."""
        with self._lock:
            self._note(client, partition, time.monotonic())
            if more:
                self._due[client][partition] = time.monotonic()
            else:
                self._due[client].pop(partition, None)

    def leaders(self, well: dict[int, int], until: float | None = None) -> None:
        """What leads each partition that is well, as it was seen just now.

        Args:
            well: The leaders by partition.
            until: Up to when the ones before are known to have been well, if not until now.
        """
        with self._lock:
            now = time.monotonic()
            for client in list(self._due):
                for partition in list(self._due[client]):
                    self._note(client, partition, now if until is None else until)
            seen = self._leaders
            self.well = {p: self.well[p] if seen.get(p) == leader else now for p, leader in well.items()}
            self._leaders = well

    def forgive(self, client: str) -> None:
        """This client begins to wait now: more than the leaders that are looked at was not well."""
        self._forgiven[client] = time.monotonic()

    def _note(self, client: str, partition: int, now: float) -> None:
        begun = self._due[client].get(partition)
        well = self.well.get(partition)
        if begun is None or well is None:
            return
        waited = now - max(begun, well, self._forgiven.get(client, 0.0))
        if waited > self.longest.get(client, (0.0, 0, 0.0))[0]:
            self.longest[client] = waited, partition, now


class Clients:
    """A context with everybody at work in threads; `check` afterwards says what is wrong.

    Producers: `idempotent` and `plain` (one request at a time, not idempotent: retries may double, and do not reorder)
    on the event loop, `blocking`. Consumers: `assigned`, and `group`: two members on the loop, one blocking. An admin
    client asks all the time.
    """

    def __init__(
        self, bootstrap: str, topic: str, partitions: int, backend: str, assignor: str, request_timeout: float
    ) -> None:
        self.topic = topic
        self.partitions = partitions
        self.group_id = f"group-of-{topic}"
        self.waits = Waits()
        self.deaths: list[BaseException] = []
        """What went wrong in clients."""
        self.sent: dict[str, list[int]] = {name: [0] * partitions for name in ("idempotent", "plain", "blocking")}
        """By producer and partition, the count of records; their values are the numbers from 0."""
        self.acknowledged: dict[str, list[dict[int, int]]] = {
            name: [{} for _ in range(partitions)] for name in self.sent
        }
        """By producer and partition, number → offset."""
        self.assigned: list[list[tuple[int, bytes]]] = [[] for _ in range(partitions)]
        self.group: list[dict[int, bytes]] = [{} for _ in range(partitions)]
        self.calls: dict[str, int] = defaultdict(int)
        """Calls of the admin client and commits that succeeded."""
        self.slowest: dict[str, float] = defaultdict(float)
        """Seconds of the slowest of each."""
        self.failures: list[str] = []
        """Those that failed, for reasons that go away."""
        self._ends = [0] * partitions
        self._next: dict[str, list[int]] = {"assigned": [0] * partitions, "group": [0] * partitions}
        self._started = False
        self._producing = True
        self._consuming = True
        self._backend = backend
        self._common: dict[str, Any] = {
            "bootstrap_servers": bootstrap,
            "request_timeout_ms": int(request_timeout * 1000),
        }
        self._member = {
            "group_id": self.group_id,
            "auto_offset_reset": "earliest",
            "auto_commit_interval_ms": 1000,
            "session_timeout_ms": 10_000,
            "heartbeat_interval_ms": 1000,
            "partition_assignment_strategy": assignor,
            **self._common,
        }
        self._threads = [
            threading.Thread(target=self._alive, args=(run,), name=run.__name__)
            for run in (self._loop, self._blocking_producer, self._blocking_member)
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._producing = self._consuming = False
        for thread in self._threads:
            thread.join(timeout=90)
        assert not any(thread.is_alive() for thread in self._threads), "somebody does not end"

    def _alive(self, run: Callable[[], None]) -> None:
        try:
            run()
        except BaseException as error:
            self.deaths.append(error)

    def told(self) -> str:
        """How long what took, at most, and what failed."""
        lines = [f"{name}: {self.calls[name]} times, {seconds:.1f} s" for name, seconds in self.slowest.items()]
        return "\n".join([*lines, *self.failures])

    def raise_deaths(self) -> None:
        """Raise what ended a client."""
        if self.deaths:
            told = "".join("".join(traceback.format_exception(error)) for error in self.deaths)
            raise AssertionError(f"a client died:\n{told}")

    def wait_until_started(self, timeout: float = 60) -> None:
        """Wait until every producer and every consumer has come to each partition."""
        deadline = time.monotonic() + timeout
        found = list(self.acknowledged.values())
        while not (all(map(all, found)) and all(map(all, self._next.values()))):
            self.raise_deaths()
            assert time.monotonic() < deadline, "somebody does not start"
            time.sleep(0.1)
        self._started = True

    def wait_until_read(self, timeout: float = 60) -> None:
        """Nobody sends any more; wait until everything acknowledged was read by every consumer."""
        self._producing = False
        deadline = time.monotonic() + timeout
        while not self._read():
            self.raise_deaths()
            assert time.monotonic() < deadline, "something is not delivered, or not read"
            time.sleep(0.1)

    def _read(self) -> bool:
        acknowledged = all(
            len(found[partition]) == self.sent[name][partition]
            for name, found in self.acknowledged.items()
            for partition in range(self.partitions)
        )
        ends = list(self._ends)
        return acknowledged and all(
            position >= end for positions in self._next.values() for position, end in zip(positions, ends, strict=True)
        )

    # ------------------------------------------------------------------ what came of it

    def check(self, partition: int, stored: Sequence[ConsumerRecord]) -> None:
        """Compare a partition's records with what was sent, acknowledged and read."""
        at = {record.offset: record.value for record in stored}
        for name, sent in self.sent.items():
            found = [int(value.split()[1]) for value in at.values() if value.split()[0] == name.encode()]
            if name == "plain":
                found = list(dict.fromkeys(found))
            assert found == list(range(sent[partition])), f"{name}, partition {partition}: each once, in order"
            acknowledged = self.acknowledged[name][partition]
            # in any order: one that was stored, and whose replication took too long, is told when it was sent again
            assert sorted(acknowledged) == found, f"{name}, partition {partition}: each acknowledged"
            for number, offset in acknowledged.items():
                if offset >= 0:  # -1: it was there already, a broker does not always know where
                    assert at[offset] == b"%s %d" % (name.encode(), number), "it is where it was said to be"
        assert self.assigned[partition] == list(at.items()), f"assigned, partition {partition}"
        assert self.group[partition] == at, f"group, partition {partition}"

    # ------------------------------------------------------------------ producers

    def _producer_settings(self, **more: Any) -> dict[str, Any]:
        return {**self._common, "linger_ms": 5, "delivery_timeout_ms": 400_000, "max_block_ms": 400_000, **more}

    def _told(self, name: str, partition: int, number: int) -> Callable[[Any, Any], None]:
        def told(metadata: Any, error: BaseException | None) -> None:
            if error is not None:
                if not isinstance(error, ClosedError):  # then something else is told that ended the producer
                    self.deaths.append(error)
                return
            self.acknowledged[name][partition][number] = metadata.offset
            self.waits.came(name, partition, more=len(self.acknowledged[name][partition]) < self.sent[name][partition])
            self._ends[partition] = max(self._ends[partition], metadata.offset + 1)
            for consumer, position in self._next.items():
                if position[partition] <= metadata.offset:
                    self.waits.due(consumer, partition)

        return told

    def _next_number(self, name: str, partition: int) -> int:
        number = self.sent[name][partition]
        self.sent[name][partition] += 1
        self.waits.due(name, partition)
        return number

    async def _produce(self, name: str, **more: Any) -> None:
        async with Producer(**self._producer_settings(**more)) as producer:
            while self._producing:
                for partition in range(self.partitions):
                    number = self._next_number(name, partition)
                    told = self._told(name, partition, number)
                    await producer.send(
                        self.topic, b"%s %d" % (name.encode(), number), partition=partition, on_delivery=told
                    )
                await anyio.sleep(PAUSE)
            await producer.flush()

    def _blocking_producer(self) -> None:
        with BlockingProducer(**self._producer_settings()) as producer:
            while self._producing:
                for partition in range(self.partitions):
                    number = self._next_number("blocking", partition)
                    told = self._told("blocking", partition, number)
                    producer.send(self.topic, b"blocking %d" % number, partition=partition, on_delivery=told)
                time.sleep(PAUSE)
            producer.flush()

    # ------------------------------------------------------------------ consumers

    def _saw(self, name: str, records: Iterable[ConsumerRecord]) -> None:
        positions = self._next[name]
        for record in records:
            partition = record.partition
            if name == "assigned":
                self.assigned[partition].append((record.offset, record.value))
            else:
                known = self.group[partition].setdefault(record.offset, record.value)
                assert known == record.value, "two records at one offset"
            if record.offset >= positions[partition]:
                positions[partition] = record.offset + 1
                self.waits.came(name, partition, more=record.offset + 1 < self._ends[partition])

    async def _assigned(self) -> None:
        async with Consumer(**self._common) as consumer:
            consumer.assign([TopicPartition(self.topic, partition) for partition in range(self.partitions)])
            consumer.seek_to_beginning()
            while self._consuming:
                self._saw("assigned", await consumer.poll(0.5))

    async def _auto_member(self) -> None:
        async with Consumer(self.topic, **self._member) as consumer:
            while self._consuming:
                self._saw("group", await consumer.poll(0.5))

    async def _committing_member(self) -> None:
        async with Consumer(self.topic, **self._member, enable_auto_commit=False) as consumer:
            while self._consuming:
                self._saw("group", await consumer.poll(0.5))
                with self._passing("commit"):
                    await consumer.commit()
            with self._passing("commit"):
                await consumer.commit()

    def _blocking_member(self) -> None:
        with BlockingConsumer(self.topic, **self._member) as consumer:
            while self._consuming:
                self._saw("group", consumer.poll(0.5))

    # ------------------------------------------------------------------ admin, and all of them

    async def _administrate(self) -> None:
        settings: dict[str, Any] = {**self._common, "default_api_timeout_ms": int(API_TIMEOUT * 1000)}
        everything = [TopicPartition(self.topic, partition) for partition in range(self.partitions)]
        async with Admin(**settings) as admin:
            calls: dict[str, Callable[[], Any]] = {
                "describe_topics": lambda: admin.describe_topics([self.topic]),
                "describe_groups": lambda: admin.describe_groups([self.group_id]),
                "list_groups": admin.list_groups,
                "list_offsets": lambda: admin.list_offsets(dict.fromkeys(everything, OffsetSpec.LATEST)),
                "describe_cluster": admin.describe_cluster,
                "create_topics": lambda: admin.create_topics(
                    [NewTopic(f"{self.topic}-more", 1, 1)], validate_only=True
                ),
            }
            while self._consuming:
                if not self._started:  # there may be no group
                    await anyio.sleep(0.1)
                    continue
                for name, call in calls.items():
                    with anyio.fail_after(API_TIMEOUT + 10):
                        with self._passing(name):
                            await call()
                await anyio.sleep(1)

    @contextmanager
    def _passing(self, name: str) -> Iterator[None]:
        """Counts what succeeds, and what fails for a reason that goes away."""
        begun = time.monotonic()
        try:
            yield
            self.calls[name] += 1
        except KafkaError as error:
            # who was away for a session, as after an outage, may not commit any more; amid a rebalance nobody may
            if not error.retriable and not isinstance(error, CommitFailedError | RebalanceInProgressError):
                raise
            self.failures.append(f"{name} after {time.monotonic() - begun:.1f} s: {error!r}")
        finally:
            self.slowest[name] = max(self.slowest[name], time.monotonic() - begun)

    def _loop(self) -> None:
        async def everybody() -> None:
            async with anyio.create_task_group() as group:
                group.start_soon(self._produce, "idempotent")
                group.start_soon(self._lag)
                for run in (
                    self._plain,
                    self._assigned,
                    self._auto_member,
                    self._committing_member,
                    self._administrate,
                ):
                    group.start_soon(run)

        anyio.run(everybody, backend=self._backend)

    async def _lag(self) -> None:
        """How late the loop is on this machine at this time."""
        while self._consuming:
            due = time.monotonic() + 0.1
            await anyio.sleep(0.1)
            self.slowest["loop"] = max(self.slowest["loop"], time.monotonic() - due)

    async def _plain(self) -> None:
        await self._produce("plain", enable_idempotence=False, max_in_flight_requests_per_connection=1)

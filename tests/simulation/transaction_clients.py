"""Clients of transactions in a simulated cluster: our own, each on a machine of its own, and what they did and saw."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, Protocol

import trio

import kclient
from kclient.errors import KafkaError, KafkaTimeoutError, TransactionAbortableError
from kclient.protocol import messages as m
from kclient.types import TopicPartition
from tests.simulation.network import ClientMachine
from tests.transaction_histories import Attempt, GroupPartition, OffsetSeen, Outcome, Poll, Send

if TYPE_CHECKING:
    from tests.simulation.transaction_world import TransactionWorld

INPUT: Final = "t"
COPY: Final = "copy"
GROUP: Final = "copiers"
BOOTSTRAP: Final = "127.0.0.1:9092,127.0.0.2:9092,127.0.0.3:9092"
_PATIENCE_MS: Final = 20_000
"""How long a client waits in a call."""


class Work(Protocol):
    """What one run of a client does until it fails or the world has ended."""

    async def __call__(self, run: Run) -> None: ...


class Run:
    """One run of a client of a transactional id.

    Args:
        world: Where.
        machine: On which it runs.
        transactional_id: The id.
        name: Of this run, which no other one has.
    """

    def __init__(self, world: TransactionWorld, machine: ClientMachine, transactional_id: str, name: str) -> None:
        self.world = world
        self.machine = machine
        self.transactional_id = transactional_id
        self.name = name
        self._values = 0
        self._risk = False

    @asynccontextmanager
    async def producer(self) -> AsyncIterator[kclient.Producer]:
        """Its producer, which may begin transactions."""
        async with kclient.Producer(
            bootstrap_servers=BOOTSTRAP, transactional_id=self.transactional_id, max_block_ms=_PATIENCE_MS,
            transaction_timeout_ms=self.world.timeout_ms, request_timeout_ms=8000, delivery_timeout_ms=15_000,
        ) as producer:  # fmt: skip
            await producer.init_transactions()
            yield producer

    def begin(self) -> Attempt:
        """Record that a transaction begins."""
        attempt = self.world.history.begin(self.name)
        attempt.at_risk = self._risk
        return attempt

    async def send(self, producer: kclient.Producer, attempt: Attempt, topic: str, partition: int) -> kclient.Delivery:
        """Send a record that nobody else sends."""
        self._values += 1
        send = Send(TopicPartition(topic, partition), f"{self.name}-{self._values}".encode())
        attempt.sends.append(send)
        return await producer.send(topic, send.value, partition=partition)

    async def end(self, producer: kclient.Producer, attempt: Attempt, *, commit: bool) -> bool:
        """Commit or abort a transaction; whether it was committed."""
        asked = self.machine.ends
        try:
            if commit:
                attempt.ending, attempt.outcome = self.world.now(), Outcome.UNKNOWN
                try:
                    await _again(producer.commit_transaction)
                except TransactionAbortableError:
                    commit = False
            if not commit:
                await _again(producer.abort_transaction)
        finally:
            # the one that was not answered may decide what comes next, by a client without KIP-890
            self._risk = self._risk or (self.machine.old and self.machine.ends > asked + 1)
        attempt.outcome = Outcome.COMMITTED if commit else Outcome.ABORTED
        self.world.counts["committed" if commit else "aborted"] += 1
        return commit


async def _again(end: Any) -> None:
    """Wait for an end once more where it takes longer than a call may."""
    for _ in range(3):
        try:
            await end()
        except KafkaTimeoutError:
            await trio.sleep(1)
        else:
            return
    await end()


class TransactionalClient:
    """The runs of a client with one transactional id, one after the other.

    At times its machine stands still, for longer than its transaction may be open, and another run takes over; the
    first one goes on later, as if nothing had been.

    Args:
        world: Where.
        transactional_id: The id.
        work: What a run does.
        old: Whether it speaks the transactions of Kafka 3.9.
    """

    def __init__(self, world: TransactionWorld, transactional_id: str, work: Work, *, old: bool) -> None:
        self._world = world
        self._id = transactional_id
        self._work = work
        self._old = old
        self._runs = 0

    def risk(self, late_markers: bool) -> None:
        """Where a marker has come late, all that an old client has done is exempt: it may have been one of its own."""
        for attempt in self._world.history.attempts:
            if attempt.producer.partition(".")[0] == self._id:
                attempt.at_risk = attempt.at_risk or (self._old and late_markers)

    async def live(self) -> None:
        """Do all that until the world has ended."""
        world = self._world
        async with trio.open_nursery() as nursery:
            while world.working:
                self._runs += 1
                machine, ended = ClientMachine(old=self._old), trio.Event()
                run = Run(world, machine, self._id, f"{self._id}.{self._runs}")
                with machine.here():
                    nursery.start_soon(self._run, run, ended)
                with trio.move_on_after(world.dice.random() * world.patience_s):
                    await ended.wait()
                if not ended.is_set() and world.working:
                    machine.stop()
                    world.counts["zombie"] += 1
                    nursery.start_soon(self._go_on, machine)
                await trio.sleep(world.dice.random() * 3)

    async def _go_on(self, machine: ClientMachine) -> None:
        dice = self._world.dice
        await trio.sleep(dice.random() * dice.choice([2, self._world.timeout_ms / 500]))
        machine.go_on()

    async def _run(self, run: Run, ended: trio.Event) -> None:
        try:
            await self._work(run)
        except KafkaError as error:
            self._world.counts[type(error).__name__] += 1
        finally:
            ended.set()


async def append(run: Run) -> None:
    """Append to several partitions, in one transaction after the other."""
    world, dice = run.world, run.world.dice
    async with run.producer() as producer:
        while world.working:
            attempt = run.begin()
            await producer.begin_transaction()
            deliveries = []
            for _ in range(dice.randint(1, 4)):
                deliveries.append(await run.send(producer, attempt, INPUT, dice.randrange(world.partitions)))
                await trio.sleep(dice.choice([0, 0, 0.05, 0.5]))
            if dice.random() < 0.1:
                await trio.sleep(dice.random() * world.timeout_ms / 500)
            if await run.end(producer, attempt, commit=dice.random() < 0.8):
                for send, delivery in zip(attempt.sends, deliveries, strict=True):
                    send.offset = (await delivery).offset
            await trio.sleep(dice.random() * 3)


async def copy(run: Run) -> None:
    """Copy records as a member of a group: read, write, and commit what was read in one transaction."""
    world, dice = run.world, run.world.dice
    async with run.producer() as producer, _consumer(GROUP) as consumer:
        consumer.subscribe([INPUT])
        while world.working:
            records = await consumer.poll(timeout=2.0)
            if not records:
                continue
            positions = {tp: await consumer.position(tp) for tp in records.partitions()}
            metadata = consumer.group_metadata()
            attempt = run.begin()
            for tp in records.partitions():
                got = [(each.offset, bytes(each.value)) for each in records.records(tp)]
                world.history.polls.append(Poll(f"{run.name}@{got[0][0]}", world.now(), tp, got))
                attempt.consumed[GroupPartition(GROUP, tp)] = range(got[0][0], positions[tp])
            await producer.begin_transaction()
            for record in records:
                await run.send(producer, attempt, COPY, record.partition)
                await trio.sleep(dice.choice([0, 0, 0.05]))
            await producer.send_offsets_to_transaction(positions, metadata)
            if not await run.end(producer, attempt, commit=dice.random() < 0.9):
                return  # the next run begins with what is committed


def _consumer(group: str | None) -> kclient.Consumer:
    return kclient.Consumer(
        bootstrap_servers=BOOTSTRAP, group_id=group, enable_auto_commit=False, auto_offset_reset="earliest",
        isolation_level="read_committed", session_timeout_ms=6000, heartbeat_interval_ms=2000, request_timeout_ms=8000,
        default_api_timeout_ms=_PATIENCE_MS, max_poll_records=20, fetch_max_wait_ms=3000,
    )  # fmt: skip


class CommittedReader:
    """Reads all partitions as committed, each from its beginning, until the world has ended; anew where it fails.

    Args:
        world: Where.
    """

    def __init__(self, world: TransactionWorld) -> None:
        self._world = world

    async def live(self) -> None:
        """Read."""
        runs = 0
        while self._world.working:
            runs += 1
            with ClientMachine().here():
                try:
                    await self._read(f"reader.{runs}")
                except KafkaError as error:
                    self._world.counts[f"reader {type(error).__name__}"] += 1
                    await trio.sleep(1)

    async def _read(self, session: str) -> None:
        world = self._world
        async with _consumer(None) as consumer:
            consumer.assign(
                [TopicPartition(topic, each) for topic in (INPUT, COPY) for each in range(world.partitions)]
            )
            while world.working:
                records = await consumer.poll(timeout=2.0)
                for tp in records.partitions():
                    got = [(each.offset, bytes(each.value)) for each in records.records(tp)]
                    world.history.polls.append(Poll(session, world.now(), tp, got))
                    world.counts["read"] += len(got)


async def watch_offsets(world: TransactionWorld) -> None:
    """See what is committed for the group, until the world has ended."""
    while world.working:
        for of, offset in (await committed_offsets(world)).items():
            world.history.offsets.append(OffsetSeen(world.now(), of, offset))
            world.counts["offsets seen"] += 1
        await trio.sleep(world.dice.random() * 3)


async def committed_offsets(world: TransactionWorld) -> dict[GroupPartition, int]:
    """The offsets of the group that are stable, as far as its gateway tells them."""
    wanted = m.OffsetFetchRequestTopics(name=INPUT, partition_indexes=list(range(world.partitions)))
    request = m.OffsetFetchRequest(
        groups=[m.OffsetFetchRequestGroup(group_id=GROUP, topics=[wanted])], require_stable=True
    )
    async with world.connected(await world.coordinator(GROUP)) as wire:
        answer = None if wire is None else await world.answer(lambda: wire(request, 8))
    if answer is None or answer.groups[0].error_code:
        return {}
    return {
        GroupPartition(GROUP, TopicPartition(INPUT, row.partition_index)): row.committed_offset
        for topic in answer.groups[0].topics
        for row in topic.partitions
        if not row.error_code
    }

"""Histories of transactions by real clients, each a process of its own, for `tests.transaction_checker`."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import anyio

import kclient
from kclient.admin import Admin, NewTopic
from kclient.errors import KafkaError
from kclient.types import TopicPartition
from tests.kafka_artifacts import kafka_jars
from tests.kafka_server import JavaTools
from tests.transaction_checker import check
from tests.transaction_histories import Attempt, GroupPartition, History, OffsetSeen, Outcome, Poll, Send

PARTITIONS = 3
TIMEOUT_MS = 3000
"""How long transactions may be open. Brokers have to look for them more often than each ten seconds."""
BROKER_SETTINGS = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "500"}
PAUSE_S = 1.5 * TIMEOUT_MS / 1000
_PATIENCE_S = 120.0
_SOURCE = Path(__file__).parent / "java" / "TransactionsClient.java"


class Part(NamedTuple):
    """Who plays what: see `tests/transaction_worker.py`."""

    client: str
    """`kclient`, `confluent` or `java`."""
    role: str


class JavaClient:
    """The Java program, compiled.

    Args:
        version: Of Kafka's jars.
        folder: For what is compiled.
    """

    def __init__(self, version: str, folder: Path) -> None:
        jars = f"{kafka_jars(version)}/*"
        self.command = JavaTools(version, folder).command("TransactionsClient", heap="128m")
        self.command[self.command.index("-cp") + 1] = os.pathsep.join([str(folder), jars])
        subprocess.run(["javac", "-d", str(folder), "-cp", jars, str(_SOURCE)], check=True, timeout=120)


class Actor:
    """One part, played by a process at a time. While it is paused another one plays it.

    Args:
        run: For whom.
        number: Of this one, which no other one has.
        part: What it plays.
    """

    def __init__(self, run: TransactionRun, number: int, part: Part) -> None:
        self.part = part
        self.logs: list[Path] = []
        self._run = run
        self._name = f"{part.client}{number}"
        self._process: subprocess.Popen[bytes] | None = None
        self._zombies: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Have a new process play it from now on."""
        run = self._run
        name = f"{self._name}.{len(self.logs)}"
        arguments = [
            run.bootstrap, self.part.role, run.topic, str(PARTITIONS), f"{run.topic}-{self._name}", name,
            str(TIMEOUT_MS), str(run.chance.randrange(1 << 31)),
        ]  # fmt: skip
        if self.part.client == "java":
            command = [*run.java_command, *arguments]
        else:
            command = [sys.executable, "-m", "tests.transaction_worker", self.part.client, *arguments]
        log = run.folder / f"{name}.txt"
        self.logs.append(log)
        with log.open("wb") as out, log.with_suffix(".err").open("wb") as errors:
            self._process = subprocess.Popen(command, stdout=out, stderr=errors, cwd=Path(__file__).parents[1])

    def look(self) -> None:
        """Start it again where it has ended."""
        if self._process is not None and self._process.poll() is not None:
            self.start()

    def pause(self) -> None:
        """It stands still, and another process plays on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        self._zombies.append(self._process)
        self.start()

    def resume(self) -> None:
        """Those that stand still go on as if nothing had been."""
        for each in self._zombies:
            each.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """End all of them."""
        for each in [*self._zombies, self._process]:
            if each is not None:
                each.kill()
                each.wait()
        self._process = None


class TransactionRun:
    """Clients at work on one topic and its copy.

    Args:
        bootstrap: The brokers.
        topic: The topic, which is made.
        folder: For what the clients say.
        parts: What is played.
        chance: Decides what they do.
        java: The Java client, where it plays.
        replicas: Of each partition.
        old: Whether the brokers know no KIP-890, as Kafka 3.9: then no client does what it is for.
    """

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        folder: Path,
        parts: Sequence[Part],
        chance: random.Random,
        java: JavaClient | None = None,
        *,
        replicas: int = 1,
        old: bool = False,
    ) -> None:
        self.bootstrap = bootstrap
        self.topic = topic
        self.folder = folder
        self.chance = chance
        self.java_command = [] if java is None else java.command
        self.actors = [Actor(self, number, part) for number, part in enumerate(parts)]
        self.history = History()
        self.counts: Counter[str] = Counter()
        """What the clients have done, by kind of line and by outcome."""
        self._replicas = replicas
        self._old = old
        self._places = [TopicPartition(name, each) for name in (topic, f"{topic}-copy") for each in range(PARTITIONS)]
        self._ended = False

    async def play(self, meanwhile: Any, *, cuts: Sequence[int] = ()) -> None:
        """Have all play until this is over, then judge.

        Args:
            meanwhile: Called without arguments.
            cuts: When connections were cut, in nanoseconds; may grow meanwhile.
        """
        async with Admin(bootstrap_servers=self.bootstrap) as admin:
            names = (self.topic, f"{self.topic}-copy")
            await admin.create_topics([NewTopic(name, PARTITIONS, self._replicas) for name in names])
        try:
            for actor in self.actors:
                actor.start()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._look_after)
                tasks.start_soon(self._watch_offsets)
                await self.until_committed(3)
                await meanwhile()
                self._ended = True
        finally:
            for actor in self.actors:
                actor.kill()
        await self._read_all()
        for actor in self.actors:
            for log in actor.logs:
                self._take(actor.part, log, cuts)
        anomalies = check(self.history)
        assert not anomalies, "\n".join(map(str, anomalies[:20]))

    def committed(self) -> list[int]:
        """How many transactions each producer has committed."""
        return [
            sum(log.read_bytes().count(b"\ncommitted ") for log in actor.logs)
            for actor in self.actors
            if not actor.part.role.startswith("read")
        ]

    async def until_committed(self, more: int) -> None:
        """Wait until each producer has committed so many more."""
        goals = [found + more for found in self.committed()]
        with anyio.move_on_after(_PATIENCE_S):
            while any(found < goal for found, goal in zip(self.committed(), goals, strict=True)):
                await anyio.sleep(0.1)
            return
        raise AssertionError(f"somebody cannot commit: {self.committed()} of {goals}\n{self._told()}")

    def _told(self) -> str:
        lines = []
        for actor in self.actors:
            for log in actor.logs[-2:]:
                errors = [line for line in log.read_text().splitlines() if line.startswith("error")]
                lines += [f"{log.stem}: {line}" for line in errors[-3:]]
                lines.append(log.with_suffix(".err").read_text("utf-8", "replace")[-2000:])
        return "\n".join(lines)

    async def _look_after(self) -> None:
        while not self._ended:
            for actor in self.actors:
                actor.look()
            await anyio.sleep(0.1)

    def _consumer(self, level: str, group: str | None = None) -> kclient.Consumer:
        return kclient.Consumer(
            bootstrap_servers=self.bootstrap, isolation_level=level, group_id=group, enable_auto_commit=False,
            auto_offset_reset="earliest",
        )  # fmt: skip

    async def _watch_offsets(self) -> None:
        """See what is committed for the group."""
        async with self._consumer("read_committed", self.topic) as consumer:
            while not self._ended:
                try:
                    found = await self._offsets(consumer)
                except KafkaError as error:
                    self.counts[f"offsets {type(error).__name__}"] += 1
                else:
                    now = time.monotonic()
                    self.history.offsets += [OffsetSeen(now, of, offset) for of, offset in found.items()]
                await anyio.sleep(0.2)

    async def _offsets(self, consumer: kclient.Consumer) -> dict[GroupPartition, int]:
        found = await consumer.committed(self._places[:PARTITIONS])
        return {GroupPartition(self.topic, tp): -1 if each is None else each.offset for tp, each in found.items()}

    # What is there in the end

    async def _read_all(self) -> None:
        """Once all is decided."""
        async with (
            self._consumer("read_committed", self.topic) as committed,
            self._consumer("read_uncommitted") as uncommitted,
        ):
            with anyio.fail_after(_PATIENCE_S):
                while await committed.end_offsets(self._places) != await uncommitted.end_offsets(self._places):
                    await anyio.sleep(0.1)
                self.history.committed |= await self._offsets(committed)
                self.history.log |= await self._all(uncommitted)
                for tp, records in (await self._all(committed)).items():
                    self.history.polls.append(Poll("the last one", time.monotonic(), tp, records))

    async def _all(self, consumer: kclient.Consumer) -> dict[TopicPartition, list[tuple[int, bytes]]]:
        found: dict[TopicPartition, list[tuple[int, bytes]]] = {tp: [] for tp in self._places}
        consumer.assign(self._places)
        consumer.seek_to_beginning(self._places)
        ends = await consumer.end_offsets(self._places)
        while any([await consumer.position(tp) < ends[tp] for tp in self._places]):
            records = await consumer.poll(timeout=0.5)
            for tp in records.partitions():
                found[tp] += [(each.offset, bytes(each.value)) for each in records.records(tp)]
        return found

    # What the clients have said

    def _take(self, part: Part, log: Path, cuts: Sequence[int]) -> None:
        text = log.read_text()
        told = _Told(self.history, part, self.topic, cuts, old=self._old or part.client == "confluent")
        for line in text[: text.rfind("\n") + 1].splitlines():  # one that was killed may have left half a line
            kind, *words = line.split(" ")
            self.counts[f"{part.client} {kind}"] += 1
            told.take(kind, words)


class _Told:
    """Makes a history of what a process has said."""

    def __init__(self, history: History, part: Part, topic: str, cuts: Sequence[int], *, old: bool) -> None:
        self._history = history
        self._part = part
        self._topic = topic
        self._cuts = cuts
        self._old = old
        self._run = ""
        self._attempt = Attempt("")
        self._sends: dict[str, Send] = {}
        self._asked = 0
        self._risk = False

    def take(self, kind: str, words: list[str]) -> None:
        attempt, now = self._attempt, 0
        if kind in {"begin", "poll", "committing", "aborting", "committed", "aborted"}:
            now = int(words[0])
        match kind:
            case "run":
                (self._run,) = words
                self._risk = False
            case "begin":
                self._attempt = self._history.begin(self._run)
                self._attempt.at_risk = self._risk
            case "send":
                topic, partition, value = words
                send = self._sends[value] = Send(TopicPartition(topic, int(partition)), value.encode())
                attempt.sends.append(send)
            case "acked":
                value, offset = words
                self._sends[value].offset = int(offset) if int(offset) >= 0 else None
            case "consumed":
                topic, partition, start, stop = words
                of = GroupPartition(self._topic, TopicPartition(topic, int(partition)))
                attempt.consumed[of] = range(int(start), int(stop))
            case "committing":
                attempt.ending, attempt.outcome = now / 1e9, Outcome.UNKNOWN
                self._asked = now
            case "aborting":
                self._asked = now
            case "committed":
                attempt.outcome = Outcome.COMMITTED
                self._ended(now)
            case "aborted":
                attempt.outcome = Outcome.ABORTED
                self._ended(now)
            case "poll":
                _, session, topic, partition, *records = words
                poll = Poll(session, now / 1e9, TopicPartition(topic, int(partition)), list(_records(records)))
                uncommitted = self._part.role == "read_uncommitted"
                (self._history.uncommitted if uncommitted else self._history.polls).append(poll)

    def _ended(self, now: int) -> None:
        """An end of version 1 that was asked for again may decide what comes next: librdkafka knows no KIP-890, and
        neither does Kafka 3.9.

        A client asks again where its connection broke, or nobody answers for a while: librdkafka after
        `socket.timeout.ms`, which is as long as its transactions may be open, the others later.
        """
        cut = bisect_left(self._cuts, now) > bisect_left(self._cuts, self._asked)
        if self._old and (cut or now - self._asked > TIMEOUT_MS * 1_000_000 * 0.9):
            self._risk = True


def _records(words: Iterable[str]) -> Iterable[tuple[int, bytes]]:
    for word in words:
        offset, _, value = word.partition(":")
        yield int(offset), value.encode()

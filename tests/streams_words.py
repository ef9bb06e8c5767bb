"""An application of Kafka Streams that counts words exactly once, as child processes that tests kill."""

from __future__ import annotations

import os
import random
import signal
import subprocess
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

import kclient
from kclient.admin import Admin, NewTopic
from kclient.types import TopicPartition
from tests.kafka_artifacts import kafka_jars, streams_jars
from tests.kafka_server import JavaTools

PARTITIONS = 3
KINDS = {f"word{number}": f"kind{number % 5}" for number in range(40)}
"""The words, and the kind of each."""
_SOURCE = Path(__file__).parent / "java" / "WordsStreams.java"
_PATIENCE_S = 150.0
_AHEAD = 300
"""So many lines may wait for the application."""


class StreamsApplication:
    """The program, compiled, for one release of Kafka Streams.

    Args:
        version: The release.
        folder: For what is compiled, and for what instances say.
    """

    def __init__(self, version: str, folder: Path) -> None:
        self.folder = folder
        tools = JavaTools(version, folder)
        path = [str(folder), f"{streams_jars(version)}/*", f"{kafka_jars(version)}/*"]
        self._command = tools.command("WordsStreams")
        self._command[self._command.index("-cp") + 1] = os.pathsep.join(path)
        subprocess.run(
            ["javac", "-d", str(folder), "-cp", os.pathsep.join(path), str(_SOURCE)], check=True, timeout=120
        )

    def command(self, *arguments: str) -> list[str]:
        return [*self._command, *arguments]


class Instance:
    """An instance of the application; its state stays where it is when it is started again."""

    def __init__(self, application: StreamsApplication, bootstrap: str, name: str, number: int, protocol: str) -> None:
        folder = application.folder / f"{name}-{number}"
        folder.mkdir()
        settings = {"bootstrap.servers": bootstrap, "num.stream.threads": "2"}
        if protocol == "classic":
            settings |= {"session.timeout.ms": "6000", "heartbeat.interval.ms": "500"}
        else:  # where the broker says so
            settings["group.protocol"] = protocol
        self._command = application.command(name, str(folder), *(f"{key}={value}" for key, value in settings.items()))
        self._log = folder / "log.txt"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log, start_new_session=True)

    @property
    def running(self) -> bool:
        """Whether it has not ended by itself."""
        return self._process is not None and self._process.poll() is None

    @property
    def told(self) -> str:
        """The end of what it has said."""
        return self._log.read_text("utf-8", "replace")[-20_000:]

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def pause(self) -> None:
        """SIGSTOP: until `resume` it is there, and does nothing."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """End it in good order."""
        assert self._process is not None
        self._process.terminate()
        self._process.wait(timeout=60)


class WordCount:
    """Lines that are sent while instances count their words.

    Args:
        application: The program.
        bootstrap: The brokers.
        name: The application's id, and the beginning of the names of its topics.
        instances: How many.
        chance: Which words there are.
        replicas: Of each partition.
        protocol: The `group.protocol`: `classic`, or `streams` (KIP-1071).
    """

    def __init__(
        self,
        application: StreamsApplication,
        bootstrap: str,
        name: str,
        *,
        instances: int,
        chance: random.Random,
        replicas: int = 1,
        protocol: str = "classic",
    ) -> None:
        self.instances = [Instance(application, bootstrap, name, number, protocol) for number in range(instances)]
        self._bootstrap = bootstrap
        self._name = name
        self._chance = chance
        self._replicas = replicas
        self._lines: list[list[str]] = []
        self._all_sent = False
        self._joined: list[tuple[str, str]] = []
        self._counts: dict[str, dict[str, list[int]]] = {"words": defaultdict(list), "counts": defaultdict(list)}

    @property
    def sent(self) -> int:
        """How many words."""
        return sum(map(len, self._lines))

    @property
    def counted(self) -> int:
        """How many words a reader has seen joined, and counted in both ways."""
        counts = (sum(map(len, found.values())) for found in self._counts.values())
        return min(len(self._joined), *counts)

    async def _produce(self) -> None:
        async with kclient.Producer(bootstrap_servers=self._bootstrap, delivery_timeout_ms=600_000) as producer:
            while not self._all_sent:
                for _ in range(10):
                    words = self._chance.choices(list(KINDS), k=self._chance.randrange(1, 9))
                    key = str(len(self._lines)).encode()
                    await producer.send(f"{self._name}-lines", " ".join(words).encode(), key=key)
                    self._lines.append(words)
                await producer.flush()
                while self.sent > self.counted + 5 * _AHEAD and not self._all_sent:
                    await anyio.sleep(0.01)

    async def _read(self) -> None:
        names = [f"{self._name}-{kind}" for kind in ("joined", "words", "counts")]
        partitions = [TopicPartition(name, number) for name in names for number in range(PARTITIONS)]
        async with kclient.Consumer(
            bootstrap_servers=self._bootstrap, isolation_level="read_committed", auto_offset_reset="earliest"
        ) as consumer:
            consumer.assign(partitions)
            while not self._all_sent or self.counted < self.sent:
                self._take(await consumer.poll(timeout=0.2))
            ends = await consumer.end_offsets(partitions)
            while any([await consumer.position(tp) < ends[tp] for tp in partitions]):
                self._take(await consumer.poll(timeout=0.1))

    def _take(self, records: kclient.ConsumerRecords) -> None:
        for record in records:
            key, value = record.key.decode(), record.value.decode()
            kind = record.topic.rpartition("-")[2]
            if kind == "joined":
                self._joined.append((key, value))
            else:
                self._counts[kind][key].append(int(value))

    @asynccontextmanager
    async def _at_work(self) -> AsyncIterator[None]:
        try:
            for instance in self.instances:
                instance.start()
            yield
        finally:
            for instance in self.instances:
                if instance.running:
                    await anyio.to_thread.run_sync(instance.kill)

    async def _prepare(self) -> None:
        kinds = ("lines", "kinds", "joined", "words", "counts")
        async with Admin(bootstrap_servers=self._bootstrap) as admin:
            await admin.create_topics([NewTopic(f"{self._name}-{kind}", PARTITIONS, self._replicas) for kind in kinds])
        async with kclient.Producer(bootstrap_servers=self._bootstrap) as producer:
            for word, kind in KINDS.items():
                await producer.send(f"{self._name}-kinds", kind.encode(), key=word.encode())

    async def run(self, meanwhile: Callable[[], Awaitable[None]]) -> None:
        """Count until this is over, and then what is left; compare it with the lines."""
        await self._prepare()
        async with self._at_work():
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._produce)
                tasks.start_soon(self._read)
                await self.until_counted(100)
                await meanwhile()
                self._all_sent = True
                await self._until(lambda: self.counted >= self.sent)
            for instance in self.instances:
                await anyio.to_thread.run_sync(instance.stop)
        self._check()

    def _check(self) -> None:
        expected = [
            (word, f"{line}:{number} {KINDS[word]}")
            for line, words in enumerate(self._lines)
            for number, word in enumerate(words)
        ]
        found, wanted = Counter(self._joined), Counter(expected)
        assert found - wanted == Counter(), "joined more than once, or never sent"
        assert wanted - found == Counter(), "not joined"
        times = Counter(word for word, _ in expected)
        assert self._counts["words"] == {word: list(range(1, times[word] + 1)) for word in times}
        times = Counter(KINDS[word] for word, _ in expected)
        assert self._counts["counts"] == {kind: list(range(1, times[kind] + 1)) for kind in times}

    async def _until(self, true: Callable[[], bool]) -> None:
        with anyio.move_on_after(_PATIENCE_S):
            while not true():
                ended = [instance for instance in self.instances if not instance.running]
                assert not ended, "".join(instance.told for instance in ended)
                await anyio.sleep(0.01)
            return
        told = "\n\n".join(instance.told for instance in self.instances)
        raise AssertionError(f"{self.counted} of {self.sent} words were counted; then nothing came.\n{told}")

    async def until_counted(self, more: int) -> None:
        """Wait until so many more words were counted."""
        goal = self.counted + more
        await self._until(lambda: self.counted >= goal)

    async def kill(self, times: int, chance: random.Random) -> None:
        """Kill one instance after the other, each after some more words, and start it again."""
        for _ in range(times):
            await self.until_counted(chance.randrange(1, 1000))
            await self.kill_one(chance)

    async def kill_one(self, chance: random.Random) -> None:
        """Kill an instance now, and start it again."""
        instance = chance.choice(self.instances)
        await anyio.to_thread.run_sync(instance.kill)
        instance.start()

    async def pause(self, chance: random.Random, seconds: float) -> None:
        """Stop an instance where it is until others have its work: it goes on as a zombie."""
        await self.until_counted(chance.randrange(1, 1000))
        instance = chance.choice(self.instances)
        instance.pause()
        try:
            await anyio.sleep(seconds)
        finally:
            instance.resume()

"""Producers and groups of ours, of confluent-kafka and of Java at work on one topic, and what they did and saw."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from kclient.consumer import RebalanceListener
from kclient.errors import CommitFailedError, RebalanceInProgressError, RetriableError
from kclient.sync import Consumer, Producer
from kclient.types import TopicPartition
from tests.kafka_server import JavaTools
from tests.transaction_histories import Attempt, History, Outcome, Poll, Send

PAUSE_S: Final = 0.01
"""Between two records of a producer."""
_SESSION_MS: Final = 10_000
_JAVA_PRODUCER: Final = "org.apache.kafka.tools.VerifiableProducer"
_JAVA_CONSUMER: Final = "org.apache.kafka.tools.VerifiableConsumer"


class Client:
    """One client, at work in a thread of its own.

    Args:
        bootstrap: The gateways.
        topic: The topic.
        partitions: How many it has.
    """

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        self.name = type(self).__name__
        self.bootstrap, self.topic, self.partitions = bootstrap, topic, partitions
        self.ends = threading.Event()
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=self.name)

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        try:
            self.work()
        except BaseException as error:
            self.failure = error
            raise

    def work(self) -> None:
        """Until it is told to end."""
        raise NotImplementedError

    def end(self, patience_s: float = 150) -> None:
        """Have it end its work in order."""
        self.ends.set()
        if self._thread.ident is not None:
            self._thread.join(patience_s)
        assert not self._thread.is_alive(), f"{self.name} does not end"


class Writer(Client):
    """An idempotent producer of the values `NAME.0`, `NAME.1` and so on."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        super().__init__(bootstrap, topic, partitions)
        self.acknowledged: dict[int, tuple[int, int]] = {}
        """The partition and offset of each."""
        self.sent = 0
        self.failed: list[object] = []

    def value(self, number: int) -> bytes:
        return b"%s.%d" % (self.name.encode(), number)

    def attempt(self) -> Attempt:
        """What it has sent, as the checker reads it: all of it counts, from the beginning."""
        sends = [
            Send(TopicPartition(self.topic, partition), self.value(number), offset)
            for number, (partition, offset) in sorted(self.acknowledged.items())
        ]
        return Attempt(self.name, sends, ending=0.0, outcome=Outcome.COMMITTED)


class OurWriter(Writer):
    def work(self) -> None:
        with Producer(bootstrap_servers=self.bootstrap, delivery_timeout_ms=120_000, linger_ms=5) as producer:
            pending = []
            while not self.ends.wait(PAUSE_S):
                number, self.sent = self.sent, self.sent + 1
                value, partition = self.value(number), number % self.partitions
                pending.append((number, producer.send(self.topic, value, partition=partition)))
                while pending and pending[0][1].done():
                    self._take(*pending.pop(0))
            for each in pending:
                self._take(*each)

    def _take(self, number: int, delivery: Any) -> None:
        metadata = delivery.result(130)
        self.acknowledged[number] = metadata.partition, metadata.offset


class ConfluentWriter(Writer):
    def work(self) -> None:
        import confluent_kafka

        producer = confluent_kafka.Producer({
            "bootstrap.servers": self.bootstrap, "enable.idempotence": True, "linger.ms": 5,
            "delivery.timeout.ms": 120_000,
        })  # fmt: skip

        def delivered(number: int, error: Any, message: Any) -> None:
            if error is not None:
                self.failed.append(error)
            else:
                self.acknowledged[number] = message.partition(), message.offset()

        while not self.ends.wait(PAUSE_S):
            number, self.sent = self.sent, self.sent + 1
            producer.produce(
                self.topic, self.value(number), partition=number % self.partitions,
                on_delivery=lambda error, message, number=number: delivered(number, error, message),
            )  # fmt: skip
            producer.poll(0)
        assert producer.flush(130) == 0


class JavaWriter(Writer):
    """Java's, by the tool that Kafka's own system tests use."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, *, tools: JavaTools, folder: Path) -> None:
        super().__init__(bootstrap, topic, partitions)
        self._tools = tools
        self._config = folder / "producer.properties"
        # the tool does not try again unless it is told to
        self._config.write_text(
            "enable.idempotence=true\nretries=2147483647\ndelivery.timeout.ms=120000\nlinger.ms=5\n"
        )

    def value(self, number: int) -> bytes:
        return b"7.%d" % number  # the tool takes a number for the prefix

    def work(self) -> None:
        command = self._tools.command(
            _JAVA_PRODUCER, "--bootstrap-server", self.bootstrap, "--topic", self.topic, "--throughput", "100",
            "--acks", "-1", "--value-prefix", "7", "--producer.config", str(self._config),
        )  # fmt: skip
        for event in _events(command, self.ends):
            if event["name"] == "producer_send_success":
                number = int(event["value"].partition(".")[2])
                self.acknowledged[number] = event["partition"], event["offset"]
                self.sent = max(self.sent, number + 1)
            elif event["name"] == "producer_send_error":
                self.failed.append(event)


def _events(command: Sequence[str], ends: threading.Event) -> Iterator[dict[str, Any]]:
    """What a tool prints, until it has ended, which it is told to in order."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None

    def stop() -> None:
        ends.wait()
        process.terminate()

    stopping = threading.Thread(target=stop, daemon=True)
    stopping.start()
    try:
        for line in process.stdout:
            if line.startswith("{"):
                yield json.loads(line)
        assert ends.is_set(), f"{command[-1]} has ended by itself"
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


class Reader(Client):
    """The only member of its group, which reads the topic and commits; each time it is assigned begins a session."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        super().__init__(bootstrap, topic, partitions)
        self.polls: list[Poll] = []
        self.reached: dict[int, int] = defaultdict(int)
        """By partition, behind the last record that it was given."""
        self._sessions = 0

    @property
    def group(self) -> str:
        return f"group-{self.name}"

    def assigned(self) -> None:
        self._sessions += 1

    def saw(self, partition: int, records: Sequence[tuple[int, bytes]]) -> None:
        session = f"{self.name}-{self._sessions}"
        self.polls.append(Poll(session, time.monotonic(), TopicPartition(self.topic, partition), records))
        self.reached[partition] = max(self.reached[partition], records[-1][0] + 1)


class OurReader(Reader):
    def work(self) -> None:
        reader = self

        class Listener(RebalanceListener):
            def on_partitions_assigned(self, partitions: Sequence[TopicPartition]) -> None:
                reader.assigned()

        with Consumer(
            bootstrap_servers=self.bootstrap, group_id=self.group, enable_auto_commit=False,
            auto_offset_reset="earliest", session_timeout_ms=_SESSION_MS, heartbeat_interval_ms=1000,
        ) as consumer:  # fmt: skip
            consumer.subscribe([self.topic], listener=Listener())
            while not self.ends.is_set():
                records = consumer.poll(timeout=0.2)
                for tp in records.partitions():
                    self.saw(tp.partition, [(each.offset, each.value) for each in records.records(tp)])
                try:
                    if records:
                        consumer.commit()
                except (CommitFailedError, RebalanceInProgressError, RetriableError):
                    pass  # what is not committed is read again


class ConfluentReader(Reader):
    def work(self) -> None:
        import confluent_kafka

        client = confluent_kafka.Consumer({
            "bootstrap.servers": self.bootstrap, "group.id": self.group, "enable.auto.commit": False,
            "auto.offset.reset": "earliest", "session.timeout.ms": _SESSION_MS, "heartbeat.interval.ms": 1000,
        })  # fmt: skip
        client.subscribe([self.topic], on_assign=lambda *_: self.assigned())
        try:
            while not self.ends.is_set():
                message = client.poll(0.2)
                if message is None or message.error() is not None:
                    continue
                self.saw(message.partition(), [(message.offset(), message.value())])
                client.commit(message=message, asynchronous=True)
        finally:
            client.close()


class JavaReader(Reader):
    """Java's, by the tool that Kafka's own system tests use."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, *, tools: JavaTools) -> None:
        super().__init__(bootstrap, topic, partitions)
        self._tools = tools

    def work(self) -> None:
        command = self._tools.command(
            _JAVA_CONSUMER, "--bootstrap-server", self.bootstrap, "--topic", self.topic, "--group-id", self.group,
            "--reset-policy", "earliest", "--session-timeout", str(_SESSION_MS), "--verbose",
        )  # fmt: skip
        for event in _events(command, self.ends):
            if event["name"] == "partitions_assigned":
                self.assigned()
            elif event["name"] == "record_data":
                self.saw(event["partition"], [(event["offset"], event["value"].encode())])


def history_of(
    writers: Sequence[Writer], readers: Sequence[Reader], log: dict[TopicPartition, list[tuple[int, bytes]]]
) -> History:
    """What has happened, for `tests.transaction_checker`."""
    return History(
        attempts=[each.attempt() for each in writers],
        polls=[poll for each in readers for poll in each.polls],
        log=log,
    )


def read_log(bootstrap: str, topic: str, partitions: int) -> dict[TopicPartition, list[tuple[int, bytes]]]:
    """Everything that is in a topic, with the offsets."""
    every = [TopicPartition(topic, number) for number in range(partitions)]
    found: dict[TopicPartition, list[tuple[int, bytes]]] = {tp: [] for tp in every}
    with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign(every)
        ends = consumer.end_offsets(every)
        while any(consumer.position(tp) < end for tp, end in ends.items()):
            for record in consumer.poll(timeout=5.0):
                found[TopicPartition(topic, record.partition)].append((record.offset, record.value or b""))
    return found


def wait_for(true: Callable[[], bool], clients: Sequence[Client], patience_s: float) -> None:
    """Until something is so, and as long as no client has failed."""
    end = time.monotonic() + patience_s
    while not true():
        failed = [(each.name, each.failure) for each in clients if each.failure is not None]
        assert not failed, failed
        assert time.monotonic() < end, "they are stuck"
        time.sleep(0.05)

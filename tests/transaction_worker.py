"""A client in histories of transactions, as a child process that is paused and killed: our own, or confluent-kafka.

Run as a program, it goes on until it is ended, or another producer fences it. Its arguments are the client, the
brokers, its role, the topic, the number of its partitions, its `transactional.id`, its name, `transaction.timeout.ms`
and a seed. The roles are `append` (to several partitions of the topic), `copy` (from there to `TOPIC-copy`, as a member
of the group `TOPIC`), `read_committed` and `read_uncommitted` (both topics).

It prints what it does and sees, a line each, with the moments of the system's monotonic clock in nanoseconds, in this
order (and so does `tests/java/TransactionsClient.java`):

    run NAME                                a producer or reader is made
    begin AT
    poll AT SESSION TOPIC PARTITION OFFSET:VALUE...
    consumed TOPIC PARTITION START STOP     what the transaction has read, and commits
    send TOPIC PARTITION VALUE              before it is sent
    acked VALUE OFFSET
    committing AT, aborting AT              before it is asked for
    committed AT, aborted AT                when the client was told so
    error TEXT
"""

from __future__ import annotations

import contextlib
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import kclient.sync
from kclient.errors import KafkaError, KafkaTimeoutError, ProducerFencedError
from kclient.types import TopicPartition

PATIENCE_S = 20.0


class FencedOutError(Exception):
    """Another producer has the id."""


class AgainError(Exception):
    """The call takes longer than it may."""


class FailedError(Exception):
    """Something else; a transaction may be aborted."""


class TransactionalProducer(Protocol):
    """What the roles ask of a producer; its errors are those above."""

    def begin(self) -> None: ...
    def send(self, tp: TopicPartition, value: bytes, acked: Callable[[int], None]) -> None: ...
    def send_offsets(self, offsets: Mapping[TopicPartition, int], reader: Any) -> None: ...
    def commit(self) -> None: ...
    def abort(self) -> None: ...
    def close(self) -> None: ...


class Reader(Protocol):
    """What the roles ask of a consumer."""

    def poll(self) -> Mapping[TopicPartition, Sequence[tuple[int, bytes]]]: ...
    def position(self, tp: TopicPartition) -> int: ...
    def close(self) -> None: ...


class OurProducer:
    def __init__(self, bootstrap: str, transactional_id: str, timeout_ms: int) -> None:
        self._producer = kclient.sync.Producer(
            bootstrap_servers=bootstrap, transactional_id=transactional_id, transaction_timeout_ms=timeout_ms,
            request_timeout_ms=5000, delivery_timeout_ms=15_000, max_block_ms=int(PATIENCE_S * 1000),
        )  # fmt: skip
        self._call(self._producer.init_transactions)

    def _call(self, call: Callable[[], Any]) -> None:
        try:
            call()
        except ProducerFencedError as error:
            raise FencedOutError(repr(error)) from error
        except KafkaTimeoutError as error:
            raise AgainError(repr(error)) from error
        except KafkaError as error:
            raise FailedError(repr(error)) from error

    def begin(self) -> None:
        self._call(self._producer.begin_transaction)

    def send(self, tp: TopicPartition, value: bytes, acked: Callable[[int], None]) -> None:
        def told(metadata: Any, error: BaseException | None) -> None:
            if error is None:
                acked(metadata.offset)

        self._call(partial(self._producer.send, tp.topic, value, partition=tp.partition, on_delivery=told))

    def send_offsets(self, offsets: Mapping[TopicPartition, int], reader: OurReader) -> None:
        metadata = reader.consumer.group_metadata()
        self._call(lambda: self._producer.send_offsets_to_transaction(dict(offsets), metadata))

    def commit(self) -> None:
        self._call(self._producer.commit_transaction)

    def abort(self) -> None:
        self._call(self._producer.abort_transaction)

    def close(self) -> None:
        self._producer.close()


class OurReader:
    def __init__(
        self, bootstrap: str, level: str, group: str | None, topic: str, assigned: list[TopicPartition]
    ) -> None:
        self.consumer = kclient.sync.Consumer(
            bootstrap_servers=bootstrap, group_id=group, isolation_level=level, enable_auto_commit=False,
            auto_offset_reset="earliest", session_timeout_ms=6000, heartbeat_interval_ms=500, max_poll_records=20,
        )  # fmt: skip
        if group is None:
            self.consumer.assign(assigned)
        else:
            self.consumer.subscribe([topic])

    def poll(self) -> Mapping[TopicPartition, Sequence[tuple[int, bytes]]]:
        try:
            found = self.consumer.poll(timeout=0.5)
        except KafkaError as error:
            raise FailedError(repr(error)) from error
        return {tp: [(each.offset, bytes(each.value)) for each in found.records(tp)] for tp in found.partitions()}

    def position(self, tp: TopicPartition) -> int:
        return self.consumer.position(tp)

    def close(self) -> None:
        self.consumer.close()


class ConfluentProducer:
    def __init__(self, bootstrap: str, transactional_id: str, timeout_ms: int) -> None:
        import confluent_kafka

        self._error = confluent_kafka.KafkaException
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap, "transactional.id": transactional_id,
                "transaction.timeout.ms": timeout_ms, "socket.timeout.ms": timeout_ms, "linger.ms": 0,
            },
            logger=_SILENT,
        )  # fmt: skip
        self._call(self._producer.init_transactions, PATIENCE_S)

    def _call(self, call: Callable[..., Any], *arguments: Any) -> None:
        try:
            call(*arguments)
        except self._error as found:
            error = found.args[0]
            if error.retriable():
                raise AgainError(str(error)) from found
            if error.name() in {"_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH"}:
                raise FencedOutError(str(error)) from found
            raise FailedError(str(error)) from found

    def begin(self) -> None:
        self._call(self._producer.begin_transaction)

    def send(self, tp: TopicPartition, value: bytes, acked: Callable[[int], None]) -> None:
        def told(error: Any, message: Any) -> None:
            if error is None:
                acked(message.offset())

        self._call(partial(self._producer.produce, tp.topic, value, partition=tp.partition, on_delivery=told))
        self._producer.poll(0)

    def send_offsets(self, offsets: Mapping[TopicPartition, int], reader: ConfluentReader) -> None:
        import confluent_kafka

        wanted = [confluent_kafka.TopicPartition(*tp, offset) for tp, offset in offsets.items()]
        metadata = reader.consumer.consumer_group_metadata()
        # librdkafka may wait for ever where the coordinator's connection broke (its issue 5456)
        end = threading.Timer(PATIENCE_S / 2, os._exit, [1])
        end.start()
        try:
            self._call(self._producer.send_offsets_to_transaction, wanted, metadata, PATIENCE_S / 4)
        finally:
            end.cancel()

    def commit(self) -> None:
        self._call(self._producer.commit_transaction, PATIENCE_S)

    def abort(self) -> None:
        self._call(self._producer.abort_transaction, PATIENCE_S)

    def close(self) -> None:
        self._producer.purge()
        with contextlib.suppress(self._error):  # it was fenced
            self._producer.flush(0)


class ConfluentReader:
    def __init__(
        self, bootstrap: str, level: str, group: str | None, topic: str, assigned: list[TopicPartition]
    ) -> None:
        import confluent_kafka

        self._of = confluent_kafka.TopicPartition
        self.consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap, "group.id": group or f"{topic}-unused", "isolation.level": level,
                "enable.auto.commit": False, "auto.offset.reset": "earliest", "session.timeout.ms": 6000,
                "heartbeat.interval.ms": 500,
            },
            logger=_SILENT,
        )  # fmt: skip
        if group is None:
            self.consumer.assign([self._of(*tp, 0) for tp in assigned])
        else:
            self.consumer.subscribe([topic])

    def poll(self) -> Mapping[TopicPartition, Sequence[tuple[int, bytes]]]:
        found: dict[TopicPartition, list[tuple[int, bytes]]] = {}
        for each in self.consumer.consume(20, 0.5):
            if each.error() is None:
                tp = TopicPartition(each.topic() or "", each.partition() or 0)
                found.setdefault(tp, []).append((each.offset() or 0, each.value() or b""))
        return found

    def position(self, tp: TopicPartition) -> int:
        (found,) = self.consumer.position([self._of(*tp)])
        return int(found.offset)

    def close(self) -> None:
        self.consumer.close()


def _silent() -> Any:
    import logging

    logger = logging.getLogger("librdkafka")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    return logger


_SILENT = _silent()
CLIENTS: dict[str, tuple[Callable[..., TransactionalProducer], Callable[..., Reader]]] = {
    "kclient": (OurProducer, OurReader), "confluent": (ConfluentProducer, ConfluentReader)
}  # fmt: skip


def say(*words: object) -> None:
    """Print a line at once and as a whole: it has to be there before what it announces begins."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


class Worker:
    """Plays a role."""

    def __init__(
        self, client: str, bootstrap: str, role: str, topic: str, partitions: int, transactional_id: str, name: str,
        timeout_ms: int, seed: int,
    ) -> None:  # fmt: skip
        self._producer_of, self._reader_of = CLIENTS[client]
        self._bootstrap = bootstrap
        self._role = role
        self._topic = topic
        self._partitions = partitions
        self._id = transactional_id
        self._name = name
        self._timeout_ms = timeout_ms
        self._dice = random.Random(seed)
        self._runs = 0
        self._values = 0

    @property
    def _run(self) -> str:
        return f"{self._name}.{self._runs}"

    def work(self) -> None:
        """Play it until it is fenced."""
        role = {"append": self._append, "copy": self._copy}.get(self._role, self._read)
        while True:
            self._runs += 1
            say("run", self._run)
            try:
                role()
            except FencedOutError as error:
                say("error", error)
                return
            except (AgainError, FailedError, KafkaError) as error:
                say("error", error)
            time.sleep(0.1)

    def _producer(self) -> TransactionalProducer:
        return self._producer_of(self._bootstrap, self._id, self._timeout_ms)

    def _append(self) -> None:
        dice = self._dice
        producer = self._producer()
        try:
            while True:
                say("begin", time.monotonic_ns())
                producer.begin()
                for _ in range(dice.randint(1, 4)):
                    self._send(producer, TopicPartition(self._topic, dice.randrange(self._partitions)))
                    time.sleep(dice.choice([0, dice.random() * 0.05]))
                if dice.random() < 0.05:
                    time.sleep(dice.random() * self._timeout_ms / 500)
                self._end(producer, commit=dice.random() < 0.8)
                time.sleep(dice.random() * 0.1)
        finally:
            producer.close()

    def _copy(self) -> None:
        producer = self._producer()
        reader = self._reader_of(self._bootstrap, "read_committed", self._topic, self._topic, [])
        try:
            while True:
                found = reader.poll()
                if not found:
                    continue
                say("begin", time.monotonic_ns())
                offsets = {}
                for tp, records in found.items():
                    self._polled(f"{self._run}@{records[0][0]}", tp, records)
                    offsets[tp] = reader.position(tp)
                    say("consumed", *tp, records[0][0], offsets[tp])
                producer.begin()
                for tp, records in found.items():
                    for _ in records:
                        self._send(producer, TopicPartition(f"{self._topic}-copy", tp.partition))
                producer.send_offsets(offsets, reader)
                if not self._end(producer, commit=self._dice.random() < 0.9):
                    return  # the next run begins with what is committed
        finally:
            producer.close()
            reader.close()

    def _read(self) -> None:
        topics = (self._topic, f"{self._topic}-copy")
        places = [TopicPartition(topic, number) for topic in topics for number in range(self._partitions)]
        reader = self._reader_of(self._bootstrap, self._role, None, self._topic, places)
        try:
            while True:
                for tp, records in reader.poll().items():
                    self._polled(self._run, tp, records)
        finally:
            reader.close()

    def _send(self, producer: TransactionalProducer, tp: TopicPartition) -> None:
        self._values += 1
        value = f"{self._run}-{self._values}"
        say("send", *tp, value)
        producer.send(tp, value.encode(), partial(say, "acked", value))

    def _end(self, producer: TransactionalProducer, *, commit: bool) -> bool:
        if commit:
            say("committing", time.monotonic_ns())
            try:
                _again(producer.commit)
            except FailedError as error:
                say("error", error)
            else:
                say("committed", time.monotonic_ns())
                return True
        say("aborting", time.monotonic_ns())
        _again(producer.abort)
        say("aborted", time.monotonic_ns())
        return False

    def _polled(self, session: str, tp: TopicPartition, records: Iterable[tuple[int, bytes]]) -> None:
        say("poll", time.monotonic_ns(), session, *tp, *(f"{offset}:{value.decode()}" for offset, value in records))


def _again(end: Callable[[], None]) -> None:
    """Wait for an end once more where it takes longer than a call may."""
    for _ in range(3):
        try:
            end()
        except AgainError as error:
            say("error", error)
        else:
            return
    end()


if __name__ == "__main__":
    client, bootstrap, role, topic, partitions, transactional_id, name, timeout_ms, seed = sys.argv[1:]
    Worker(client, bootstrap, role, topic, int(partitions), transactional_id, name, int(timeout_ms), int(seed)).work()

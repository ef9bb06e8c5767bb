"""A gateway that is drained, or ended by SIGTERM: groups and transactions go to others in the planned way.

Members keep their assignment, nobody rebalances, and all go on soon.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from kclient.cli.app import run
from kclient.consumer import RebalanceListener
from kclient.sync import Admin, Consumer, Producer
from kclient.types import OffsetAndMetadata, TopicPartition
from tests.coordinated import coordinators, names_at
from tests.gateway_process import GatewayProcess

confluent = pytest.importorskip("confluent_kafka")

pytestmark = [pytest.mark.slow, pytest.mark.foreign, pytest.mark.timeout(240)]

PARTITIONS = 4
OFFSETS, STATE = "__consumer_offsets", "__transaction_state"
SOON_S = 10.0
"""A bound that a busy machine keeps too; on one that is idle it is under a second."""


class Member(threading.Thread):
    """Of a group of two: commits all the time, and counts how often it was given partitions."""

    def __init__(self, bootstrap: str, group: str) -> None:
        super().__init__(name=group)
        self.bootstrap, self.group = bootstrap, group
        self.assigned = 0
        self.partitions: set[int] = set()
        self.commits = 0
        self.longest = 0.0
        """Seconds from one commit to the next, at most, since this was last set back."""
        self.failure: BaseException | None = None
        self.complete = threading.Event()
        """Both are there; until then a commit may meet their joining."""
        self.ends = threading.Event()
        self.start()

    def run(self) -> None:
        try:
            self.live()
        except BaseException as error:
            self.failure = error
            raise

    def live(self) -> None:
        raise NotImplementedError

    def committed(self, began: float) -> None:
        self.commits += 1
        self.longest = max(self.longest, time.monotonic() - began)

    def given(self, partitions: set[int]) -> None:
        self.assigned, self.partitions = self.assigned + 1, partitions


class OurMember(Member):
    def live(self) -> None:
        member = self

        class Listener(RebalanceListener):
            def on_partitions_assigned(self, partitions: Sequence[TopicPartition]) -> None:
                member.given({tp.partition for tp in partitions})

        with Consumer(
            bootstrap_servers=self.bootstrap, group_id=self.group, enable_auto_commit=False,
            partition_assignment_strategy="range", heartbeat_interval_ms=300, session_timeout_ms=10_000,
        ) as consumer:  # fmt: skip
            consumer.subscribe(["t"], listener=Listener())
            while not self.ends.is_set():
                consumer.poll(timeout=0.02)
                if self.complete.is_set():
                    began = time.monotonic()
                    consumer.commit({TopicPartition("t", each): OffsetAndMetadata(0) for each in self.partitions})
                    self.committed(began)


class TheirMember(Member):
    def live(self) -> None:
        client = confluent.Consumer({
            "bootstrap.servers": self.bootstrap, "group.id": self.group, "enable.auto.commit": False,
            "heartbeat.interval.ms": 300, "session.timeout.ms": 10_000, "auto.offset.reset": "error",
            "partition.assignment.strategy": "range", **_FINDS_COORDINATORS,
        })  # fmt: skip

        def on_assign(_: Any, partitions: Sequence[Any]) -> None:
            self.given({each.partition for each in partitions})

        client.subscribe(["t"], on_assign=on_assign)
        try:
            while not self.ends.is_set():
                message = client.poll(0.02)
                if message is not None and (error := message.error()) is not None:  # such as of lost connections
                    assert error.name() not in _LOST, error
                if self.complete.is_set():
                    began = time.monotonic()
                    while True:
                        try:
                            client.commit(
                                offsets=[confluent.TopicPartition("t", each, 0) for each in self.partitions],
                                asynchronous=False,
                            )
                            break
                        except confluent.KafkaException as error:
                            # unlike ours it hands on to the application that the coordinator has moved
                            if not error.args[0].retriable() and error.args[0].name() not in _PASSING:
                                raise
                    self.committed(began)
        finally:
            client.close()


_FINDS_COORDINATORS = {"fetch.wait.max.ms": 20, "retry.backoff.ms": 1000}
"""librdkafka sends a commit that failed again to whoever coordinated, after `retry.backoff.ms`. If the new coordinator
is found later than that (whom it asks for it is busy with its fetch), it throws the commit away with that connection,
takes the new one for dead because of it, asks again, and so on; it never counts those attempts. Any broker's clients do
so."""

_PASSING = {"NOT_COORDINATOR", "COORDINATOR_NOT_AVAILABLE", "COORDINATOR_LOAD_IN_PROGRESS", "_WAIT_COORD", "_TRANSPORT"}


_LOST = {"_LOG_TRUNCATION", "_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE"}
"""What it tells where it takes the log for truncated, being told nothing of an epoch under which it has read."""


def until(true: Any, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)


@contextmanager
def three(data: Path) -> Iterator[list[GatewayProcess]]:
    found = [GatewayProcess(data, config={"node.id": str(number)}) for number in (1, 2, 3)]
    try:
        for each in found:
            each.start()
        yield found
    finally:
        for number, each in enumerate(found, 1):
            each.stop()
            print(*(f"{number}: {line}" for line in each.stderr), sep="")  # for whoever looks why it failed


def _knows(gateway: GatewayProcess) -> bool:
    """Whether it knows of the topic."""
    with Admin(bootstrap_servers=gateway.bootstrap) as admin:
        return "t" in {topic.name for topic in admin.list_topics()}


@pytest.mark.parametrize("how", ["drained", "ended"])
def test_members_and_transactions_go_on(tmp_path: Path, how: str) -> None:
    with three(tmp_path / "data") as gateways, ExitStack() as stack:
        bootstrap = ",".join(each.bootstrap for each in gateways[::-1])
        admin = stack.enter_context(Admin(bootstrap_servers=bootstrap))
        until(lambda: set(coordinators(admin, OFFSETS).values()) == {1, 2, 3})
        admin.create_topic("t", partitions=PARTITIONS)
        groups = [group for node_id in (1, 2) for group in names_at(admin, OFFSETS, node_id, 2)]
        until(lambda: all(_knows(each) for each in gateways))
        at_first = {
            info.topic_partition: OffsetAndMetadata(0, leader_epoch=info.leader_epoch)
            for info in admin.describe_topics(["t"])["t"].partitions
        }
        for group in groups:
            admin.alter_group_offsets(group, at_first)
        members = [kind(bootstrap, group) for group in groups for kind in (OurMember, TheirMember)]
        producer = stack.enter_context(
            Producer(bootstrap_servers=bootstrap, transactional_id=names_at(admin, STATE, 1, 1)[0])
        )
        try:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send("t", b"before").result(30)
            until(lambda: all(len(each.partitions) == PARTITIONS // 2 for each in members))
            before = [(each.assigned, each.partitions) for each in members]
            for each in members:
                each.complete.set()
            until(lambda: all(each.commits for each in members))
            for each in members:
                each.longest = 0.0
            if how == "drained":
                assert run(["cluster", "drain", "1", "--bootstrap", bootstrap]) == 0
                until(lambda: 1 not in {*coordinators(admin, OFFSETS).values(), *coordinators(admin, STATE).values()})
            else:
                assert gateways[0].stop() == 0
            producer.send("t", b"after").result(30)
            producer.commit_transaction()
            producer.begin_transaction()
            producer.send("t", b"next").result(30)
            producer.commit_transaction()
            done = [each.commits for each in members]
            until(
                lambda: (
                    any(each.failure for each in members)
                    or all(now.commits > then + 20 for now, then in zip(members, done, strict=True))
                )
            )
            assert not [each.failure for each in members if each.failure is not None]
            time.sleep(1.0)  # some heartbeats: a rebalance would be told in their answers
            longest = {f"{type(each).__name__} {each.group}": round(each.longest, 2) for each in members}
            print(f"{how}: seconds from a commit to the next, at most: {longest}")
            assert [(each.assigned, each.partitions) for each in members] == before, "somebody has rebalanced"
            assert max(longest.values()) < SOON_S
        finally:
            for each in members:
                each.ends.set()
            for each in members:
                each.join(30)
        with Consumer(
            bootstrap_servers=bootstrap, auto_offset_reset="earliest", isolation_level="read_committed"
        ) as reader:
            reader.assign([TopicPartition("t", each) for each in range(PARTITIONS)])
            found = set[bytes | None]()
            until(lambda: bool(found.update(each.value for each in reader.poll(timeout=0.1))) or len(found) == 3)
        assert found == {b"before", b"after", b"next"}

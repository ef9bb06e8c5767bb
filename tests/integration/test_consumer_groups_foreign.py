"""confluent-kafka with `group.protocol=consumer` (KIP-848): groups on real Kafka 4.3, and on a gateway."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from kclient.sync import Admin
from kclient.types import TopicPartition

confluent = pytest.importorskip("confluent_kafka")
confluent_admin = pytest.importorskip("confluent_kafka.admin")

pytestmark = [pytest.mark.foreign, pytest.mark.long, pytest.mark.timeout(150)]

PARTITIONS = 6
PATIENCE_S = 60.0


class Member:
    """A member that notes what it is given and what is taken from it, and commits what it has read.

    Args:
        bootstrap: The broker.
        group: Its name.
        topics: What the member subscribes to; what begins with `^` is a pattern.
        settings: Of librdkafka, with `_` for each dot.
    """

    def __init__(self, bootstrap: str, group: str, *topics: str, **settings: str) -> None:
        self.mine: set[int] = set()
        self.taken: list[int] = []
        self.read: list[int] = []
        self.errors: list[Any] = []
        self._client = confluent.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "group.protocol": "consumer",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                **{name.replace("_", "."): value for name, value in settings.items()},
            }
        )
        self._client.subscribe(list(topics), on_assign=self._on_assign, on_revoke=self._on_revoke)

    def _on_assign(self, client: Any, given: list[Any]) -> None:
        del client
        self.mine |= {each.partition for each in given}

    def _on_revoke(self, client: Any, taken: list[Any]) -> None:
        del client
        self.commit()
        self.mine -= {each.partition for each in taken}
        self.taken += [each.partition for each in taken]

    def poll(self) -> None:
        for message in self._client.consume(500, 0.05):
            if message.error() is None:
                self.read.append(int(message.value()))
            else:
                self.errors.append(message.error())

    def commit(self) -> None:
        """As far as it has read, if it has read anything."""
        try:
            self._client.commit(asynchronous=False)
        except confluent.KafkaException as error:
            if error.args[0].code() != confluent.KafkaError._NO_OFFSET:
                raise

    def close(self) -> None:
        self._client.close()


@contextmanager
def members(*made: Member) -> Iterator[tuple[Member, ...]]:
    try:
        yield made
    finally:
        for each in made:
            each.close()


def until(condition: Callable[[], bool], *polled: Member) -> None:
    """They poll until something holds; a partition is nobody's twice at any time."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, [(each.mine, each.errors) for each in polled]
        for each in polled:
            each.poll()
        held = [number for each in polled for number in each.mine]
        assert len(held) == len(set(held)), held


def spread(*found: Member) -> bool:
    """Whether all partitions are theirs, in equal parts."""
    return [len(each.mine) for each in found] == [PARTITIONS // len(found)] * len(found)


def fill(bootstrap: str, topic: str, numbers: range) -> None:
    producer = confluent.Producer({"bootstrap.servers": bootstrap})
    for number in numbers:
        producer.produce(topic, b"%d" % number, partition=number % PARTITIONS)
    assert producer.flush(PATIENCE_S) == 0


@pytest.fixture
def made(broker: str, topic: str) -> str:
    with Admin(bootstrap_servers=broker) as admin:
        admin.create_topic(topic, PARTITIONS)
    return topic


@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_three_come_and_go(broker: str, made: str, assignor: str) -> None:
    """Only what moves is taken away, and whoever takes over reads on at what was committed."""
    settings = {"group_remote_assignor": assignor}
    fill(broker, made, range(600))
    with members(Member(broker, made, made, **settings)) as (first,):
        until(lambda: spread(first), first)
        with members(Member(broker, made, made, **settings)) as (second,):
            until(lambda: spread(first, second), first, second)
            assert sorted(first.taken) == sorted(second.mine), "the rest stayed"
            with members(Member(broker, made, made, **settings)) as (third,):
                until(lambda: spread(first, second, third), first, second, third)
                until(lambda: len({*first.read, *second.read, *third.read}) == 600, first, second, third)
                assert sorted(first.read + second.read + third.read) == list(range(600)), "nothing twice"
            until(lambda: spread(first, second), first, second)
            for each in (first, second):
                each.read.clear()
            fill(broker, made, range(600, 1200))
            until(lambda: len(first.read) + len(second.read) >= 600, first, second)
            assert sorted(first.read + second.read) == list(range(600, 1200)), "nothing twice"
            first.commit()
            second.commit()
        until(lambda: spread(first), first)
    with Admin(bootstrap_servers=broker) as admin:
        committed = admin.list_group_offsets(made)
        assert {place: found and found.offset for place, found in committed.items()} == {
            TopicPartition(made, number): 200 for number in range(PARTITIONS)
        }


def test_static_members_come_back_to_what_they_had(broker: str, made: str) -> None:
    with members(Member(broker, made, made, group_instance_id="one")) as (first,):
        with members(Member(broker, made, made, group_instance_id="two")) as (second,):
            until(lambda: spread(first, second), first, second)
            had = set(second.mine)
        first.taken.clear()
        with members(Member(broker, made, made, group_instance_id="two")) as (second,):
            until(lambda: second.mine == had, first, second)
            assert not first.taken
            with members(Member(broker, made, made, group_instance_id="two")) as (third,):
                until(lambda: bool(third.errors), first, second, third)
                assert not third.mine
                assert third.errors[0].code() in (
                    confluent.KafkaError._FATAL, confluent.KafkaError.UNRELEASED_INSTANCE_ID,
                )  # fmt: skip
                until(lambda: second.mine == had, first, second)


def test_patterns_take_in_topics_that_are_made_later(broker: str, topic: str) -> None:
    reader = Member(broker, topic, f"^{topic}-.*", topic_metadata_refresh_interval_ms="500")
    with members(reader) as (member,), Admin(bootstrap_servers=broker) as admin:
        admin.create_topic(f"{topic}-a", PARTITIONS)
        until(lambda: len(member.mine) == PARTITIONS, member)
        admin.create_partitions({f"{topic}-a": PARTITIONS + 2})
        until(lambda: len(member.mine) == PARTITIONS + 2, member)
        admin.delete_topic(f"{topic}-a")
        until(lambda: not member.mine, member)


def test_its_admin_tells_of_them(broker: str, made: str) -> None:
    client = confluent_admin.AdminClient({"bootstrap.servers": broker})
    with members(Member(broker, made, made, client_id="me", group_instance_id="one")) as (member,):
        until(lambda: spread(member), member)
        described = client.describe_consumer_groups([made])[made].result(PATIENCE_S)
        assert (described.state.name, described.type.name) == ("STABLE", "CONSUMER")
        assert described.partition_assignor == "uniform"
        (told,) = described.members
        assert (told.client_id, told.group_instance_id) == ("me", "one")
        assert {each.partition for each in told.assignment.topic_partitions} == set(range(PARTITIONS))
        listed = client.list_consumer_groups(types={confluent.ConsumerGroupType.CONSUMER}).result(PATIENCE_S)
        assert made in {each.group_id for each in listed.valid}
        with pytest.raises(confluent.KafkaException) as caught:
            client.delete_consumer_groups([made])[made].result(PATIENCE_S)
        assert caught.value.args[0].code() == confluent.KafkaError.NON_EMPTY_GROUP

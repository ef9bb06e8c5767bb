"""Partitions that come while `kclient consume` shows their topic."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from kclient.admin import NewTopic
from kclient.cli import growing, output
from kclient.cli.growing import NewPartitions
from kclient.inprocess import reset
from kclient.sync import Admin, Consumer, Producer
from kclient.types import TopicPartition

ADDRESS = "memory:growing"


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> Iterator[Admin]:
    monkeypatch.setattr(growing, "_EVERY_S", 0.01)
    with Admin(bootstrap_servers=ADDRESS) as admin:
        admin.create_topics([NewTopic("t", 1)])
        yield admin
    reset("growing")


def fill(partitions: int) -> set[tuple[int, bytes]]:
    sent = {(partition, b"%d" % number) for partition in range(partitions) for number in range(3)}
    with Producer(bootstrap_servers=ADDRESS, metadata_max_age_ms=100) as producer:
        for partition, value in sorted(sent):
            producer.send("t", value=value, partition=partition)
    return sent


def read(consumer: Consumer, new: NewPartitions, wanted: set[tuple[int, bytes]]) -> None:
    found: list[tuple[int, bytes]] = []
    until = time.monotonic() + 20
    while set(found) != wanted and time.monotonic() < until:
        found += [(record.partition, record.value or b"") for record in consumer.poll(timeout=0.05)]
        new.assign()
    assert sorted(found) == sorted(wanted), "each once"


@pytest.mark.parametrize("anew", [False, True], ids=["grown", "made anew"])
def test_new_partitions_are_shown_from_their_beginning(
    admin: Admin, anew: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes: list[str] = []
    monkeypatch.setattr(output, "note", notes.append)
    # of a topic made anew, the partition that is read already goes on by this setting
    reset_to = "earliest" if anew else "latest"
    with Consumer(bootstrap_servers=ADDRESS, metadata_max_age_ms=100, auto_offset_reset=reset_to) as consumer:
        consumer.assign([TopicPartition("t", 0)])
        consumer.seek_to_beginning([TopicPartition("t", 0)])
        new = NewPartitions(consumer, ["t"])
        read(consumer, new, fill(1))
        if anew:
            admin.delete_topics(["t"])
            admin.create_topics([NewTopic("t", 3)])
        else:
            admin.create_partitions({"t": 3})
        sent = fill(3)
        read(consumer, new, sent)
        assert consumer.assignment() == {TopicPartition("t", number) for number in range(3)}
    assert notes == ["new partitions, shown from their beginning: t-1, t-2"]


def test_a_partition_that_comes_back_is_new(admin: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its number was there before the topic was made anew, and nobody has seen what is in it now."""
    notes: list[str] = []
    monkeypatch.setattr(output, "note", notes.append)
    admin.create_partitions({"t": 2})
    with Consumer(bootstrap_servers=ADDRESS, metadata_max_age_ms=100, auto_offset_reset="latest") as consumer:
        consumer.assign([TopicPartition("t", number) for number in range(2)])
        consumer.seek_to_beginning()
        new = NewPartitions(consumer, ["t"])
        read(consumer, new, fill(2))
        admin.delete_topics(["t"])
        admin.create_topics([NewTopic("t", 1)])
        until = time.monotonic() + 20
        while len(consumer.assignment()) > 1 and time.monotonic() < until:
            consumer.poll(timeout=0.05)
            new.assign()
        assert consumer.assignment() == {TopicPartition("t", 0)}
        admin.create_partitions({"t": 2})
        with Producer(bootstrap_servers=ADDRESS, metadata_max_age_ms=100) as producer:
            producer.send("t", value=b"first", partition=1)
        read(consumer, new, {(1, b"first")})
    assert notes == ["new partitions, shown from their beginning: t-1"]

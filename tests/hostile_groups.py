"""As `hostile_clients`: what one client can do with consumer groups, whose partitions the coordinator assigns."""

from __future__ import annotations

from functools import partial
from typing import Any

from kclient.protocol.messages import CreateTopicsRequest, DeleteTopicsRequest
from kclient.protocol.messages import topics as topics_
from kclient.protocol.messages.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatRequestTopicPartitions,
)
from tests.hostile_clients import Course, Site, attack, numbered, side_by_side
from tests.neighbour_probe import framed


def beat_request(group: str, member: str, epoch: int, **fields: Any) -> ConsumerGroupHeartbeatRequest:
    """A ConsumerGroupHeartbeat; of one who joins (epoch 0) with all that it has to say."""
    if epoch == 0:
        fields = {"rebalance_timeout_ms": 300_000, "topic_partitions": [], **fields}
    return ConsumerGroupHeartbeatRequest(group_id=group, member_id=member, member_epoch=epoch, **fields)


def _assigned_crowd(site: Site, group: str, count: int, topic: str) -> None:
    """Have many members of a consumer group."""
    with site.client() as client:
        for number in range(count):
            client.send(framed(beat_request(group, f"m{number:05d}", 0, subscribed_topic_names=[topic]), 1))
            if number % 100 == 99 or number == count - 1:
                for _ in range(number % 100 + 1):
                    client.discard()


@attack("members that read 5,000 topics by a pattern, and come and go")
def restless_patterns(site: Site) -> Course:
    names = numbered("by-pattern-", site.many(5_000))
    site.create(*names)
    frames = [
        framed(
            beat_request(f"patterns-{group}", f"m{group}-{member}", epoch, subscribed_topic_regex="by-pattern-.*"), 1
        )
        for group in range(4)
        for epoch in (0, -1)
        for member in range(2)
    ]
    yield
    site.repeat(*frames, connections=4)


@attack("patterns that are looked up whenever a topic comes or goes")
def followed_patterns(site: Site) -> Course:
    names = numbered("followed-", site.many(5_000))
    site.create(*names)
    groups = [f"followers-{number}" for number in range(site.many(50))]
    with site.client() as client:
        for group in groups:
            client.ask(framed(beat_request(group, "m", 0, subscribed_topic_regex="(followed|coming)-.*"), 1))
    beats = [framed(beat_request(group, "m", 1), 1) for group in groups]
    changes = [
        framed(
            CreateTopicsRequest(
                topics=[topics_.CreatableTopic(name="coming-1", num_partitions=1, replication_factor=1)],
                timeout_ms=30_000,
            ),
            7,
        ),
        framed(DeleteTopicsRequest(topics=[topics_.DeleteTopicState(name="coming-1")], timeout_ms=30_000), 6),
    ]
    yield
    side_by_side(partial(site.repeat, *beats), partial(site.repeat, *changes))


@attack("ConsumerGroupHeartbeat with 10,000 names and 200k partitions")
def wide_heartbeats(site: Site) -> Course:
    count = site.many(200_000)
    wide = ConsumerGroupHeartbeatRequestTopicPartitions(topic_id=bytes(range(16)), partitions=list(range(count)))
    frames = [
        framed(beat_request("wide", "m", 0, subscribed_topic_names=numbered(f"{number}-", site.many(10_000))), 1)
        for number in range(2)
    ]
    frames.append(framed(beat_request("wide", "m", 1, topic_partitions=[wide]), 1))
    yield
    site.repeat(*frames, connections=2)


@attack("ConsumerGroupDescribe of a group of 5,000 members, 20 times")
def describe_crowd(site: Site) -> Course:
    site.create("crowded", partitions=site.many(1_000))
    _assigned_crowd(site, "crowd", site.many(5_000), "crowded")
    frame = framed(ConsumerGroupDescribeRequest(group_ids=["crowd"] * 20), 1)
    yield
    site.repeat(frame, connections=2)


@attack("a crowd of members whose targets change for ever", group_consumer_assignment_interval_ms="0")
def restless_crowd(site: Site) -> Course:
    site.create("restless", partitions=site.many(1_000))
    _assigned_crowd(site, "restless-crowd", site.many(1_000), "restless")
    frames = [
        framed(beat_request("restless-crowd", f"x{number}", epoch, subscribed_topic_names=["restless"]), 1)
        for number in range(10)
        for epoch in (0, -1)
    ]
    yield
    site.repeat(*frames, connections=2)

"""As `hostile_clients`: what one client can do with groups of Kafka Streams."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial
from typing import Any

from kclient.protocol import messages as m
from tests.hostile_clients import Course, Site, attack, numbered, side_by_side
from tests.neighbour_probe import framed

QUICK = {"group_streams_initial_rebalance_delay_ms": "0", "group_streams_assignment_interval_ms": "0"}
NOTHING: dict[str, Any] = {"active_tasks": [], "standby_tasks": [], "warmup_tasks": []}

Part = m.StreamsGroupHeartbeatRequestSubtopology


def _joining(group: str, member: str, parts: list[Part], **fields: Any) -> bytes:
    values: dict[str, Any] = {
        "process_id": member, "rebalance_timeout_ms": 300_000, "client_tags": [],
        "topology": m.StreamsGroupHeartbeatRequestTopology(subtopologies=parts), **NOTHING, **fields,
    }  # fmt: skip
    return framed(m.StreamsGroupHeartbeatRequest(group_id=group, member_id=member, member_epoch=0, **values), 0)


def _beat(group: str, member: str, epoch: int, **fields: Any) -> bytes:
    return framed(m.StreamsGroupHeartbeatRequest(group_id=group, member_id=member, member_epoch=epoch, **fields), 0)


def _internal(name: str, *settings: tuple[str, str]) -> m.StreamsGroupHeartbeatRequestTopicInfo:
    pairs = [m.StreamsGroupHeartbeatRequestKeyValue(key=key, value=value) for key, value in settings]
    return m.StreamsGroupHeartbeatRequestTopicInfo(name=name, topic_configs=pairs)


def _readers(topic: str, count: int) -> list[Part]:
    """Subtopologies that all read one topic."""
    return [Part(subtopology_id=name, source_topics=[topic]) for name in numbered("", count)]


def _chain(first: str, count: int) -> list[Part]:
    """Each reads what the one before writes, with a table beside it: the last ones come first, and are of most work."""
    names = [name.rjust(200, "r") for name in numbered("-repartition", count)]
    return [
        Part(
            subtopology_id=str(place),
            source_topics=[first] if place == 0 else [],
            repartition_source_topics=[_internal(names[place - 1])] if place else [],
            repartition_sink_topics=[names[place]] if place + 1 < count else [],
            state_changelog_topics=[],
            copartition_groups=[m.CopartitionGroup(repartition_source_topics=[0])] if place else [],
        )
        for place in reversed(range(count))
    ]


@attack("topologies of 1,000 subtopologies, whose topics are missing, in ever new groups")
def missing_topics(site: Site) -> Course:
    count = site.many(990)
    parts = [
        Part(
            subtopology_id=name.rjust(20, "x"),
            source_topics=[f"missing-{name}".ljust(100, "x")],
            copartition_groups=[m.CopartitionGroup(source_topics=[0])] * 3,
        )
        for name in numbered("", count)
    ]

    def frames(prefix: str) -> Iterator[bytes]:
        for number in itertools.count():
            yield _joining(f"{prefix}-{number}", "m", parts)
            yield _beat(f"{prefix}-{number}", "m", -1)
            yield framed(m.DeleteGroupsRequest(groups_names=[f"{prefix}-{number}"]), 2)

    yield
    side_by_side(*[partial(site.stream, frames(prefix)) for prefix in "abcd"])


@attack("topologies of 990 subtopologies in a row, which cannot be")
def endless_rows(site: Site) -> Course:
    site.create("there")
    parts = _chain("there", site.many(990))
    parts[-1].copartition_groups = [m.CopartitionGroup(repartition_source_topics=[7])]  # of which there is none
    yield
    site.repeat(*(_joining(f"row-{number}", "m", parts) for number in range(4)), connections=4)


@attack("streams: groups whose one member has 20,000 tasks, and comes and goes", **QUICK)
def all_tasks(site: Site) -> Course:
    site.create("tasks", partitions=20)
    parts = _readers("tasks", site.many(990))

    def frames(group: str) -> Iterator[bytes]:
        for number in itertools.count():
            yield _joining(group, f"m{number}", parts)
            yield _beat(group, f"m{number}", -1)

    yield
    side_by_side(*[partial(site.stream, frames(group)) for group in "abcd"])


@attack("streams: a group of 20,000 tasks and 200 members, which come and go", **QUICK)
def restless_tasks(site: Site) -> Course:
    site.create("tasks", partitions=20)
    parts = _readers("tasks", site.many(990))
    frames = [_joining("restless", f"m{number:03d}", parts, **_told(number)) for number in range(site.many(200))]
    with site.client() as client:
        for frame in frames:
            client.ask(frame)
    yield
    leaving = [_beat("restless", f"m{number:03d}", -1) for number in range(site.many(20))]
    site.repeat(*(each for pair in zip(leaving, frames, strict=False) for each in pair), connections=4)


def _told(number: int) -> dict[str, Any]:
    """An endpoint, of which all members are told with all partitions behind it."""
    return {"user_endpoint": m.StreamsGroupHeartbeatRequestEndpoint(host=f"host-{number}", port=1)}


@attack("streams: members who ask for all endpoints of 20,000 tasks", **QUICK)
def endpoints(site: Site) -> Course:
    names = numbered("behind-", site.many(990))
    site.create(*names, partitions=20)
    parts = [Part(subtopology_id=name, source_topics=[name]) for name in names]
    members = [f"m{number:03d}" for number in range(10)]
    epochs: dict[str, int] = {}
    with site.client() as client:
        for number, member in enumerate(members):
            client.ask(_joining("asked", member, parts, **_told(number)))
        for member in members:
            for epoch in (len(members) + 1, len(members)):
                request = m.StreamsGroupHeartbeatRequest(
                    group_id="asked", member_id=member, member_epoch=epoch, **NOTHING
                )
                answer: Any = client.call(request, 0)
                epochs[member] = answer.member_epoch
    yield
    frames = [_beat("asked", member, epoch, endpoint_information_epoch=-1) for member, epoch in epochs.items()]
    site.repeat(*frames, connections=4)


@attack("streams: StreamsGroupDescribe of 20,000 tasks and 300 members, 20 times", **QUICK)
def described(site: Site) -> Course:
    site.create("tasks", partitions=20)
    parts = _readers("tasks", site.many(990))
    with site.client() as client:
        for number in range(site.many(300)):
            client.ask(_joining("crowd", f"m{number:04d}", parts))
    frame = framed(m.StreamsGroupDescribeRequest(group_ids=["crowd"] * 20), 0)
    yield
    site.repeat(frame, connections=2)


@attack("heartbeats of streams members who say that they have a million tasks", **QUICK)
def absurd_tasks(site: Site) -> Course:
    site.create("tasks", partitions=10)
    parts = _readers("tasks", 10)
    ids = m.StreamsGroupHeartbeatRequestTaskIds
    wide = [ids(subtopology_id="0", partitions=list(range(site.many(1_000_000))))]
    many = [ids(subtopology_id=name, partitions=[0]) for name in numbered("s", site.many(200_000))]
    with site.client() as client:
        client.ask(_joining("absurd", "m", parts))
    yield
    frames = [_beat("absurd", "m", 2, **{**NOTHING, "active_tasks": told}) for told in (wide, many)]
    site.repeat(*frames, connections=2)


@attack("StreamsGroupDescribe of 200k names")
def described_names(site: Site) -> Course:
    frame = framed(m.StreamsGroupDescribeRequest(group_ids=numbered("no-", site.many(200_000))), 0)
    yield
    site.repeat(frame)

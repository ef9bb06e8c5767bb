"""What the members of a consumer group read by patterns: looked up in steps, once for all of them, change by change."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import GeneratorType
from typing import Any, cast

import pytest

from kclient.errors import ErrorCode
from kclient.gateway.contexts import RequestContext
from kclient.gateway.rows.consumer_groups import decode_consumer_member
from kclient.gateway.rows.keys import MEMBERS, parse_member_key
from kclient.protocol.message import ApiMessage
from kclient.protocol.messages import JoinGroupRequestProtocol
from kclient.protocol.messages.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
)
from kclient.protocol.registry import ApiKey
from tests.all_rows import scan_all
from tests.unit.gateway_groups.assignedbox import AssignedBox
from tests.unit.gateway_groups.harness import Harness, coordinator, finished, fresh_name, reset
from tests.unit.gateway_groups.test_assigned_members import assigned, beat, join, joining
from tests.unit.gateway_groups.test_migrated_groups import metadata

pytestmark = pytest.mark.anyio

MANY = 1_000


@pytest.fixture
async def store() -> AsyncIterator[str]:
    name = fresh_name()
    yield name
    reset(name)


def put_many(box: Harness, count: int = MANY) -> None:
    for number in range(count):
        box.topics.put(f"x{number:04d}", b"%16d" % number)


def begun(box: Harness, request: ApiMessage, version: int = 1) -> Any:
    """What a handler begins, which nobody goes on with."""
    key = ApiKey(cast("int", type(request).API_KEY))
    context = RequestContext(key, version, 7, "c", box.connection, cast("Any", None))
    return box.table.handlers[key].begin(request, context)


async def test_topics_are_compared_in_steps(store: str) -> None:
    async with coordinator(store) as box:
        put_many(box)
        work = begun(box, joining("m1", [], subscribed_topic_regex="x.*"))
        assert isinstance(work, GeneratorType)
        steps = [step for step, _ in zip(work, range(MANY // 64), strict=False)]
        assert len(steps) == MANY // 64
        assert sum(steps) > 100 * MANY, "the memory of what it finds is counted"


async def test_who_comes_meanwhile_waits_for_who_looks(store: str) -> None:
    """After a restart nobody knows what a pattern stands for: nobody gives anything up because another one asks."""
    async with coordinator(store) as box:
        put_many(box)
        for member in ("m1", "m2"):
            answer = await join(box, member, topics=[], subscribed_topic_regex="x.*")
        epoch = answer.member_epoch
    async with coordinator(store) as box:
        put_many(box)
        first = begun(box, beat("m1", 1))
        next(first)
        other = begun(box, beat("m2", epoch))
        waited_for = next(other)
        assert waited_for is not None
        assert not waited_for.done
        first_answer = await finished(first)
        assert waited_for.done
        answer = await finished(other)
        assert first_answer.error_code == answer.error_code == 0
        assert answer.assignment is None
        assert box.groups.table.groups["g"].group.shown_state != "Assigning"


async def test_who_looks_goes_away_and_another_one_looks(store: str) -> None:
    async with coordinator(store) as box:
        put_many(box)
        await join(box, "m1", topics=[], subscribed_topic_regex="x.*")
    async with coordinator(store) as box:
        put_many(box)
        first = begun(box, beat("m1", 1))
        next(first)
        other = begun(box, beat("m1", 1))
        waited_for = next(other)
        first.close()
        assert waited_for.done
        answer = await finished(other)
        assert (answer.error_code, answer.assignment) == (0, None)


async def test_a_member_of_the_classic_protocol_that_comes_first_takes_nothing_away(store: str) -> None:
    settings = {"group_consumer_assignment_interval_ms": 0, "group_consumer_migration_policy": "bidirectional"}
    protocols = [JoinGroupRequestProtocol(name="range", metadata=metadata([]))]
    async with coordinator(store, **settings) as box:
        put_many(box, 3)
        await join(box, "m1", topics=[], subscribed_topic_regex="x.*")
    async with coordinator(store, **settings) as box:
        put_many(box, 3)
        joined = await box.join(version=3, session_timeout_ms=60_000, protocols=protocols)
        assert joined.error_code == 0
        answer = await box.ask(beat("m1", 1))
        assert (answer.error_code, answer.assignment) == (0, None)
        (group,) = (await box.ask(ConsumerGroupDescribeRequest(group_ids=["g"]))).groups
        held = {each.member_id: len(each.assignment.topic_partitions) for each in group.members}
        assert held["m1"] == 3


async def test_only_what_has_changed_is_compared_again(store: str) -> None:
    async with coordinator(store, group_consumer_assignment_interval_ms=0) as box:
        put_many(box)
        answer = await join(box, "m1", topics=[], subscribed_topic_regex="x.*|y1")
        assert len(assigned(answer) or {}) == MANY
        box.topics.put("y1", b"y" * 16)
        box.topics.put("z1", b"z" * 16)
        del box.topics.by_name["x0000"]
        box.topics.changed.append("x0000")
        work = begun(box, beat("m1", 1))
        steps = 0
        while isinstance(work, GeneratorType):
            try:
                next(work)
                steps += 1
            except StopIteration as end:
                work = end.value
        assert steps == 0, "three names are compared at once"
        answer = await finished(work)
        now = {each.topic_id for each in answer.assignment.topic_partitions}
        assert len(now) == MANY - 1, "y1 comes when x0000 is given up"
        answer = await box.ask(beat("m1", 1, {topic: [0] for topic in now}))
        now = set(assigned(answer) or ())
        assert b"y" * 16 in now
        assert b"z" * 16 not in now


async def test_a_topic_that_is_made_anew_is_another_one(store: str) -> None:
    async with coordinator(store, group_consumer_assignment_interval_ms=0) as box:
        put_many(box, 2)
        await join(box, "m1", topics=[], subscribed_topic_regex="x.*")
        box.topics.put("x0000", b"n" * 16)
        await box.ask(beat("m1", 1))
        answer = await box.ask(beat("m1", 1, {b"%16d" % 1: [0]}))
        assert set(assigned(answer) or ()) == {b"n" * 16, b"%16d" % 1}


async def test_a_member_that_reads_very_much_is_stored_and_described_in_steps(store: str) -> None:
    async with coordinator(store) as box:
        put_many(box)
        answer = await join(box, "m1", topics=[], subscribed_topic_regex="x.*")
        expected = {b"%16d" % number: [0] for number in range(MANY)}
        assert assigned(answer) == expected
        rows = await scan_all(box.manager, MEMBERS)
        ((key, row),) = rows.items()
        snapshot = decode_consumer_member(row.value, parse_member_key(key)[1])
        assert {topic: list(numbers) for topic, numbers in snapshot.assigned.items()} == expected
        assert {topic: sorted(numbers) for topic, numbers in snapshot.target.items()} == expected
        described = (await box.ask(ConsumerGroupDescribeRequest(group_ids=["g"] * 3))).groups
        for group in described:
            (member,) = group.members
            shown = {each.topic_id: (each.topic_name, each.partitions) for each in member.assignment.topic_partitions}
            assert shown == {b"%16d" % number: (f"x{number:04d}", [0]) for number in range(MANY)}
            assert len(member.target_assignment.topic_partitions) == MANY
    async with coordinator(store) as box:
        put_many(box)
        assert (await box.ask(beat("m1", 1))).assignment is None


async def test_what_members_read_counts_as_memory(store: str) -> None:
    async with coordinator(store) as box:
        put_many(box)
        await join(box, "m1", topics=[], subscribed_topic_regex="y.*")
        before = box.groups.table.groups["g"].group.size
        for number in range(MANY):
            box.topics.put(f"y{number}", b"y%15d" % number)
        await box.ask(beat("m1", 1))
        assert box.groups.table.groups["g"].group.size > before + 200 * MANY


def test_what_was_found_out_earlier_is_not_in_force_later() -> None:
    box = AssignedBox(topics={"a1": 1})
    old = box.looked_up("a.*", ["a1"])
    box.topics.put("a2", 1)
    box.join("m1", (), pattern="a.*", resolved={"a.*": frozenset({"a1", "a2"})})
    members = box.group.members
    version = members.version
    members.learn(old, box.topics)
    members.learn(old._replace(since=0, whole=None, news={"a2": False}), box.topics)
    assert members.version == version
    assert members.reads_topic("a2")


async def test_requests_that_fail_leave_nobody_waiting(store: str) -> None:
    async with coordinator(store) as box:
        put_many(box)
        await join(box, "m1", topics=[], subscribed_topic_regex="x.*")
        box.topics.put("x9999", b"9" * 16)
        refused = ConsumerGroupHeartbeatRequest(group_id="g", member_id="m1", member_epoch=7)
        with pytest.raises(Exception, match="epoch"):
            await box.ask(refused)
        answer = await box.ask(beat("m1", 1))
        assert answer.error_code == ErrorCode.NONE

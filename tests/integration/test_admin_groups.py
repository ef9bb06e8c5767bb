"""Groups of every type on a real Kafka: described as what they are, with their members and lag."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.to_thread
import confluent_kafka
import pytest

import kclient
from kclient.admin import GroupDescription, PartialFailureError
from kclient.errors import ErrorCode, GroupIdNotFoundError, GroupNotEmptyError, NotYetSupportedError
from kclient.protocol.messages import (
    FindCoordinatorRequest,
    ShareGroupHeartbeatRequest,
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatRequestSubtopology,
    StreamsGroupHeartbeatRequestTopology,
)
from kclient.types import TopicPartition
from tests.kafka_server import KafkaServer
from tests.wire_session import WireSession, until, wire_session

pytestmark = [pytest.mark.anyio, pytest.mark.kafka]


@pytest.fixture(params=["asyncio"])  # what differs on trio is not the groups
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def admin(kafka: KafkaServer, topic: str) -> AsyncIterator[kclient.Admin]:
    async with kclient.Admin(bootstrap_servers=kafka.bootstrap) as made:
        await made.create_topic(topic, 2)
        yield made


async def fill(bootstrap: str, topic: str) -> None:
    async with kclient.Producer(bootstrap_servers=bootstrap) as producer:
        for partition in (0, 1):
            await (await producer.send_batch(topic, [b"a", b"b", b"c"], partition=partition))


async def described(admin: kclient.Admin, group: str) -> GroupDescription:
    return (await admin.describe_groups([group]))[group]


@asynccontextmanager
async def foreign_consumer(bootstrap: str, group: str, topic: str) -> AsyncIterator[Any]:
    """A member of a group with the consumer protocol (KIP-848) that has read and committed one record of each."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "group.protocol": "consumer",
            "client.id": "reader",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    try:
        seen: set[int] = set()
        with anyio.fail_after(60):
            while len(seen) < 2:
                message = await anyio.to_thread.run_sync(consumer.poll, 0.1)
                if message is not None and message.error() is None and message.offset() == 0:
                    seen.add(message.partition())
                    await anyio.to_thread.run_sync(lambda m: consumer.commit(message=m, asynchronous=False), message)
        yield consumer
    finally:
        await anyio.to_thread.run_sync(consumer.close)


@pytest.mark.foreign
async def test_a_group_of_the_consumer_protocol(kafka: KafkaServer, admin: kclient.Admin, topic: str) -> None:
    group = f"g-{topic}"
    await fill(kafka.bootstrap, topic)
    partitions = (TopicPartition(topic, 0), TopicPartition(topic, 1))
    async with foreign_consumer(kafka.bootstrap, group, topic):
        found = await described(admin, group)
        assert (found.type, found.state, found.protocol_type) == ("consumer", "Stable", "consumer")
        assert found.assignor in {"uniform", "range"}
        assert found.group_epoch is not None
        assert found.target_assignment_epoch == found.group_epoch
        (member,) = found.members
        assert (member.client_id, tuple(sorted(member.assignment))) == ("reader", partitions)
        assert tuple(sorted(member.target_assignment or ())) == partitions
        assert member.member_epoch == found.group_epoch
        lags = await admin.group_lag(group)
        assert {tp: (lag.committed, lag.end, lag.lag) for tp, lag in lags.items()} == dict.fromkeys(
            partitions, (1, 3, 2)
        )
        assert {lag.member for lag in lags.values()} == {member}
        (listed,) = [listing for listing in await admin.list_groups(types=["consumer"]) if listing.group_id == group]
        assert listed.type.lower() == found.type
        with pytest.raises(GroupNotEmptyError):
            await admin.reset_group_offsets(group, 0)
    empty = await until(lambda: described(admin, group), lambda found: not found.members)
    assert (empty.type, empty.state) == ("consumer", "Empty")
    assert {lag.member for lag in (await admin.group_lag(group)).values()} == {None}
    await admin.reset_group_offsets(group, {TopicPartition(topic, 0): 2})
    assert (await admin.group_lag(group))[partitions[0]].lag == 1
    await admin.delete_groups([group])
    with pytest.raises(GroupIdNotFoundError):
        await admin.describe_groups([group])


SOON = {
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
}


async def beat(session: WireSession, request: Any) -> Any:
    """Heartbeats until the member has joined: the coordinator's topic may have to be made first."""

    async def ask() -> Any:
        await session(FindCoordinatorRequest(coordinator_keys=[request.group_id]))
        return await session(request)

    answer = await until(ask, lambda answer: answer.error_code not in SOON)
    assert answer.error_code == 0, answer
    return answer


async def test_a_share_group(kafka: KafkaServer, admin: kclient.Admin, topic: str) -> None:
    group, member_id = f"s-{topic}", str(uuid.uuid4())
    async with wire_session(kafka.bootstrap) as session:
        joined = ShareGroupHeartbeatRequest(
            group_id=group, member_id=member_id, member_epoch=0, subscribed_topic_names=[topic]
        )
        await beat(session, joined)
        found = await described(admin, group)
        assert (found.type, found.protocol_type) == ("share", "share")
        assert [member.member_id for member in found.members] == [member_id]
        with pytest.raises(NotYetSupportedError, match="is a share group"):
            await admin.group_lag(group)
        with pytest.raises(NotYetSupportedError, match="is a share group"):
            await admin.reset_group_offsets(group, 0)
        await session(ShareGroupHeartbeatRequest(group_id=group, member_id=member_id, member_epoch=-1))
    with pytest.raises(PartialFailureError) as caught:
        await admin.describe_groups([group, "nowhere", "never"])
    assert set(caught.value.failures) == {"nowhere", "never"}


async def test_a_streams_group(kafka: KafkaServer, admin: kclient.Admin, topic: str) -> None:
    group, member_id = f"st-{topic}", str(uuid.uuid4())
    topology = StreamsGroupHeartbeatRequestTopology(
        epoch=1, subtopologies=[StreamsGroupHeartbeatRequestSubtopology(subtopology_id="0", source_topics=[topic])]
    )
    async with wire_session(kafka.bootstrap) as session:
        joined = StreamsGroupHeartbeatRequest(
            group_id=group,
            member_id=member_id,
            member_epoch=0,
            rebalance_timeout_ms=60_000,
            topology=topology,
            active_tasks=[],
            standby_tasks=[],
            warmup_tasks=[],
            process_id="p",
            client_tags=[],
        )
        epoch = (await beat(session, joined)).member_epoch

        async def one_more() -> GroupDescription:
            nonlocal epoch
            going_on = StreamsGroupHeartbeatRequest(group_id=group, member_id=member_id, member_epoch=epoch)
            epoch = (await session(going_on)).member_epoch
            await anyio.sleep(0.1)
            return await described(admin, group)

        found = await until(one_more, lambda found: bool(found.members[0].target_assignment))
        assert (found.type, found.protocol_type) == ("streams", "streams")
        (member,) = found.members
        assert member.member_id == member_id
        assert sorted(member.target_assignment or ()) == [TopicPartition(topic, 0), TopicPartition(topic, 1)]
        assert await admin.group_lag(group) is not None

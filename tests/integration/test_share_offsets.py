"""Offsets of share groups (KIP-932), listed, altered and deleted by the admin client on real Kafka and on a gateway."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator

import anyio
import anyio.to_thread
import pytest

import kclient
from kclient.admin import Admin, ConfigResource, ConfigResourceType, SharePartitionOffset
from kclient.errors import (
    ErrorCode,
    GroupIdNotFoundError,
    GroupNotEmptyError,
    UnknownTopicOrPartitionError,
    UnsupportedVersionError,
)
from kclient.protocol.messages import FindCoordinatorRequest, ShareGroupHeartbeatRequest
from kclient.types import TopicPartition
from tests.kafka_server import KafkaServer
from tests.wire_session import until, wire_session

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(180)]


@pytest.fixture(params=["asyncio"])  # what differs on trio is not the offsets
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


CONSOLE = "org.apache.kafka.tools.consumer.ConsoleShareConsumer"


@pytest.fixture
async def admin(broker: str, topic: str) -> AsyncIterator[Admin]:
    async with Admin(bootstrap_servers=broker) as found:
        await found.create_topic(topic, 1)
        async with kclient.Producer(bootstrap_servers=broker) as producer:
            await (await producer.send_batch(topic, [b"a", b"b", b"c", b"d"]))
        yield found


@pytest.fixture
def group() -> str:
    return f"share-{uuid.uuid4().hex[:8]}"


async def read(kafka: KafkaServer, address: str, admin: Admin, group: str, topic: str, count: int) -> str:
    """What Kafka's own console reads as a member of a share group, from the beginning."""
    resource = ConfigResource(ConfigResourceType.GROUP, group)
    await admin.alter_configs({resource: {"share.auto.offset.reset": "earliest"}})
    arguments = [
        "--bootstrap-server",
        address,
        "--group",
        group,
        "--topic",
        topic,
        "--max-messages",
        str(count),
    ]
    return await anyio.to_thread.run_sync(lambda: kafka.run_tool(CONSOLE, *arguments, timeout=120))


@pytest.mark.kafka
async def test_offsets_of_a_share_group(kafka: KafkaServer, broker: str, admin: Admin, topic: str, group: str) -> None:
    tp = TopicPartition(topic, 0)
    assert (await read(kafka, broker, admin, group, topic, 4)).split() == ["a", "b", "c", "d"]
    found = await until(lambda: admin.list_share_group_offsets(group), lambda found: found[tp].lag == 0)
    assert found[tp].leader_epoch >= 0  # where it begins depends on when the broker has written it anew
    assert await admin.list_share_group_offsets(group, [tp, (topic, 7), ("missing", 0)]) == found

    await admin.alter_share_group_offsets(group, {tp: 1})
    assert await admin.list_share_group_offsets(group) == {tp: SharePartitionOffset(1, 0, 3)}
    assert (await read(kafka, broker, admin, group, topic, 3)).split() == ["b", "c", "d"]

    await admin.delete_share_group_offsets(group, [topic])
    assert await admin.list_share_group_offsets(group) == {}
    assert (await read(kafka, broker, admin, group, topic, 4)).split() == ["a", "b", "c", "d"]


async def test_a_group_that_is_made_by_it(admin: Admin, topic: str, group: str) -> None:
    assert await admin.list_share_group_offsets(group) == {}
    await admin.alter_share_group_offsets(group, {})
    await admin.delete_share_group_offsets(group, [])
    with pytest.raises(UnknownTopicOrPartitionError, match=f"{topic}-5"):
        await admin.alter_share_group_offsets(group, {(topic, 0): 2, (topic, 5): 1})
    assert await admin.list_share_group_offsets(group) == {TopicPartition(topic, 0): SharePartitionOffset(2, 0, 2)}
    assert (await admin.describe_groups([group]))[group].type == "share"
    with pytest.raises(UnknownTopicOrPartitionError, match="missing"):
        await admin.delete_share_group_offsets(group, [topic, "missing"])
    assert await admin.list_share_group_offsets(group) == {}


async def test_a_group_with_members(broker: str, admin: Admin, topic: str, group: str) -> None:
    async with wire_session(broker) as session:
        await session(FindCoordinatorRequest(coordinator_keys=[group]))
        request = ShareGroupHeartbeatRequest(
            group_id=group, member_id="AAAAAAAAAAAAAAAAAAAAAQ", member_epoch=0, subscribed_topic_names=[topic]
        )
        await until(lambda: session(request), lambda answer: answer.error_code == ErrorCode.NONE)
        with pytest.raises(GroupNotEmptyError, match=group):
            await admin.alter_share_group_offsets(group, {(topic, 0): 0})
        with pytest.raises(GroupNotEmptyError, match=group):
            await admin.delete_share_group_offsets(group, [topic])
        request.member_epoch = -1
        await session(request)


async def test_what_is_refused(admin: Admin, topic: str, group: str) -> None:
    with pytest.raises(GroupIdNotFoundError, match=group):
        await admin.delete_share_group_offsets(group, [topic])
    with pytest.raises(ValueError, match="negative offset"):
        await admin.alter_share_group_offsets(group, {(topic, 0): -1})
    await admin.alter_group_offsets(group, {(topic, 0): 0})  # a classic group
    assert await admin.list_share_group_offsets(group) == {}
    with pytest.raises(GroupIdNotFoundError, match="is not a share group"):
        await admin.alter_share_group_offsets(group, {(topic, 0): 0})
    with pytest.raises(GroupIdNotFoundError, match="is not a share group"):
        await admin.delete_share_group_offsets(group, [topic])


@pytest.mark.kafka
async def test_brokers_without_share_groups(kafka3: KafkaServer) -> None:
    async with Admin(bootstrap_servers=kafka3.bootstrap) as admin:
        for call in (
            lambda: admin.list_share_group_offsets("g"),
            lambda: admin.alter_share_group_offsets("g", {("t", 0): 0}),
            lambda: admin.delete_share_group_offsets("g", ["t"]),
        ):
            with pytest.raises(UnsupportedVersionError, match="SHARE_GROUP_OFFSETS"):
                await call()

"""Members that are removed from their groups, by the admin client and by `kclient groups`."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import anyio
import anyio.to_thread
import confluent_kafka
import pytest

import kclient
from kclient.admin import PartialFailureError
from kclient.cli.app import run
from kclient.errors import ErrorCode, GroupIdNotFoundError, UnknownMemberIdError
from kclient.protocol.messages import FindCoordinatorRequest, ShareGroupHeartbeatRequest
from tests.kafka_server import KafkaServer
from tests.wire_session import until, wire_session

pytestmark = pytest.mark.anyio


async def instances(admin: kclient.Admin, group: str) -> set[str | None]:
    return {member.group_instance_id for member in (await admin.describe_groups([group]))[group].members}


@asynccontextmanager
async def reading(broker: str, topic: str, *names: str | None) -> AsyncIterator[list[kclient.Consumer]]:
    """Consumers of a group named as the topic, static ones and (None) dynamic ones, which have their partitions."""
    async with AsyncExitStack() as stack:
        consumers = [
            await stack.enter_async_context(
                kclient.Consumer(topic, group_id=topic, group_instance_id=name, bootstrap_servers=broker)
            )
            for name in names
        ]
        await assigned(*consumers)
        yield consumers


async def assigned(*consumers: kclient.Consumer) -> None:
    """Polls them in turn until each has partitions: in a rebalance all have to take part."""
    with anyio.fail_after(60):
        while not all(consumer.assignment() for consumer in consumers):
            for consumer in consumers:
                await consumer.poll(timeout=0.05)


@pytest.fixture
async def admin(broker: str, topic: str) -> AsyncIterator[kclient.Admin]:
    async with kclient.Admin(bootstrap_servers=broker) as found:
        await found.create_topic(topic, 4)
        yield found


async def members(admin: kclient.Admin, group: str) -> dict[str, str | None]:
    return {m.member_id: m.group_instance_id for m in (await admin.describe_groups([group]))[group].members}


async def test_a_static_member_is_removed(admin: kclient.Admin, broker: str, topic: str) -> None:
    """The others get what it had; as it is still there, it joins again, as another."""
    async with reading(broker, topic, "one", "two", None) as consumers:
        before = await members(admin, topic)
        assert set(before.values()) == {"one", "two", None}
        await admin.remove_members_from_consumer_group(topic, ["one"], reason="its host is gone")
        assert "one" not in {before[member] for member in await members(admin, topic) if member in before}
        await assigned(*consumers[1:])
        found = await members(admin, topic)
        with anyio.fail_after(60):
            while set(found.values()) != {"one", "two", None}:
                for consumer in consumers:
                    await consumer.poll(timeout=0.05)
                found = await members(admin, topic)
        assert {found[member] for member in found.keys() & before.keys()} == {"two", None}


async def test_those_that_are_not_there(admin: kclient.Admin, broker: str, topic: str) -> None:
    with pytest.raises(UnknownMemberIdError, match=f"Member 'one' of group '{topic}'"):
        await admin.remove_members_from_consumer_group(topic, ["one"])
    with pytest.raises(GroupIdNotFoundError):
        await admin.remove_members_from_consumer_group(topic)
    async with reading(broker, topic, "one"):
        with pytest.raises(PartialFailureError) as caught:
            await admin.remove_members_from_consumer_group(topic, ["zero", "one", "two"])
        assert set(caught.value.failures) == {"zero", "two"}
        assert all(isinstance(error, UnknownMemberIdError) for error in caught.value.failures.values())
        assert await instances(admin, topic) == set()
    await admin.remove_members_from_consumer_group(topic)  # there are none any more
    await admin.remove_members_from_consumer_group(topic, [])


async def test_all_members_at_once(admin: kclient.Admin, broker: str, topic: str) -> None:
    async with reading(broker, topic, "one", None, None):
        before = await members(admin, topic)
        assert len(before) == 3
        await admin.remove_members_from_consumer_group(topic)
        assert not before.keys() & (await members(admin, topic)).keys()  # those that are still there join as others


@pytest.mark.kafka
async def test_an_older_broker(kafka3: KafkaServer, topic: str) -> None:
    async with kclient.Admin(bootstrap_servers=kafka3.bootstrap) as admin:
        await admin.create_topic(topic, 2)
        async with reading(kafka3.bootstrap, topic, "one", None):
            await admin.remove_members_from_consumer_group(topic, ["one"])
            assert await instances(admin, topic) == {None}


@asynccontextmanager
async def by_the_newer_protocol(bootstrap: str, topic: str, *names: str | None) -> AsyncIterator[None]:
    """Members of a group with the consumer protocol (KIP-848)."""
    made = []
    try:
        for name in names:
            settings = {"bootstrap.servers": bootstrap, "group.id": topic, "group.protocol": "consumer"}
            if name is not None:
                settings["group.instance.id"] = name
            consumer = confluent_kafka.Consumer(settings)
            made.append(consumer)
            consumer.subscribe([topic])
        with anyio.fail_after(60):
            while not all([await anyio.to_thread.run_sync(each.assignment) for each in made]):
                for consumer in made:
                    await anyio.to_thread.run_sync(consumer.poll, 0.05)
        yield
    finally:
        for consumer in made:
            await anyio.to_thread.run_sync(consumer.close)


@pytest.mark.kafka
async def test_members_by_the_newer_protocol(kafka: KafkaServer, topic: str) -> None:
    """Kafka 4.3 removes them as others."""
    async with kclient.Admin(bootstrap_servers=kafka.bootstrap) as admin:
        await admin.create_topic(topic, 3)
        async with by_the_newer_protocol(kafka.bootstrap, topic, "one", "two", None):
            before = await members(admin, topic)
            assert set(before.values()) == {"one", "two", None}
            with pytest.raises(UnknownMemberIdError, match="Member 'three'"):
                await admin.remove_members_from_consumer_group(topic, ["one", "three"])
            assert {before.get(member) for member in await members(admin, topic)} <= {"two", None}
            await admin.remove_members_from_consumer_group(topic)
            assert not before.keys() & (await members(admin, topic)).keys()


@pytest.mark.kafka
async def test_members_of_a_share_group(kafka: KafkaServer, topic: str) -> None:
    """It is not for these; what Kafka answers is told, with what the group is."""
    async with wire_session(kafka.bootstrap) as session, kclient.Admin(bootstrap_servers=kafka.bootstrap) as admin:
        await admin.create_topic(topic, 1)
        await session(FindCoordinatorRequest(coordinator_keys=[topic]))
        request = ShareGroupHeartbeatRequest(
            group_id=topic, member_id="AAAAAAAAAAAAAAAAAAAAAQ", member_epoch=0, subscribed_topic_names=[topic]
        )
        await until(lambda: session(request), lambda answer: answer.error_code == ErrorCode.NONE)
        with pytest.raises(UnknownMemberIdError, match="of type share"):
            await admin.remove_members_from_consumer_group(topic)


async def test_the_command(admin: kclient.Admin, broker: str, topic: str, capsys: pytest.CaptureFixture[str]) -> None:
    async def groups(*arguments: str) -> int:
        return await anyio.to_thread.run_sync(run, ["groups", *arguments, "--bootstrap", broker])

    async with reading(broker, topic, "one"):
        capsys.readouterr()
        assert await groups("members", topic, "--output", "json") == 0
        (row,) = json.loads(capsys.readouterr().out)["members"]
        assert (row["instance"], row["partitions"]) == ("one", [f"{topic}-{number}" for number in range(4)])
        assert await groups("remove-members", topic, "--instance", "two") == 1
        assert await groups("remove-members", topic, "--instance", "one", "--reason", "gone") == 0
        assert await instances(admin, topic) == set()
        assert await groups("remove-members", topic, "--all") == 0


@pytest.mark.parametrize(
    ("arguments", "told"),
    [([], "say which members"), (["--all", "--instance", "a"], "say which members"), (["--instance", ""], "not empty")],
)
def test_what_cannot_be_is_told(arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["groups", "remove-members", "g", *arguments, "--bootstrap", "127.0.0.1:1"]) == 2
    assert told in capsys.readouterr().err

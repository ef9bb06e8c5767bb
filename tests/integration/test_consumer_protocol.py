"""`group.protocol=consumer` (KIP-848): groups whose partitions the coordinator assigns, Kafka's or a gateway's."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import confluent_kafka
import pytest

import kclient
import kclient.sync
from kclient.consumer import RebalanceListener, SubscriptionPattern
from kclient.errors import (
    CommitFailedError,
    FencedInstanceIdError,
    IllegalStateError,
    InvalidRegularExpressionError,
    MaxPollExceededError,
    UnreleasedInstanceIdError,
    UnsupportedAssignorError,
    UnsupportedVersionError,
)
from kclient.protocol import messages as m
from kclient.types import TopicPartition
from tests.kafka_artifacts import KAFKA_4
from tests.kafka_server import JavaTools, KafkaServer
from tests.wire_session import until, wire_session

pytestmark = pytest.mark.anyio

ON_ASYNCIO = pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)
"""A rebalance takes some heartbeats: most is tried once."""
ON_TRIO = pytest.mark.parametrize("anyio_backend", ["trio"], indirect=True)


class Told(RebalanceListener):
    """Notes what it is told, and commits what is revoked where it is given a consumer."""

    def __init__(self, consumer: kclient.Consumer | None = None) -> None:
        self.calls: list[tuple[str, list[int]]] = []
        self._consumer = consumer

    def _note(self, what: str, partitions: Sequence[TopicPartition]) -> None:
        self.calls.append((what, [tp.partition for tp in partitions]))

    async def on_partitions_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        self._note("revoked", partitions)
        if self._consumer is not None:
            await self._consumer.commit()

    async def on_partitions_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        self._note("assigned", partitions)

    async def on_partitions_lost(self, partitions: Sequence[TopicPartition]) -> None:
        self._note("lost", partitions)

    def told(self, what: str) -> set[int]:
        return {number for kind, numbers in self.calls if kind == what for number in numbers}


@pytest.fixture
async def admin(broker: str, topic: str) -> AsyncIterator[kclient.Admin]:
    async with kclient.Admin(bootstrap_servers=broker) as found:
        await found.create_topic(topic, 4)
        yield found


def settings(broker: str, group: str, **more: Any) -> dict[str, Any]:
    return {
        "bootstrap_servers": broker,
        "group_id": group,
        "group_protocol": "consumer",
        "auto_offset_reset": "earliest",
        **more,
    }


async def balanced(*consumers: kclient.Consumer, partitions: int = 4) -> None:
    """Polls them in turn until each has partitions, and all are read by one of them."""
    with anyio.fail_after(60):
        while True:
            held = [consumer.assignment() for consumer in consumers]
            if all(held) and sum(map(len, held)) == partitions:
                return
            for consumer in consumers:
                await consumer.poll(timeout=0.05)


async def fill(broker: str, topic: str, values: range, partitions: int = 4) -> None:
    async with kclient.Producer(bootstrap_servers=broker) as producer:
        for value in values:
            await producer.send(topic, value=str(value).encode(), partition=value % partitions)


async def take(values: set[int], *consumers: kclient.Consumer) -> list[int]:
    """Everything that they read until all of these have come."""
    got: list[int] = []
    with anyio.fail_after(60):
        while not values <= set(got):
            for consumer in consumers:
                got += [int(record.value) for record in await consumer.poll(timeout=0.05)]
    return got


@ON_ASYNCIO
async def test_members_share_the_partitions(broker: str, admin: kclient.Admin, topic: str) -> None:
    """One comes and one goes: nothing is read twice, as what is revoked is committed first."""
    await fill(broker, topic, range(40))
    async with kclient.Consumer(**settings(broker, topic)) as one:
        first = Told(one)
        one.subscribe([topic], first)
        assert len(await one.joined()) == 4
        got = await take(set(range(40)), one)
        async with kclient.Consumer(**settings(broker, topic)) as two:
            second = Told(two)
            two.subscribe([topic], second)
            await balanced(one, two)
            assert first.told("revoked") == second.told("assigned") == {tp.partition for tp in two.assignment()}
            await fill(broker, topic, range(40, 80))
            got += await take(set(range(40, 80)), one, two)
            (group,) = (await admin.describe_groups([topic])).values()
            assert {member.member_id for member in group.members} == {
                one.group_metadata().member_id,
                two.group_metadata().member_id,
            }
        await balanced(one)
        await fill(broker, topic, range(80, 120))
        got += await take(set(range(80, 120)), one)
        assert sorted(got) == list(range(120))
        assert first.told("lost") == second.told("lost") == set()
        member = one.group_metadata()
        assert member.generation_id > 0
    assert second.calls[-1][0] == "revoked"  # on close


@ON_TRIO
async def test_with_trio(broker: str, admin: kclient.Admin, topic: str) -> None:
    await fill(broker, topic, range(8))
    async with kclient.Consumer(topic, **settings(broker, topic)) as consumer:
        assert sorted(await take(set(range(8)), consumer)) == list(range(8))
        await consumer.commit()
        found = await consumer.committed([TopicPartition(topic, number) for number in range(4)])
        assert [offset and offset.offset for offset in found.values()] == [2, 2, 2, 2]


@ON_ASYNCIO
async def test_blocking(broker: str, admin: kclient.Admin, topic: str) -> None:
    await fill(broker, topic, range(8))

    def read() -> list[int]:
        with kclient.sync.Consumer(**settings(broker, topic, enable_auto_commit=False)) as consumer:
            consumer.subscribe(SubscriptionPattern(f"{topic}.*"))
            consumer.joined()
            got: list[int] = []
            for record in consumer:
                got.append(int(record.value))
                if len(got) == 8:
                    break
            consumer.commit()
            assert consumer.subscription() == {topic}
            tp = TopicPartition(topic, 0)
            consumer.pause([tp])
            consumer.seek(tp, 0)
            consumer.resume([tp])
            again = consumer.poll(timeout=10)
            assert [int(record.value) for record in again] == [0, 4]
            return got

    assert sorted(await anyio.to_thread.run_sync(read)) == list(range(8))


@ON_ASYNCIO
async def test_static_members(broker: str, admin: kclient.Admin, topic: str) -> None:
    """What one has is kept for it while it is away, and nobody can take its name while it is there."""
    mine = settings(broker, topic, group_instance_id="one")
    async with kclient.Consumer(topic, **settings(broker, topic)) as other:
        async with kclient.Consumer(topic, **mine) as one:
            await balanced(other, one)
            had = one.assignment()
            async with kclient.Consumer(topic, **mine) as twin:
                with pytest.raises(UnreleasedInstanceIdError, match=r"group\.instance\.id of its own"):
                    await twin.joined()
        await other.poll(timeout=0.5)
        assert other.assignment().isdisjoint(had)
        async with kclient.Consumer(topic, **mine) as one:
            await balanced(other, one)
            assert one.assignment() == had
            await one.unsubscribe()
            one.subscribe([topic])
            await balanced(other, one)
            assert one.assignment() == had
            await one.close(leave_group=True)
        await balanced(other)


@ON_ASYNCIO
async def test_a_pattern_that_the_broker_evaluates(broker: str, admin: kclient.Admin, topic: str) -> None:
    async with kclient.Consumer(**settings(broker, topic, metadata_max_age_ms=500)) as consumer:
        consumer.subscribe(SubscriptionPattern(f"{topic}(-[ab])?"))
        await balanced(consumer)
        assert consumer.subscription() == {topic}
        with pytest.raises(IllegalStateError, match="unsubscribe first"):
            consumer.subscribe([topic])
        await admin.create_topic(f"{topic}-c", 1)
        await admin.create_topic(f"{topic}-a", 2)
        consumer.subscribe(SubscriptionPattern(f"{topic}-[ac]"))
        with anyio.fail_after(60):
            while consumer.subscription() != {f"{topic}-a", f"{topic}-c"}:
                await consumer.poll(timeout=0.1)
        assert len(consumer.assignment()) == 3
        await consumer.unsubscribe()
        consumer.subscribe(SubscriptionPattern("(unclosed"))
        with pytest.raises(InvalidRegularExpressionError, match="RE2"):
            await consumer.joined()
        await consumer.unsubscribe()
        consumer.subscribe(re.compile(f"{topic}-a"))  # the client evaluates this one
        await balanced(consumer, partitions=2)
        assert consumer.subscription() == {f"{topic}-a"}


@ON_ASYNCIO
async def test_assignors_of_the_broker(broker: str, admin: kclient.Admin, topic: str) -> None:
    async with kclient.Consumer(topic, **settings(broker, topic, group_remote_assignor="none of these")) as consumer:
        with pytest.raises(UnsupportedAssignorError, match="uniform"):
            await consumer.joined()
    mine = settings(broker, topic, group_remote_assignor="range", client_rack="here")
    async with kclient.Consumer(topic, **mine) as one, kclient.Consumer(topic, **mine) as two:
        await balanced(one, two)
        assert {frozenset(tp.partition for tp in each.assignment()) for each in (one, two)} == {
            frozenset({0, 1}),
            frozenset({2, 3}),
        }


@ON_ASYNCIO
async def test_a_member_that_is_removed(broker: str, admin: kclient.Admin, topic: str) -> None:
    """It loses everything, cannot commit, and joins again under the same id."""
    await fill(broker, topic, range(4))
    async with kclient.Consumer(**settings(broker, topic, enable_auto_commit=False)) as consumer:
        told = Told()
        consumer.subscribe([topic], told)
        await take(set(range(4)), consumer)
        before = consumer.group_metadata()
        await admin.remove_members_from_consumer_group(topic)
        with pytest.raises(CommitFailedError):
            await consumer.commit()
        assert consumer.group_metadata() == before
        await consumer.joined()
        assert told.told("lost") == {0, 1, 2, 3}
        after = consumer.group_metadata()
        assert after.member_id == before.member_id
        assert after.generation_id > 0
        await take(set(range(4)), consumer)
        await consumer.commit()


@pytest.mark.parametrize("protocol", ["consumer", "classic"])
@ON_ASYNCIO
async def test_a_group_that_is_deleted(broker: str, admin: kclient.Admin, topic: str, protocol: str) -> None:
    """Its member learns that it is none, and joins the next one of that name: what was committed is gone."""
    await fill(broker, topic, range(4))
    mine = {**settings(broker, topic, enable_auto_commit=False), "group_protocol": protocol}
    async with kclient.Consumer(topic, **mine) as consumer:
        await take(set(range(4)), consumer)
        await consumer.commit()
        await admin.remove_members_from_consumer_group(topic)
        await admin.delete_groups([topic])
        with pytest.raises(CommitFailedError):
            await consumer.commit()
        assert sorted(await take(set(range(4)), consumer)) == list(range(4))
        await consumer.commit()


@ON_ASYNCIO
async def test_a_pattern_that_is_wrong_costs_the_partitions_at_once(
    broker: str, admin: kclient.Admin, topic: str
) -> None:
    """Who is refused leaves: the others need not wait until its session is over."""
    async with kclient.Consumer(topic, **settings(broker, topic)) as other:
        async with kclient.Consumer(**settings(broker, topic)) as one:
            one.subscribe(SubscriptionPattern(f"{topic}.*"))
            await balanced(other, one)
            one.subscribe(SubscriptionPattern("(unclosed"))
            with pytest.raises(InvalidRegularExpressionError), anyio.fail_after(30):
                while True:
                    await one.poll(timeout=0.1)
        with anyio.fail_after(30):
            await balanced(other)


@ON_ASYNCIO
async def test_who_polls_too_late_leaves(broker: str, admin: kclient.Admin, topic: str) -> None:
    async with kclient.Consumer(**settings(broker, topic, max_poll_interval_ms=500)) as consumer:
        told = Told()
        consumer.subscribe([topic], told)
        await balanced(consumer)
        with anyio.fail_after(30):
            while (await admin.describe_groups([topic]))[topic].members:
                await anyio.sleep(0.1)
        with pytest.raises(CommitFailedError, match=r"max\.poll\.interval\.ms") as caught:
            await consumer.commit({TopicPartition(topic, 0): 0})
        assert isinstance(caught.value.__cause__, MaxPollExceededError)
        await consumer.joined()
        assert told.told("lost") == {0, 1, 2, 3}
        await balanced(consumer)


@ON_ASYNCIO
async def test_another_subscription(broker: str, admin: kclient.Admin, topic: str) -> None:
    """What is not of it is given up by the next poll."""
    await admin.create_topic(f"{topic}-b", 2)
    async with kclient.Consumer(**settings(broker, topic)) as consumer:
        told = Told(consumer)
        consumer.subscribe([topic], told)
        await balanced(consumer)
        consumer.subscribe([f"{topic}-b"], told)
        with anyio.fail_after(30):
            while consumer.assignment():
                await consumer.poll(timeout=0.05)
        assert told.told("revoked") == {0, 1, 2, 3}
        await balanced(consumer, partitions=2)
        assert {tp.topic for tp in consumer.assignment()} == {f"{topic}-b"}
        consumer.subscribe([topic, f"{topic}-b"], told)
        await balanced(consumer, partitions=6)
        await consumer.unsubscribe()
        assert (await admin.describe_groups([topic]))[topic].members == ()


@ON_ASYNCIO
async def test_a_live_group_is_migrated_and_back(broker: str, admin: kclient.Admin, topic: str) -> None:
    """Members of both protocols share the partitions meanwhile; what was committed stays."""
    classic = {**settings(broker, topic), "group_protocol": "classic"}
    await fill(broker, topic, range(40))
    async with kclient.Consumer(topic, **classic) as old:
        got = await take(set(range(40)), old)
        assert (await admin.describe_groups([topic]))[topic].type.lower() == "classic"
        async with kclient.Consumer(topic, **settings(broker, topic)) as new:
            await balanced(old, new)
            assert (await admin.describe_groups([topic]))[topic].type.lower() == "consumer"
            await fill(broker, topic, range(40, 80))
            got += await take(set(range(40, 80)), old, new)
            await old.close()
            await balanced(new)
            async with kclient.Consumer(topic, **classic) as back:
                await balanced(new, back)
                await fill(broker, topic, range(80, 120))
                got += await take(set(range(80, 120)), new, back)
                await new.close()
                await balanced(back)
                assert (await admin.describe_groups([topic]))[topic].type.lower() == "classic"
                await fill(broker, topic, range(120, 160))
                got += await take(set(range(120, 160)), back)
    assert sorted(got) == list(range(160))


@ON_ASYNCIO
async def test_beside_librdkafka(broker: str, admin: kclient.Admin, topic: str) -> None:
    await fill(broker, topic, range(40))
    theirs = confluent_kafka.Consumer({"bootstrap.servers": broker, "group.id": topic, "group.protocol": "consumer"})
    try:
        theirs.subscribe([topic])
        async with kclient.Consumer(topic, **settings(broker, topic)) as ours:
            with anyio.fail_after(60):
                while True:
                    await anyio.to_thread.run_sync(theirs.poll, 0.05)
                    await ours.poll(timeout=0.05)
                    other = {tp.partition for tp in theirs.assignment()}
                    mine = {tp.partition for tp in ours.assignment()}
                    if other and mine and other | mine == {0, 1, 2, 3}:
                        break
            assert other.isdisjoint(mine)
    finally:
        await anyio.to_thread.run_sync(theirs.close)


@pytest.mark.foreign
@pytest.mark.maven
@ON_ASYNCIO
async def test_beside_the_java_client(
    broker: str, admin: kclient.Admin, topic: str, kafka_jars_4: Path, tmp_path: Path
) -> None:
    """Each reads its half; when the Java client has what it waits for, it leaves, and ours gets all."""
    tools = JavaTools(KAFKA_4, tmp_path)
    printed: list[str] = []

    def theirs() -> None:
        printed.append(
            tools.run(
                "org.apache.kafka.tools.VerifiableConsumer", "--bootstrap-server", broker, "--topic", topic,
                "--group-id", topic, "--group-protocol", "consumer", "--max-messages", "20", "--verbose",
            )
        )  # fmt: skip

    async with (
        kclient.Consumer(topic, **settings(broker, topic)) as consumer,
        anyio.create_task_group() as tasks,
    ):
        await balanced(consumer)
        tasks.start_soon(anyio.to_thread.run_sync, theirs)
        with anyio.fail_after(60):
            while len(consumer.assignment()) != 2 or len(await member_ids(admin, topic)) != 2:
                await consumer.poll(timeout=0.05)
        mine = {tp.partition for tp in consumer.assignment()}
        await fill(broker, topic, range(40))
        expected = {value for value in range(40) if value % 4 in mine}
        got = await take(expected, consumer)
        await balanced(consumer)
    events = [json.loads(line) for line in printed[0].splitlines() if line.startswith("{")]
    read = [event for event in events if event["name"] == "record_data"]
    assert sorted([*got, *(int(event["value"]) for event in read)]) == list(range(40))


async def member_ids(admin: kclient.Admin, group: str) -> set[str]:
    return {member.member_id for member in (await admin.describe_groups([group]))[group].members}


@ON_ASYNCIO
async def test_a_transaction_commits_as_the_member(broker: str, admin: kclient.Admin, topic: str) -> None:
    """Offsets go with the member's epoch, and those of who was removed are refused."""
    await fill(broker, topic, range(4))
    async with (
        kclient.Producer(bootstrap_servers=broker, transactional_id=topic) as producer,
        kclient.Consumer(topic, **settings(broker, topic, enable_auto_commit=False)) as consumer,
    ):
        await take(set(range(4)), consumer)
        await producer.init_transactions()
        await producer.begin_transaction()
        tp = TopicPartition(topic, 0)
        await producer.send_offsets_to_transaction({tp: 1}, consumer.group_metadata())
        await producer.commit_transaction()
        found = (await consumer.committed([tp]))[tp]
        assert found is not None
        assert found.offset == 1
        await admin.remove_members_from_consumer_group(topic)
        await producer.begin_transaction()
        with pytest.raises(CommitFailedError):
            await producer.send_offsets_to_transaction({tp: 0}, consumer.group_metadata())
        await producer.abort_transaction()


@pytest.mark.kafka
@ON_ASYNCIO
async def test_brokers_that_do_not_serve_it(kafka3: KafkaServer, topic: str) -> None:
    """What is wrong is said by `poll`, with the setting and what helps."""
    mine = {"bootstrap_servers": kafka3.bootstrap, "group_id": topic, "group_protocol": "consumer"}
    async with kclient.Consumer(topic, **mine) as consumer:
        with pytest.raises(UnsupportedVersionError, match=r"group\.protocol=consumer.*set group\.protocol=classic"):
            await consumer.joined(timeout=30)


@ON_ASYNCIO
async def test_another_takes_the_name_of_one_that_was_removed(broker: str, admin: kclient.Admin, topic: str) -> None:
    mine = settings(broker, topic, group_instance_id="one")
    async with kclient.Consumer(topic, **mine) as one:
        await balanced(one)
        await admin.remove_members_from_consumer_group(topic, ["one"])
        async with kclient.Consumer(topic, **mine) as two:
            await balanced(two)
            with pytest.raises(FencedInstanceIdError, match="'one'"), anyio.fail_after(30):
                while True:
                    await one.poll(timeout=0.1)


@ON_ASYNCIO
async def test_a_topic_that_is_made_anew(broker: str, admin: kclient.Admin, topic: str) -> None:
    """Under the same name it has another id: what is read of it begins where `auto.offset.reset` says."""
    await fill(broker, topic, range(8))
    async with kclient.Consumer(topic, **settings(broker, topic, metadata_max_age_ms=500)) as consumer:
        await take(set(range(8)), consumer)
        await admin.delete_topics([topic])
        await admin.create_topic(topic, 4)
        await fill(broker, topic, range(100, 108))
        assert sorted(await take(set(range(100, 108)), consumer)) == list(range(100, 108))
        await consumer.commit()
        found = await consumer.committed([TopicPartition(topic, number) for number in range(4)])
        assert [offset and offset.offset for offset in found.values()] == [2, 2, 2, 2]


@ON_ASYNCIO
async def test_without_a_subscription(broker: str, admin: kclient.Admin, topic: str) -> None:
    """Who assigns partitions himself is no member, and commits as nobody in particular."""
    await fill(broker, topic, range(8))
    async with kclient.Consumer(**settings(broker, topic)) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        assert await take({0, 4}, consumer) == [0, 4]
        await consumer.commit()
        found = (await consumer.committed([TopicPartition(topic, 0)]))[TopicPartition(topic, 0)]
        assert found is not None
        assert found.offset == 2
        assert consumer.group_metadata().generation_id == -1


@ON_ASYNCIO
async def test_who_says_later_what_it_reads_need_not_wait(broker: str, admin: kclient.Admin, topic: str) -> None:
    """So does a Java client that reads by a pattern. Between two assignments there is a second, but not after none."""
    async with wire_session(broker) as session:
        await until(
            lambda: session(m.FindCoordinatorRequest(coordinator_keys=[topic])),
            lambda answer: answer.coordinators[0].error_code == 0,
        )

        def beat(epoch: int, *names: str) -> m.ConsumerGroupHeartbeatRequest:
            return m.ConsumerGroupHeartbeatRequest(
                group_id=topic, member_id="m", member_epoch=epoch, rebalance_timeout_ms=10_000,
                subscribed_topic_names=list(names), topic_partitions=[],
            )  # fmt: skip

        joined = await until(lambda: session(beat(0)), lambda answer: answer.error_code == 0)
        assert joined.assignment.topic_partitions == []
        started = anyio.current_time()
        answer = await session(beat(joined.member_epoch, topic))
        while not (answer.assignment and answer.assignment.topic_partitions):  # Kafka's is reckoned in a thread
            assert anyio.current_time() - started < 0.9
            answer = await session(beat(answer.member_epoch, topic))
        assert [each.partitions for each in answer.assignment.topic_partitions] == [[0, 1, 2, 3]]

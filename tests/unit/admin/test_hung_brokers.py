"""Brokers that do not answer: others are asked where others can answer, and the error names who was asked in vain."""

from __future__ import annotations

import anyio
import pytest

from kclient.admin import OffsetSpec
from kclient.cluster.cluster import PATIENCE
from kclient.errors import KafkaTimeoutError
from kclient.protocol.messages import (
    DescribeClusterBroker,
    DescribeClusterResponse,
    ListedGroup,
    ListGroupsResponse,
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from kclient.protocol.registry import ApiKey
from kclient.types import TopicPartition
from tests.fake_kafka import FakeBroker, FakeKafka
from tests.unit.admin.scripted import KRAFT, VERSIONS, Controller, administering

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


def cluster(brokers: int = 3, topics: dict[str, int] | None = None) -> FakeKafka:
    kafka = FakeKafka(topics, brokers, versions={**VERSIONS, **KRAFT})

    def describe(broker: FakeBroker, request: object) -> DescribeClusterResponse:
        brokers = [DescribeClusterBroker(broker_id=n, host=b.host, port=0) for n, b in kafka.brokers.items()]
        return DescribeClusterResponse(cluster_id="c", controller_id=1, brokers=brokers)

    def list_groups(broker: FakeBroker, request: object) -> ListGroupsResponse:
        group = ListedGroup(group_id=f"g{broker.node_id}", protocol_type="", group_state="Empty", group_type="classic")
        return ListGroupsResponse(groups=[group])

    def list_offsets(broker: FakeBroker, request: object) -> ListOffsetsResponse:
        found = [
            ListOffsetsTopicResponse(
                name=topic.name,
                partitions=[
                    ListOffsetsPartitionResponse(
                        partition_index=part.partition_index, offset=broker.node_id, timestamp=-1
                    )
                    for part in topic.partitions
                ],
            )
            for topic in request.topics  # type: ignore[attr-defined]
        ]
        return ListOffsetsResponse(topics=found)

    kafka.scripts[ApiKey.DESCRIBE_CLUSTER] = describe
    kafka.scripts[ApiKey.LIST_GROUPS] = list_groups
    kafka.scripts[ApiKey.LIST_OFFSETS] = list_offsets
    return kafka


async def test_what_any_broker_can_answer_is_asked_of_another() -> None:
    async with cluster() as kafka, administering(kafka) as admin:
        await admin.describe_cluster()
        for paused in kafka.brokers.values():
            paused.pause()
            with anyio.fail_after(PATIENCE * 3 + 5):
                await admin.describe_cluster()
                await admin.describe_topics(["t"])
            paused.resume()


async def test_a_broker_that_hangs_before_a_change_was_sent_is_left_at_once() -> None:
    for node in (1, 2, 3):
        async with cluster() as kafka:
            Controller(kafka)
            kafka.brokers[node].pause()
            async with administering(kafka) as admin:  # which knows nobody yet
                with anyio.fail_after(PATIENCE * 3 + 5):
                    await admin.create_topic("a")


async def test_a_broker_that_hangs_over_a_change_is_left_in_time() -> None:
    async with cluster() as kafka, administering(kafka) as admin:
        controller = Controller(kafka)
        hung: list[int] = []

        def hang(broker: FakeBroker) -> object:
            if hung:
                return None
            hung.append(broker.node_id)
            broker.pause()
            return _never()

        controller.before = hang
        begun = anyio.current_time()
        await admin.create_topic("a", timeout=3)
        assert anyio.current_time() - begun < 3
        assert controller.asked[0][0] == hung[0]
        assert controller.asked[-1][0] != hung[0]


async def _never() -> None:
    await anyio.sleep_forever()


async def test_a_broker_that_leaves_the_cluster_meanwhile_is_left_soon() -> None:
    """It is hung, and the cluster notices: nobody waits for `request.timeout.ms`."""
    async with cluster() as kafka, administering(kafka) as admin:
        controller = Controller(kafka)

        def hang(broker: FakeBroker) -> object:
            if len(controller.asked) > 1:
                return None
            broker.pause()
            broker.listed = False
            return _never()

        controller.before = hang
        with anyio.fail_after(15):
            await admin.create_topic("a", timeout=60)


async def test_nobody_answers_and_each_is_named() -> None:
    async with cluster(2) as kafka, administering(kafka) as admin:
        await admin.describe_cluster()
        kafka.brokers[1].pause()
        kafka.brokers[2].down = True
        kafka.brokers[2].hang_up()
        with pytest.raises(KafkaTimeoutError) as caught:
            await admin.describe_cluster(timeout=2)
        text = str(caught.value)
        assert "Describing the cluster did not succeed within 2 s: tried" in text
        assert f"{kafka.brokers[1].host}: no answer" in text
        assert f"{kafka.brokers[2].host}: " in text
        assert f"{kafka.brokers[2].host}: no answer" not in text, "it was told why it failed"
        Controller(kafka)
        with pytest.raises(KafkaTimeoutError, match=f"Creating topics .*{kafka.brokers[1].host}: no answer"):
            await admin.create_topic("a", timeout=2)


async def test_a_hung_leader_delays_only_what_it_leads() -> None:
    async with cluster(3, {"t": 3}) as kafka, administering(kafka) as admin:
        places = {TopicPartition("t", number): OffsetSpec.LATEST for number in range(3)}
        found = await admin.list_offsets(places)
        assert [place.offset for place in found.values() if place] == [1, 2, 3]
        kafka.brokers[1].pause()

        async def moves() -> None:
            await anyio.sleep(0.2)
            kafka.brokers[1].listed = False
            kafka.move("t", 0, 2)

        async with anyio.create_task_group() as group:
            group.start_soon(moves)
            with anyio.fail_after(15):
                found = await admin.list_offsets(places)
        assert [place.offset for place in found.values() if place] == [2, 2, 3]


async def test_a_hung_leader_is_named() -> None:
    async with cluster(3, {"t": 3}) as kafka, administering(kafka) as admin:
        kafka.brokers[2].pause()
        with pytest.raises(KafkaTimeoutError) as caught:
            await admin.list_offsets({TopicPartition("t", n): OffsetSpec.LATEST for n in range(3)}, timeout=2)
        assert f"tried {kafka.brokers[2].host}: no answer" in str(caught.value)


async def test_groups_of_all_brokers_are_listed_though_one_leaves() -> None:
    async with cluster() as kafka, administering(kafka) as admin:
        assert [group.group_id for group in await admin.list_groups()] == ["g1", "g2", "g3"]
        kafka.brokers[2].pause()

        async def leaves() -> None:
            await anyio.sleep(0.2)
            kafka.brokers[2].listed = False

        async with anyio.create_task_group() as group:
            group.start_soon(leaves)
            with anyio.fail_after(15):
                assert [group.group_id for group in await admin.list_groups()] == ["g1", "g3"]

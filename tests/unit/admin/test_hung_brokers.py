"""Brokers that do not answer: others are asked where others can answer, and the error names who was asked in vain."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import pytest

import kclient
from kclient.admin import ConfigResource, ConfigResourceType, OffsetSpec
from kclient.cluster import Trial
from kclient.cluster.cluster import PATIENCE
from kclient.errors import ClosedError, ErrorCode, KafkaError, KafkaTimeoutError, SaslAuthenticationError
from kclient.net.address import Address
from kclient.protocol.message import ApiMessage
from kclient.protocol.messages import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeGroupsResponse,
    DescribeGroupsResponseDescribedGroup,
    ListedGroup,
    ListGroupsResponse,
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
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


async def test_partitions_without_a_leader_are_named() -> None:
    """Nobody can be asked, so no broker is to blame."""
    async with cluster(3, {"t": 3}) as kafka, administering(kafka) as admin:
        kafka.move("t", 1, -1)
        with pytest.raises(KafkaTimeoutError, match=r"Listing offsets did not succeed within 1 s: .*t-1"):
            await admin.list_offsets({TopicPartition("t", n): OffsetSpec.LATEST for n in range(3)}, timeout=1)


async def test_partitions_without_a_leader_are_named_before_a_silence() -> None:
    """Each attempt asks for metadata, so most calls end amid that."""
    async with cluster(3, {"t": 3}) as kafka, administering(kafka) as admin:
        kafka.move("t", 1, -1)
        asked = 0

        def answer(broker: FakeBroker, request: Any) -> Any:
            nonlocal asked
            asked += 1
            return kafka._metadata(request) if asked < 5 else anyio.sleep_forever()

        await admin.list_topics()
        kafka.scripts[ApiKey.METADATA] = answer
        with pytest.raises(KafkaTimeoutError, match=r"no answer.*; before that: .*t-1"):
            await admin.list_offsets({TopicPartition("t", n): OffsetSpec.LATEST for n in range(3)}, timeout=1)
        assert asked >= 5


async def test_the_trouble_before_a_silence_is_told() -> None:
    """The time of a call may end a moment after it asked again."""
    async with cluster(1, {"t": 1}) as kafka, administering(kafka) as admin:
        failed = anyio.Event()

        def answer(broker: FakeBroker, request: Any) -> Any:
            if not failed.is_set():
                failed.set()
                return ListGroupsResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
            return anyio.sleep_forever()

        kafka.scripts[ApiKey.LIST_GROUPS] = answer
        with pytest.raises(KafkaTimeoutError) as caught:
            await admin.list_groups(timeout=0.5)
        assert failed.is_set()
        assert "no answer; before that: " in str(caught.value)
        assert "COORDINATOR_LOAD_IN_PROGRESS" in str(caught.value)


async def test_a_broker_that_is_asked_again_keeps_why_it_failed() -> None:
    trial = Trial()
    with pytest.raises(SaslAuthenticationError), trial.asking(Address("a", 1)):
        raise SaslAuthenticationError("the token callback failed")
    with anyio.move_on_after(0), trial.asking(Address("a", 1)):
        await anyio.sleep_forever()
    assert str(trial) == "a:1: the token callback failed [SASL_AUTHENTICATION_FAILED], then no answer"
    assert isinstance(trial.cause, SaslAuthenticationError)
    with trial.asking(Address("a", 1)):
        pass
    assert not trial
    with anyio.move_on_after(0), trial.asking(Address("a", 1)):
        await anyio.sleep_forever()
    assert (str(trial), trial.cause) == ("a:1: no answer", None), "it has answered since"


T0 = TopicPartition("t", 0)
CALLS: dict[str, Callable[[kclient.Admin, float], Awaitable[object]]] = {
    "alter_configs": lambda a, s: a.alter_configs(
        {ConfigResource(ConfigResourceType.TOPIC, "t"): {"retention.ms": "1"}}, timeout=s
    ),
    "alter_group_offsets": lambda a, s: a.alter_group_offsets("g", {T0: 1}, timeout=s),
    "create_partitions": lambda a, s: a.create_partitions({"t": 2}, timeout=s),
    "create_topic": lambda a, s: a.create_topic("a", timeout=s),
    "delete_groups": lambda a, s: a.delete_groups(["g"], timeout=s),
    "delete_records": lambda a, s: a.delete_records({T0: 1}, timeout=s),
    "delete_topic": lambda a, s: a.delete_topic("t", timeout=s),
    "describe_broker": lambda a, s: a.describe_configs([ConfigResource(ConfigResourceType.BROKER, "1")], timeout=s),
    "describe_cluster": lambda a, s: a.describe_cluster(timeout=s),
    "describe_configs": lambda a, s: a.describe_configs([ConfigResource(ConfigResourceType.TOPIC, "t")], timeout=s),
    "describe_groups": lambda a, s: a.describe_groups(["g"], timeout=s),
    "describe_topics": lambda a, s: a.describe_topics(["t"], timeout=s),
    "group_lag": lambda a, s: a.group_lag("g", timeout=s),
    "list_group_offsets": lambda a, s: a.list_group_offsets("g", timeout=s),
    "list_groups": lambda a, s: a.list_groups(timeout=s),
    "list_offsets": lambda a, s: a.list_offsets({T0: OffsetSpec.LATEST}, timeout=s),
    "list_topics": lambda a, s: a.list_topics(timeout=s),
    "reset_group_offsets": lambda a, s: a.reset_group_offsets("g", OffsetSpec.LATEST, timeout=s),
}


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("name", CALLS)
async def test_a_client_that_never_got_an_answer_names_who_was_asked(name: str) -> None:
    """Also where it is the metadata that do not come."""
    async with cluster(2) as kafka:
        for broker in kafka.brokers.values():
            broker.pause()
        async with administering(kafka) as admin:
            with anyio.fail_after(10), pytest.raises(KafkaTimeoutError, match=r"within 0.3 s: .*no answer") as caught:
                await CALLS[name](admin, 0.3)
        assert any(broker.host in str(caught.value) for broker in kafka.brokers.values())


@pytest.mark.parametrize("name", CALLS)
async def test_no_call_outlives_close(name: str) -> None:
    async with cluster(2) as kafka, administering(kafka) as admin:
        for broker in kafka.brokers.values():
            broker.pause()
        ended: list[KafkaError] = []

        async def call() -> None:
            try:
                await CALLS[name](admin, 60)
            except KafkaError as error:
                ended.append(error)

        with anyio.fail_after(5):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(call)
                for _ in range(20):
                    await anyio.lowlevel.checkpoint()
                await admin.close()
        assert [type(error) for error in ended] == [ClosedError]


# ------------------------------------------------------------------ calls of several steps


class SlowGroups:
    """A coordinator whose every answer about groups takes its time.

    Args:
        kafka: The cluster.
        seconds: How long an answer takes.
    """

    def __init__(self, kafka: FakeKafka, seconds: float) -> None:
        self.asked: list[ApiKey] = []
        self.seconds = seconds
        offsets = OffsetFetchResponsePartitions(partition_index=0, committed_offset=1, metadata="")
        committed = OffsetFetchResponseGroup(
            group_id="g", topics=[OffsetFetchResponseTopics(name="t", partitions=[offsets])]
        )
        done = OffsetCommitResponsePartition(partition_index=0)
        answers: dict[ApiKey, ApiMessage] = {
            ApiKey.DESCRIBE_GROUPS: DescribeGroupsResponse(
                groups=[
                    DescribeGroupsResponseDescribedGroup(group_id="g", group_state="Empty", protocol_type="consumer")
                ]
            ),
            ApiKey.OFFSET_FETCH: OffsetFetchResponse(groups=[committed]),
            ApiKey.OFFSET_COMMIT: OffsetCommitResponse(topics=[OffsetCommitResponseTopic(name="t", partitions=[done])]),
        }
        for key, answer in answers.items():
            kafka.scripts[key] = partial(self._answer, key, answer)
        kafka.scripts[ApiKey.LIST_OFFSETS] = partial(
            self._answer, ApiKey.LIST_OFFSETS, kafka.scripts[ApiKey.LIST_OFFSETS]
        )

    async def _answer(self, key: ApiKey, answer: Any, broker: FakeBroker, request: object) -> ApiMessage:
        self.asked.append(key)
        await anyio.sleep(self.seconds)
        found: ApiMessage = answer(broker, request) if callable(answer) else answer
        return found


GROUPS = {ApiKey.DESCRIBE_GROUPS: (0, 5), ApiKey.OFFSET_FETCH: (8, 9), ApiKey.OFFSET_COMMIT: (2, 9)}


@pytest.mark.parametrize("name", ["group_lag", "reset_group_offsets"])
async def test_the_steps_of_a_call_share_its_time(name: str) -> None:
    """Each takes less than the call may, all of them more."""
    calls: dict[str, Callable[[kclient.Admin, float], Awaitable[object]]] = {
        "group_lag": lambda a, s: a.group_lag("g", timeout=s),
        "reset_group_offsets": lambda a, s: a.reset_group_offsets("g", OffsetSpec.LATEST, timeout=s),
    }
    async with cluster(1) as kafka, administering(kafka) as admin:
        kafka.versions.update(GROUPS)
        slow = SlowGroups(kafka, 1.0)
        with pytest.raises(KafkaTimeoutError, match=r"of group 'g' did not succeed within 1.5 s: .* did not succeed"):
            await calls[name](admin, 1.5)
        assert slow.asked == [ApiKey.DESCRIBE_GROUPS, ApiKey.OFFSET_FETCH]
        slow.seconds = 0.0
        await calls[name](admin, 30)
        assert ApiKey.LIST_OFFSETS in slow.asked


async def test_describing_the_cluster_of_an_old_broker_is_one_call_of_two_steps() -> None:
    async with cluster(1) as kafka, administering(kafka) as admin:
        await admin.describe_topics(["t"])
        begun = anyio.current_time()

        async def refuse(broker: FakeBroker, request: object) -> DescribeClusterResponse:
            await anyio.sleep(1.5)
            broker.pause()
            return DescribeClusterResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)

        kafka.scripts[ApiKey.DESCRIBE_CLUSTER] = refuse
        with pytest.raises(KafkaTimeoutError, match="Describing the cluster did not succeed"):
            await admin.describe_cluster(timeout=2)
        assert anyio.current_time() - begun < 3.2  # each step with a time of its own: 3.5


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


async def test_who_owes_an_answer_is_named_where_an_attempt_was_not_asking() -> None:
    async with cluster(2, {"t": 2}) as kafka, administering(kafka) as admin:
        await admin.list_offsets({TopicPartition("t", n): OffsetSpec.LATEST for n in range(2)})
        connection = await admin._cluster.connection(2)
        kafka.brokers[2].pause()

        async def owed() -> None:
            await admin._cluster.request_on(connection, DescribeClusterRequest(), response=DescribeClusterResponse)

        async def attempt(trial: Trial) -> None:
            await anyio.sleep_forever()

        async with anyio.create_task_group() as group:
            group.start_soon(owed)
            await anyio.wait_all_tasks_blocked()
            with pytest.raises(KafkaTimeoutError, match=f"within 0.5 s: {kafka.brokers[2].host}: no answer"):
                await admin._retrying(attempt, 0.5, "Waiting")
            group.cancel_scope.cancel()

"""A gateway with access control lists beside a real broker with StandardAuthorizer: they answer alike."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

import anyio
import pytest

from kclient.admin import AclBinding, Admin
from kclient.protocol import messages as m
from tests.conftest import require_java
from tests.gateway_wire import batch_of, fetch_request, produce_request
from tests.guarded_requests import REQUESTS, RIGHTS, O, cluster, group, told, topic, writer
from tests.guarded_servers import Guarded, alice, guarded_gateway, guarded_kafka
from tests.kafka_artifacts import KAFKA_4
from tests.wire_session import WireSession, until, wire_session

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.kafka,
    pytest.mark.timeout(180),
    pytest.mark.parametrize("anyio_backend", ["asyncio"]),
]
numbers = itertools.count(1)


class Side:
    """One of the two: a superuser's connection, and one of alice's."""

    def __init__(self, name: str, root: WireSession, user: WireSession, admin: Admin) -> None:
        self.name = name
        self.root = root
        self.user = user
        self.admin = admin

    async def give(self, entries: Iterable[AclBinding]) -> None:
        """Have these entries in force, and no others."""
        wanted, found = set(entries), set(await self.admin.describe_acls())
        if found - wanted:
            await self.admin.delete_acls([each.as_filter() for each in found - wanted])
        if wanted - found:
            await self.admin.create_acls(sorted(wanted - found, key=str))
        await until(self.admin.describe_acls, lambda acls: set(acls) == wanted)

    async def topics(self) -> set[str]:
        found = await self.root(m.MetadataRequest(topics=None), 12)
        return {row.name for row in found.topics if not row.name.startswith("__")}


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Guarded, Guarded]]:
    require_java()
    with guarded_gateway() as gateway, guarded_kafka(KAFKA_4, tmp_path_factory.mktemp("guarded")) as broker:
        yield broker, gateway


@asynccontextmanager
async def sides(servers: tuple[Guarded, Guarded]) -> AsyncIterator[tuple[Side, Side]]:
    async with AsyncExitStack() as stack:
        found = [
            Side(
                name,
                await stack.enter_async_context(wire_session(server.bootstrap)),
                await stack.enter_async_context(wire_session(server.sasl, alice())),
                await stack.enter_async_context(Admin(bootstrap_servers=server.bootstrap)),
            )
            for name, server in zip(("kafka", "gateway"), servers, strict=True)
        ]
        yield found[0], found[1]


async def filled(side: Side) -> bytes:
    """Two topics with a record, a group that has committed, and a transactional id; the id of the topic t."""
    for name in ("t", "tt"):
        if name not in await side.topics():
            await side.root.create(name, 2)
        answer = await side.root(produce_request(name, batch_of(b"v")), 9)
        assert not answer.responses[0].partition_responses[0].error_code
    row = m.OffsetCommitRequestPartition(partition_index=0, committed_offset=0)
    commit = m.OffsetCommitRequest(
        group_id="g", generation_id_or_member_epoch=-1,
        topics=[m.OffsetCommitRequestTopic(name=name, partitions=[row]) for name in ("t", "tt")],
    )  # fmt: skip
    for kind, key in ((0, "g"), (1, "x"), (1, "y")):  # a broker makes the topic for them with the first request
        find = m.FindCoordinatorRequest(key_type=kind, coordinator_keys=[key])
        await until(partial(side.root, find, 4), lambda answer: not answer.coordinators[0].error_code)
    await until(lambda: side.root(commit, 9), lambda answer: not answer.topics[0].partitions[0].error_code)
    await until(
        lambda: side.root(m.InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=1000), 4),
        lambda answer: not answer.error_code,
    )
    return (await side.root.ready("t")).topic_id


async def test_the_same_requests_get_the_same_answers(servers: tuple[Guarded, Guarded]) -> None:
    """By every set of rights, every request: its codes, what it names, and which operations it tells."""

    async def ask_all(side: Side, topic_id: bytes, entries: list[AclBinding], first: int) -> None:
        await side.give(entries)
        answers[side] = []
        for number, ask in enumerate(REQUESTS.values(), first):
            answers[side].append(told(await side.user(ask.make(topic_id, number), ask.version), ask))

    async with sides(servers) as both:
        ids = [await filled(side) for side in both]
        different: list[str] = []
        seen: dict[str, set[str]] = {name: set() for name in REQUESTS}
        answers: dict[Side, list[list[str]]] = {}
        for place, (rights, entries) in enumerate(RIGHTS.items()):
            async with anyio.create_task_group() as tasks:
                for side, topic_id in zip(both, ids, strict=True):
                    tasks.start_soon(ask_all, side, topic_id, entries, place * len(REQUESTS))
            for name, theirs, ours in zip(REQUESTS, *(answers[side] for side in both), strict=True):
                seen[name].add(str(theirs))
                if theirs != ours:
                    different.append(f"{name}, with rights {rights}:\n  kafka: {theirs}\n  gateway: {ours}")
        assert not different, f"{len(different)} answers:\n" + "\n".join(different)
        same = [name for name, told_of_it in seen.items() if len(told_of_it) < 2 and "nobody's" not in name]
        assert not same, "rights make no difference"
        created = await both[1].topics()
        assert await until(both[0].topics, lambda found: found == created) == created
        assert any(name.startswith("n-") for name in created)


async def test_who_joins_by_a_pattern_is_given_what_may_be_described(servers: tuple[Guarded, Guarded]) -> None:
    """A consumer group whose member subscribes by an expression (KIP-848)."""
    async with sides(servers) as both:
        for side in both:
            for name in ("t", "tt", "seen"):
                if name not in await side.topics():
                    await side.root.create(name, 1)
        always = [*topic("seen", O.DESCRIBE), *group("p", O.READ, prefixed=True)]
        for expected, more in (
            ({"seen"}, []),
            ({"seen", "t"}, topic("t", O.READ)),
            ({"seen", "t", "tt"}, topic("t", O.DESCRIBE, prefixed=True)),
            ({"seen", "t"}, [*topic("*", O.READ), *topic("tt", O.ALL, deny=True)]),
        ):
            for side in both:
                await side.give([*always, *more])
                assert await assigned(side, f"p-{next(numbers)}", "t+|seen") == expected, side.name


async def assigned(side: Side, name: str, pattern: str) -> set[str]:
    """The topics that a member is given, once it is given any; then it leaves."""
    epoch = 0
    given: set[str] = set()

    async def beat() -> set[str]:
        nonlocal epoch, given
        request = m.ConsumerGroupHeartbeatRequest(group_id=name, member_id="m", member_epoch=epoch)
        if epoch == 0:
            request.rebalance_timeout_ms, request.subscribed_topic_regex = 1000, pattern
            request.topic_partitions = []
        answer = await side.user(request, 1)
        assert not answer.error_code, answer
        epoch = answer.member_epoch
        if answer.assignment is not None:
            ids = {row.topic_id for row in answer.assignment.topic_partitions}
            found = await side.root(m.MetadataRequest(topics=None), 12)
            given = {row.name for row in found.topics if row.topic_id in ids}
        return given

    found = await until(beat, bool)
    await side.user(m.ConsumerGroupHeartbeatRequest(group_id=name, member_id="m", member_epoch=-1), 1)
    return found


async def test_topics_made_and_deleted(servers: tuple[Guarded, Guarded]) -> None:
    """What is done by who may, and what is told of it."""

    async def script(side: Side) -> list[Any]:
        seen: list[Any] = []
        made = m.CreateTopicsRequest(
            topics=[m.CreatableTopic(name="made", num_partitions=1, replication_factor=1)], timeout_ms=20_000
        )
        for entries in ([], topic("made", O.CREATE), topic("made", O.CREATE)):
            await side.give(entries)
            (row,) = (await side.user(made, 7)).topics
            seen.append((row.error_code, row.topic_config_error_code, row.num_partitions, row.configs is None))
        topic_id = (await side.root.ready("made")).topic_id
        by_id = m.DeleteTopicsRequest(topics=[m.DeleteTopicState(name=None, topic_id=topic_id)], timeout_ms=20_000)
        for entries in (
            [], topic("made", O.DESCRIBE), topic("made", O.ALTER), topic("made", O.DELETE),
        ):  # fmt: skip
            await side.give(entries)
            (row,) = (await side.user(by_id, 6)).responses
            seen.append((row.name, row.topic_id == topic_id, row.error_code))
        (row,) = (await side.user(by_id, 6)).responses
        seen.append((row.name, row.topic_id == topic_id, row.error_code))
        await side.give([*cluster(O.CREATE), *topic("made", O.DESCRIBE_CONFIGS)])
        (row,) = (await until(lambda: side.user(made, 7), lambda answer: answer.topics[0].error_code != 36)).topics
        seen.append((row.error_code, row.topic_config_error_code, row.num_partitions, row.configs is None))
        await side.root(m.DeleteTopicsRequest(topics=[m.DeleteTopicState(name="made")], timeout_ms=20_000), 6)
        return seen

    async with sides(servers) as both:
        found = [await script(side) for side in both]
        assert found[0] == found[1]


async def test_rights_that_go_amid_a_transaction(servers: tuple[Guarded, Guarded]) -> None:
    """Each step asks again; what was begun stays until its producer may end it."""
    needed = {
        "writer": writer("y", O.WRITE), "topic": topic("t", O.READ, O.WRITE), "group": group("g", O.READ),
    }  # fmt: skip

    async def script(side: Side) -> list[Any]:
        async def give(*without: str) -> None:
            await side.give(each for name, entries in needed.items() if name not in without for each in entries)

        await filled(side)
        await give()
        seen: list[Any] = []
        began = await until(
            lambda: side.user(m.InitProducerIdRequest(transactional_id="y", transaction_timeout_ms=30_000), 4),
            lambda answer: not answer.error_code,
        )
        whose: dict[str, Any] = {"producer_id": began.producer_id, "producer_epoch": began.producer_epoch}
        add = m.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id="y", v3_and_below_producer_id=began.producer_id,
            v3_and_below_producer_epoch=began.producer_epoch,
            v3_and_below_topics=[m.AddPartitionsToTxnTopic(name="t", partitions=[0])],
        )  # fmt: skip
        batch = batch_of(b"v", transactional=True, sequence=0, **whose)
        produce = produce_request("t", batch, transactional_id="y")
        offsets = m.AddOffsetsToTxnRequest(transactional_id="y", group_id="g", **whose)
        row = m.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=1)
        commit = m.TxnOffsetCommitRequest(
            transactional_id="y", group_id="g", topics=[m.TxnOffsetCommitRequestTopic(name="t", partitions=[row])],
            **whose,
        )  # fmt: skip
        end = m.EndTxnRequest(transactional_id="y", committed=True, **whose)
        for request, version, lacking in (
            (add, 3, ("topic", "writer")),
            (produce, 9, ("topic", "writer")),
            (offsets, 3, ("group", "writer")),
            (commit, 3, ("group", "topic", "writer")),
            (end, 3, ("writer",)),
        ):
            for name in lacking:
                await give(name)
                seen.append((name, told(await side.user(request, version))))
            await give()
            seen.append(told(await side.user(request, version)))
        return seen

    async with sides(servers) as both:
        found = [await script(side) for side in both]
        assert found[0] == found[1]


async def test_rights_that_go_while_a_client_reads(servers: tuple[Guarded, Guarded]) -> None:
    """A session's next fetch is refused the topic, and a member of a group its heartbeat."""

    async def script(side: Side) -> list[Any]:
        await filled(side)
        rights = [*topic("t", O.READ), *group("r", O.READ)]
        await side.give(rights)
        request = fetch_request("t", 0)
        request.session_epoch = 0
        first = await side.user(request, 12)
        assert first.responses[0].partitions[0].records
        join = m.ConsumerGroupHeartbeatRequest(
            group_id="r", member_id="m", member_epoch=0, rebalance_timeout_ms=1000, subscribed_topic_names=["t"],
            topic_partitions=[],
        )  # fmt: skip
        joined = await until(lambda: side.user(join, 1), lambda answer: not answer.error_code)
        seen: list[Any] = []
        for step, entries in enumerate(([], topic("t", O.READ), rights), 1):
            await side.give(entries)
            again = m.FetchRequest(
                session_id=first.session_id, session_epoch=step, max_wait_ms=0, min_bytes=1, max_bytes=10**6
            )
            seen.append(told(await side.user(again, 12)))
            beat = m.ConsumerGroupHeartbeatRequest(group_id="r", member_id="m", member_epoch=joined.member_epoch)
            seen.append((await side.user(beat, 1)).error_code)
        leave = m.ConsumerGroupHeartbeatRequest(group_id="r", member_id="m", member_epoch=-1)
        seen.append((await side.user(leave, 1)).error_code)
        return seen

    async with sides(servers) as both:
        found = [await script(side) for side in both]
        assert found[0] == found[1]


async def test_entries_that_are_none(servers: tuple[Guarded, Guarded]) -> None:
    """What CreateAcls and DeleteAcls refuse, in what words, and what they take."""

    def creation(**more: Any) -> m.AclCreation:
        given: dict[str, Any] = {
            "resource_type": 2, "resource_name": "t", "resource_pattern_type": 3, "principal": "User:a", "host": "*",
            "operation": 3, "permission_type": 3,
        }  # fmt: skip
        return m.AclCreation(**{**given, **more})

    creations = [
        creation(**more)
        for more in (
            {}, {}, {"resource_name": ""}, {"resource_name": "", "resource_pattern_type": 4},
            {"resource_type": 4}, {"resource_type": 4, "resource_name": "kafka-cluster"},
            {"operation": 2, "host": ""}, {"host": "example.org"}, {"principal": "User:"}, {"principal": ":a"},
            {"resource_name": "*", "resource_pattern_type": 4}, {"resource_type": 3, "operation": 12},
            {"resource_type": 7, "operation": 13}, {"resource_name": "a\nb"}, {"operation": 15},
        )
    ]  # fmt: skip

    def wanted(**more: Any) -> m.DeleteAclsFilter:
        given: dict[str, Any] = {
            "resource_type_filter": 1, "resource_name_filter": None, "pattern_type_filter": 1,
            "principal_filter": None, "host_filter": None, "operation": 1, "permission_type": 1,
        }  # fmt: skip
        return m.DeleteAclsFilter(**{**given, **more})

    filters = [
        wanted(**more)
        for more in (
            {"resource_name_filter": "t", "pattern_type_filter": 2}, {"resource_name_filter": "t"},
            {"host_filter": ""}, {"resource_type_filter": 99}, {"operation": 99}, {"principal_filter": "User:nobody"},
        )
    ]  # fmt: skip

    async def script(side: Side) -> list[Any]:
        await side.give([])
        seen: list[Any] = []
        for each in creations:
            (row,) = (await side.root(m.CreateAclsRequest(creations=[each]), 3)).results
            seen.append((row.error_code, row.error_message))
        made = sum(not code for code, _ in seen) - 1
        await until(side.admin.describe_acls, lambda acls: len(acls) == made)
        everything = m.DescribeAclsRequest(
            resource_type_filter=1, resource_name_filter=None, pattern_type_filter=1, principal_filter=None,
            host_filter=None, operation=1, permission_type=1,
        )  # fmt: skip
        seen.append(told(await side.root(everything, 3)))
        answer = await side.root(m.DeleteAclsRequest(filters=filters), 3)
        seen.append([(row.error_code, row.error_message, len(row.matching_acls)) for row in answer.filter_results])
        seen.append(told(answer))
        await side.give([])
        return seen

    async with sides(servers) as both:
        found = [await script(side) for side in both]
        assert found[0] == found[1]

"""A gateway that leads some partitions and coordinates some groups: the handlers and tables ask who does, and obey."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import anyio.lowlevel
import pytest

from kclient.errors import ErrorCode
from kclient.gateway import Gateway, opening, slow_reads, starting
from kclient.gateway.contexts import Advertised
from kclient.gateway.coordination import CoordinatorType
from kclient.gateway.identity import Identity
from kclient.gateway.leadership import GatewayNode, Leader
from kclient.gateway.rows.keys import OFFSETS
from kclient.gateway.topics.record import TopicRecord
from kclient.gateway.unit import Unit
from kclient.htp import open_store
from kclient.protocol import messages as m
from kclient.protocol.message import ApiMessage
from kclient.records import decode_records, iter_headers, read_header
from tests.all_rows import scan_all
from tests.gateway_wire import batch_of, connect, names, produce_request, running
from tests.uncertain_store import Fate, UncertainStore

pytestmark = pytest.mark.anyio

OTHER = 2
EPOCH = 70
"""Of partition 0; those of the others follow."""


class Half:
    """Leads the partitions with even numbers and coordinates the groups whose names begin with "mine".

    Units have numbers of its own, and epochs that nothing but this object knows.
    """

    def __init__(self, identity: Identity, rack: str | None, *_: object) -> None:
        self._me = identity.node_id
        self._rack = rack
        self._raised: dict[Unit, int] = {}

    def nodes(self, advertised: Advertised) -> Sequence[GatewayNode]:
        return GatewayNode(self._me, advertised.host, advertised.port, self._rack), GatewayNode(
            OTHER, "other", 9, "there"
        )

    @property
    def controller_id(self) -> int:
        return OTHER

    def leader(self, record: TopicRecord, index: int) -> Leader:
        epoch = self._raised.get(self.unit(record, index), EPOCH + index)
        return Leader(OTHER if index % 2 else self._me, epoch)

    def leads(self, record: TopicRecord, index: int) -> bool:
        return index % 2 == 0

    def unit(self, record: TopicRecord, index: int) -> Unit:
        return Unit(record.topic_id, 1000 - index)

    def epoch(self, unit: Unit) -> int:
        return self._raised.get(unit, EPOCH + 1000 - unit.number)

    async def raise_epoch(self, unit: Unit, above: int, *, since: int) -> int:
        await anyio.lowlevel.checkpoint()
        self._raised[unit] = above + 10
        return above + 10

    def greatest_epoch(self, topic_id: bytes) -> int:
        return max([EPOCH + 9, *(epoch for unit, epoch in self._raised.items() if unit.topic_id == topic_id)])

    def forget(self, topic_id: bytes) -> None:
        for unit in [unit for unit in self._raised if unit.topic_id == topic_id]:
            del self._raised[unit]

    def coordinator_id(self, kind: CoordinatorType, key: str) -> int:
        return self._me if self.coordinates(kind, key) else 3 if key == "nobody's" else OTHER

    def coordinator_epoch(self, kind: CoordinatorType, key: str) -> int:
        return 1

    def coordinates(self, kind: CoordinatorType, key: str) -> bool:
        return key.startswith("mine")

    @property
    def generation(self) -> int:
        return 1

    def on_change(self, callback: Callable[[], object]) -> None:
        """There is never another."""


@pytest.fixture
def half(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starting, "AssignedLeadership", Half)


@pytest.mark.usefixtures("half")
async def test_clients_are_told_who_leads() -> None:
    async with running(config={"broker.rack": "here"}) as (gateway, wire):
        await wire.create("t", 3)
        answer = await wire.metadata("t")
        brokers = [(each.node_id, each.rack) for each in answer.brokers]
        assert brokers == [(1, "here"), (OTHER, "there")]
        assert (answer.brokers[1].host, answer.brokers[1].port) == ("other", 9)
        assert answer.controller_id == OTHER
        expected = [(0, 1, EPOCH), (1, OTHER, EPOCH + 1), (2, 1, EPOCH + 2)]
        rows = answer.topics[0].partitions
        assert [(row.partition_index, row.leader_id, row.leader_epoch) for row in rows] == expected
        assert [(row.replica_nodes, row.isr_nodes) for row in rows] == [([n], [n]) for _, n, _ in expected]
        topic = (await wire(m.DescribeTopicPartitionsRequest(), 0)).topics[-1]
        assert [(row.partition_index, row.leader_id, row.leader_epoch) for row in topic.partitions] == expected
        cluster = await wire(m.DescribeClusterRequest(), 1)
        assert [(each.broker_id, each.host, each.rack) for each in cluster.brokers][1:] == [(OTHER, "other", "there")]
        assert cluster.controller_id == OTHER
        assert cluster.cluster_id == gateway.parts.identity.cluster_id
        found = await wire(m.FindCoordinatorRequest(coordinator_keys=["mine", "theirs", "nobody's"]), 4)
        assert [(row.node_id, row.error_code) for row in found.coordinators] == [
            (1, 0), (OTHER, 0), (-1, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        ]  # fmt: skip
        assert (found.coordinators[1].host, found.coordinators[1].port) == ("other", 9)


@pytest.mark.own_places
@pytest.mark.usefixtures("half")
async def test_what_another_gateway_leads_is_not_served() -> None:
    async with running() as (gateway, wire):
        await wire.create("t", 3)
        refused = ErrorCode.NOT_LEADER_OR_FOLLOWER
        large = batch_of(bytes(200_000))
        for batch in (batch_of(b"a"), large):
            answer = await wire(produce_request("t", batch, partition=1), 9)
            row = answer.responses[0].partition_responses[0]
            assert (row.error_code, row.base_offset) == (refused, -1)
        assert (await wire.fetch("t", 0, partition=1)).error_code == refused
        assert (await wire.offset("t", -1, partition=1)).error_code == refused
        assert (await wire.delete_records("t", 0, partition=1)).error_code == refused
        asked = m.OffsetForLeaderTopic(topic="t", partitions=[m.OffsetForLeaderPartition(partition=1)])
        epochs = await wire(m.OffsetForLeaderEpochRequest(topics=[asked]), 4)
        assert epochs.topics[0].partitions[0].error_code == refused
        assert (await wire.fetch("t", 0, partition=3)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        for index in (0, 2):  # the others are, each under an epoch of its own
            produced = await wire(produce_request("t", batch_of(b"a"), partition=index), 9)
            assert produced.responses[0].partition_responses[0].base_offset == 0
            records = (await wire.fetch("t", 0, partition=index)).records
            assert read_header(records).partition_leader_epoch == EPOCH + index
            assert [record.value for record in decode_records(records, "t", index)] == [b"a"]
            assert (await wire.offset("t", -1, partition=index)).leader_epoch == EPOCH + index
        assert sorted(partition.index for partition in gateway.parts.partitions.opened()) == [0, 2]


@pytest.mark.own_places
@pytest.mark.usefixtures("half")
async def test_a_raised_epoch_is_asked_of_the_leadership() -> None:
    async with open_store(f"memory:{next(names)}") as inner:
        store = UncertainStore(inner)
        async with Gateway(store, listen=None) as gateway:
            wire = connect(gateway)
            await wire.create("t", 4)
            assert (await wire.produce("t", batch_of(b"a"), 2)).base_offset == 0
            store.broker.fates.append(Fate.STORED)
            assert (await wire.produce("t", batch_of(b"b"), 2)).base_offset == 1
            assert (await wire.produce("t", batch_of(b"c"), 2)).base_offset == 2
            records = (await wire.fetch("t", 0, partition=2)).records
            epochs = [header.partition_leader_epoch for _, header in iter_headers(records)]
            assert epochs == [EPOCH + 2, EPOCH + 2, EPOCH + 12]
            told = {row.partition_index: row.leader_epoch for row in (await wire.metadata("t")).topics[0].partitions}
            assert told == {0: EPOCH, 1: EPOCH + 1, 2: EPOCH + 12, 3: EPOCH + 3}
            assert store.broker.epochs == [EPOCH + 2, EPOCH + 12]
            assert await wire.delete("t") == 0, "under an epoch that none of its partitions is above"
            await wire.aclose()


@pytest.mark.many_partitions
@pytest.mark.own_places
@pytest.mark.usefixtures("half")
async def test_who_asks_the_wrong_gateway_is_told_the_right_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """KIP-951: from the versions on that have a place for it; one address for all its partitions."""
    for long in (opening, slow_reads):  # of hundreds of partitions, on a machine that may be busy
        monkeypatch.setattr(long, "_LONG_S", 600.0)
    async with running(config={"broker.rack": "here"}) as (_, wire):
        await wire.create("t", 400)
        topic_id = (await wire.metadata("t")).topics[0].topic_id
        data = [m.PartitionProduceData(index=index, records=batch_of(b"a")) for index in (0, 1, 3)]
        for version in (9, 10, 12):
            request = m.ProduceRequest(
                acks=-1, timeout_ms=30_000, topic_data=[m.TopicProduceData(name="t", partition_data=data)]
            )
            answer = await wire(request, version)
            rows = answer.responses[0].partition_responses
            assert [row.error_code for row in rows] == [0, *[ErrorCode.NOT_LEADER_OR_FOLLOWER] * 2]
            leaders = [(row.current_leader.leader_id, row.current_leader.leader_epoch) for row in rows]
            told = version >= 10
            assert leaders == [(-1, -1), *([(OTHER, EPOCH + 1), (OTHER, EPOCH + 3)] if told else [(-1, -1)] * 2)]
            at = [(each.node_id, each.host, each.port, each.rack) for each in answer.node_endpoints]
            assert at == ([(OTHER, "other", 9, "there")] if told else [])
        for version, count in ((15, 4), (16, 4), (17, 4), (17, 400)):
            wanted = [
                m.FetchRequestPartition(
                    partition=index,
                    fetch_offset=0,
                    partition_max_bytes=100,
                    current_leader_epoch=EPOCH - 1 if index == 2 else -1,
                )
                for index in range(count)
            ]
            topics = [m.FetchRequestTopic(topic_id=topic_id, partitions=wanted)]
            answer = await wire(m.FetchRequest(max_wait_ms=0, min_bytes=1, topics=topics), version)
            told = version >= 16
            for row in answer.responses[0].partitions:
                index, leader = row.partition_index, (row.current_leader.leader_id, row.current_leader.leader_epoch)
                if index % 2:
                    assert row.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
                    assert leader == ((OTHER, EPOCH + index) if told else (-1, -1))
                elif index == 2:
                    assert row.error_code == ErrorCode.FENCED_LEADER_EPOCH
                    assert leader == ((1, EPOCH + 2) if told else (-1, -1))
                else:
                    assert (row.error_code, leader) == (0, (-1, -1))
            found = {each.node_id: (each.host, each.port, each.rack) for each in answer.node_endpoints}
            assert len(found) == len(answer.node_endpoints)
            assert found.keys() == ({1, OTHER} if told else set())
            assert found.get(OTHER, ("other", 9, "there")) == ("other", 9, "there")


REQUESTS: dict[str, tuple[Callable[[str], ApiMessage], int]] = {
    "join": (lambda group: m.JoinGroupRequest(group_id=group, session_timeout_ms=6000, protocol_type="consumer"), 9),
    "sync": (lambda group: m.SyncGroupRequest(group_id=group, generation_id=1, member_id="m"), 5),
    "heartbeat": (lambda group: m.HeartbeatRequest(group_id=group, generation_id=1, member_id="m"), 4),
    "leave": (
        lambda group: m.LeaveGroupRequest(group_id=group, members=[m.LeaveGroupRequestMember(member_id="m")]), 5,
    ),
    "describe": (lambda group: m.DescribeGroupsRequest(groups=[group]), 5),
    "delete": (lambda group: m.DeleteGroupsRequest(groups_names=[group]), 2),
    "fetch offsets": (
        lambda group: m.OffsetFetchRequest(groups=[m.OffsetFetchRequestGroup(group_id=group, topics=None)]), 9,
    ),
    "delete offsets": (
        lambda group: m.OffsetDeleteRequest(
            group_id=group,
            topics=[
                m.OffsetDeleteRequestTopic(name="t", partitions=[m.OffsetDeleteRequestPartition(partition_index=0)])
            ],
        ), 0,
    ),
}  # fmt: skip


def codes(answer: Any) -> set[int]:
    rows = [answer, *(getattr(answer, "groups", None) or ()), *(getattr(answer, "results", None) or ())]
    return {row.error_code for row in rows if hasattr(row, "error_code")} - {0}


@pytest.mark.usefixtures("half")
@pytest.mark.parametrize("name", REQUESTS)
async def test_what_another_gateway_coordinates_is_refused(name: str) -> None:
    make, version = REQUESTS[name]
    async with running() as (gateway, wire):
        await wire.create("t")
        assert codes(await wire(make("theirs"), version)) == {ErrorCode.NOT_COORDINATOR}
        assert await wire.commit("theirs", "t", 1) == ErrorCode.NOT_COORDINATOR
        assert not gateway.parts.groups.table.groups
        assert ErrorCode.NOT_COORDINATOR not in codes(await wire(make("mine"), version))
        assert await wire.commit("mine too", "t", 1) == 0


async def test_groups_of_others_are_not_loaded_and_stay_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_store(f"memory:{next(names)}") as store:
        async with Gateway(store, listen=None) as gateway:
            wire = connect(gateway)
            await wire.create("t")
            for group in ("mine", "theirs"):
                assert await wire.commit(group, "t", 5) == 0
            await wire.aclose()
        rows = await scan_all(store.manager, OFFSETS)
        assert len(rows) == 2
        with monkeypatch.context() as patch:
            patch.setattr(starting, "AssignedLeadership", Half)
            async with Gateway(store, listen=None) as gateway:
                assert list(gateway.parts.groups.table.groups) == ["mine"]
                wire = connect(gateway)
                assert await wire.committed("mine", "t") == 5
                assert [each.group_id for each in (await wire(m.ListGroupsRequest(), 5)).groups] == ["mine"]
                await wire.aclose()
        assert await scan_all(store.manager, OFFSETS) == rows
        async with Gateway(store, listen=None) as gateway:
            wire = connect(gateway)
            assert await wire.committed("theirs", "t") == 5
            await wire.aclose()

"""Transactions of two gateways, of which one coordinates and the other leads: what they ask of one another."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from kclient.concurrency import Supervisor
from kclient.errors import CoordinatorNotAvailableError
from kclient.errors import ErrorCode as E
from kclient.gateway import Gateway
from kclient.gateway.contexts import IN_PROCESS
from kclient.gateway.coordination import CoordinatorType
from kclient.gateway.groups import transactional
from kclient.gateway.handlers import transactions as handlers
from kclient.gateway.local import local_address
from kclient.gateway.partition_id import PartitionId
from kclient.gateway.peer_calls import connecting, routing
from kclient.gateway.peer_calls.names import client_id_of, wire_group, wire_name
from kclient.gateway.peers import EndOfTransaction, Outcomes, TransactionOf
from kclient.gateway.rows.gateways import Endpoint, GatewayRow
from kclient.gateway.transactions.coordinator import TransactionCoordinator
from kclient.htp import open_store
from kclient.net.connection import Connection
from kclient.net.settings import ConnectionSettings
from kclient.protocol import messages as m
from kclient.protocol.framing import encode_request
from kclient.protocol.message import ApiMessage
from kclient.records import EndMarker
from tests.gateway_wire import Wire, connect, names
from tests.unit.gateway_cluster.together import joined
from tests.unit.gateway_cluster.two_gateways import until
from tests.unit.gateway_transactions.transacting import ByHand, committed_values, decided

pytestmark = pytest.mark.anyio

Served = tuple[Gateway, Wire]
PARTITIONS = 24


@asynccontextmanager
async def two(store: Any, listen: str | None = "127.0.0.1:0") -> AsyncIterator[tuple[Served, Served]]:
    """Two gateways that lead some partitions of the topic `t` each."""
    async with joined(store, 1, listen=listen) as one, joined(store, 2, listen=listen) as other:
        await create(one, other)
        await until(lambda: len(led_by(one)) not in (0, PARTITIONS))
        await until(lambda: len(led_by(other)) == PARTITIONS - len(led_by(one)))
        yield one, other


async def create(one: Served, other: Served) -> bytes:
    topic_id = bytes((await one[1].create("t", PARTITIONS)).topic_id)
    for gateway, _ in (one, other):
        await until(lambda gateway=gateway: gateway.parts.topics.by_id(topic_id))
    return topic_id


def led_by(served: Served) -> list[int]:
    parts = served[0].parts
    record = parts.topics.get("t")
    assert record is not None
    return [number for number in range(PARTITIONS) if parts.leadership.leads(record, number)]


def coordinated_by(served: Served) -> str:
    return next(_coordinated(served, CoordinatorType.TRANSACTION, "x"))


def _coordinated(served: Served, kind: CoordinatorType, name: str) -> Iterator[str]:
    leadership = served[0].parts.leadership
    return (each for each in (f"{name}{number}" for number in itertools.count()) if leadership.coordinates(kind, each))


async def transact(
    coordinator: Served, leader: Served, *, version: int, commit: bool, again: tuple[int, ...] = ()
) -> None:
    """One transaction, which the one coordinates and in which a partition of the other is.

    Args:
        coordinator: The one.
        leader: The other.
        version: Of the protocol.
        commit: Whether it commits.
        again: Codes after which a batch is sent again.
    """
    producer = ByHand(coordinator[1], coordinated_by(coordinator), version)
    partition = led_by(leader)[0]
    assert await producer.init() == 0
    if version < 2:
        assert await producer.add("t", partition) == 0
    value = f"{producer.name}-{producer.producer_id}-{producer.epoch}".encode()
    producer.wire = leader[1]
    with anyio.fail_after(20):
        while (code := await producer.send("t", value, partition=partition)) in again:
            pass
    assert code == 0
    producer.wire = coordinator[1]
    assert await producer.end(commit) == 0
    await decided(leader[1], "t", partition)
    assert (value in await committed_values(leader[1], "t", partition)) == commit


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("commit", [True, False])
async def test_one_coordinates_and_another_leads(version: int, commit: bool) -> None:
    async with open_store(f"memory:{next(names)}") as store, two(store) as (one, other):
        await transact(one, other, version=version, commit=commit)
        await transact(other, one, version=version, commit=commit)


async def test_gateways_of_one_process_need_no_port() -> None:
    async with two(f"memory:{next(names)}", listen=None) as (one, other):
        await transact(one, other, version=2, commit=True)
        await transact(other, one, version=2, commit=True)


async def test_a_partition_that_is_not_in_the_transaction_is_refused() -> None:
    async with open_store(f"memory:{next(names)}") as store, two(store) as (one, other):
        producer = ByHand(one[1], coordinated_by(one), version=1)
        await producer.init()
        producer.wire = other[1]
        assert await producer.send("t", b"a", partition=led_by(other)[0]) == E.TRANSACTION_ABORTABLE


def group_of(served: Served) -> str:
    return next(_coordinated(served, CoordinatorType.GROUP, "group "))


async def test_the_gateway_of_a_group_has_another_add_it_and_is_told_the_outcome(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transactional, "_FIRST_PAUSE_S", 1000.0)  # it does not find out by itself
    monkeypatch.setattr(transactional, "_LONGEST_PAUSE_S", 1000.0)
    async with open_store(f"memory:{next(names)}") as store, two(store) as (one, other):
        producer, group = ByHand(one[1], coordinated_by(one)), group_of(other)
        await producer.init()
        producer.wire = other[1]
        assert await producer.offsets(group, {("t", 0): 7}) == 0
        zombie = ByHand(other[1], producer.name, producer_id=producer.producer_id, epoch=producer.epoch - 1)
        assert await zombie.offsets(group, {("t", 0): 3}) == E.INVALID_PRODUCER_EPOCH
        stranger = ByHand(other[1], coordinated_by(one) + "?", producer_id=1, epoch=0)
        while other[0].parts.leadership.coordinates(CoordinatorType.TRANSACTION, stranger.name):
            stranger.name += "?"
        assert await stranger.offsets(group, {("t", 0): 3}) == E.INVALID_PRODUCER_ID_MAPPING
        producer.wire = one[1]
        assert await producer.end() == 0
        await until_offset(other[1], group, 7)


async def until_offset(wire: Wire, group_id: str, offset: int) -> None:
    """Wait until this is a group's stable offset of the first partition."""
    topics = [m.OffsetFetchRequestTopics(name="t", partition_indexes=[0])]
    request = m.OffsetFetchRequest(
        groups=[m.OffsetFetchRequestGroup(group_id=group_id, topics=topics)], require_stable=True
    )
    with anyio.fail_after(20):
        while True:
            (row,) = (await wire(request, 8)).groups[0].topics[0].partitions
            if row.error_code != E.UNSTABLE_OFFSET_COMMIT:
                break
            await anyio.sleep(0.005)
    assert (row.error_code, row.committed_offset) == (0, offset)


@pytest.mark.slow
async def test_another_run_under_the_same_number_is_found() -> None:
    async with open_store(f"memory:{next(names)}") as store, joined(store, 1, listen="127.0.0.1:0") as one:
        for _ in range(2):
            async with joined(store, 2, listen="127.0.0.1:0") as other:
                if one[0].parts.topics.get("t") is None:
                    await create(one, other)
                await until(lambda: 0 < len(led_by(one)) < PARTITIONS)
                await until(lambda other=other: len(led_by(other)) == PARTITIONS - len(led_by(one)))
                await transact(one, other, version=2, commit=True)
                await transact(other, one, version=2, commit=True)
                await other[0].close(0)
            await until(lambda: len(led_by(one)) == PARTITIONS)


class AsGateway(Wire):
    """A connection on which another gateway seems to ask."""

    def __init__(self, to: Gateway, client_id: str) -> None:
        super().__init__(connect(to).stream)
        self._client_id = client_id

    async def send(self, request: ApiMessage, version: int) -> None:
        await self.stream.send(encode_request(request, version, next(self._ids), self._client_id))


def marker(producer: ByHand, name: str, partition: int) -> m.WriteTxnMarkersRequest:
    return m.WriteTxnMarkersRequest(
        markers=[
            m.WritableTxnMarker(
                producer_id=producer.producer_id,
                producer_epoch=producer.epoch,
                transaction_result=True,
                topics=[m.WritableTxnMarkerTopic(name=name, partition_indexes=[partition])],
                coordinator_epoch=1 << 30,
            )
        ]
    )


async def test_neither_ends_nor_joins_hit_a_namesake() -> None:
    async with open_store(f"memory:{next(names)}") as store, two(store) as (one, other):
        record = one[0].parts.topics.get("t")
        assert record is not None
        old = record.topic_id
        assert await one[1].delete("t") == 0
        new = await create(one, other)
        producer = ByHand(other[1], coordinated_by(other))
        partition = led_by(other)[0]
        await producer.init()
        assert await producer.send("t", b"a", partition=partition) == 0
        asking = AsGateway(other[0], client_id_of(1, one[0].parts.identity.run))
        (result,) = (await asking(marker(producer, wire_name(old), partition), 2)).markers
        assert result.topics[0].partitions[0].error_code == E.UNKNOWN_TOPIC_OR_PARTITION
        assert await committed_values(other[1], "t", partition) == [], "it is open still"
        free = (partition + 1) % PARTITIONS
        transaction = m.AddPartitionsToTxnTransaction(
            transactional_id=producer.name, producer_id=producer.producer_id, producer_epoch=producer.epoch,
            verify_only=False, topics=[m.AddPartitionsToTxnTopic(name=wire_name(old), partitions=[free])],
        )  # fmt: skip
        (joined_,) = (await asking(m.AddPartitionsToTxnRequest(transactions=[transaction]), 5)).results_by_transaction
        assert joined_.topic_results[0].results_by_partition[0].partition_error_code == E.UNKNOWN_TOPIC_OR_PARTITION
        coordinator = other[0].parts.transactions
        assert coordinator is not None
        found = await coordinator.table.get(producer.name)
        assert found is not None
        assert found.partitions == {PartitionId(new, partition)}
        (result,) = (await asking(marker(producer, wire_name(new), partition), 2)).markers
        assert result.topics[0].partitions[0].error_code == 0
        assert await committed_values(other[1], "t", partition) == [b"a"]
        await asking.aclose()


async def test_whoever_is_no_gateway_names_topics_by_their_names() -> None:
    """And needs the right to the cluster: see the tests of access."""
    async with open_store(f"memory:{next(names)}") as store, two(store) as (one, other):
        producer = ByHand(one[1], coordinated_by(one))
        partition = led_by(other)[0]
        await producer.init()
        producer.wire = other[1]
        assert await producer.send("t", b"a", partition=partition) == 0
        record = one[0].parts.topics.get("t")
        assert record is not None
        for client_id in ("test", "kclient-gateway-1/", client_id_of(1, "0" * 16), client_id_of(2, "0" * 16)):
            for name in (wire_name(record.topic_id), wire_group("t")):
                asking = AsGateway(other[0], client_id)
                (result,) = (await asking(marker(producer, name, partition), 2)).markers
                assert result.topics[0].partitions[0].error_code == E.UNKNOWN_TOPIC_OR_PARTITION
                await asking.aclose()
        assert await committed_values(other[1], "t", partition) == []


async def test_one_transaction_that_hangs_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = TransactionCoordinator.verify

    async def verify(
        self: TransactionCoordinator, transaction: TransactionOf, partitions: Collection[PartitionId], *, add: bool
    ) -> Outcomes:
        if transaction.transactional_id == slow.name:
            await anyio.sleep_forever()
        return await whole(self, transaction, partitions, add=add)

    monkeypatch.setattr(TransactionCoordinator, "verify", verify)
    monkeypatch.setattr(handlers, "_PATIENCE_S", 0.05)
    async with open_store(f"memory:{next(names)}") as store, two(store) as (one, other):
        mine = itertools.islice(_coordinated(one, CoordinatorType.TRANSACTION, "x"), 10)
        slow, *quick = (ByHand(one[1], name) for name in mine)
        for producer in (slow, *quick):
            await producer.init()
            producer.wire = other[1]
        record = other[0].parts.topics.get("t")
        assert record is not None
        wanted = [PartitionId(record.topic_id, led_by(other)[0])]
        peers = other[0].parts.peers

        async def hang() -> None:
            with pytest.raises(CoordinatorNotAvailableError):
                await peers.verify(TransactionOf(slow.name, slow.producer_id, slow.epoch), wanted, add=True)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(hang)
            with anyio.fail_after(20):
                for each in quick:
                    transaction = TransactionOf(each.name, each.producer_id, each.epoch)
                    assert await peers.verify(transaction, wanted, add=True) == {wanted[0]: 0}


@pytest.mark.slow
async def test_what_a_stopped_gateway_was_asked_its_successor_does(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = anyio.Event()

    async def stopped(self: handlers.WriteTxnMarkersHandler, *_: Any) -> Any:
        asked.set()
        await anyio.sleep_forever()

    monkeypatch.setattr(handlers.WriteTxnMarkersHandler, "_finish", stopped)
    async with open_store(f"memory:{next(names)}") as store, two(store) as (one, other):
        producer = ByHand(one[1], coordinated_by(one))
        partition = led_by(other)[0]
        await producer.init()
        producer.wire = other[1]
        assert await producer.send("t", b"a", partition=partition) == 0
        producer.wire = one[1]
        assert await producer.end() == 0
        with anyio.fail_after(20):
            await asked.wait()
        assert await committed_values(other[1], "t", partition) == []
        await other[0].close(0)
        await until(lambda: len(led_by(one)) == PARTITIONS)
        await until_open(one[1], partition)
        await decided(one[1], "t", partition)
        assert await committed_values(one[1], "t", partition) == [b"a"]


async def until_open(wire: Wire, partition: int) -> None:
    with anyio.fail_after(20):
        while (await wire.fetch("t", 0, partition)).error_code or not (
            await wire.fetch("t", 0, partition)
        ).high_watermark:
            await anyio.sleep(0.005)


async def test_a_topic_that_is_not_known_has_been_deleted_only_if_all_is_heard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with open_store(f"memory:{next(names)}") as store, two(store) as (one, _):
        wanted = PartitionId(b"0123456789abcdef", 0)
        end = EndOfTransaction(1, 0, EndMarker(True, coordinator_epoch=1), [wanted])
        for seconds, code in (1000.0, E.NOT_LEADER_OR_FOLLOWER), (0.0, E.UNKNOWN_TOPIC_OR_PARTITION):
            monkeypatch.setattr(routing, "_HEARD_S", seconds)
            assert await one[0].parts.peers.write_markers([end]) == [{wanted: code}]


async def test_transactions_go_on_while_connections_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = connecting.connect_to
    made: list[Connection] = []

    async def connect_to(*args: Any) -> Connection:
        made.append(await whole(*args))
        return made[-1]

    monkeypatch.setattr(routing, "connect_to", connect_to)
    async with open_store(f"memory:{next(names)}") as store, two(store) as (one, other):

        async def cut() -> None:
            def in_flight() -> bool:
                return any(each.in_flight for each in made)

            while True:
                await until(in_flight)
                for each in made:
                    each.close()
                made.clear()
                await until(in_flight)  # else nothing ever comes through
                await until(lambda: not in_flight())

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(cut)
            for number in range(6):
                coordinator, leader = (one, other) if number % 2 else (other, one)
                await transact(
                    coordinator, leader, version=1 + number % 2, commit=number % 3 != 0,
                    again=(E.NOT_ENOUGH_REPLICAS,),
                )  # fmt: skip
            tasks.cancel_scope.cancel()


async def test_a_gateway_of_the_same_directory_is_reached_by_its_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = f"embedded:{tmp_path / 'data'}"
    monkeypatch.setattr(connecting, "find_local", lambda _: None)
    supervisor = Supervisor("test")
    await supervisor.start()
    async with Gateway(address, listen="127.0.0.1:0", config={"node.id": 7}):
        row = GatewayRow(7, "run", 1, {IN_PROCESS: Endpoint("store", 0, "PLAINTEXT")})
        connection = await connecting.connect_to(row, local_address(address), ConnectionSettings(), supervisor)
        assert connection.address.scheme == "unix"
        assert connection.api_versions
        connection.close()
    await supervisor.aclose()

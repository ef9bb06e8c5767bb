"""The coordinator of transactions, as producers, leaders and tools find it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from kclient.acls import AclOperation, ResourceType
from kclient.errors import ErrorCode as E
from kclient.gateway import Gateway
from kclient.gateway.contexts import ConnectionContext
from kclient.gateway.peers import LocalPeers
from kclient.gateway.rows.keys import TRANSACTIONS, transaction_key
from kclient.gateway.transactions import table
from kclient.gateway.transactions.expiry import TransactionExpiry
from kclient.gateway.transactions.settings import TransactionSettings
from kclient.htp import StorageError, open_store
from kclient.protocol import messages as m
from tests.all_rows import scan_all
from tests.gateway_wire import connect, names, running
from tests.slow_store import SlowStore
from tests.unit.gateway_transactions.transacting import ByHand, committed_values, decided

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("version", [1, 2])
async def test_a_transaction_over_partitions_is_seen_as_a_whole(version: int) -> None:
    async with running() as (_, wire):
        await wire.create("t", 3)
        producer = ByHand(wire, "x", version)
        assert await producer.init() == 0
        identity = producer.producer_id, producer.epoch
        for partition in range(3):
            if version == 1:
                assert await producer.add("t", partition) == 0
            assert await producer.send("t", b"%d" % partition, partition=partition) == 0
            assert await committed_values(wire, "t", partition) == []
        assert await producer.end() == 0
        assert (producer.producer_id, producer.epoch) == (identity[0], identity[1] + version - 1)
        for partition in range(3):
            await decided(wire, "t", partition)
            assert await committed_values(wire, "t", partition) == [b"%d" % partition]


@pytest.mark.parametrize("version", [1, 2])
async def test_ends_that_are_asked_for_again(version: int) -> None:
    async with running() as (_, wire):
        await wire.create("t")
        producer = ByHand(wire, "x", version)
        await producer.init()
        assert await producer.end() == E.INVALID_TXN_STATE, "nothing has joined"
        await producer.add("t", 0)
        await producer.send("t", b"a", produce=11)
        assert [await producer.end(keep=True) for _ in range(3)] == [0] * 3
        await decided(wire, "t")
        assert await producer.end(keep=True) == 0
        assert await producer.end(commit=False, keep=True) == E.INVALID_TXN_STATE
        assert await committed_values(wire, "t") == [b"a"]


async def test_a_batch_outside_of_a_transaction_is_refused() -> None:
    async with running() as (_, wire):
        await wire.create("t", 2)
        producer = ByHand(wire, "x", 1)
        await producer.init()
        assert await producer.send("t", b"a", produce=11) == E.TRANSACTION_ABORTABLE
        assert await producer.send("t", b"a", produce=10) == E.INVALID_TXN_STATE
        await producer.add("t", 0)
        assert await producer.send("t", b"b", partition=1, produce=11) == E.TRANSACTION_ABORTABLE
        stranger = ByHand(wire, "y", 2, producer.producer_id, producer.epoch)
        assert await stranger.send("t", b"c", partition=1) == E.INVALID_PRODUCER_ID_MAPPING
        zombie = ByHand(wire, "x", 2, producer.producer_id, producer.epoch)
        assert await ByHand(wire, "x").init() == 0
        assert await zombie.send("t", b"d", partition=1) == E.INVALID_PRODUCER_EPOCH
        assert await zombie.add("t", 0) == E.PRODUCER_FENCED
        assert await zombie.end() == E.PRODUCER_FENCED
        assert await wire.values("t") == await wire.values("t", 0, 1) == []


async def test_wrong_requests_are_refused() -> None:
    async with running() as (_, wire):
        await wire.create("t")
        producer = ByHand(wire, "x")
        assert await producer.init(timeout_ms=0) == E.INVALID_TRANSACTION_TIMEOUT
        assert await producer.init(timeout_ms=900_001) == E.INVALID_TRANSACTION_TIMEOUT
        assert await ByHand(wire, "").init() == E.INVALID_REQUEST
        producer.producer_id = 5
        assert await producer.init(recover=True) == E.INVALID_REQUEST
        assert await producer.end() == E.INVALID_PRODUCER_ID_MAPPING
        assert await producer.init() == 0
        assert await producer.add("t", 1) == E.UNKNOWN_TOPIC_OR_PARTITION
        request = m.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id="x",
            v3_and_below_producer_id=producer.producer_id,
            v3_and_below_producer_epoch=producer.epoch,
            v3_and_below_topics=[
                m.AddPartitionsToTxnTopic(name="t", partitions=[0]),
                m.AddPartitionsToTxnTopic(name="none", partitions=[0]),
            ],
        )
        rows = (await wire(request, 3)).results_by_topic_v3_and_below
        found = [each.results_by_partition[0].partition_error_code for each in rows]
        assert found == [E.OPERATION_NOT_ATTEMPTED, E.UNKNOWN_TOPIC_OR_PARTITION]
        assert await producer.end() == E.INVALID_TXN_STATE, "none or all join"


async def test_brokers_add_and_verify_for_many_transactions() -> None:
    async with running() as (_, wire):
        await wire.create("t", 2)
        producers = [ByHand(wire, name) for name in ("x", "y")]
        for producer in producers:
            await producer.init()
        await producers[0].add("t", 0)

        async def ask(*, verify_only: bool, version: int) -> list[list[int]]:
            request = m.AddPartitionsToTxnRequest(
                transactions=[
                    m.AddPartitionsToTxnTransaction(
                        transactional_id=each.name,
                        producer_id=each.producer_id,
                        producer_epoch=each.epoch,
                        verify_only=verify_only,
                        topics=[m.AddPartitionsToTxnTopic(name="t", partitions=[0, 1])],
                    )
                    for each in producers
                ]
            )
            rows = (await wire(request, version)).results_by_transaction
            return [
                [row.partition_error_code for topic in each.topic_results for row in topic.results_by_partition]
                for each in rows
            ]

        missing = E.TRANSACTION_ABORTABLE
        assert await ask(verify_only=True, version=4) == [[0, missing], [missing, missing]]
        assert await ask(verify_only=False, version=5) == [[0, 0], [0, 0]]
        assert await ask(verify_only=True, version=5) == [[0, 0], [0, 0]]


async def test_a_tool_ends_a_hanging_transaction() -> None:
    async with running() as (_, wire):
        await wire.create("t")
        producer = ByHand(wire, "x")
        await producer.init()
        await producer.send("t", b"a")
        marker = m.WritableTxnMarker(
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            transaction_result=False,
            topics=[
                m.WritableTxnMarkerTopic(name="t", partition_indexes=[0, 9]),
                m.WritableTxnMarkerTopic(name="none", partition_indexes=[0]),
            ],
            coordinator_epoch=0,
        )
        (result,) = (await wire(m.WriteTxnMarkersRequest(markers=[marker]), 2)).markers
        found = [[row.error_code for row in topic.partitions] for topic in result.topics]
        unknown = E.UNKNOWN_TOPIC_OR_PARTITION
        assert found == [[0, unknown], [unknown]]
        await decided(wire, "t")


async def test_a_producer_that_comes_aborts_what_the_one_before_has_left() -> None:
    async with running() as (_, wire):
        await wire.create("t")
        first, second = ByHand(wire, "x"), ByHand(wire, "x")
        await first.init()
        await first.send("t", b"left")
        assert await second.init() == 0
        assert second.epoch == first.epoch + 2
        await decided(wire, "t")
        assert await committed_values(wire, "t") == []
        assert await first.end(commit=False) == E.PRODUCER_FENCED


async def test_whose_time_is_over_may_abort_and_go_on() -> None:
    async with running() as (_, wire):
        await wire.create("t")
        producer = ByHand(wire, "x")
        await producer.init(timeout_ms=50)
        await producer.send("t", b"slow")
        await decided(wire, "t")
        assert await producer.end() == E.INVALID_TXN_STATE
        assert await producer.end(commit=False) == 0
        assert producer.epoch == 1
        await producer.init()
        assert await producer.send("t", b"fast") == 0
        assert await producer.end() == 0
        await decided(wire, "t")
        assert await committed_values(wire, "t") == [b"fast"]


async def test_partitions_of_a_deleted_topic_hold_up_no_end() -> None:
    async with running() as (_, wire):
        await wire.create("t")
        await wire.create("gone")
        producer = ByHand(wire, "x")
        await producer.init()
        await producer.send("t", b"a")
        await producer.send("gone", b"a")
        assert await wire.delete("gone") == 0
        await wire.create("gone")
        assert await producer.end() == 0
        await decided(wire, "t")
        assert await producer.init() == 0, "all is completed"
        assert await wire.values("gone") == []


async def test_many_connections_join_at_once() -> None:
    async with running() as (gateway, wire):
        await wire.create("t", 20)
        producer = ByHand(wire, "x")
        await producer.init()
        wires = [connect(gateway) for _ in range(20)]
        codes: list[int] = []

        async def join(number: int) -> None:
            each = ByHand(wires[number], "x", 2, producer.producer_id, producer.epoch)
            codes.append(await each.send("t", b"%d" % number, partition=number))

        async with anyio.create_task_group() as tasks:
            for number in range(20):
                tasks.start_soon(join, number)
        assert codes == [0] * 20
        assert await producer.end() == 0
        for number in range(20):
            await decided(wire, "t", number)
            assert await committed_values(wire, "t", number) == [b"%d" % number]
        for each in wires:
            await each.aclose()


class Stuck:
    """Ends that are not appended until the test lets them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.held = True
        whole = LocalPeers.write_markers

        async def write(peers: LocalPeers, ends: Any) -> Any:
            if self.held:
                return [dict.fromkeys(end.partitions, int(E.NOT_LEADER_OR_FOLLOWER)) for end in ends]
            return await whole(peers, ends)

        monkeypatch.setattr(LocalPeers, "write_markers", write)


@pytest.mark.parametrize("commit", [True, False])
async def test_what_is_decided_is_finished_after_a_restart(monkeypatch: pytest.MonkeyPatch, commit: bool) -> None:
    stuck = Stuck(monkeypatch)
    async with open_store(f"memory:{next(names)}") as store:
        async with Gateway(store, listen=None) as gateway:
            wire = connect(gateway)
            await wire.create("t")
            producer = ByHand(wire, "x")
            await producer.init()
            await producer.send("t", b"a")
            assert await producer.end(commit, keep=True) == 0
            assert await producer.end(commit, keep=True) == 0
            assert await committed_values(wire, "t") == []
            await wire.aclose()
        stuck.held = False
        async with Gateway(store, listen=None) as gateway:
            producer.wire = wire = connect(gateway)
            await decided(wire, "t")
            assert await committed_values(wire, "t") == ([b"a"] if commit else [])
            assert await producer.end(commit) == 0
            assert producer.epoch == 1
            assert await producer.send("t", b"b") == 0
            assert await producer.end() == 0
            await decided(wire, "t")
            assert (await committed_values(wire, "t"))[-1] == b"b"
            await wire.aclose()


async def test_time_goes_on_after_a_restart() -> None:
    async with open_store(f"memory:{next(names)}") as store:
        async with Gateway(store, listen=None) as gateway:
            wire = connect(gateway)
            await wire.create("t")
            producer = ByHand(wire, "x")
            await producer.init(timeout_ms=300)
            await producer.send("t", b"a")
            await wire.aclose()
        async with Gateway(store, listen=None) as gateway:
            wire = connect(gateway)
            await decided(wire, "t")
            assert await committed_values(wire, "t") == []
            await wire.aclose()


class Forgetful:
    """Has the next commit fail, before or after it is made."""

    def __init__(self) -> None:
        self.before = self.after = 0

    @asynccontextmanager
    async def around(self, name: str) -> AsyncIterator[None]:
        if name.endswith("commit") and self.before:
            self.before -= 1
            raise StorageError("it is not made")
        yield
        if name.endswith("commit") and self.after:
            self.after -= 1
            raise StorageError("nobody is told")


@pytest.mark.parametrize("made", [True, False])
async def test_a_commit_of_which_nobody_knows_is_looked_up(made: bool) -> None:
    trouble = Forgetful()
    store = SlowStore(open_store(f"memory:{next(names)}"), trouble.around)
    async with store, Gateway(store, listen=None) as gateway:
        wire = connect(gateway)
        await wire.create("t")
        producer = ByHand(wire, "x", 1)
        await producer.init()
        await producer.add("t", 0)
        await producer.send("t", b"a")
        trouble.after, trouble.before = (1, 0) if made else (0, 1)
        assert await producer.end() == E.COORDINATOR_NOT_AVAILABLE
        if made:  # it is finished without being asked for again
            await decided(wire, "t")
        assert await producer.end() == 0
        await decided(wire, "t")
        assert await committed_values(wire, "t") == [b"a"]
        await wire.aclose()


async def test_a_row_that_cannot_be_read_counts_as_none(caplog: pytest.LogCaptureFixture) -> None:
    async with open_store(f"memory:{next(names)}") as store:
        async with Gateway(store, listen=None) as gateway:
            wire = connect(gateway)
            producer = ByHand(wire, "x")
            await producer.init()
            await wire.aclose()
        key = transaction_key("x")
        await store.manager.commit({key: b"garbage"})
        async with Gateway(store, listen=None) as gateway:
            wire = connect(gateway)
            former = producer.producer_id
            producer.wire = wire
            assert await producer.init(recover=True) == 0
            assert producer.producer_id > former
            assert "cannot be read" in caplog.text
            await wire.aclose()


async def test_ids_that_nobody_uses_are_forgotten() -> None:
    async with running() as (gateway, wire):
        await wire.create("t")
        idle, busy = ByHand(wire, "idle/1"), ByHand(wire, "busy")
        await idle.init()
        await busy.init()
        await busy.send("t", b"a")
        parts = gateway.parts
        assert parts.transactions is not None
        expiry = TransactionExpiry(
            parts.transactions.table,
            parts.clock,
            lambda: TransactionSettings(transactional_id_expiration_ms=0),
        )
        assert await expiry.expire() == 1
        assert list(await scan_all(parts.manager, TRANSACTIONS)) == [transaction_key("busy")]
        assert await idle.end() == E.INVALID_PRODUCER_ID_MAPPING
        assert await busy.end() == 0
        former = idle.producer_id
        assert await idle.init(recover=True) == 0
        assert idle.producer_id > former


async def test_the_settings_apply_at_once() -> None:
    async with running() as (gateway, wire):
        producer, idle = ByHand(wire, "x"), ByHand(wire, "idle")
        assert await idle.init() == 0
        assert await wire.alter(4, "", ("transaction.max.timeout.ms", 0, "1000")) == 0
        assert await producer.init(timeout_ms=1001) == E.INVALID_TRANSACTION_TIMEOUT
        assert await producer.init(timeout_ms=1000) == 0
        interval = "transaction.remove.expired.transaction.cleanup.interval.ms"
        assert await wire.alter(4, "", ("transactional.id.expiration.ms", 0, "1"), (interval, 0, "1")) == 0
        with anyio.fail_after(10):
            while await scan_all(gateway.parts.manager, TRANSACTIONS):
                await anyio.sleep(0.005)
        assert await idle.end() == E.INVALID_PRODUCER_ID_MAPPING


class Rights:
    """Allows everything but one."""

    def __init__(self, *refused: tuple[AclOperation, ResourceType]) -> None:
        self.refused = refused

    def allows(self, client: ConnectionContext, operation: AclOperation, kind: ResourceType, name: str) -> bool:
        return (operation, kind) not in self.refused

    def allows_any(self, client: ConnectionContext, operation: AclOperation, kind: ResourceType) -> bool:
        return True


async def test_who_may_not_is_refused() -> None:
    o, r = AclOperation, ResourceType
    async with running() as (gateway, wire):
        await wire.create("t")
        producer = ByHand(wire, "x")
        await producer.init()
        access = gateway.parts.access
        access.authorizer = Rights((o.WRITE, r.TRANSACTIONAL_ID))
        for code in await producer.init(), await producer.add("t", 0), await producer.end():
            assert code == E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        access.authorizer = Rights((o.WRITE, r.TOPIC))
        assert await producer.add("t", 0) == E.TOPIC_AUTHORIZATION_FAILED
        access.authorizer = Rights((o.CLUSTER_ACTION, r.CLUSTER), (o.ALTER, r.CLUSTER))
        refused = E.CLUSTER_AUTHORIZATION_FAILED
        assert (await wire(m.AddPartitionsToTxnRequest(transactions=[]), 5)).error_code == refused
        marker = m.WritableTxnMarker(
            producer_id=1, producer_epoch=0, transaction_result=False, coordinator_epoch=0,
            topics=[m.WritableTxnMarkerTopic(name="t", partition_indexes=[0])],
        )  # fmt: skip
        (result,) = (await wire(m.WriteTxnMarkersRequest(markers=[marker]), 2)).markers
        assert result.topics[0].partitions[0].error_code == refused


async def test_transactions_are_described_and_listed() -> None:
    async with running() as (gateway, wire):
        await wire.create("t", 2)
        busy, idle = ByHand(wire, "busy"), ByHand(wire, "idle")
        await busy.init(timeout_ms=30_000)
        await idle.init()
        await busy.send("t", b"a", partition=1)
        request = m.DescribeTransactionsRequest(transactional_ids=["busy", "idle", "none"])
        found, empty, none = (await wire(request, 0)).transaction_states
        assert (found.error_code, found.transaction_state, found.transaction_timeout_ms) == (0, "Ongoing", 30_000)
        assert (found.producer_id, found.producer_epoch) == (busy.producer_id, busy.epoch)
        assert [(each.topic, each.partitions) for each in found.topics] == [("t", [1])]
        assert found.transaction_start_time_ms > 0
        assert (empty.error_code, empty.transaction_state, empty.topics) == (0, "Empty", [])
        assert none.error_code == E.TRANSACTIONAL_ID_NOT_FOUND

        async def listed(**filters: Any) -> list[tuple[str, str]]:
            answer = await wire(m.ListTransactionsRequest(**filters), 1)
            assert not answer.error_code
            return sorted((each.transactional_id, each.transaction_state) for each in answer.transaction_states)

        everything = [("busy", "Ongoing"), ("idle", "Empty")]
        assert await listed() == everything
        assert await listed(state_filters=["Ongoing", "Strange"]) == everything[:1]
        assert await listed(producer_id_filters=[idle.producer_id]) == everything[1:]
        assert await listed(duration_filter=60_000) == []
        strange = await wire(m.ListTransactionsRequest(state_filters=["Strange"]), 1)
        assert (strange.unknown_state_filters, strange.transaction_states) == (["Strange"], [])
        gateway.parts.access.authorizer = Rights((AclOperation.DESCRIBE, ResourceType.TRANSACTIONAL_ID))
        assert await listed() == []
        refused = (await wire(request, 0)).transaction_states
        assert {each.error_code for each in refused} == {E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED}


async def test_transactions_are_listed_by_a_pattern() -> None:
    """KIP-1152: of RE2, for the whole id, beside the other filters and the rights that a client has."""
    async with running() as (gateway, wire):
        await wire.create("t")
        for name in ("app-1", "app-2", "other", "App-3"):
            producer = ByHand(wire, name)
            await producer.init()
            if name == "app-2":
                await producer.send("t", b"a")

        async def listed(pattern: str | None, **filters: Any) -> list[str]:
            answer = await wire(m.ListTransactionsRequest(transactional_id_pattern=pattern, **filters), 2)
            assert not answer.error_code
            return sorted(each.transactional_id for each in answer.transaction_states)

        everything = ["App-3", "app-1", "app-2", "other"]
        assert await listed(None) == await listed("") == await listed(".*") == everything
        assert await listed("app") == []
        assert await listed("app-.|o.*r") == ["app-1", "app-2", "other"]
        assert await listed("(?i)app-\\d") == ["App-3", "app-1", "app-2"]
        assert await listed("app-.*", state_filters=["Ongoing"]) == ["app-2"]
        assert await listed("app-.*", duration_filter=60_000) == []
        for wrong in ("(", "(?=a)", "a**", "(a{1000}){1000}", "a" * 5_000):
            answer = await wire(m.ListTransactionsRequest(transactional_id_pattern=wrong), 2)
            assert (answer.error_code, answer.transaction_states) == (E.INVALID_REGULAR_EXPRESSION, [])
        assert await listed("other") == ["other"], "the connection goes on"
        gateway.parts.access.authorizer = Rights((AclOperation.DESCRIBE, ResourceType.TRANSACTIONAL_ID))
        assert await listed(".*") == []


async def test_no_pattern_holds_up_other_clients() -> None:
    """It would take Python's own `re` longer than the world is to last, in which nothing else runs."""
    async with running() as (gateway, wire):
        for number in range(20):
            await ByHand(wire, "a" * 20_000 + str(number)).init()
        request = m.ListTransactionsRequest(transactional_id_pattern="(a?a?)*(a+a+)+(.*a){1,30}y")
        await wire.send(request, 2)
        other = connect(gateway)
        with anyio.fail_after(20):
            for _ in range(20):
                await other.metadata("t")
            answer = await wire.read(request, 2)
        await other.aclose()
        assert (answer.error_code, answer.transaction_states) == (0, [])


async def test_memory_holds_what_is_open_and_the_last_that_were_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "_IDLE", 4)
    async with running() as (gateway, wire):
        await wire.create("t")
        transactions = gateway.parts.transactions
        assert transactions is not None
        busy = [ByHand(wire, f"busy{number}") for number in range(3)]
        for producer in busy:
            await producer.init()
            await producer.send("t", b"a")
        idle = [ByHand(wire, f"idle{number}") for number in range(20)]
        for producer in idle:
            await producer.init()
        assert len(transactions.table) == 3 + 4
        for producer in (*busy, *idle):
            assert await producer.add("t", 0) == 0
            assert await producer.end() == 0
        for producer in (*busy, *idle):
            assert await producer.init() == 0  # all are completed
        assert len(transactions.table) == 4


async def test_the_feature_is_told() -> None:
    async with running() as (_, wire):
        answer = await wire(m.ApiVersionsRequest(client_software_name="t", client_software_version="1"), 4)
        levels = {feature.name: feature.max_version_level for feature in answer.finalized_features}
        assert levels["transaction.version"] == 2


async def test_what_waits_to_join_joins_by_one_commit() -> None:
    """A producer sends the first batch of each partition at the same time."""
    count = 20
    commits, held = 0, anyio.Event()

    @asynccontextmanager
    async def around(call: str) -> AsyncIterator[None]:
        nonlocal commits
        if call == "commit":
            commits += 1
            await held.wait()
        yield

    store = SlowStore(open_store(f"memory:{next(names)}"), around)
    held.set()
    async with store, Gateway(store, listen=None) as gateway:
        wires = [connect(gateway) for _ in range(count)]
        wire = wires[0]
        await wire.create("t", count)
        producer = ByHand(wire, "x")
        await producer.init()
        for partition in range(count):  # each is open from now on
            assert await producer.send("t", b"a", partition=partition) == 0
        assert await producer.end() == 0
        for partition in range(count):
            await decided(wire, "t", partition)
        await producer.init()

        codes: list[int] = []

        async def send(partition: int) -> None:
            mine = ByHand(wires[partition], "x", 2, producer.producer_id, producer.epoch)
            codes.append(await mine.send("t", b"b", partition=partition))

        held, commits = anyio.Event(), 0
        async with anyio.create_task_group() as tasks:
            for partition in range(count):
                tasks.start_soon(send, partition)
            await anyio.wait_all_tasks_blocked()
            held.set()
        assert codes == [0] * count
        assert commits <= 2, "the first one, and all that came meanwhile"
        assert await producer.end() == 0
        for partition in range(count):
            await decided(wire, "t", partition)
            assert await committed_values(wire, "t", partition) == [b"a", b"b"]
        for each in wires:
            await each.aclose()

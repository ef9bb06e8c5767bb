"""How one gateway asks another: calls share requests, few are under way, and whoever waits is always told something."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from kclient.concurrency import Supervisor
from kclient.errors import BrokerConnectionError, KafkaError, KafkaTimeoutError, UnsupportedVersionError
from kclient.errors import ErrorCode as E
from kclient.gateway.partition_id import PartitionId
from kclient.gateway.peer_calls.lane import MOST_BYTES, MOST_OF_ONE, MOST_REQUESTS, PeerLane
from kclient.gateway.peer_calls.requests import VERIFY, ToVerify, Verify
from kclient.gateway.peers import TransactionOf
from kclient.net.connection import Connection
from kclient.net.frames import FrameAssembler
from kclient.net.streams import ByteStream, memory_pair
from kclient.protocol import messages as m
from kclient.protocol.framing import decode_request, encode_response
from kclient.protocol.registry import ApiKey
from tests.unit.gateway_cluster.two_gateways import until

pytestmark = pytest.mark.anyio

TOPIC = bytes(15) + b"t"


def question(name: str) -> ToVerify:
    return ToVerify(TransactionOf(name, 1, 0), add=True)


def partitions(count: int = 1) -> list[PartitionId]:
    return [PartitionId(TOPIC, number) for number in range(count)]


class Other:
    """The other gateway: it reads requests, and answers when it is told to."""

    def __init__(self, supervisor: Supervisor, kind: Verify = VERIFY) -> None:
        self.supervisor = supervisor
        self.requests: list[tuple[int, m.AddPartitionsToTxnRequest, int]] = []
        """Those that are not answered, with their correlation ids and sizes."""
        self.connected = 0
        self.refuses: Exception | None = None
        self.versions: dict[int, tuple[int, int]] = {ApiKey.ADD_PARTITIONS_TO_TXN: (0, 5)}
        self.stream: ByteStream | None = None
        self.lane = PeerLane(kind, "the other", self.connect, supervisor.spawn)

    async def connect(self) -> Connection:
        await anyio.lowlevel.checkpoint()
        self.connected += 1
        if self.refuses is not None:
            raise self.refuses
        client, self.stream = memory_pair("client", "server")
        connection = Connection.over(client, "other:1", supervisor=self.supervisor)
        connection.api_versions = self.versions
        self.supervisor.spawn(self._read, self.stream)
        return connection

    async def _read(self, stream: ByteStream) -> None:
        assembler = FrameAssembler(1 << 30)
        with suppress(ConnectionError):  # it was cut
            while data := await stream.receive():
                assembler.feed(data)
                for frame in assembler.take():
                    header, request = decode_request(bytes(frame))
                    assert isinstance(request, m.AddPartitionsToTxnRequest)
                    self.requests.append((header.correlation_id, request, len(frame)))

    async def answer(self, code: int = 0) -> None:
        """Answer the oldest request."""
        correlation_id, request, _ = self.requests.pop(0)
        response = m.AddPartitionsToTxnResponse(
            results_by_transaction=[
                m.AddPartitionsToTxnResult(
                    transactional_id=each.transactional_id,
                    topic_results=[
                        m.AddPartitionsToTxnTopicResult(
                            name=topic.name,
                            results_by_partition=[
                                m.AddPartitionsToTxnPartitionResult(partition_index=number, partition_error_code=code)
                                for number in topic.partitions
                            ],
                        )
                        for topic in each.topics
                    ],
                )
                for each in request.transactions
            ]
        )
        assert self.stream is not None
        await self.stream.send(encode_response(response, 5, correlation_id))

    async def hang_up(self) -> None:
        assert self.stream is not None
        await self.stream.aclose()

    def asked(self) -> list[str]:
        return [each.transactional_id for _, request, _ in self.requests for each in request.transactions]


@asynccontextmanager
async def other(kind: Verify = VERIFY) -> AsyncIterator[Other]:
    supervisor = Supervisor("test")
    await supervisor.start()
    found = Other(supervisor, kind)
    try:
        with anyio.fail_after(20):
            yield found
    finally:
        found.lane.close()
        if found.stream is not None:
            await found.stream.aclose()
        await supervisor.aclose()


class Asking:
    """Calls that run beside the test, and what came of them."""

    def __init__(self, found: Other, tasks: Any) -> None:
        self.found, self.tasks = found, tasks
        self.outcomes: dict[str, Any] = {}

    def ask(self, name: str, count: int = 1) -> None:
        async def run() -> None:
            try:
                self.outcomes[name] = await self.found.lane.ask(question(name), partitions(count))
            except KafkaError as error:
                self.outcomes[name] = error

        self.tasks.start_soon(run)


@asynccontextmanager
async def asking(found: Other) -> AsyncIterator[Asking]:
    async with anyio.create_task_group() as tasks:
        yield Asking(found, tasks)


async def test_what_comes_while_requests_are_under_way_shares_the_next_one() -> None:
    async with other() as found, asking(found) as calls:
        for number in range(MOST_REQUESTS):
            calls.ask(f"first {number}")
            await until(lambda number=number: len(found.requests) == number + 1)
        for number in range(50):
            calls.ask(f"then {number}")
        await anyio.wait_all_tasks_blocked()
        assert len(found.requests) == MOST_REQUESTS
        await found.answer()
        await until(lambda: len(found.requests) == MOST_REQUESTS)
        assert set(found.asked()[MOST_REQUESTS - 1 :]) == {f"then {number}" for number in range(50)}
        while len(calls.outcomes) < MOST_REQUESTS + 50:
            if found.requests:
                await found.answer()
            await anyio.lowlevel.checkpoint()
        assert all(outcome == {PartitionId(TOPIC, 0): 0} for outcome in calls.outcomes.values())
        assert found.connected == 1


@pytest.mark.slow
async def test_a_large_call_does_not_hold_up_a_small_one() -> None:
    async with other() as found, asking(found) as calls:
        for number in range(MOST_REQUESTS):
            calls.ask(f"first {number}")
            await until(lambda number=number: len(found.requests) == number + 1)
        calls.ask("large", 20 * MOST_OF_ONE)
        await anyio.wait_all_tasks_blocked()
        calls.ask("small")
        await anyio.wait_all_tasks_blocked()
        await found.answer()
        await until(lambda: "small" in found.asked())
        _, request, _ = found.requests[-1]
        assert [each.transactional_id for each in request.transactions] == ["large", "small"]
        assert len(request.transactions[0].topics[0].partitions) == MOST_OF_ONE
        while "large" not in calls.outcomes:
            assert len(found.requests) <= MOST_REQUESTS
            if found.requests:
                await found.answer(E.TRANSACTION_ABORTABLE)
            await anyio.lowlevel.checkpoint()
        assert calls.outcomes["large"] == dict.fromkeys(partitions(20 * MOST_OF_ONE), E.TRANSACTION_ABORTABLE)


async def test_requests_are_bounded_in_bytes() -> None:
    async with other() as found, asking(found) as calls:
        for number in range(MOST_REQUESTS):
            calls.ask(f"first {number}")
            await until(lambda number=number: len(found.requests) == number + 1)
        for number in range(100):
            calls.ask(f"{number}-" + "é" * 10_000, 20)
        await anyio.wait_all_tasks_blocked()
        while len(calls.outcomes) < MOST_REQUESTS + 100:
            assert len(found.requests) <= MOST_REQUESTS
            assert all(size <= MOST_BYTES for _, _, size in found.requests)
            if found.requests:
                await found.answer()
            await anyio.lowlevel.checkpoint()


async def test_a_cut_connection_fails_what_was_asked_and_is_made_anew() -> None:
    async with other() as found, asking(found) as calls:
        calls.ask("a")
        await until(lambda: found.requests)
        found.requests.clear()
        await found.hang_up()
        await until(lambda: calls.outcomes)
        assert isinstance(calls.outcomes["a"], BrokerConnectionError)
        calls.ask("b")
        await until(lambda: found.requests)
        await found.answer()
        await until(lambda: "b" in calls.outcomes)
        assert calls.outcomes["b"] == {PartitionId(TOPIC, 0): 0}
        assert found.connected == 2


async def test_one_that_cannot_be_reached_is_not_tried_by_every_call() -> None:
    async with other() as found:
        found.refuses = BrokerConnectionError("nobody listens")
        failed = 0
        while found.connected < 3:
            with pytest.raises(BrokerConnectionError, match="nobody listens"):
                await found.lane.ask(question("a"), partitions())
            failed += 1
            await anyio.sleep(0.002)
        assert failed > 3, "most are told so at once"
        found.refuses = None
        async with asking(found) as calls:
            while not found.requests:
                calls.ask("b")
                await anyio.sleep(0.002)
            await found.answer()
            await until(lambda: isinstance(calls.outcomes["b"], dict))


async def test_a_want_of_descriptors_fails_calls_only() -> None:
    async with other() as found:
        found.refuses = OSError(24, "Too many open files")
        with pytest.raises(BrokerConnectionError, match="Too many open files"):
            await found.lane.ask(question("a"), partitions())
        assert found.supervisor.failure is None


async def test_an_earlier_version_is_told_by_its_name() -> None:
    async with other() as found:
        found.versions = {ApiKey.ADD_PARTITIONS_TO_TXN: (0, 3)}
        with pytest.raises(UnsupportedVersionError, match="has to be upgraded"):
            await found.lane.ask(question("a"), partitions())


async def test_one_that_is_silent_is_given_up() -> None:
    class Impatient(Verify):
        timeout_s = 0.05

    async with other(Impatient()) as found:
        with pytest.raises(KafkaTimeoutError):
            await found.lane.ask(question("a"), partitions())
        found.requests.clear()
        with pytest.raises(KafkaTimeoutError):
            await found.lane.ask(question("b"), partitions())
        assert found.asked() == ["b"]
        assert found.connected == 2


async def test_whoever_leaves_is_waited_for_no_more() -> None:
    async with other() as found, asking(found) as calls:
        for number in range(MOST_REQUESTS + 3):
            calls.ask(str(number))
            await anyio.wait_all_tasks_blocked()
        found.lane.close()
        await until(lambda: len(calls.outcomes) == MOST_REQUESTS + 3)
        assert all(isinstance(outcome, BrokerConnectionError) for outcome in calls.outcomes.values())
        with pytest.raises(BrokerConnectionError, match="has left"):
            await found.lane.ask(question("late"), partitions())


async def test_what_was_cancelled_is_not_sent() -> None:
    async with other() as found, asking(found) as calls:
        for number in range(MOST_REQUESTS):
            calls.ask(f"first {number}")
            await until(lambda number=number: len(found.requests) == number + 1)
        with anyio.move_on_after(0):
            await found.lane.ask(question("cancelled"), partitions())
        calls.ask("last")
        await anyio.wait_all_tasks_blocked()
        await found.answer()
        await until(lambda: "last" in found.asked())
        assert "cancelled" not in found.asked()
        while found.requests:
            await found.answer()
        await until(lambda: "last" in calls.outcomes)

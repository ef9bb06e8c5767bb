"""How much the gateway does between two looks at the clock, counted and not timed, whatever a client asks for.

Time is what the loop's thread does: calls of functions, each a microsecond. So the slices are the same on every
machine, and a handler that does not pause is found on a loaded one as well. A call into C counts once, however long it
takes, and threads that wait for the interpreter's lock are not seen: these are for `benchmarks/neighbours.py`.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from types import FrameType, SimpleNamespace
from typing import Any

import pytest

import tests.hostile_acls
import tests.hostile_descriptions
import tests.hostile_groups
import tests.hostile_old_clients
import tests.hostile_quotas
import tests.hostile_refusals
import tests.hostile_scrapers
import tests.hostile_shares
import tests.hostile_streams_groups
import tests.hostile_telemetry
import tests.hostile_tokens
import tests.hostile_transactions  # noqa: F401  (as above)
from kclient.gateway import Gateway
from kclient.gateway.handlers.fetch import FetchHandler
from kclient.gateway.partition import Partition
from kclient.net import fair_queue
from kclient.protocol.messages.fetch import FetchResponse
from kclient.protocol.registry import ApiKey
from kclient.records import EndMarker, read_header
from tests.gateway_wire import batch_of, fetch_request, names
from tests.hostile_clients import ATTACKS, Site
from tests.neighbour_probe import TOPIC

CALL_S = 1e-6
"""Seconds that a call counts as."""
MOST_CALLS = 8_000
"""Between two looks at the clock: about two milliseconds of a usual machine."""
SCALE = 0.05
LARGE = [
    "metadata of 500k names",
    "fetch of 200k partitions",
    "fetch sessions of 200k partitions",
    "DescribeTopicPartitions of 12k unknown names",
    "DescribeTopicPartitions of everything, 5,000 topics",
    "names of settings that nobody knows",
    pytest.param("Produce of 10,000 tiny partitions", marks=pytest.mark.many_partitions),
    "Produce to 200k unknown partitions",
    "OffsetCommit of 200k partitions",
    pytest.param("OffsetCommit of 10,000 partitions that are stored", marks=pytest.mark.many_partitions),
    "OffsetFetch over everything, 200k offsets",
    "OffsetDelete of 200k partitions",
    "DeleteRecords of 200k partitions",
    "CreateTopics of 5,000, checked only",
    "ListOffsets of 200k partitions",
    "OffsetForLeaderEpoch of 200k partitions",
    "FindCoordinator of 500k keys",
    "DescribeConfigs of 5,000 resources",
    "DescribeGroups and DeleteGroups of 500k names",
    "ListGroups of 20,000 groups",
    "LeaveGroup and SyncGroup of 500k members",
    pytest.param("incremental fetches of a wide session", marks=pytest.mark.many_partitions),
    "AddPartitionsToTxn of 200k partitions that are not there",
    pytest.param("AddPartitionsToTxn of 5,000 partitions, and EndTxn", marks=pytest.mark.many_partitions),
    "AddPartitionsToTxn that verifies 100k transactions",
    "TxnOffsetCommit of 200k partitions",
    "WriteTxnMarkers into 200k partitions",
    "WriteTxnMarkers of 500k producers and no partitions",
    pytest.param("DescribeTransactions of one with 10,000 partitions", marks=pytest.mark.many_partitions),
    "DescribeTransactions of 500k ids",
    "ListTransactions of 5,000 ids, with a pattern and many filters",
    "DescribeProducers of 200k partitions",
    "moves of 200k partitions",
    "DescribeLogDirs of 200k partitions",
    "CreateAcls of 10k, and DeleteAcls",
    "DescribeAcls of 100k, and filters of every kind",
    "metadata of 500k names, by access control lists",
    "fetch of 200k topics, which the client may not read",
    "DescribeTransactions of 500k ids, which the client may not describe",
    "AlterClientQuotas of 1,000 entities with the longest names, set and removed",
    "AlterClientQuotas with 10,000 quotas of one entity, and the longest names",
    "AlterClientQuotas of 200k entities, refused",
    "DescribeClientQuotas of 5,000 entities",
    pytest.param("PushTelemetry of 1 MB with 15,000 values, by ever new clients", marks=pytest.mark.long),
    pytest.param("PushTelemetry of nothing but empty fields, 1 MB zipped to 1 kB", marks=pytest.mark.long),
    pytest.param("metrics of 500 clients with 400 values, scraped all the time", marks=pytest.mark.long),
    "GetTelemetrySubscriptions by ever new clients",
    "subscriptions whose patterns are as long as may be, ever new ones",
    pytest.param("20 subscriptions whose patterns take longest, and client ids of 30 kB", marks=pytest.mark.long),
    "900 subscriptions of many metrics, described, listed and changed",
    "topologies of 1,000 subtopologies, whose topics are missing, in ever new groups",
    "topologies of 990 subtopologies in a row, which cannot be",
    "heartbeats of streams members who say that they have a million tasks",
    "StreamsGroupDescribe of 200k names",
    pytest.param(
        "DescribeDelegationToken of 1,000 tokens with 100 renewers, and of 1,000 owners", marks=pytest.mark.long
    ),
    "scrapers of 200k offsets of groups",
    *(name for name in ATTACKS if name.startswith(("streams: ", "few "))),
    "ShareFetch of 200k partitions",
    "ShareFetch that forgets 200k partitions",
    "AlterUserScramCredentials of 500k users",
    "Produce of 200k partitions without records, in a transaction",
    "StreamsGroupHeartbeat with a topology of 200k topics",
    *(name for name in ATTACKS if name.startswith(("500k topics without partitions", "refused: "))),
]


_STEP = asyncio.Handle._run.__code__
"""Runs each of a loop's callbacks."""


class Meter:
    """Counts the calls of one thread, and is its clock."""

    def __init__(self) -> None:
        self.calls = 0
        self.longest = 0
        """Calls between two looks at the clock, within one callback of the loop."""
        self.where = ""
        self._looked = 0
        self._thread = 0

    def attach(self) -> None:
        """Count the present thread's from now on."""
        self._thread = threading.get_ident()
        sys.setprofile(self._count)

    def restart(self) -> None:
        self.longest = 0

    def _count(self, frame: FrameType, event: str, _argument: object) -> None:
        if event in ("call", "c_call"):
            self.calls += 1
            if frame.f_code is _STEP:
                self._pause(frame)

    def clock(self) -> float:
        if threading.get_ident() == self._thread:
            self._pause(sys._getframe(1))
        return self.calls * CALL_S

    def _pause(self, frame: FrameType) -> None:
        done, self._looked = self.calls - self._looked, self.calls
        if done > self.longest:
            self.longest, self.where = done, "\n".join(_stack(frame))


def _stack(frame: FrameType | None) -> Iterator[str]:
    while frame is not None:
        yield f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_name}"
        frame = frame.f_back


class Host:
    """A gateway on a thread of its own."""

    def __init__(self, meter: Meter, config: dict[str, str], *, pages: bool) -> None:
        self.gateway: Gateway | None = None
        self.door: int = 0
        """See `Site`."""
        self._meter = meter
        self._config = config
        self._pages = pages
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._over: asyncio.Event | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))

    async def _run(self) -> None:
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        settings = {"num.partitions": "1", "group.initial.rebalance.delay.ms": "0", **self._config}
        try:
            listen = None if "listeners" in settings else "127.0.0.1:0"
            gateway = Gateway(f"memory:{next(names)}", listen=listen, config=settings)
            if self._pages:
                gateway.expect_metrics()
            async with gateway:
                self.gateway = gateway
                if self._pages:
                    self.door = (await gateway.serve_metrics("127.0.0.1:0")).port
                elif listen is None:
                    self.door = int(gateway.advertised["CLIENTS"].rpartition(":")[2])
                self._meter.attach()
                self._ready.set()
                await self._over.wait()
                sys.setprofile(None)
        finally:
            self._ready.set()

    def start(self) -> Gateway:
        self._thread.start()
        assert self._ready.wait(30)
        assert self.gateway is not None
        return self.gateway

    def call(self, function: Callable[[], Any]) -> Any:
        """What a function returns that is called on the gateway's loop."""
        assert self._loop is not None

        async def call() -> Any:
            return function()

        return asyncio.run_coroutine_threadsafe(call(), self._loop).result(60)

    def stop(self) -> None:
        assert self._loop is not None
        assert self._over is not None
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(30)
        assert not self._thread.is_alive()


@pytest.fixture
def meter(monkeypatch: pytest.MonkeyPatch) -> Meter:
    meter = Meter()
    monkeypatch.setattr(fair_queue, "time", SimpleNamespace(perf_counter=meter.clock))
    return meter


@pytest.fixture
def host(meter: Meter, request: pytest.FixtureRequest) -> Iterator[Host]:
    named = request.node.callspec.params["name"] if "name" in request.fixturenames else None
    attack = ATTACKS.get(named)
    host = Host(meter, {} if attack is None else attack.config, pages=attack is not None and attack.pages)
    host.start()
    yield host
    host.stop()


@pytest.fixture
def gateway(host: Host) -> Gateway:
    assert host.gateway is not None
    return host.gateway


def eventually(true: Callable[[], bool], what: Callable[[], Any]) -> None:
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end, what()
        time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
def test_the_clock_is_looked_at_often_and_nothing_stays(name: str, host: Host, gateway: Gateway, meter: Meter) -> None:
    scale = SCALE if "k " in name else 0.2  # where it is less to begin with
    site = Site(int(gateway.bootstrap.rpartition(":")[2]), scale, host.door)
    site.create(TOPIC, partitions=2)
    site.produce(TOPIC, batch_of(b"x"))
    course = ATTACKS[name].course(site)
    next(course)
    meter.restart()
    attacker = threading.Thread(target=lambda: list(course), daemon=True)
    attacker.start()
    try:
        eventually(lambda: site.answered >= 2, lambda: f"{site.answered} answers, {site.refused} refused")
    finally:
        site.end()
        attacker.join(20)
    assert site.refused == 0
    assert meter.longest < MOST_CALLS, meter.where
    # what the client's requests and sessions took has been given back
    budget, fetches = gateway._running().budget, gateway.parts.table.handlers[ApiKey.FETCH]
    assert isinstance(fetches, FetchHandler)
    eventually(lambda: budget.used == 0, lambda: budget)
    eventually(lambda: len(fetches.sessions) == 0, lambda: len(fetches.sessions))
    assert fetches.sessions._held == 0


def abort(partition: Partition, sequences: Iterable[int]) -> None:
    """Append aborted transactions of one batch each."""
    log = partition.log
    for sequence in sequences:
        batch = batch_of(b"x", producer_id=7, producer_epoch=0, sequence=sequence, transactional=True)
        header = read_header(batch)
        verification = log.verify(header)
        assert verification is not None
        partition.append(batch, header, verification)
        log.transactions.verified(verification)
        partition.append_end(7, 0, EndMarker(False, 0))


@pytest.mark.slow
@pytest.mark.own_places
def test_very_many_aborted_transactions_are_told_in_slices(host: Host, gateway: Gateway, meter: Meter) -> None:
    site = Site(int(gateway.bootstrap.rpartition(":")[2]))
    site.create(TOPIC, partitions=1)
    site.produce(TOPIC, batch_of(b"x"))
    partition = gateway.parts.partitions.get(TOPIC, 0)
    assert partition is not None
    count = 4000
    for first in range(0, count, 100):
        host.call(partial(abort, partition, range(first, first + 100)))
    eventually(lambda: not partition.log.pending, lambda: partition.log.pending)
    with site.client() as client:
        meter.restart()
        answer = client.call(fetch_request(TOPIC, 0, isolation_level=1), 11)
        longest, where = meter.longest, meter.where
    assert isinstance(answer, FetchResponse)
    told = answer.responses[0].partitions[0].aborted_transactions
    assert told is not None
    assert [each.first_offset for each in told] == [2 * number + 1 for number in range(count)]
    assert longest < MOST_CALLS, where

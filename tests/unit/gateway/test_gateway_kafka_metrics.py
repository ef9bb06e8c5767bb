"""Metrics under the names of kafka_exporter and of Kafka's brokers."""

from __future__ import annotations

from collections.abc import Collection
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest
from prometheus_client.parser import text_string_to_metric_families

from kclient.gateway import Gateway, kafka_metrics
from kclient.gateway.handlers.fetch_reading import Fetch
from kclient.gateway.kafka_metrics import escaped
from kclient.gateway.partition_id import PartitionId
from kclient.net.address import Address
from tests.gateway_wire import Wire, batch_of, names, running
from tests.unit.gateway_cluster.together import joined
from tests.unit.gateway_cluster.two_gateways import until

pytestmark = [pytest.mark.anyio, pytest.mark.own_places]

Samples = dict[str, dict[tuple[str, ...], float]]


async def page(address: Address, path: str = "/metrics") -> tuple[int, bytes]:
    async with await anyio.connect_tcp(address.host, address.port) as stream:
        await stream.send(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        found = b""
        with anyio.fail_after(30):
            async for some in stream:
                found += some
    head, body = found.split(b"\r\n\r\n", 1)
    return int(head.split(b" ", 2)[1]), body


async def scraped(gateway: Gateway, address: Address | None = None) -> Samples:
    """The values of all metrics by their names, then by the values of their labels."""
    address = address or await gateway.serve_metrics("127.0.0.1:0")
    status, body = await page(address)
    assert status == 200
    found: Samples = {}
    for family in text_string_to_metric_families(body.decode()):
        for sample in family.samples:
            assert sample.labels.values() not in found.get(sample.name, {})
            found.setdefault(sample.name, {})[tuple(sample.labels.values())] = sample.value
    return found


async def test_partitions_and_topics() -> None:
    async with running() as (gateway, wire):
        await wire.create("t", partitions=2)
        for _ in range(3):
            await wire.produce("t", batch_of(b"a", b"b"), partition=1)
        await wire.delete_records("t", 4, partition=1)
        await wire.values("t", partition=0)
        assert len(await wire.values("t", 4, partition=1)) == 2
        found = await scraped(gateway)
    first, second = ("t", "0"), ("t", "1")
    assert found["kafka_brokers"] == {(): 1}
    assert found["kafka_topic_partitions"] == {("t",): 2}
    assert found["kafka_topic_partition_current_offset"] == {first: 0, second: 6}
    assert found["kafka_topic_partition_oldest_offset"] == {first: 0, second: 4}
    for name, value in (
        ("leader", 1), ("leader_is_preferred", 1), ("replicas", 1), ("in_sync_replica", 1),
        ("under_replicated_partition", 0),
    ):  # fmt: skip
        assert found[f"kafka_topic_partition_{name}"] == {first: value, second: value}
    size = len(batch_of(b"a", b"b"))
    assert found["kafka_server_brokertopicmetrics_messagesin_total"] == {("t",): 6}
    assert found["kafka_server_brokertopicmetrics_bytesin_total"] == {("t",): 3 * size}
    assert found["kafka_server_brokertopicmetrics_bytesout_total"] == {("t",): size}
    assert found["kafka_server_replicamanager_leadercount_value"] == {(): 2}
    assert found["kafka_controller_kafkacontroller_activecontrollercount_value"] == {(): 1}
    assert found["kafka_network_requestmetrics_requests_total"][("Produce",)] == 3
    assert found["kclient_gateway_requests_total"][()] >= 6


async def test_what_a_waiting_fetch_reads_again_is_counted_once_and_never_taken_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[int] = []
    clear = Fetch.clear

    def look_and_clear(fetch: Fetch) -> None:
        seen.append(record.traffic.bytes_out)
        clear(fetch)
        seen.append(record.traffic.bytes_out)

    async with running() as (gateway, wire):
        await wire.create("t")
        await wire.produce("t", batch_of(b"a"))
        found = gateway.parts.topics.get("t")
        assert found is not None
        record = found
        monkeypatch.setattr(Fetch, "clear", look_and_clear)
        answer = await wire.fetch("t", 0, min_bytes=100_000, max_wait_ms=100)
        size = len(answer.records or b"")
    assert size
    assert len(seen) >= 2, "it did not wait"
    assert set(seen) == {0}, "a counter that becomes less is taken for a restart, and for that many bytes more"
    assert record.traffic.bytes_out == size


async def test_groups_whatever_their_names() -> None:
    strange = 'g "q" \\ and\nmore'
    async with running() as (gateway, wire):
        await wire.create("t", partitions=2)
        await wire.produce("t", batch_of(*[b"x"] * 10))
        for group, offset in (("g", 4), (strange, 10)):
            assert await wire.commit(group, "t", offset) == 0
        assert await wire.commit("g", "t", 0, partition=1) == 0
        found = await scraped(gateway)
    assert found["kafka_consumergroup_members"] == {("g",): 0, (strange,): 0}
    assert found["kafka_consumergroup_current_offset"] == {
        ("g", "t", "0"): 4, ("g", "t", "1"): 0, (strange, "t", "0"): 10,
    }  # fmt: skip
    assert found["kafka_consumergroup_lag"][("g", "t", "0")] == 6
    assert found["kafka_consumergroup_lag"][(strange, "t", "0")] == 0
    assert found["kafka_consumergroup_current_offset_sum"] == {("g", "t"): 4, (strange, "t"): 10}
    assert found["kafka_consumergroup_lag_sum"] == {("g", "t"): 6, (strange, "t"): 0}
    assert escaped(strange) == 'g \\"q\\" \\\\ and\\nmore'


async def test_they_can_be_switched_off_while_it_runs() -> None:
    async with running(config={"metrics.partitions.enable": False}) as (gateway, wire):
        await wire.create("t")
        found = await scraped(gateway)
        assert "kafka_topic_partitions" not in found
        assert found["kafka_brokers"] == {(): 1}
        assert "kclient_gateway_topics" in found
    async with running() as (gateway, wire):
        await wire.create("t")
        assert await wire.alter(4, "1", ("metrics.partitions.enable", 0, "false")) == 0
        assert "kafka_topic_partitions" not in await scraped(gateway)


@pytest.mark.slow
async def test_each_is_told_by_one_gateway_of_a_store() -> None:
    """Sums over all gateways are right, and lags of partitions that another one leads are known."""
    from kclient.htp import open_store

    async with (
        open_store(f"memory:{next(names)}") as store,
        joined(store, 1, listen="127.0.0.1:0") as (first, one),
        joined(store, 2, listen="127.0.0.1:0") as (second, other),
    ):
        await one.create("t", partitions=16)
        await until(lambda: "t" in second.parts.topics)
        await until(lambda: first.parts.cluster.others and second.parts.cluster.others)
        for partition in range(16):
            await produce(one, other, partition)
        for group in range(8):
            for partition in range(16):
                assert 0 in [await wire.commit(f"g{group}", "t", 1, partition) for wire in (one, other)]
        found = [await scraped(gateway) for gateway in (first, second)]
    both = [each["kafka_topic_partition_current_offset"] for each in found]
    assert all(both)
    assert both[0].keys() & both[1].keys() == set()
    assert both[0] | both[1] == {("t", str(index)): 3 for index in range(16)}
    assert sum(len(each.get("kafka_topic_partitions", {})) for each in found) == 1
    lags: dict[Any, float] = {}
    for each in found:
        lags |= each.get("kafka_consumergroup_lag", {})
    assert lags == {(f"g{group}", "t", str(index)): 2 for group in range(8) for index in range(16)}
    assert [each["kafka_brokers"] for each in found] == [{(): 2}, {(): 2}]


async def test_a_leader_that_does_not_answer_takes_nobody_elses_lags_along(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_metrics, "_PATIENCE_S", 0.2)

    async def ends(asked: Collection[PartitionId]) -> dict[PartitionId, int]:
        if any(each.partition == 0 for each in asked):
            await anyio.sleep_forever()
        return dict.fromkeys(asked, 7)

    async with running() as (gateway, wire):
        await wire.create("t", partitions=3)
        for index in range(3):
            assert await wire.commit("g", "t", 5, index) == 0
        parts = gateway.parts
        leaders: Any = SimpleNamespace(
            controller_id=9, leads=lambda *_: False, leader=lambda _, index: SimpleNamespace(node_id=10 + index)
        )
        record = parts.topics.get("t")
        assert record is not None
        monkeypatch.setattr(record, "logs", {})
        kafka = kafka_metrics.KafkaMetrics(
            node_id=1, topics=parts.topics, leadership=leaders, groups=parts.groups.table.groups,
            ends=cast("Any", SimpleNamespace(ends=ends)), gateways=lambda: 4, requests=dict, enabled=lambda: True,
        )  # fmt: skip
        text = b"".join(await kafka.text(parts.queue.flow())).decode()
    for index in (1, 2):
        assert f'kafka_consumergroup_lag{{consumergroup="g",topic="t",partition="{index}"}} 2\n' in text
    assert 'lag{consumergroup="g",topic="t",partition="0"}' not in text
    assert "kafka_consumergroup_lag_sum{" not in text


async def produce(one: Wire, other: Wire, partition: int) -> None:
    """Three records, where the partition is led."""
    with anyio.fail_after(20):
        while 0 not in [
            (await each.produce("t", batch_of(b"x", b"y", b"z"), partition)).error_code for each in (one, other)
        ]:
            await anyio.sleep(0.01)


@pytest.mark.slow
@pytest.mark.timeout(100)
async def test_very_many_partitions_hold_up_nobody() -> None:
    """While ten thousand are written out others have their turn."""
    async with running(config={"connections.max.memory.bytes": 1 << 30}) as (gateway, wire):
        for number in range(10):
            assert (await wire.create(f"t{number}", partitions=1000)).error_code == 0
        address = await gateway.serve_metrics("127.0.0.1:0")
        await wire.produce("t0", batch_of(b"x"))
        body, longest, over = b"", 0.0, False

        async def scrape() -> None:
            nonlocal body, over
            for _ in range(3):
                body = (await page(address))[1]
                await anyio.sleep(1.0)  # until it is made anew
            over = True

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(scrape)
            steps = []
            while not over:
                began = gateway.parts.clock.now()
                await anyio.sleep(0)
                steps.append(gateway.parts.clock.now() - began)
        longest = sorted(steps)[-max(len(steps) // 1000, 1)]
        assert b'kafka_topic_partition_current_offset{topic="t0",partition="0"} 1' in body
        assert b"kafka_server_replicamanager_leadercount_value 10000" in body
        assert longest < 0.05

"""Arguments of a wrong type or form, and what the clients say to them."""

from __future__ import annotations

import re
import traceback
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
import trio

import kclient
import kclient.sync
from kclient.admin import NewTopic
from kclient.errors import (
    ClosedError,
    ConfigError,
    GroupIdNotFoundError,
    IllegalStateError,
    InvalidTopicError,
    KafkaTimeoutError,
    SerializationError,
    TopicExistsError,
)
from kclient.htp import open_store
from kclient.htp.errors import StorageError
from kclient.testing import memory_broker

CLIENTS = [
    kclient.Admin,
    kclient.Consumer,
    kclient.Producer,
    kclient.sync.Admin,
    kclient.sync.Consumer,
    kclient.sync.Producer,
]


def test_a_gateway_takes_an_address_or_a_store() -> None:
    with pytest.raises(TypeError, match=r"embedded:\./data.*dict"):
        kclient.Gateway({"num.partitions": 4})  # type: ignore[arg-type]
    store = open_store("memory:durable", durability="written")
    with pytest.raises(ConfigError, match="open_store"):
        kclient.Gateway(store, listen=None, durability="written")


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: f"{client.__module__}.{client.__name__}")
@pytest.mark.parametrize("address", ["a:99999", "a:x", "http://x", "cloud:x", "a:1,b:-1", "[::1"])
def test_an_address_that_cannot_be_is_refused_by_the_constructor(client: Any, address: str) -> None:
    with pytest.raises(ConfigError, match=r"bootstrap\.servers: the address "):
        client(bootstrap_servers=address)


@pytest.mark.anyio
@pytest.mark.parametrize("topics", [{"q": 1}, ["q"], "q", NewTopic("q"), 7, [NewTopic("q"), None]], ids=repr)
async def test_topics_that_are_none(topics: Any) -> None:
    with memory_broker() as address:
        async with kclient.Admin(bootstrap_servers=address) as admin:
            with pytest.raises(TypeError, match="create_topics takes NewTopic objects"):
                await admin.create_topics(topics)
            assert await admin.list_topics() == []


@pytest.mark.parametrize("client", CLIENTS[3:], ids=lambda client: client.__name__)
def test_a_blocking_client_that_was_closed_does_not_start_any_more(client: Any) -> None:
    with memory_broker() as address:
        closed = client(bootstrap_servers=address)
        closed.close()
        closed.close()
        with pytest.raises(ClosedError, match="was closed"):
            closed.start()


@pytest.mark.anyio
@pytest.mark.parametrize(
    "client", [kclient.Admin, kclient.Consumer, kclient.Producer], ids=lambda client: client.__name__
)
async def test_a_client_that_was_closed_does_not_start_any_more(client: Any) -> None:
    closed = client(bootstrap_servers="memory:unused")
    await closed.close()
    with pytest.raises(ClosedError, match="was closed"):
        await closed.__aenter__()


@pytest.mark.anyio
async def test_an_async_consumer_in_another_threads_loop() -> None:
    with memory_broker() as address:
        async with kclient.Consumer(bootstrap_servers=address) as consumer:
            consumer.assign([("t", 0)])
            with pytest.raises(IllegalStateError, match=r"event loop of another thread: .* use kclient\.sync"):
                await anyio.to_thread.run_sync(lambda: anyio.run(consumer.poll))
            assert not await consumer.poll()


def test_a_lookup_of_a_group_says_why_it_failed() -> None:
    with (
        kclient.sync.Admin(bootstrap_servers="127.0.0.1:1") as admin,
        pytest.raises(KafkaTimeoutError, match=r"Describing group 'g' did not succeed .*Connection refused"),
    ):
        admin.describe_groups(["g"], timeout=0.5)


@pytest.mark.parametrize(
    "client", [kclient.Admin, kclient.Consumer, kclient.Producer], ids=lambda client: client.__name__
)
def test_on_trio_a_client_needs_its_block(client: Any) -> None:
    async def main() -> None:
        with pytest.raises(IllegalStateError, match="use `async with`, not `start`"):
            await client(bootstrap_servers="memory:unused").start()

    trio.run(main)


def test_topics_of_a_consumer_in_a_list() -> None:
    for topics in (["a", "b"], ("a",), {"a"}):
        with pytest.raises(TypeError, match=r"topics are given one by one, as in Consumer\('a', 'b'\): write \*"):
            kclient.sync.Consumer(topics, bootstrap_servers="memory:unused", group_id="g")  # type: ignore[arg-type]


@pytest.mark.parametrize("partitions", ["ab", ["a"], [("a",)], [("a", "0")], [0], [("a", 0, 1)]], ids=repr)
def test_partitions_that_are_none(partitions: Any) -> None:
    consumer = kclient.sync.Consumer(bootstrap_servers="memory:unused")
    with pytest.raises(TypeError, match=r"a partition is TopicPartition\(topic, number\) or such a pair, not "):
        consumer.assign(partitions)


@pytest.mark.parametrize(("timeout", "error"), [(-1, ValueError), (-0.5, ValueError), (None, TypeError)], ids=repr)
def test_timeouts_of_a_poll_that_are_none(timeout: Any, error: type[Exception]) -> None:
    with memory_broker() as address, kclient.sync.Consumer(bootstrap_servers=address) as consumer:
        consumer.assign([("t", 0)])
        with pytest.raises(error, match="iterate"):
            consumer.poll(timeout)
        assert not consumer.poll(0)


@pytest.mark.anyio
async def test_timeouts_of_an_async_poll_that_are_none() -> None:
    with memory_broker() as address:
        async with kclient.Consumer(bootstrap_servers=address) as consumer:
            consumer.assign([("t", 0)])
            with pytest.raises(ValueError, match="iterate"):
                await consumer.poll(-1)
            assert not await consumer.poll(0)


def test_a_directory_that_cannot_be_one_is_an_error_at_once(tmp_path: Path) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.touch()
    with (
        kclient.sync.Admin(bootstrap_servers=f"embedded:{in_the_way}/data") as admin,
        pytest.raises(StorageError, match=r"cannot be opened: .*Not a directory"),
    ):
        admin.list_topics(timeout=60)


def test_an_error_names_its_subject_once() -> None:
    with memory_broker() as address, kclient.sync.Admin(bootstrap_servers=address) as admin:
        admin.create_topic("t")
        with pytest.raises(TopicExistsError) as told:
            admin.create_topic("t")
        assert str(told.value) == "Topic 't' already exists. [TOPIC_ALREADY_EXISTS]"
        with pytest.raises(GroupIdNotFoundError) as told_of_group:
            admin.describe_groups(["g"])
        assert str(told_of_group.value) == "Group g not found. [GROUP_ID_NOT_FOUND]"


HEADERS = [
    [("a", "1")],
    {"a": b"1"},
    {"ab": b"1"},
    {"abc": b"1"},
    ["a"],
    ["ab"],
    "ab",
    b"ab",
    5,
    [("a", b"1", 2)],
    [(b"a", b"1")],
]


@pytest.mark.anyio
@pytest.mark.parametrize("headers", HEADERS, ids=repr)
async def test_headers_that_are_none(headers: Any) -> None:
    with memory_broker() as address:
        async with kclient.Producer(bootstrap_servers=address, linger_ms=10_000) as producer:
            for _ in range(2):  # without an open batch, and with one
                with pytest.raises(TypeError, match="headers are a sequence of pairs of str and bytes"):
                    await producer.send("t", b"v", headers=headers)
                await producer.send("t", b"v", headers=[("a", b"1")])
            await producer.flush()
            assert producer.metrics()["record-send-total"] == 2


@pytest.mark.parametrize("headers", HEADERS, ids=repr)
def test_headers_that_are_none_in_blocking_code(headers: Any) -> None:
    with (
        memory_broker() as address,
        kclient.sync.Producer(bootstrap_servers=address, linger_ms=10_000) as producer,
    ):
        for _ in range(2):
            with pytest.raises(TypeError, match="headers are a sequence of pairs of str and bytes"):
                producer.send("t", b"v", headers=headers)
            producer.send("t", b"v", headers=[("a", b"1")])
        producer.flush()
        assert producer.metrics()["record-send-total"] == 2


TIMESTAMPS = [datetime(2026, 1, 1, tzinfo=UTC), 1.5, "now", -5, 2**70]


@pytest.mark.anyio
@pytest.mark.parametrize("timestamp", TIMESTAMPS, ids=repr)
async def test_timestamps_that_are_none(timestamp: Any) -> None:
    with memory_broker() as address:
        async with kclient.Producer(bootstrap_servers=address) as producer:
            with pytest.raises((TypeError, ValueError), match="timestamp is a whole number of milliseconds"):
                await producer.send("t", b"v", timestamp=timestamp)
            with anyio.fail_after(10):  # nothing is left behind that a flush would wait for
                await producer.flush()
            assert (await (await producer.send("t", b"v", timestamp=5))).timestamp == 5


def test_values_that_are_none_leave_nothing_behind() -> None:
    with memory_broker() as address, kclient.sync.Producer(bootstrap_servers=address) as producer:
        with pytest.raises(SerializationError, match="set value_serializer"):
            producer.send_batch("t", [5, b"v"])
        producer.flush(timeout=10)
        assert producer.metrics()["record-send-total"] == 0


@pytest.mark.anyio
async def test_a_topic_that_is_none() -> None:
    with memory_broker() as address:
        async with kclient.Producer(bootstrap_servers=address) as producer:
            with pytest.raises(TypeError, match="named by a str, not by NoneType"):
                await producer.send(None, b"v")  # type: ignore[arg-type]
            with pytest.raises(InvalidTopicError, match="must not be empty"):
                await producer.send_batch("", [b"v"])


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: f"{client.__module__}.{client.__name__}")
def test_a_traceback_can_show_a_client_that_was_not_made(client: Any) -> None:
    with pytest.raises(ConfigError) as told:
        client(bootstrap_servers="localhost:1", security_protocol="NONSENSE")
    shown = traceback.TracebackException.from_exception(told.value, capture_locals=True)
    assert "security.protocol" in "".join(shown.format())


def test_timeouts_that_are_no_numbers_of_seconds() -> None:
    with memory_broker() as address, kclient.sync.Consumer(bootstrap_servers=address, group_id="g") as consumer:
        consumer.assign([("t", 0)])
        with pytest.raises(ValueError, match="not nan; iterate"):
            consumer.poll(float("nan"))
        with pytest.raises(ValueError, match="not nan"):
            consumer.commit(timeout=float("nan"))
        with pytest.raises(TypeError, match=r"default\.api\.timeout\.ms; not '5'"):
            consumer.position(("t", 0), timeout="5")  # type: ignore[arg-type]


def test_offsets_that_are_none() -> None:
    with memory_broker() as address, kclient.sync.Consumer(bootstrap_servers=address, group_id="g") as consumer:
        consumer.assign([("t", 0)])
        for offset in ("5", 5.0, None):
            with pytest.raises(TypeError, match="an offset is a whole number or OffsetAndMetadata, not "):
                consumer.seek(("t", 0), offset)  # type: ignore[arg-type]
            with pytest.raises(TypeError, match="an offset is a whole number or OffsetAndMetadata, not "):
                consumer.commit({("t", 0): offset})  # type: ignore[dict-item]
        with pytest.raises(ValueError, match="cannot seek to the negative offset -1"):
            consumer.seek(("t", 0), -1)
        with pytest.raises(TypeError, match="offsets are a mapping"):
            consumer.commit([("t", 0)])  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="timestamps are a mapping"):
            consumer.offsets_for_times([("t", 0)])  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"whole milliseconds since the epoch, not 1\.5"):
            consumer.offsets_for_times({("t", 0): 1.5})  # type: ignore[dict-item]


def test_subscriptions_that_are_none() -> None:
    consumer = kclient.sync.Consumer(bootstrap_servers="memory:unused", group_id="g")
    with pytest.raises(TypeError, match="names of topics, or a compiled pattern; not 5"):
        consumer.subscribe(5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="pattern of text"):
        consumer.subscribe(re.compile(b"t"))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="a pattern is given to subscribe"):
        kclient.sync.Consumer(re.compile("t"), bootstrap_servers="memory:unused", group_id="g")  # type: ignore[arg-type]


@pytest.mark.parametrize("place", ["seek_to_beginning", "seek_to_end"])
def test_a_blocking_consumer_starts_with_its_first_call(place: str) -> None:
    with memory_broker() as address:
        consumer = kclient.sync.Consumer(bootstrap_servers=address)
        consumer.assign([("t", 0)])
        getattr(consumer, place)()
        consumer.close()


@pytest.mark.parametrize("module", [kclient, kclient.sync], ids=["async", "blocking"])
def test_a_consumer_that_was_closed_takes_no_instructions(module: Any) -> None:
    consumer = module.Consumer(bootstrap_servers="memory:unused", group_id="g")
    consumer.assign([("t", 0)])
    closed = consumer.close()
    if closed is not None:
        anyio.run(lambda: closed)
    for name, arguments in [
        ("subscribe", (["t"],)),
        ("assign", ([("t", 0)],)),
        ("pause", ([("t", 0)],)),
        ("resume", ([("t", 0)],)),
        ("enforce_rebalance", ()),
        ("seek_to_end", ()),
    ]:
        with pytest.raises(ClosedError, match="The consumer was closed"):
            getattr(consumer, name)(*arguments)


def test_records_that_are_none() -> None:
    with memory_broker() as address, kclient.sync.Producer(bootstrap_servers=address) as producer:
        for send in (producer.send, producer.send_batch):
            with pytest.raises(TypeError, match=r"a partition is a whole number, or None .*; not '0'"):
                send("t", [b"v"] if send == producer.send_batch else b"v", partition="0")  # type: ignore[operator]


def test_arrow_data_that_is_none() -> None:
    pyarrow = pytest.importorskip("pyarrow")
    with memory_broker() as address, kclient.sync.Producer(bootstrap_servers=address) as producer:
        for data in ([1], 5, {"value": [b"v"]}):
            with pytest.raises(TypeError, match="send_arrow takes a pyarrow Table or RecordBatch"):
                producer.send_arrow("t", data)
        for columns in (
            {"value": [1]},
            {"value": [b"v"], "timestamp": ["now"]},
            {"value": [b"v"], "headers": ["a"]},
            {"value": [b"v"], "headers": [[{"name": "a"}]]},
        ):
            with pytest.raises(SerializationError, match=r"send_arrow: column '(value|timestamp|headers)' of type "):
                producer.send_arrow("t", pyarrow.table(columns))


def test_names_of_settings_that_are_none() -> None:
    with pytest.raises(ConfigError, match="the name of a setting is text, not 5"):
        kclient.Producer({5: "x"})  # type: ignore[dict-item]

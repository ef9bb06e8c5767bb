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
import kclient.consumer
import kclient.sync
from kclient.admin import ConfigResource, ConfigResourceType, NewTopic, OffsetSpec, PartialFailureError
from kclient.arguments import in_seconds
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
            with pytest.raises(IllegalStateError, match=r"another event loop.* use kclient\.sync"):
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
def test_on_trio_a_client_needs_no_block(client: Any) -> None:
    """Nor does a timeout around its start or its end do any harm."""

    async def main() -> None:
        made = client(bootstrap_servers="memory:unused")
        with trio.fail_after(20):
            await made.start()
        with pytest.raises(IllegalStateError, match="before"):
            await made.start()
        with trio.fail_after(20):
            async with trio.open_nursery() as others:
                others.start_soon(made.close)

    trio.run(main)


def test_topics_of_a_consumer_in_a_list() -> None:
    for topics in (["a", "b"], ("a",), {"a"}):
        with pytest.raises(TypeError, match=r"topics are given one by one, as in Consumer\('a', 'b'\): write \*"):
            kclient.sync.Consumer(topics, bootstrap_servers="memory:unused", group_id="g")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "partitions", ["ab", ["a"], [("a",)], [("a", "0")], [("a", True)], [0], [("a", 0, 1)]], ids=repr
)
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
            assert producer.metrics().value("record-send-total") == 2


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
        assert producer.metrics().value("record-send-total") == 2


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
        assert producer.metrics().value("record-send-total") == 0


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
        for offset in ("5", 5.0, None, True):
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
        for timestamp in (1.5, True):
            with pytest.raises(TypeError, match=f"whole milliseconds since the epoch, not {timestamp}"):
                consumer.offsets_for_times({("t", 0): timestamp})  # type: ignore[dict-item]


def test_subscriptions_that_are_none() -> None:
    consumer = kclient.sync.Consumer(bootstrap_servers="memory:unused", group_id="g")
    with pytest.raises(TypeError, match="a list of names or a compiled pattern; not 5"):
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


TIMEOUTS = [("5", TypeError), (float("nan"), ValueError), (-1, ValueError)]


@pytest.mark.anyio
@pytest.mark.parametrize(("timeout", "error"), TIMEOUTS, ids=repr)
async def test_timeouts_that_are_none_everywhere(timeout: Any, error: type[Exception]) -> None:
    told = r"timeout is a number of seconds, 0 or more, or None .*; not "
    with memory_broker() as address:
        async with (
            kclient.Admin(bootstrap_servers=address) as admin,
            kclient.Consumer(bootstrap_servers=address) as consumer,
            kclient.Producer(bootstrap_servers=address) as producer,
        ):
            calls: list[Any] = [producer.flush, producer.close, admin.list_topics, admin.list_groups, admin.close]
            calls += [consumer.list_topics, consumer.close]
            for call in calls:
                with pytest.raises(error, match=told):
                    await call(timeout=timeout)
            with pytest.raises(error, match=told):
                await admin.delete_topics(["t"], timeout=timeout)
            assert await admin.list_topics(timeout=float("inf")) == []
            await admin.create_topic("t", timeout=1e9)
            delivery = await producer.send("t", b"v")
            with pytest.raises(error, match=told):
                delivery.result(timeout)
            await producer.flush(timeout=10)


@pytest.mark.parametrize(("timeout", "error"), TIMEOUTS, ids=repr)
def test_timeouts_that_are_none_in_blocking_code(timeout: Any, error: type[Exception]) -> None:
    with (
        memory_broker() as address,
        kclient.sync.Admin(bootstrap_servers=address) as admin,
        kclient.sync.Consumer(bootstrap_servers=address) as consumer,
        kclient.sync.Producer(bootstrap_servers=address) as producer,
    ):
        calls: list[Any] = [producer.flush, producer.close, admin.list_topics, admin.close, consumer.close]
        for call in calls:
            with pytest.raises(error, match=r"timeout is a number of seconds, 0 or more, or None "):
                call(timeout=timeout)
        deliveries = producer.send_batch("t", [b"v"])
        with pytest.raises(error, match=r"timeout is a number of seconds, 0 or more, or None "):
            deliveries.result(timeout)
        assert len(deliveries.result(10)) == 1


@pytest.mark.anyio
async def test_an_admin_client_takes_partitions_as_pairs() -> None:
    with memory_broker() as address:
        async with (
            kclient.Producer(bootstrap_servers=address) as producer,
            kclient.Admin(bootstrap_servers=address) as admin,
        ):
            await (await producer.send_batch("t", [b"v"] * 5, partition=0))
            tp = kclient.TopicPartition("t", 0)
            await admin.alter_group_offsets("g", {("t", 0): 1})
            assert (await admin.list_group_offsets("g", [("t", 0)]))[tp].offset == 1
            found = await admin.list_offsets({("t", 0): OffsetSpec.LATEST})
            assert found[tp] is not None
            assert found[tp].offset == 5
            reset = await admin.reset_group_offsets("g", OffsetSpec.LATEST, [("t", 0)])
            assert (reset[tp].before, reset[tp].after) == (1, 5)
            assert (await admin.reset_group_offsets("g", {("t", 0): 2}))[tp].after == 2
            await admin.delete_group_offsets("g", [("t", 0)])
            assert await admin.list_group_offsets("g") == {}
            assert await admin.delete_records({("t", 0): 3}) == {tp: 3}


def test_an_admin_client_in_blocking_code_takes_partitions_as_pairs() -> None:
    with memory_broker() as address, kclient.sync.Admin(bootstrap_servers=address) as admin:
        admin.create_topic("t")
        admin.alter_group_offsets("g", {("t", 0): 1})
        assert [str(tp) for tp in admin.list_group_offsets("g", [("t", 0)])] == ["t-0"]
        admin.delete_group_offsets("g", [("t", 0)])


def topic_settings(name: Any) -> ConfigResource:
    return ConfigResource(ConfigResourceType.TOPIC, name)


def broker_settings(name: str) -> ConfigResource:
    return ConfigResource(ConfigResourceType.BROKER, name)


ADMIN_CALLS = [
    ("alter_group_offsets", ("g", {"t": 1}), TypeError, "a partition is TopicPartition"),
    ("alter_group_offsets", ("g", [("t", 0)]), TypeError, "offsets are a mapping"),
    ("alter_group_offsets", ("g", {("t", 0): "1"}), TypeError, "an offset is a whole number or OffsetAndMetadata"),
    ("alter_group_offsets", ("g", {("t", 0): -1}), ValueError, "cannot commit the negative offset -1"),
    ("list_group_offsets", ("g", ["t"]), TypeError, "a partition is TopicPartition"),
    ("list_group_offsets", ("g", kclient.TopicPartition("t", 0)), TypeError, "partitions are given in a list"),
    ("delete_group_offsets", ("g", ["t"]), TypeError, "a partition is TopicPartition"),
    ("delete_group_offsets", ("g", None), TypeError, "partitions are given in a list"),
    ("delete_group_offsets", ("g", [("t", -1)]), ValueError, "a number from 0 on"),
    ("reset_group_offsets", ("g", {("t", 0): "1"}), TypeError, "an offset is a whole number"),
    ("reset_group_offsets", ("g", "earliest"), TypeError, "neither an OffsetSpec nor a mapping of offsets"),
    ("list_offsets", ({"t": 1},), TypeError, "a partition is TopicPartition"),
    ("list_offsets", ({("t", 0): "earliest"},), TypeError, "a place that is not an OffsetSpec is a whole number"),
    ("list_offsets", ({("", 0): 1},), ValueError, "a topic that is not empty"),
    ("delete_records", ({("t", 0): "5"},), TypeError, "an offset is a whole number"),
    ("delete_records", ({("t", 0): -5},), ValueError, "or all of them with -1; not before -5"),
    ("describe_configs", (["x"],), TypeError, "settings belong to resources, as in .ConfigResource"),
    ("describe_configs", (None,), TypeError, "settings belong to resources, as in .ConfigResource"),
    ("alter_configs", ({"x": {}},), TypeError, "settings belong to resources, as in .ConfigResource"),
    ("alter_configs", (["x"],), TypeError, "changes are a mapping from ConfigResource"),
    ("delete_topics", ("abc",), TypeError, r"topics are given in a list, as in \['abc'\]"),
    ("delete_topics", ([5],), TypeError, "topics are named by strings, not 5"),
    ("delete_topics", ([""],), ValueError, "topics have names that are not empty"),
    ("describe_topics", ("abc",), TypeError, r"topics are given in a list, as in \['abc'\]"),
    ("describe_topics", (None,), TypeError, "topics are given in a list of names, not None"),
    ("create_partitions", (["t"],), TypeError, "takes a mapping from topics to numbers"),
    ("create_partitions", ({"t": "4"},), TypeError, "a number of partitions is a whole number, not '4'"),
    ("describe_groups", ("abc",), TypeError, r"groups are given in a list, as in \['abc'\]"),
    ("delete_groups", ("abc",), TypeError, r"groups are given in a list, as in \['abc'\]"),
    ("create_topics", ([NewTopic(5)],), TypeError, "the name of a new topic is text, not 5"),
    ("create_topics", ([NewTopic("\ud800")],), ValueError, "the name of a new topic is text that UTF-8 can carry"),
    ("create_topic", ("t", "4"), TypeError, "a new topic's number of partitions is a whole number, not '4'"),
    ("create_topic", ("t", 2**31), ValueError, "from 1 to 2147483647, or -1 for the broker's default; not 2147483648"),
    ("create_topic", ("t", 1, 2**15), ValueError, "a replication factor is from 1 to 32767"),
    ("create_topic", ("t", 1, 1, ["x"]), TypeError, r"the configs of a new topic are a mapping .*; not \['x'\]"),
    ("create_topic", ("t", 1, 1, {"retention.ms": 5}), TypeError, "the value of a setting is text, not 5"),
    ("create_topics", ([NewTopic("t", assignments=[[1]])],), TypeError, "the assignments of a new topic are a mapping"),
    ("create_topics", ([NewTopic("t", assignments={0: 1})],), TypeError, "are a list of their ids, .*; not 1"),
    ("create_topics", ([NewTopic("t", assignments={0: ["1"]})],), TypeError, "a broker's id is a whole number"),
    ("create_topics", ([NewTopic("t", assignments={-1: [1]})],), ValueError, "a partition's number is from 0 to"),
    ("create_partitions", ({"t": 2**31},), ValueError, "a number of partitions is from 0 to 2147483647"),
    (
        "list_offsets",
        ({("t", 0): 2**63},),
        ValueError,
        "a place that is not an OffsetSpec is from -9223372036854775807",
    ),
    ("delete_records", ({("t", 0): 2**63},), ValueError, "not before 9223372036854775808"),
    ("describe_configs", ([ConfigResource(2, "t")],), TypeError, "is a ConfigResourceType, not 2"),
    ("describe_configs", ([topic_settings(5)],), TypeError, "the name of a resource is text, not 5"),
    ("describe_configs", ([broker_settings("one")],), ValueError, "a broker is named by its id, .*; not by 'one'"),
    ("describe_configs", ([broker_settings("9" * 5000)],), ValueError, "its id, .* which is 2147483647 at most"),
    ("alter_configs", ({topic_settings("t"): ["x"]},), TypeError, "the changes of a resource are a mapping"),
    ("alter_configs", ({topic_settings("t"): {5: "x"}},), TypeError, "the name of a setting is text, not 5"),
    ("alter_configs", ({topic_settings("t"): {"a": 5}},), TypeError, "the value of a setting is text, not 5"),
    ("alter_configs", ({topic_settings("t"): {"a": (0, "x")}},), TypeError, r"a change is a value, .*; not \(0, 'x'\)"),
    ("list_group_offsets", (5,), TypeError, "a group's id is text, not 5"),
    ("list_group_offsets", ("x" * 32_768,), ValueError, "a group's id has 32767 bytes at most in UTF-8, not 32768"),
    ("alter_group_offsets", ("\ud800", {}), ValueError, "a group's id is text that UTF-8 can carry"),
    ("delete_group_offsets", (None, []), TypeError, "a group's id is text, not None"),
    ("reset_group_offsets", (b"g", OffsetSpec.LATEST), TypeError, "a group's id is text, not b'g'"),
    ("reset_group_offsets", ("g", -1), ValueError, "is from 0 to 9223372036854775807, not -1"),
    ("reset_group_offsets", ("g", 2**64), ValueError, "a target that is neither an OffsetSpec nor a mapping"),
    ("group_lag", (5,), TypeError, "a group's id is text, not 5"),
]


@pytest.mark.anyio
async def test_arguments_of_an_admin_client_that_are_none() -> None:
    with memory_broker() as address:
        async with kclient.Admin(bootstrap_servers=address) as admin:
            for name, arguments, error, told in ADMIN_CALLS:
                with pytest.raises(error, match=told):
                    await getattr(admin, name)(*arguments)
            with pytest.raises(TypeError, match=r"states are given in a list, as in \['Empty'\]"):
                await admin.list_groups(states="Empty")


@pytest.mark.anyio
async def test_assignments_of_topics_without_a_number_are_refused() -> None:
    with memory_broker() as address:
        async with kclient.Admin(bootstrap_servers=address) as admin:
            with pytest.raises(ValueError, match="there are assignments of 'u', but no number of partitions"):
                await admin.create_partitions({"t": 2}, assignments={"u": [[0]]})
            with pytest.raises(TypeError, match="the brokers of a partition are a list of their ids"):
                await admin.create_partitions({"t": 2}, assignments={"t": [0]})  # type: ignore[dict-item]
            with pytest.raises(TypeError, match="assignments are a mapping from topics to the brokers"):
                await admin.create_partitions({"t": 2}, assignments=[[0]])  # type: ignore[arg-type]


def test_many_failures_are_told_in_short() -> None:
    error = kclient.errors.KafkaError("why")
    assert str(PartialFailureError("Doing", {"a": error, "b": error})) == "Doing failed for 2: a, b: why"
    several = PartialFailureError(
        "Doing", {str(number): kclient.errors.KafkaError(f"no. {number}") for number in range(7)}
    )
    told = "; ".join(f"{number}: no. {number}" for number in range(5))
    assert str(several) == f"Doing failed for 7: {told}; and 2 more"
    assert len(several.failures) == 7
    assert len(str(PartialFailureError("Doing", dict.fromkeys(("x" * 9999, "y"), error)))) < 200


def test_values_and_keys_of_any_iterable() -> None:
    with memory_broker() as address, kclient.sync.Producer(bootstrap_servers=address) as producer:
        keys = (b"%d" % number for number in range(3))
        assert len(producer.send_batch("t", (b"v" for _ in range(3)), keys=keys).result(10)) == 3
        with pytest.raises(ValueError, match="2 values but 1 keys"):
            producer.send_batch("t", [b"a", b"b"], keys=(b"k" for _ in range(1)))
        for wrong in (b"ab", "ab", 5):
            with pytest.raises(TypeError, match="keys are a sequence, one for each record; not "):
                producer.send_batch("t", [b"a", b"b"], keys=wrong)  # type: ignore[arg-type]
            with pytest.raises(TypeError, match="values are a sequence, one for each record; not "):
                producer.send_batch("t", wrong)  # type: ignore[arg-type]


@pytest.mark.anyio
async def test_keys_of_any_iterable_in_async_code() -> None:
    with memory_broker() as address:
        async with kclient.Producer(bootstrap_servers=address) as producer:
            keys = (b"%d" % number for number in range(3))
            assert len(await (await producer.send_batch("t", [b"v"] * 3, keys=keys))) == 3


@pytest.mark.anyio
async def test_callbacks_that_cannot_be_called() -> None:
    with memory_broker() as address:
        async with (
            kclient.Producer(bootstrap_servers=address) as producer,
            kclient.Consumer(bootstrap_servers=address, group_id="g") as consumer,
        ):
            with pytest.raises(TypeError, match="on_delivery is a function to be called, or None; not 'print'"):
                await producer.send("t", b"v", on_delivery="print")  # type: ignore[arg-type]
            with pytest.raises(TypeError, match="callback is a function to be called, or None; not 5"):
                consumer.commit_async({("t", 0): 1}, callback=5)  # type: ignore[arg-type]


def test_an_on_delivery_that_cannot_be_called_in_blocking_code() -> None:
    with memory_broker() as address, kclient.sync.Producer(bootstrap_servers=address) as producer:
        for _ in range(2):  # with metadata and without
            with pytest.raises(TypeError, match="on_delivery is a function to be called, or None; not 'print'"):
                producer.send("t", b"v", on_delivery="print")  # type: ignore[arg-type]
            producer.send("t", b"v").result(10)
        assert producer.metrics().value("record-send-total") == 2


class HalfAListener:
    def on_partitions_revoked(self, partitions: Any) -> None:
        """Only this."""


@pytest.mark.parametrize(
    ("listener", "told"),
    [
        (print, "derives from RebalanceListener; .* has no on_partitions_revoked"),
        (HalfAListener(), "derives from RebalanceListener; .* has no on_partitions_assigned"),
        (kclient.consumer.RebalanceListener, r"an object, not the class: give RebalanceListener\(\.\.\.\)"),
    ],
    ids=["function", "half", "class"],
)
def test_listeners_that_are_none(listener: Any, told: str) -> None:
    consumer = kclient.sync.Consumer(bootstrap_servers="memory:unused", group_id="g")
    with pytest.raises(TypeError, match=told):
        consumer.subscribe(["t"], listener)
    with pytest.raises(TypeError, match=told):
        consumer.subscribe(re.compile("t"), listener)
    assert consumer.subscription() == set()


@pytest.mark.anyio
async def test_partitions_of_no_topic_are_not_waited_for() -> None:
    with memory_broker() as address:
        async with (
            kclient.Producer(bootstrap_servers=address) as producer,
            kclient.Consumer(bootstrap_servers=address) as consumer,
        ):
            with anyio.fail_after(10):
                for client in (producer, consumer):
                    with pytest.raises(TypeError, match="named by a str, not by NoneType"):
                        await client.partitions_for(None)  # type: ignore[attr-defined]
                    with pytest.raises(InvalidTopicError, match="must not be empty"):
                        await client.partitions_for("")  # type: ignore[attr-defined]


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: f"{client.__module__}.{client.__name__}")
@pytest.mark.parametrize(
    "servers", ["memory:x,localhost:9092", "memory:x,memory:y", "embedded:./a,embedded:./b", "unix:/s,localhost:1"]
)
def test_addresses_that_lead_to_several_clusters(client: Any, servers: str) -> None:
    with pytest.raises(ConfigError, match=r"bootstrap\.servers: .* are not brokers of one cluster"):
        client(bootstrap_servers=servers)
    client(bootstrap_servers="localhost:1,localhost:2")


@pytest.mark.slow
def test_partitions_that_cannot_be() -> None:
    with memory_broker() as address, kclient.sync.Consumer(bootstrap_servers=address, group_id="g") as consumer:
        consumer.assign([("t", 0)])
        for wrong in (("t", -1), ("", 0), kclient.TopicPartition("t", -1)):
            calls: list[Any] = [consumer.assign, consumer.pause, consumer.seek_to_end, consumer.committed]
            for call in calls:
                with pytest.raises(ValueError, match="a topic that is not empty and a number from 0 on, not "):
                    call([wrong])
            with pytest.raises(ValueError, match="a topic that is not empty and a number from 0 on, not "):
                consumer.seek(wrong, 0)
            with pytest.raises(ValueError, match="a topic that is not empty and a number from 0 on, not "):
                consumer.commit({wrong: 1})
        assert consumer.assignment() == {kclient.TopicPartition("t", 0)}


def test_what_was_left_of_a_timeout_is_told_with_few_digits() -> None:
    assert [
        in_seconds(seconds) for seconds in (1.49999321, 0.0512345, 12.3456, 60, 3600.0, 86400, 0, float("inf"))
    ] == [
        "1.5 s",
        "0.0512 s",
        "12.3 s",
        "60 s",
        "3600 s",
        "86400 s",
        "0 s",
        "inf s",
    ]
    with (
        kclient.sync.Producer(bootstrap_servers="127.0.0.1:1", max_block_ms=150) as producer,
        pytest.raises(KafkaTimeoutError, match=r"did not arrive within 0\.\d{1,3} s"),
    ):
        producer.send("t", b"v")


LONG = "x" * 40_000
LONE = "\ud800"


@pytest.mark.parametrize("text", [LONG, LONE], ids=["long", "lone surrogate"])
@pytest.mark.parametrize("name", ["group_id", "group_instance_id", "client_rack", "client_id"])
def test_texts_of_settings_that_cannot_be_sent(name: str, text: str) -> None:
    with pytest.raises(ConfigError, match=rf"{name.replace('_', '.')} = .*: expected text (of|in)") as told:
        kclient.sync.Consumer(bootstrap_servers="memory:unused", **{name: text})
    assert len(str(told.value)) < 400


@pytest.mark.anyio
async def test_what_no_request_can_carry_is_refused_by_the_call() -> None:
    """It used to end a background task, and the consumer with it."""
    with memory_broker() as address:
        async with kclient.Consumer(bootstrap_servers=address, group_id="g") as consumer:
            consumer.assign([("t", 0)])
            calls: list[Any] = [
                lambda: consumer.seek(("t", 0), 2**63),
                lambda: consumer.seek(("t", 0), kclient.OffsetAndMetadata(1, leader_epoch=2**31)),
                lambda: consumer.assign([(LONE, 0)]),
                lambda: consumer.assign([(LONG, 0)]),
                lambda: consumer.assign([("t", 2**31)]),
                lambda: consumer.commit_async({("t", 0): 2**63}),
                lambda: consumer.commit_async({("t", 0): kclient.OffsetAndMetadata(1, LONE)}),
                lambda: consumer.commit_async({("t", 0): kclient.OffsetAndMetadata(1, LONG)}),
                lambda: consumer.commit_async({("t", 0): kclient.OffsetAndMetadata(1, "", -5)}),
                lambda: consumer.enforce_rebalance(LONE),
                lambda: consumer.enforce_rebalance(5),  # type: ignore[arg-type]
            ]
            for call in calls:
                with pytest.raises((TypeError, ValueError)) as told:
                    call()
                assert len(str(told.value)) < 400
            for topic in (LONE, LONG):
                with pytest.raises(InvalidTopicError):
                    await consumer.partitions_for(topic)
                with pytest.raises(InvalidTopicError):
                    consumer.subscribe([topic])
            with pytest.raises(ValueError, match="from 0 to 9223372036854775807"):
                await consumer.offsets_for_times({("t", 0): 2**63})
            consumer.seek(("t", 0), 2**63 - 1)
            assert not await consumer.poll(0.1)
            with anyio.fail_after(5):
                await consumer.close()


class Hostile:
    """Whose repr raises."""

    def __repr__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize("value", [Hostile(), 10**5000, [Hostile()], LONG, b"x" * 10**7, list(range(10**6))], ids=type)
def test_what_was_refused_is_shown_in_a_few_words(value: Any) -> None:
    consumer = kclient.sync.Consumer(bootstrap_servers="memory:unused")
    with pytest.raises((TypeError, ValueError)) as told:
        consumer.pause([value])
    assert len(str(told.value)) < 400

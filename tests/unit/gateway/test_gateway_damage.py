"""A damaged row stops only what it belongs to, and says so; a store of the first format is read and migrated."""

from __future__ import annotations

import json
import logging
import re
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from kclient.errors import ErrorCode
from kclient.gateway import Gateway
from kclient.gateway.rows.broker import decode_settings
from kclient.gateway.rows.keys import LEADER_EPOCH
from kclient.htp import StorageError, open_store
from kclient.htp.embedded.broker import EmbeddedBroker
from kclient.htp.rows import seal, unsealed
from kclient.records import decode_records
from tests.all_rows import scan_all
from tests.copied_stores import copy_as_killed, copy_filled
from tests.domains import domains_among
from tests.gateway_wire import Wire, batch_of, connect, running
from tests.sweeps import mostly_slow, slow

pytestmark = pytest.mark.anyio

EARLIEST, LATEST = -2, -1


@pytest.fixture
def anyio_backend() -> str:
    """One loop will do: what is read from a row has nothing to do with it."""
    return "asyncio"


def idempotent(number: int) -> bytearray:
    return batch_of(b"%d" % number, producer_id=7, producer_epoch=0, sequence=number)


async def fill(url: str) -> None:
    """See `_fill`."""
    await copy_filled(url, _fill)


async def _fill(url: str) -> None:
    """Two topics with ten records each, of which the first four of `a` were deleted; a group, a setting."""
    async with running(url) as (_, wire):
        for topic in ("a", "b"):
            assert (await wire.create(topic, retention_ms="-1")).error_code == 0
            for number in range(10):
                assert (await wire.produce(topic, idempotent(number))).base_offset == number
            assert await wire.commit("g", topic, 6) == 0
        assert (await wire.delete_records("a", 4)).low_watermark == 4
        assert await wire.alter(4, "", ("num.partitions", 0, "3")) == 0


async def damage(url: str, prefix: str, change: Callable[[bytes], bytes]) -> None:
    """Change the rows whose keys begin with a prefix; there must be some."""
    async with open_store(url) as store:
        rows = await scan_all(store.manager, prefix)
        assert rows, prefix
        await store.manager.commit({key: change(row.value) for key, row in rows.items()})


NUMBER = re.compile(rb"(?<=[:\[, ])\d+")
GROUP = seal(
    b'{"format":1,"group":"g","generation":3,"protocol_type":"consumer","protocol":null,"leader":null,"since":1,'
    b'"members":[]}'
)


def other_types(row: bytes) -> bytes:
    """Every field of the row is a list, or null where the row is one."""
    if not row.startswith(b"{"):
        return b"[1, null, null, null, null, null, null]"
    fields = dict(json.loads(unsealed(row)))
    return json.dumps({name: fields[name] if name == "format" else [name] for name in fields}).encode()


BODIES: dict[str, Callable[[bytes], bytes]] = {
    "not JSON": lambda row: b"\x00" * len(row),
    "empty": lambda row: b"",
    "another object": lambda row: b'{"v": 1, "format": 1}',
    "another type": lambda row: b"[1, 2, 3]",
    "a number": lambda row: b"17",
    "fields of other types": other_types,
    "infinite numbers": lambda row: NUMBER.sub(rb"1e999", row),
    "fractions": lambda row: NUMBER.sub(rb"1.5", row),
    "numbers of 30 digits": lambda row: NUMBER.sub(b"9" * 30, row),
    "numbers of 5,000 digits": lambda row: NUMBER.sub(b"9" * 5000, row),
    "Infinity": lambda row: NUMBER.sub(rb"Infinity", row),
    "numbers as text": lambda row: NUMBER.sub(rb'"17"', row),
    "nested deeply": lambda row: b"[" * 100_000,
    "objects nested deeply": lambda row: b'{"v":' * 100_000,
    "a newer format": lambda row: re.sub(rb'^({"format":|\[)\d+', rb"\g<1>9", row),
}
"""What a row may hold whose checksum is right."""


def sealed(change: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    return lambda row: seal(change(unsealed(row)))


def other_digit(row: bytes) -> bytes:
    """One digit of the last number in the row's body has become another one."""
    place = list(NUMBER.finditer(unsealed(row)))[-1].start()
    return row[:place] + (b"1" if row[place : place + 1] == b"0" else b"0") + row[place + 1 :]


WAYS: dict[str, Callable[[bytes], bytes]] = {
    **BODIES,
    **{f"{name}, sealed": sealed(change) for name, change in BODIES.items()},
    "another digit": other_digit,
    "another checksum": lambda row: unsealed(row) + b"#00000000",
}
COMMON = {"not JSON", "fields of other types, sealed", "a newer format, sealed", "another digit"}
"""One of each kind."""
every_way = pytest.mark.parametrize("change", mostly_slow(WAYS, COMMON))


async def check_b(wire: Wire) -> None:
    """Whatever was damaged: the other topic is whole."""
    assert await wire.values("b") == [b"%d" % number for number in range(10)]
    assert (await wire.produce("b", batch_of(b"more"))).base_offset == 10


@every_way
async def test_a_checkpoint(url: str, change: Callable[[bytes], bytes], caplog: pytest.LogCaptureFixture) -> None:
    """What it alone knew is found in the log: the producers, the next offset, the epochs; the log start beside it."""
    await fill(url)
    await damage(url, "kafka/log/", change)
    async with running(url) as (gateway, wire):
        assert await wire.values("a", 4) == [b"%d" % number for number in range(4, 10)]
        assert (await wire.offset("a", EARLIEST)).offset == 4
        assert (await wire.fetch("a", 3)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert (await wire.produce("a", idempotent(9))).base_offset == 9, "a repeat"
        assert (await wire.produce("a", idempotent(11))).error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert (await wire.produce("a", idempotent(10))).base_offset == 10
        await check_b(wire)
        assert gateway.failure is None
    assert "a-0: its checkpoint cannot be read" in caplog.text
    caplog.clear()
    async with running(url) as (_, wire):
        assert await wire.values("a", 4) == [b"%d" % number for number in range(4, 11)]
    assert "cannot be read" not in caplog.text, "it was written anew"


async def test_a_checkpoint_of_a_log_that_was_trimmed_to_nothing(url: str) -> None:
    await fill(url)
    async with running(url) as (_, wire):
        assert (await wire.delete_records("a", 10)).low_watermark == 10
    await damage(url, "kafka/log/", WAYS["empty"])
    async with running(url) as (_, wire):
        assert (await wire.offset("a", EARLIEST)).offset == (await wire.offset("a", LATEST)).offset == 10
        assert (await wire.produce("a", batch_of(b"next"))).base_offset == 10


@pytest.mark.slow
@every_way
@pytest.mark.domains
async def test_a_topic(url: str, change: Callable[[bytes], bytes], caplog: pytest.LogCaptureFixture) -> None:
    """It is not served and not touched, until it is deleted."""
    await fill(url)
    async with open_store(url) as store:
        row = (await store.manager.get(["kafka/topic/a"]))["kafka/topic/a"].value
    await damage(url, "kafka/topic/a", change)
    async with running(url) as (gateway, wire):
        await check_b(wire)
        assert "topic a is not served" in caplog.text
        assert (await wire.metadata("a")).topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        answer = await wire.create("a")
        assert answer.error_code == ErrorCode.TOPIC_ALREADY_EXISTS
        assert "not served" in str(answer.error_message)
        await gateway.apply_retention()
        assert len(await gateway.parts.manager.list_topics("a")) == 1
    await damage(url, "kafka/topic/a", lambda _: row)
    async with running(url) as (_, wire):
        assert await wire.values("a", 4) == [b"%d" % number for number in range(4, 10)]
        assert await wire.committed("g", "a") == 6
        assert (await wire.produce("a", idempotent(9))).base_offset == 9, "a repeat"
    await damage(url, "kafka/topic/a", change)
    async with running(url) as (gateway, wire):
        assert await wire.delete("a") == 0
        assert await domains_among(gateway.parts.manager, ["a", "b"]) == ["b"]
        assert (await wire.create("a")).error_code == 0
        assert (await wire.produce("a", batch_of(b"new"))).base_offset == 0
        assert await wire.committed("g", "a") == -1
        assert "group-offset/g/a/0" not in await scan_all(gateway.parts.manager, "group-offset/")


async def test_a_deletion_that_was_cut_off_before_its_offsets_were_removed(url: str) -> None:
    await fill(url)
    async with open_store(url) as store:
        row = (await store.manager.get(["kafka/topic/a"]))["kafka/topic/a"]
        intent = {"format": 1, "mapping": "domain", "id": json.loads(unsealed(row.value))["id"]}
        await store.manager.commit({"kafka/topic/a": None, "kafka/intent/a": json.dumps(intent).encode()})
    async with running(url) as (gateway, wire):
        assert await wire.committed("g", "a") == -1
        assert list(await scan_all(gateway.parts.manager, "group-offset/")) == ["group-offset/g/b/0"]
        assert await scan_all(gateway.parts.manager, "kafka/intent/") == {}


@pytest.mark.slow
@pytest.mark.parametrize("byte", [7, 9])
async def test_a_damaged_batch_after_a_kill(tmp_path: Path, byte: int, caplog: pytest.LogCaptureFixture) -> None:
    """In a closed segment, and behind the gateway's last checkpoint: the others are served, and appends go on."""
    async with running(f"embedded:{tmp_path / 'data'}") as (_, wire):
        await wire.create("t", segment_bytes="1048576")
        for number in range(10):
            batch = batch_of(b"%d" % number * 400_000, producer_id=7, producer_epoch=0, sequence=number)
            assert (await wire.produce("t", batch)).base_offset == number
        copy_as_killed(tmp_path / "data", tmp_path / "killed")
    segment = sorted((tmp_path / "killed").glob("brk-*/topics/*/*.log"))[1]
    content = bytearray(segment.read_bytes())
    content[byte] ^= 0x40
    segment.write_bytes(content)
    bad = int(segment.stem)
    async with running(f"embedded:{tmp_path / 'killed'}") as (_, wire):
        found = {number: await wire.fetch("t", number, partition_max_bytes=1) for number in range(10)}
        readable = {number for number, answer in found.items() if not answer.error_code}
        assert 10 - len(readable) in {1, 2}, "those of its block of the index"
        assert bad not in readable
        for number in readable:
            (record,) = decode_records(found[number].records or b"", "t", 0, start_offset=number)
            assert (record.offset, record.value[:1]) == (number, b"%d" % number)
        assert (await wire.offset("t", LATEST)).offset == 10
        batch = batch_of(b"9" * 400_000, producer_id=7, producer_epoch=0, sequence=9)
        assert (await wire.produce("t", batch)).base_offset == 9, "it is known what the producer had sent last"
        batch = batch_of(b"10", producer_id=7, producer_epoch=0, sequence=10)
        assert (await wire.produce("t", batch)).base_offset == 10
    assert caplog.text.count(f"t-0: what is stored from offset {bad} on is damaged; opening it goes on at") == 1


async def test_a_topic_that_cannot_be_opened_is_tried_once_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each try may have to read it all, and clients ask ten times a second."""
    tries = 0

    async def broken(*_args: Any, **_options: Any) -> None:
        nonlocal tries
        tries += 1
        raise StorageError("the disk is on fire")

    async with running(f"embedded:{tmp_path / 'data'}") as (gateway, wire):
        await wire.create("t")
        with monkeypatch.context() as patch:
            patch.setattr(EmbeddedBroker, "open", broken)
            now = gateway.parts.clock.now()
            patch.setattr(gateway.parts.clock, "now", lambda: now)
            for _ in range(5):
                assert (await wire.produce("t", batch_of(b"a"))).error_code == ErrorCode.KAFKA_STORAGE_ERROR
                assert (await wire.offset("t", LATEST)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
            assert tries == 1
            assert caplog.text.count("cannot be opened") == 1
            patch.setattr(gateway.parts.clock, "now", lambda: now + 1.1)
            assert (await wire.offset("t", LATEST)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
            assert tries == 2
        with anyio.fail_after(30):
            while (await wire.produce("t", batch_of(b"a"))).error_code:
                await anyio.sleep(0.05)
        assert await wire.values("t") == [b"a"]


@pytest.mark.domains
async def test_a_topic_whose_places_are_not_there(url: str, caplog: pytest.LogCaptureFixture) -> None:
    await fill(url)
    async with open_store(url) as store:
        await store.manager.delete_domain("a")
    async with running(url) as (_, wire):
        await check_b(wire)
        assert (await wire.produce("a", batch_of(b"x"))).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert "a-0 cannot be opened" in caplog.text


@every_way
async def test_a_committed_offset(url: str, change: Callable[[bytes], bytes], caplog: pytest.LogCaptureFixture) -> None:
    await fill(url)
    await damage(url, "group-offset/g/a/", change)
    async with running(url) as (_, wire):
        assert (await wire.committed("g", "a"), await wire.committed("g", "b")) == (-1, 6)
        assert "the committed offset g/a/0" in caplog.text
        assert await wire.commit("g", "a", 8) == 0
    async with running(url) as (_, wire):
        assert await wire.committed("g", "a") == 8


@every_way
async def test_a_group(url: str, change: Callable[[bytes], bytes], caplog: pytest.LogCaptureFixture) -> None:
    await fill(url)
    async with open_store(url) as store:
        await store.manager.commit({"group/g": change(GROUP)})
    async with running(url) as (_, wire):
        await check_b(wire)
        assert "the row of group g cannot be read" in caplog.text
        assert await wire.committed("g", "b") == 6


@pytest.mark.parametrize(
    "change",
    [
        WAYS["not JSON"],
        WAYS["another type"],
        WAYS["nested deeply"],
        lambda _: b'{"num.partitions": 1e999}',
        lambda _: seal(b'{"format":9,"settings":{}}'),
    ],
)
async def test_the_broker_settings(
    url: str, change: Callable[[bytes], bytes], caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody knows how long records are to be kept: so none is removed until it is said again."""
    await fill(url)
    async with running(url) as (_, wire):
        await wire.create("old", retention_bytes="0", segment_bytes="1048576")
        await wire.produce("old", batch_of(b"old", timestamp=1))
    await damage(url, "kafka/config/broker", change)
    async with running(url) as (gateway, wire):
        assert "cannot be read" in caplog.text
        assert await gateway.apply_retention() == 0
        assert await wire.values("old") == [b"old"]
        assert await wire.alter(4, "", ("num.partitions", 0, "3")) == 0
        assert await gateway.apply_retention() == 1
        assert await wire.values("old", 1) == []


async def test_settings_of_another_version(url: str, caplog: pytest.LogCaptureFixture) -> None:
    """They are ignored, and kept for that version."""
    await fill(url)
    settings = {"num.partitions": "3", "of.the.future": "1", "fetch.max.bytes": "many"}
    await damage(url, "kafka/config/broker", lambda _: json.dumps(settings).encode())
    async with running(url) as (gateway, wire):
        assert "of.the.future" in caplog.text
        assert gateway.parts.config.get_int("num.partitions") == 3
        assert await wire.alter(4, "", ("num.partitions", 0, "4"), ("fetch.max.bytes", 0, "2000")) == 0
    async with open_store(url) as store:
        row = (await store.manager.get(["kafka/config/broker"]))["kafka/config/broker"]
    assert decode_settings(row.value) == {"num.partitions": "4", "of.the.future": "1", "fetch.max.bytes": "2000"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        *(lambda _, row=row: row for row in [b"\x00\x00", b"-5", b"9" * 30]),
        *slow(*(lambda _, row=row: row for row in [b"", b"+5", b"1_0", b" 7", b"1e9", b"[" * 100_000, b"{}"])),
        other_digit,
    ],
)
async def test_the_producer_ids(url: str, change: Callable[[bytes], bytes], caplog: pytest.LogCaptureFixture) -> None:
    async with running(url) as (_, wire):
        given = await wire.producer_id()
    await damage(url, "kafka/producer-ids", change)
    async with running(url) as (_, wire):
        second = await wire.producer_id()
        assert second > given + 1_000_000
        assert "producer ids is damaged" in caplog.text
    async with running(url) as (_, wire):
        assert await wire.producer_id() > second


async def given(wire: Wire) -> int:
    """A new producer's id, under which one batch is appended."""
    found = await wire.producer_id()
    batch = batch_of(b"one", producer_id=found, producer_epoch=0, sequence=0)
    assert not (await wire.produce("a", batch)).error_code
    return found


@pytest.mark.parametrize("closed", [True, False])
async def test_producer_ids_whose_row_is_lost(tmp_path: Path, closed: bool) -> None:
    """Also those that no checkpoint remembers, since the gateway was killed, are given to nobody else."""
    url = f"embedded:{tmp_path / 'data'}"
    async with running(url) as (_, wire):
        await wire.create("a")
        first = await given(wire)
        if not closed:
            copy_as_killed(tmp_path / "data", tmp_path / "killed")
    if not closed:
        url = f"embedded:{tmp_path / 'killed'}"
    async with open_store(url) as store:
        await store.manager.commit({"kafka/producer-ids": None})
    async with running(url) as (_, wire):
        second = await given(wire)
        assert second > first
        assert await wire.values("a") == [b"one", b"one"]


async def test_ids_that_partitions_have_seen_are_not_given_out(url: str) -> None:
    """Though row, lease and epoch should say that they are free."""
    async with running(url) as (gateway, wire):
        await wire.create("a")
        first = await given(wire)
        await wire.produce("a", batch_of(b"x", producer_id=first + 5_000, producer_epoch=0, sequence=0))
        assert await given(wire) == first + 5_001
        await wire.produce("a", batch_of(b"x", producer_id=(1 << 63) - 1, producer_epoch=0, sequence=0))
        assert first + 5_001 < await given(wire) < 1 << 62
        assert gateway.failure is None


@pytest.mark.parametrize("row", [b"\xff\xfe", b"", b"{}", b"[" * 100_000])
async def test_the_cluster_id(url: str, row: bytes, caplog: pytest.LogCaptureFixture) -> None:
    await fill(url)
    await damage(url, "kafka/cluster-id", lambda _: row)
    async with running(url) as (gateway, wire):
        await check_b(wire)
        assert "the cluster id is damaged" in caplog.text
        found = gateway.parts.identity.cluster_id
    async with running(url) as (gateway, _):
        assert gateway.parts.identity.cluster_id == found


@pytest.mark.slow
@pytest.mark.parametrize("epoch", ["NULL", "'much'", *slow("-3", "9e999", "1.5", "1 << 40")])
async def test_the_lease(tmp_path: Path, epoch: str, caplog: pytest.LogCaptureFixture) -> None:
    """The leader epoch does not go backwards: it is recorded a second time."""
    import sqlite3

    url = f"embedded:{tmp_path / 'data'}"
    for _ in range(3):
        async with running(url) as (gateway, _):
            before = gateway.parts.identity.leader_epoch
    with sqlite3.connect(tmp_path / "data" / "mgr" / "mgr.db") as database:
        database.execute("CREATE TABLE other AS SELECT * FROM leases")
        database.execute("DROP TABLE leases")
        database.execute("ALTER TABLE other RENAME TO leases")
        database.execute(f"UPDATE leases SET epoch = {epoch}")
    database.close()
    async with running(url) as (gateway, _):
        assert gateway.parts.identity.leader_epoch > before
        assert gateway.failure is None


@pytest.mark.parametrize("row", [b"\x00\x00", b"-1", b"9" * 30, b"%d" % (1 << 40)])
async def test_the_recorded_epoch(url: str, row: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async with running(url) as (gateway, _):
        before = gateway.parts.identity.leader_epoch
    await damage(url, LEADER_EPOCH, lambda _: row)
    async with running(url) as (gateway, _):
        assert gateway.parts.identity.leader_epoch == before + 1
    assert "the recorded leader epoch" in caplog.text


async def test_an_intent(url: str, caplog: pytest.LogCaptureFixture) -> None:
    await fill(url)
    async with open_store(url) as store:
        intents = {"half": b'{"mapping": "no such"}', "c": b"\xff", "d": b'{"id":' * 100_000}
        await store.manager.commit({f"kafka/intent/{name}": intent for name, intent in intents.items()})
        await store.manager.create_domain("half")
    async with running(url) as (_, wire):
        await check_b(wire)
        assert "topic half is not served" in caplog.text
        assert (await wire.create("half")).error_code == ErrorCode.TOPIC_ALREADY_EXISTS


async def test_an_intent_of_a_topic_that_is_there(url: str, caplog: pytest.LogCaptureFixture) -> None:
    """It was to grow: it is served, may grow, and is deleted as any other."""
    await fill(url)
    async with open_store(url) as store:
        await store.manager.commit({"kafka/intent/a": b'{"id":'})
    async with running(url) as (gateway, wire):
        assert "the intent of topic a, which was to grow, is damaged" in caplog.text
        assert "not served" not in caplog.text
        assert not await scan_all(gateway.parts.manager, "kafka/intent/")
        assert (await wire.create("a")).error_message == "Topic 'a' already exists."
        assert await wire.grow("a", 9) == 0
        assert (await wire.produce("a", batch_of(b"x"), 8)).base_offset == 0
        assert await wire.delete("a") == 0
        assert (await wire.create("a")).error_code == 0
        await check_b(wire)


@every_way
async def test_a_checkpoint_of_the_store(
    tmp_path: Path, change: Callable[[bytes], bytes], caplog: pytest.LogCaptureFixture
) -> None:
    url = f"embedded:{tmp_path / 'data'}"
    await fill(url)
    await damage(url, "brk/", change)
    async with running(url) as (_, wire):
        assert await wire.values("a", 4) == [b"%d" % number for number in range(4, 10)]
        assert (await wire.produce("a", idempotent(10))).base_offset == 10
        await check_b(wire)
    assert "every message is verified instead" in caplog.text


# --- a store of the first format ---


@pytest.fixture(params=["closed", "killed"])
def first_format(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A data directory that the first version wrote, whose gateway was closed, or killed."""
    with tarfile.open(Path(__file__).parent / "first_format.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    shutil.move(tmp_path / request.param, tmp_path / "data")
    return f"embedded:{tmp_path / 'data'}"


@pytest.mark.slow
async def test_a_store_of_the_first_version(first_format: str, caplog: pytest.LogCaptureFixture) -> None:
    for life in range(2):
        async with running(first_format, config={"node.id": 1}) as (gateway, wire):
            assert gateway.parts.identity.leader_epoch > 3, "that of the last gateway, which had node.id=7"
            topics = {
                topic.name: topic for topic in (await wire.metadata(*sorted(gateway.parts.topics.names()))).topics
            }
            assert {name: len(topic.partitions) for name, topic in topics.items()} == {"moved.events": 1, "orders": 3}
            assert topics["orders"].topic_id.hex() == "c1d69da761bf480bb67bc279ffdd76fb"
            await check_first_format(wire, life)
            assert (await wire.configs(2, "orders"))["retention.ms"] == ("-1", 1)
            assert (await wire.configs(4, "1"))["num.partitions"] == ("4", 2)
            assert (await wire.create("gone")).error_code == 0
            assert await wire.delete("gone") == 0
            for record in gateway.parts.topics:
                row: dict[str, Any] = json.loads(unsealed(record.row()))
                assert len(row["incarnations"]) == record.partitions
    assert not [each for each in caplog.records if each.levelno >= logging.ERROR]


async def check_first_format(wire: Wire, life: int) -> None:
    values = [b"%c%d" % (letter, number) for number in range(12) for letter in b"ab"]
    added = [b"later"] * life
    assert (await wire.offset("orders", EARLIEST)).offset == 3
    assert await wire.values("orders", 3) == [*values[3:], *added]
    assert await wire.values("orders", 0, 1) == [b"c%d" % number for number in range(12)]
    assert await wire.values("moved.events", 2) == [b"e2"]
    assert (await wire.fetch("moved.events", 1)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    repeat = batch_of(b"a11", b"b11", timestamp=1_700_000_000_011, producer_id=11, producer_epoch=1, sequence=22)
    assert (await wire.produce("orders", repeat)).base_offset == 22
    assert (await wire.produce("orders", batch_of(b"later"))).base_offset == 24 + life
    assert await wire.committed("simple", "orders", 1) == 3
    assert [await wire.committed("readers", "orders", number) for number in range(3)] == [24, 12, 0]


async def test_a_deletion_that_the_first_version_had_begun(url: str) -> None:
    """Its intent names the mapping alone."""
    async with open_store(url) as store:
        await store.manager.create_domain("half")
        await store.manager.commit({"kafka/intent/half": b"domain"})
    async with Gateway(url, listen=None) as gateway:
        assert not await domains_among(gateway.parts.manager, ["half"])
        wire = connect(gateway)
        assert (await wire.create("half")).error_code == 0
        await wire.aclose()

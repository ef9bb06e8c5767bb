"""`kclient store dump`: topics, rows and messages as they lie in a data directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import pytest

from kclient.cli.app import run
from kclient.gateway.extents.encoding import Enveloped
from kclient.htp import Topic, open_store
from kclient.htp.embedded.directory import FORMAT
from kclient.records import CompressionType
from tests.gateway_wire import batch_of, running
from tests.store_formats import COMMITTED, unpack


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return unpack(FORMAT, tmp_path)


def dumped(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, list[dict[str, Any]]]:
    """The JSON lines of a dump, by type."""
    capsys.readouterr()
    assert run(["store", "dump", *map(str, arguments), "--json"]) == 0
    found: dict[str, list[dict[str, Any]]] = {"topic": [], "row": [], "message": []}
    for line in capsys.readouterr().out.splitlines():
        value = json.loads(line)
        found[value.pop("type")].append(value)
    return found


def state_of(data: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.stat().st_mtime_ns, path.stat().st_size) for path in data.rglob("*") if path.is_file()}


@pytest.mark.parametrize("number", range(1, FORMAT + 1))
def test_every_format(number: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = unpack(number, tmp_path)
    before = state_of(data)
    found = dumped(capsys, data)
    assert state_of(data) == before
    places = [(topic["htp_topic"], topic["topic"], topic["partition"]) for topic in found["topic"]]
    assert places == [("empty:0", "empty", 0), ("orders:0", "orders", 0), ("orders:1", "orders", 1)]
    assert {topic["framing"] for topic in found["topic"]} == {"kafka.record-batch.v2"}
    for name in ("orders:0", "orders:1"):
        messages = [message for message in found["message"] if message["htp_topic"] == name]
        assert [message["first_offset"] for message in messages] == list(range(30))
        assert {message["crc"] for message in messages} == {"ok"}
        assert [message["codec"] for message in messages[::10]] == ["none", "gzip", "zstd"]
        assert {message["max_timestamp"] for message in messages} == {1000}
        assert [message["base_sequence"] for message in messages] == [*range(10)] * 3
        assert {message["counts"] for message in messages} == {True}
    rows = {row["key"]: row for row in found["row"]}
    assert not [row for row in found["row"] if "problem" in row or "kind" not in row]
    assert rows["kafka/topic/orders"]["value"]["config"] == {"segment.bytes": "1048576", "retention.ms": "-1"}
    assert rows["brk/brk-0/1"]["value"]["next"] == 30
    assert COMMITTED in rows["group-offset/readers/orders/0"]["value"]


def test_one_topic(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = dumped(capsys, data, "empty")
    assert [topic["htp_topic"] for topic in found["topic"]] == ["empty:0"]
    assert [row["key"] for row in found["row"]] == ["kafka/topic/empty"]
    assert not found["message"]
    orders = {row["key"].rpartition("/")[0] for row in dumped(capsys, data, "orders")["row"]}
    assert "brk/brk-0" in orders
    assert "group-offset/readers/orders" in orders
    assert len([key for key in orders if key.startswith("kafka/log/")]) == 1
    assert run(["store", "dump", str(data), "nobody"]) == 1
    assert "has no topic 'nobody'; it has empty, orders" in capsys.readouterr().err


async def _fill(data: Path) -> None:
    async with running(f"embedded:{data}") as (_, wire):
        await wire.create("t")
        await wire.produce("t", batch_of(b"x", b"y", timestamp=1_700_000_000_000, compression=CompressionType.LZ4))
        producer_id = await wire.producer_id()
        for sequence in range(2):
            batch = batch_of(b"z", producer_id=producer_id, producer_epoch=0, sequence=sequence)
            await wire.produce("t", batch)


def test_as_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "data"
    anyio.run(_fill, data)
    assert run(["store", "dump", str(data)]) == 0
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert ["t:0", "1", "brk-0", "kafka.record-batch.v2", "t", "0"] in lines
    assert [line for line in lines if line[0] == "kafka/topic/t" and line[1] == "topic"]
    messages = [line for line in lines if line[0] == "t:0" and line[2].endswith(".log")]
    assert [line[5] for line in messages] == ["0 – 1", "2", "3"]
    assert messages[0][6:] == ["2023-11-14T22:13:20.000Z", "ok", "lz4", "-", "-"]
    assert messages[2][9].endswith("epoch 0 sequence 1")


def segment_of(data: Path) -> Path:
    return next(data.glob("brk-0/topics/t~0.*/*.log"))


def test_damage_is_shown_where_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "data"
    anyio.run(_fill, data)
    content = bytearray(segment_of(data).read_bytes())
    whole = dumped(capsys, data)["message"]
    content[whole[1]["byte"] + 65] ^= 1
    segment_of(data).write_bytes(content + b"rubbish" * 20)
    messages = dumped(capsys, data)["message"]
    assert [message["crc"] for message in messages] == ["ok", "wrong", "ok", "none"]
    assert messages[1]["codec"] == "none"
    assert (messages[3]["byte"], messages[3]["bytes"]) == (len(content), 140)
    assert "first_offset" not in messages[3]


async def _put(data: Path, rows: dict[str, bytes]) -> None:
    async with open_store(f"embedded:{data}") as store:
        await store.manager.commit(rows)


def test_rows_that_cannot_be_read(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = {"kafka/topic/odd": b"{}", "brk/brk-0/1": b"garbage", "kafka/future/x": b"\xff", "kafka/future/y": b"[1]"}
    anyio.run(_put, data, rows)
    found = {row["key"]: row for row in dumped(capsys, data)["row"]}
    assert (found["kafka/topic/odd"]["kind"], found["kafka/topic/odd"]["base64"]) == ("topic", "e30=")
    assert "problem" in found["kafka/topic/odd"]
    assert "problem" in found["brk/brk-0/1"]
    assert found["kafka/future/x"]["base64"] == "/w=="
    assert "kind" not in found["kafka/future/y"]
    assert found["kafka/future/y"]["value"] == [1]


async def _envelopes(data: Path) -> None:
    async with open_store(f"embedded:{data}") as store:
        await store.manager.create_domain("d")
        info = await store.manager.create_topic(Topic("d", "shared"), broker="brk-0")
        topic = await store.broker.open(info.place, Enveloped(bytes(16), 0, 1).framing, epoch=1)
        for partition in (7, 8):
            batch = batch_of(b"x", compression=CompressionType.ZSTD)
            batch[7] = partition - 7  # the base offset
            await (await topic.send([Enveloped(bytes(16), partition, 1).wrap(batch)])).synced()


def test_batches_in_envelopes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "data"
    anyio.run(_envelopes, data)
    found = dumped(capsys, data)
    assert [topic["framing"] for topic in found["topic"]] == ["kclient.envelope.v3"]
    assert "topic" not in found["topic"][0]
    assert [message["partition"] for message in found["message"]] == [7, 8]
    assert {(message["crc"], message["codec"]) for message in found["message"]} == {("ok", "zstd")}


async def _shared(data: Path) -> None:
    async with running(f"embedded:{data}", mapping="virtual") as (_, wire):
        await wire.create("t", 3)
        await wire.create("u", 1)
        await wire.produce("u", batch_of(b"x"))
        for partition in (1, 2, 1):
            await wire.produce("t", batch_of(b"x", b"y", compression=CompressionType.ZSTD), partition)


def test_partitions_that_share_a_topic(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "data"
    anyio.run(_shared, data)
    found = dumped(capsys, data, "t")
    assert [(each["topic"], "partition" in each) for each in found["topic"]] == [("t", False)]
    shown = [(each["partition"], each["first_offset"], each["last_offset"]) for each in found["message"]]
    assert shown == [(1, 0, 1), (2, 0, 1), (1, 2, 3)]
    assert {(each["crc"], each["codec"], each["records"]) for each in found["message"]} == {("ok", "zstd", 2)}
    kinds = {row["key"].split("/")[1] for row in found["row"] if row["key"].startswith("kafka/")}
    assert {"indexed", "blocks", "entries", "log"} <= kinds
    assert {"index of a shared topic", "index blocks", "index entries"} <= {row["kind"] for row in found["row"]}
    segment = next(data.glob("brk-0/topics/t.*/*.log"), None) or next(data.glob("brk-0/topics/*t.1/*.log"))
    with segment.open("r+b") as file:
        file.seek(24 + 16)  # the magic of the first batch
        file.write(b"\x07")
    first, *_ = dumped(capsys, data, "t")["message"]
    assert first["crc"] in ("wrong", "none")
    assert "first_offset" not in first


def test_one_that_is_in_use(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def look() -> int:
        async with running(f"embedded:{data}"):
            return run(["store", "dump", str(data)])

    assert anyio.run(look) == 1
    assert "is in use by process" in capsys.readouterr().err

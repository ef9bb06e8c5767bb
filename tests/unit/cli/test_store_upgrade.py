"""`kclient store upgrade`: directories of every format there ever was, and those that are refused."""

from __future__ import annotations

import json
from pathlib import Path

import anyio
import pytest

from kclient.cli.app import run
from kclient.gateway.rows.inspection import RowInspection
from kclient.htp import StorageError, open_store
from kclient.htp.embedded.directory import FORMAT
from kclient.htp.framings import find_framing
from kclient.htp.rows import scan_pages
from kclient.records import decode_records
from tests.gateway_wire import batch_of, running
from tests.store_formats import COMMITTED, VALUES, unpack


def format_of(data: Path) -> int:
    return int(json.loads((data / "format.json").read_bytes())["format"])


async def read_all(data: Path) -> tuple[dict[str, list[bytes]], dict[str, bytes]]:
    """All messages, as the values of their records, and all rows, through the port alone."""
    messages: dict[str, list[bytes]] = {}
    async with open_store(f"embedded:{data}") as store:
        rows = {key: row.value async for page in scan_pages(store.manager, "") for key, row in page.items()}
        for domain in ("orders", "empty"):
            for info in await store.manager.list_topics(domain):
                topic = await store.broker.open(info.place, find_framing("kafka.record-batch.v2"), epoch=1000)
                position, values = (await topic.status()).start, []
                while position < (await topic.status()).end:
                    pulled = await topic.pull(position)
                    values += [record.value for record in decode_records(pulled.data, "t", 0)]
                    position = pulled.last + 1
                messages[str(info.topic)] = values
    return messages, rows


@pytest.mark.parametrize("number", range(1, FORMAT + 1))
def test_every_format_there_was(number: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = unpack(number, tmp_path)
    assert format_of(data) == number
    assert run(["store", "upgrade", str(data)]) == 0
    told = f"was upgraded from format {number} to {FORMAT}" if number < FORMAT else "there was nothing to upgrade"
    assert told in capsys.readouterr().out
    assert format_of(data) == FORMAT
    assert run(["store", "verify", str(data)]) == 0, capsys.readouterr().out
    messages, rows = anyio.run(read_all, data)
    assert messages == {"orders:0": VALUES[0::2], "orders:1": VALUES[1::2], "empty:0": []}
    inspection = RowInspection([])
    for key, row in rows.items():
        assert not [found for found in inspection.look(key, row) if "cannot be read" in found.what]
    assert {"kafka/topic/orders", "kafka/topic/empty", "kafka/cluster-id"} <= rows.keys()
    anyio.run(serve, data)


async def serve(data: Path) -> None:
    async with running(f"embedded:{data}") as (_, wire):
        assert await wire.values("orders") == VALUES[0::2]
        assert await wire.committed("readers", "orders") == COMMITTED
        assert (await wire.configs(2, "orders"))["segment.bytes"] == ("1048576", 1)
        assert (await wire.produce("orders", batch_of(b"later"))).base_offset == 30


def test_a_second_upgrade_finds_nothing_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = unpack(1, tmp_path)
    assert [run(["store", "upgrade", str(data)]) for _ in range(2)] == [0, 0]
    assert f"has format {FORMAT}, which is this version's" in capsys.readouterr().out


def test_one_that_is_in_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def look() -> int:
        async with running(f"embedded:{tmp_path / 'data'}"):
            return run(["store", "upgrade", str(tmp_path / "data")])

    assert anyio.run(look) == 1
    assert "is in use by this process" in capsys.readouterr().err


def test_a_newer_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = unpack(FORMAT, tmp_path)
    (data / "format.json").write_text(json.dumps({"format": FORMAT + 1}))
    before = (data / "mgr" / "mgr.db").read_bytes()
    assert run(["store", "upgrade", str(data)]) == 2
    assert f"is written in format {FORMAT + 1}; this version of kclient knows formats up to {FORMAT}" in (
        capsys.readouterr().err
    )
    assert format_of(data) == FORMAT + 1
    assert (data / "mgr" / "mgr.db").read_bytes() == before


def test_what_is_no_data_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["store", "upgrade", str(tmp_path)]) == 2
    assert "is not a data directory" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("damage", ["missing", "garbage"])
def test_a_database_that_cannot_be_used(damage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = unpack(2, tmp_path)
    database = data / "mgr" / "mgr.db"
    if damage == "missing":
        database.unlink()
    else:
        database.write_bytes(b"nothing" * 1000)
    assert run(["store", "upgrade", str(data)]) == 1
    told = "mgr.db is missing: restore" if damage == "missing" else "mgr.db is damaged (file is not a database)"
    assert told in capsys.readouterr().err
    assert format_of(data) == 2, "the version that wrote it still opens it"
    assert damage == "garbage" or not database.exists()


def test_nor_does_a_gateway_raise_the_format_of_a_damaged_database(tmp_path: Path) -> None:
    data = unpack(2, tmp_path)
    with (data / "mgr" / "mgr.db").open("r+b") as database:
        database.seek(4096)
        database.write(b"nothing" * 500)

    async def begin() -> None:
        with pytest.raises(StorageError, match=r"mgr\.db is damaged.*[Nn]othing was changed"):
            await open_store(f"embedded:{data}").__aenter__()

    anyio.run(begin)
    assert format_of(data) == 2

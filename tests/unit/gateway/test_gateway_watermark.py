"""`log.dir.min.free.bytes`: with less space than that, producers are refused, and what makes space goes on."""

from __future__ import annotations

import logging
from pathlib import Path

import anyio
import pytest

import kclient
from kclient.errors import ConfigError, ErrorCode
from kclient.gateway import Gateway
from kclient.htp import open_store
from kclient.htp.embedded.files import Files
from tests.gateway_wire import Wire, batch_of, running

LEAST = 1_000_000
CONFIG = {"log.dir.min.free.bytes": LEAST}

pytestmark = pytest.mark.anyio


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """What the disk says is `free`."""
    disk = {"free": 10 * LEAST}
    monkeypatch.setattr(Files, "free_bytes", lambda _files, _directory: disk["free"])
    return disk


async def _until(wire: Wire, code: ErrorCode) -> int:
    """Produce until that is answered with a code; the offset."""
    with anyio.fail_after(20):
        while True:
            answer = await wire.produce("t", batch_of(b"x"))
            if answer.error_code == code:
                return answer.base_offset
            await anyio.sleep(0.01)


async def test_what_goes_on(tmp_path: Path, disk: dict[str, int], caplog: pytest.LogCaptureFixture) -> None:
    async with running(f"embedded:{tmp_path / 'data'}", config=CONFIG) as (_, wire):
        await wire.create("t")
        await wire.create("gone")
        assert (await wire.produce("t", batch_of(b"x"))).error_code == 0
        disk["free"] = LEAST - 1
        await _until(wire, ErrorCode.KAFKA_STORAGE_ERROR)
        refused = [each for each in caplog.records if "min_free_bytes" in each.getMessage()]

        assert await wire.values("t")
        assert await wire.commit("g", "t", 1) == 0
        assert (await wire.create("new")).error_code == 0
        assert await wire.delete("gone") == 0
        assert (await wire.delete_records("t", -1)).error_code == 0
        assert await wire.alter(2, "t", ("retention.ms", 0, "1000")) == 0
        await _until(wire, ErrorCode.KAFKA_STORAGE_ERROR)
        assert len([each for each in caplog.records if "min_free_bytes" in each.getMessage()]) == len(refused)

        disk["free"] = 3 * LEAST
        end = await _until(wire, ErrorCode.NONE)
        assert await wire.values("t", end) == [b"x"]
        assert await wire.committed("g", "t") == 1
        assert (await wire.configs(4, "1"))["log.dir.min.free.bytes"] == (str(LEAST), 4)
        code = await wire.alter(4, "1", ("log.dir.min.free.bytes", 0, "5"))
        assert code == ErrorCode.INVALID_REQUEST
    assert [each.levelno for each in caplog.records if "messages are taken again" in each.getMessage()] == [
        logging.WARNING
    ]


async def test_a_producer_waits_until_there_is_space(tmp_path: Path, disk: dict[str, int]) -> None:
    disk["free"] = 0
    async with (
        Gateway(f"embedded:{tmp_path / 'data'}", listen="127.0.0.1:0", config=CONFIG) as gateway,
        kclient.Producer(bootstrap_servers=gateway.bootstrap, retry_backoff_ms=10) as producer,
    ):
        delivery = await producer.send("t", value=b"x")
        with anyio.move_on_after(0.3) as waiting:
            await delivery
        assert waiting.cancelled_caught
        disk["free"] = 3 * LEAST
        with anyio.fail_after(20):
            assert (await delivery).offset == 0


async def test_where_it_cannot_be_had(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is for embedded: stores"):
        Gateway("memory:watermark", listen=None, config=CONFIG)
    with pytest.raises(ConfigError, match="belongs to the store"):
        Gateway(open_store(f"embedded:{tmp_path / 'data'}"), listen=None, config=CONFIG)
    with pytest.raises(ConfigError, match="given twice"):
        Gateway(f"embedded:{tmp_path / 'data'}?min_free_bytes=1", listen=None, config=CONFIG)


async def test_clients_name_the_directory_alone(tmp_path: Path, disk: dict[str, int]) -> None:
    address = f"embedded:{tmp_path / 'data'}"
    async with (
        Gateway(f"{address}?min_free_bytes=5", listen=None),
        kclient.Admin(bootstrap_servers=address) as admin,
    ):
        assert await admin.list_topics() is not None
    assert [path.name for path in tmp_path.iterdir()] == ["data"]
    with pytest.raises(ConfigError, match="are given where its gateway is started"):
        async with kclient.Admin(bootstrap_servers=f"{address}?min_free_bytes=5") as admin:
            await admin.list_topics()

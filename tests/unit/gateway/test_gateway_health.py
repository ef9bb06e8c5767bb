"""What a gateway answers to those who ask whether it is well."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from kclient.errors import ConfigError
from kclient.gateway import Gateway
from kclient.gateway import health as health_module
from kclient.htp import open_store
from kclient.htp.embedded.files import Files
from kclient.net.address import Address
from tests.gateway_wire import names, running
from tests.slow_store import Gates
from tests.unit.gateway.test_gateway_kafka_metrics import page

pytestmark = pytest.mark.anyio


async def told(address: Address, path: str = "/readyz") -> tuple[int, dict[str, Any]]:
    status, body = await page(address, path)
    found = json.loads(body)
    assert found["status"] == ("ok" if status == 200 else "unavailable")
    return status, {name: reason for name, reason in found["checks"].items() if reason != "ok"}


async def test_all_is_well() -> None:
    async with Gateway(f"memory:{next(names)}", "127.0.0.1:0") as gateway:
        address = await gateway.serve_health("127.0.0.1:0")
        for path in ("/healthz", "/readyz"):
            assert await told(address, path) == (200, {})
        assert (await page(address, "/metrics"))[0] == 404
        second = await gateway.serve_metrics("127.0.0.1:0")
        assert await told(second) == (200, {})
        with pytest.raises(ConfigError):
            await gateway.serve_health("unix:/tmp/x")


async def test_it_needs_no_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    async with Gateway(f"memory:{next(names)}", "127.0.0.1:0") as gateway:
        assert await told(await gateway.serve_health("127.0.0.1:0")) == (200, {})


async def test_a_gateway_that_listens_nowhere() -> None:
    async with running() as (gateway, _):
        status, found = await told(await gateway.serve_health("127.0.0.1:0"))
        assert (status, list(found)) == (503, ["listening"])


async def test_a_disk_that_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Files, "free_bytes", lambda _files, _directory: 5_000)
    config = {"log.dir.min.free.bytes": "4000000"}
    async with Gateway(f"embedded:{tmp_path / 'data'}", "127.0.0.1:0", config=config) as gateway:
        address = await gateway.serve_health("127.0.0.1:0")
        status, found = await told(address)
        assert (status, list(found)) == (503, ["disk"])
        assert "5000 bytes are left" in found["disk"]
        assert await told(address, "/healthz") == (200, {}), "a restart would not help"


async def test_a_store_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_module, "_PATIENCE_S", 0.05)
    monkeypatch.setattr(health_module, "_FRESH_S", 0.0)
    async with open_store(f"memory:{next(names)}") as store:
        gates = Gates(store)
        async with Gateway(gates.store, "127.0.0.1:0") as gateway:  # type: ignore[arg-type]
            address = await gateway.serve_health("127.0.0.1:0")
            assert await told(address) == (200, {})
            gates.hold("get")
            status, found = await told(address)
            assert (status, list(found)) == (503, ["store"])
            assert "has not answered" in found["store"]
            gates.open()
            assert await told(address) == (200, {})


async def test_a_lease_that_has_run_out() -> None:
    async with Gateway(f"memory:{next(names)}", "127.0.0.1:0") as gateway:
        address = await gateway.serve_health("127.0.0.1:0")
        gateway.parts.lease.give_up()
        status, found = await told(address)
        assert status == 503
        assert "lease" in found


async def test_while_it_is_closed() -> None:
    """A load balancer learns of it before the last client has gone."""
    async with open_store(f"memory:{next(names)}") as store:
        gates = Gates(store)
        async with Gateway(gates.store, "127.0.0.1:0") as gateway:  # type: ignore[arg-type]
            address = await gateway.serve_health("127.0.0.1:0")
            gate = gates.hold("release")
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(gateway.close)
                with anyio.fail_after(20):
                    while not gateway._close_asked:
                        await anyio.sleep(0)
                status, found = await told(address)
                assert status == 503
                assert found["draining"] == "the gateway is being closed"
                gates.open()
            del gate

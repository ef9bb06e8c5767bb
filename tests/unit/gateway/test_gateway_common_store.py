"""A store that the gateways of one event loop have open together: opened by the first, closed by the last."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import anyio
import pytest

from kclient.errors import ConfigError
from kclient.gateway import Gateway
from kclient.htp import open_store
from kclient.htp.errors import LeaseHeldError, LockedError

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]


def gateway(url: str, node_id: int, **options: Any) -> Gateway:
    return Gateway(url, listen=None, config={"node.id": node_id}, **options)


async def test_the_last_one_closes_it(tmp_path: Path) -> None:
    url = f"embedded:{tmp_path / 'data'}"
    first, second = gateway(url, 1), gateway(f"embedded:{tmp_path}/./data", 2)
    await first.start()
    await second.start()
    await first.close()
    with pytest.raises(LockedError):
        await open_store(url).__aenter__()
    await second.close()
    async with open_store(url):
        pass


async def test_all_have_to_be_given_the_same(tmp_path: Path) -> None:
    url = f"embedded:{tmp_path / 'data'}"
    async with gateway(url, 1):
        with pytest.raises(ConfigError, match=r"durability='synced'.* has to be given the same, not 'written'"):
            await gateway(url, 2, durability="written").start()
        with pytest.raises(ConfigError, match=r"brokers=None.* has to be given the same, not 2"):
            await gateway(url, 2, brokers=2).start()
        async with gateway(url, 2):
            pass
    async with gateway(url, 1, durability="written"):  # nobody has it open any more
        pass


@pytest.mark.slow
async def test_another_event_loop_opens_it_for_itself(tmp_path: Path) -> None:
    url = f"embedded:{tmp_path / 'data'}"
    outcome: list[BaseException | None] = []

    async def start(node_id: int) -> None:
        try:
            async with Gateway(url, "127.0.0.1:0", config={"node.id": node_id}):
                outcome.append(None)
        except LeaseHeldError as error:
            outcome.append(error)

    async with Gateway(url, "127.0.0.1:0", config={"node.id": 1}):
        for node_id in (2, 1):
            thread = threading.Thread(target=anyio.run, args=(start, node_id))
            thread.start()
            await anyio.to_thread.run_sync(thread.join)
    served, refused = outcome
    assert served is None
    assert "a gateway with node.id=1 in this process serves" in str(refused)


@pytest.mark.parametrize("first", [{"alone": True, "listen": "127.0.0.1:0"}, {"listen": None}])
async def test_one_that_wants_it_alone_or_cannot_be_reached_keeps_other_processes_off(
    tmp_path: Path, first: dict[str, Any]
) -> None:
    url = f"embedded:{tmp_path / 'data'}"
    async with Gateway(url, **first):
        with pytest.raises(LockedError):
            await open_store(url, together=True).__aenter__()
    async with open_store(url, together=True):
        with pytest.raises(LockedError):
            await Gateway(url, **first).start()


async def test_alone_is_for_directories() -> None:
    with pytest.raises(ConfigError, match="alone=True is for embedded: directories"):
        Gateway("memory:some", alone=True)
    async with open_store("memory:other") as store:
        with pytest.raises(ConfigError, match="alone belongs to the store"):
            Gateway(store, alone=True)


@pytest.mark.slow
async def test_one_whose_start_is_cancelled_keeps_it_open_for_nobody(tmp_path: Path) -> None:
    """At any of its checkpoints; whoever comes then has the store."""
    url = f"embedded:{tmp_path / 'data'}"
    for turns in range(12):
        first, second = gateway(url, 1), gateway(url, 2)
        await first.start()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(first.close)
            for _ in range(turns):
                await anyio.lowlevel.checkpoint()
            with anyio.move_on_after(0):
                await second.start()
        await second.close()
        async with open_store(url):
            pass


@pytest.mark.slow
async def test_many_start_and_close_at_once(tmp_path: Path) -> None:
    url = f"embedded:{tmp_path / 'data'}"

    async def run(node_id: int) -> None:
        for _ in range(3):
            async with gateway(url, node_id) as one:
                assert one.parts.identity.node_id == node_id

    async with anyio.create_task_group() as tasks:
        for node_id in (1, 2, 3):
            tasks.start_soon(run, node_id)
    async with open_store(url):
        pass

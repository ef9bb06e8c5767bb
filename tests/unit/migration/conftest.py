"""What the tests of the migration share: two gateways, one of them as the cluster that is left."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import pytest

from kclient.gateway import Gateway
from kclient.migration import Mirror, SourceCluster, Target, Throttle
from kclient.records import read_header
from tests.gateway_wire import Wire, names, running


@pytest.fixture(params=["memory", "embedded"])
def htp(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a store that nobody else uses, of either kind."""
    return f"embedded:{tmp_path / 'data'}" if request.param == "embedded" else f"memory:{next(names)}"


@dataclass
class Pair:
    """A source, and a gateway to move to."""

    gateway: Gateway
    """The source."""
    wire: Wire
    """To it."""
    address: str
    notes: list[str] = field(default_factory=list)

    async def append(self, topic: str, batch: bytearray, *, at: int | None = None, partition: int = 0) -> int:
        """Append a batch to the source; where it is to have offsets further on, there is a hole before it."""
        found = self.gateway.parts.partitions.get(topic, partition)
        assert found is not None
        await found.ready()
        if at is not None:
            found.log.skip_to(at)
        append = found.append(batch, read_header(batch))
        assert append.error is None, append.error
        await found.settled()
        return append.base_offset

    @asynccontextmanager
    async def source(self) -> AsyncIterator[SourceCluster]:
        async with SourceCluster(bootstrap_servers=self.address, retry_backoff_ms=10) as source:
            yield source

    @asynccontextmanager
    async def mirroring(
        self,
        target: Gateway,
        *,
        selects: Callable[[str], bool] = lambda _: True,
        throttle: Throttle | None = None,
    ) -> AsyncIterator[Mirror]:
        """A mirror that runs."""
        async with self.source() as source:
            mirror = Mirror(source, Target(target), selects, throttle=throttle, note=self.notes.append, refresh=0.05)
            await mirror.prepare()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(mirror.run)
                try:
                    yield mirror
                finally:
                    mirror.stop()


@asynccontextmanager
async def clients(htp: str) -> AsyncIterator[SourceCluster]:
    """Reads the store that was moved to."""
    async with SourceCluster(bootstrap_servers=htp, retry_backoff_ms=10) as source:
        yield source


@asynccontextmanager
async def pair(**config: object) -> AsyncIterator[Pair]:
    """A source that runs, with these broker settings."""
    address = f"memory:{next(names)}"
    async with running(address, config={"group.initial.rebalance.delay.ms": 0, **config}) as (gateway, wire):
        yield Pair(gateway, wire, address)


async def until(condition: Callable[[], object]) -> None:
    """Wait until something holds that only the loop can bring about."""
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        await anyio.sleep(0.01)


async def caught_up(mirror: Mirror) -> None:
    """Until the mirror is where its source is."""
    await until(lambda: mirror.lag == 0)

"""A vendor's installation with a gateway on it, in virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import trio

from kclient.gateway import Gateway
from kclient.htp import Topic
from kclient.htp.testing import SendFate, SimulatedOptions, SimulatedStore, open_simulated, reset
from kclient.records import read_header
from tests.gateway_wire import Wire, batch_of, connect
from tests.simulation.inline_threads import START_S, Loop, run

PLACE = Topic("t", "0")
OPTIONS = SimulatedOptions(latency_ms=10, timeout_ms=1_000, late_ms=5_000, stale_ms=5_000)


def batch(*values: bytes, **fields: int) -> bytearray:
    return batch_of(*values, timestamp=int((START_S + trio.current_time()) * 1000), **fields)  # type: ignore[arg-type]


@dataclass
class Bed:
    """A vendor's installation, and one gateway after the other on it."""

    name: str
    store: SimulatedStore
    gateway: Gateway
    wire: Wire

    def plan(self, *fates: SendFate) -> None:
        self.store.installation.fates.extend(fates)

    def stored(self) -> list[tuple[int, int, int]]:
        """Kind, epoch and base offset of all messages that the broker has; of the start of an epoch 0."""
        log = self.store.installation.log("brk-0", PLACE)
        assert log is not None
        found, position = [], log.start
        while pulled := log.pull(position, 1, 1).data:
            epoch = int.from_bytes(pulled[12:16], "big")
            found.append((pulled[3], epoch, read_header(pulled, 28).base_offset if not pulled[3] else 0))
            position = log.pull(position, 1, 1).last + 1
        return found


@asynccontextmanager
async def serving(name: str, node_id: int = 1, mapping: str = "domain") -> AsyncIterator[Bed]:
    store = open_simulated(name, options=OPTIONS)
    async with store, Gateway(store, listen=None, mapping=mapping, config={"node.id": node_id}) as gateway:
        wire = connect(gateway)
        yield Bed(name, store, gateway, wire)
        await wire.aclose()


def virtually(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    """Run a test in virtual time."""

    def virtual() -> None:
        async def main(_: Loop) -> None:
            await test()

        try:
            run(main, 1)
        finally:
            reset(test.__name__)

    virtual.__name__ = test.__name__
    return virtual

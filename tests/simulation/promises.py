"""What gateways promise their clients in simulated worlds, and how clients there ask them."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import trio

from kclient.errors import KafkaError
from kclient.gateway import Gateway
from kclient.net.address import Address
from kclient.net.streams import memory_pair
from tests.gateway_wire import Wire
from tests.simulation.machines import FarEnd


class Violated(AssertionError):
    """A promise was broken."""


class Killed(Exception):
    """The process of a gateway has ended."""


def promise(kept: bool, what: object) -> None:
    """Raise `Violated` if this was not kept."""
    if not kept:
        raise Violated(what)


@asynccontextmanager
async def connection(gateway: Gateway) -> AsyncIterator[Wire]:
    """A connection, which may break. What comes is dealt with by the machine on which this is called."""
    client, server = memory_pair("gateway", "client")
    gateway.connect_stream(FarEnd(server), advertise=Address("test", 0))
    wire = Wire(client)
    try:
        yield wire
    finally:
        with trio.CancelScope(shield=True), suppress(Exception):
            await wire.aclose()


async def answer_of(ask: Callable[[], Awaitable[Any]], patience_s: float) -> Any:
    """What a gateway answers; None if it does not, within so many seconds."""
    with trio.move_on_after(patience_s):
        try:
            return await ask()
        except Violated:
            raise
        except (AssertionError, KafkaError, OSError, trio.ClosedResourceError, trio.BrokenResourceError):
            return None
    return None


def check_stored(
    where: str,
    stored: Mapping[int, bytes],
    acked: Mapping[int, bytes],
    seen: Mapping[int, bytes],
    sent: Counter[bytes],
) -> None:
    """What was acknowledged or read at an offset is there, no offset is missing, and nothing is stored twice."""
    for what, there in (("acknowledged", acked), ("read", seen)):
        for offset, value in there.items():
            found = stored.get(offset)
            promise(found == value, f"{where}: {value!r} was {what} at offset {offset}, where {found!r} is")
    promise(list(stored) == list(range(len(stored))), f"{where}: offsets are missing, or not in order")
    twice = Counter(stored.values()) - sent
    promise(not twice, f"{where}: {dict(twice)} are stored twice, or were never sent")


def check_sequence(where: str, stored: Mapping[int, bytes], prefix: str = "") -> None:
    """What a producer of such a name has sent, `NAME-0`, `NAME-1` and so on, is there without a gap and in order."""
    last: dict[str, int] = {}
    for value in stored.values():
        name, _, number = value.decode().rpartition("-")
        if name.startswith(prefix):
            promise(int(number) == last.get(name, -1) + 1, f"{where}: {value!r} comes after {last.get(name)}")
            last[name] = int(number)

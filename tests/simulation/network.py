"""A network in virtual time between clients and gateways, and among gateways: whatever connects by TCP goes through it.

Connections break, before a request or behind it; and of one that has broken the last request may still arrive, much
later, though its client has given it up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from random import Random
from typing import Any
from unittest import mock

import trio

from kclient.errors import KafkaError
from kclient.htp import HtpError
from kclient.net import connectors
from kclient.net.address import Address
from kclient.net.listeners import Listener
from kclient.net.server import Server
from kclient.net.streams import MemoryStream, memory_pair
from kclient.protocol import ApiKey
from kclient.types import Buffer
from tests.simulation.machines import FarEnd, Machine, current
from tests.simulation.promises import Killed

_LATE_S = (0.1, 3.0, 20.0)
"""So much later a request arrives that its client has given up."""


class ClientMachine(Machine):
    """One on which a client runs."""

    def __init__(self, *, old: bool = False) -> None:
        super().__init__()
        self.old = old
        """Whether it speaks the transactions of Kafka 3.9: then nothing of it arrives late (KAFKA-17754)."""
        self.ends = 0
        """So many EndTxn requests it has sent."""


class Line:
    """The end of a connection that has made it."""

    def __init__(self, network: Network, stream: MemoryStream, peer: str) -> None:
        self.peer = peer
        self._network = network
        self._stream = stream
        self._machine = current()
        self._broken = False
        self._late = False
        self._news = trio.Event()
        stream.watch(self._tell)

    def _tell(self) -> None:
        self._news.set()

    async def receive(self, max_bytes: int = 0) -> Buffer:
        while True:
            if self._broken:
                raise ConnectionResetError("the connection has broken")
            chunk = self._stream.receive_nowait()
            if chunk is not None:
                return chunk
            self._news = trio.Event()
            await self._news.wait()

    async def send(self, parts: Sequence[Buffer]) -> None:
        data = b"".join(parts)
        if isinstance(self._machine, ClientMachine):
            self._machine.ends += _count(data, ApiKey.END_TXN)
        network = self._network
        await trio.sleep(network.dice.choice([0.0, 0.001, 0.005]))
        if self._broken:
            raise ConnectionResetError("the connection has broken")
        if network.dice.random() < network.trouble:
            self._break(data)
            raise ConnectionResetError("the connection has broken")
        await self._stream.send([data])

    def _break(self, data: bytes) -> None:
        kind = self._network.dice.choice(["before", "behind", "late", "late"])
        if kind == "late" and not getattr(self._machine, "old", False):
            self._late = True
            self._network.late_markers |= _count(data, ApiKey.WRITE_TXN_MARKERS) > 0
            self._network.later(self._arrive, data)
        elif kind != "before":
            self._stream.send_nowait([data])
        self.cut()

    async def _arrive(self, data: bytes) -> None:
        await trio.sleep(self._network.dice.random() * self._network.dice.choice(_LATE_S))
        try:
            await self._stream.send([data])
            await trio.sleep(30)  # its server may deal with it
        except OSError:
            return
        finally:
            self._stream.close()

    def cut(self) -> None:
        """Break it."""
        self._broken = True
        if not self._late:
            self._stream.close()
        self._network.lines.pop(self, None)
        self._tell()

    async def aclose(self) -> None:
        if not self._broken:
            self.cut()


def _count(data: bytes, api: ApiKey) -> int:
    """How many requests of a kind are sent, in whole frames."""
    count, at = 0, 0
    while at + 6 <= len(data):
        count += int.from_bytes(data[at + 4 : at + 6], "big") == api
        at += 4 + int.from_bytes(data[at : at + 4], "big")
    return count


class Network:
    """Where servers listen, and connections lead to.

    Args:
        dice: What happens to them.
        trouble: How often a connection breaks when something is sent.
    """

    def __init__(self, dice: Random, trouble: float) -> None:
        self.dice = dice
        self.trouble = trouble
        self.lines: dict[Line, None] = {}
        self.late_markers = False
        """Whether a marker has arrived late: of a client without KIP-890 it may end a later transaction."""
        self.later: Callable[..., object] = lambda *_: None
        """Starts a task of the network."""
        self._servers: dict[tuple[str, int], tuple[Server, Listener, Machine | None]] = {}

    def down(self, host: str) -> None:
        """A machine has crashed: nobody reaches it, and all its connections break."""
        for place in [each for each in self._servers if each[0] == host]:
            del self._servers[place]
        for line in [line for line in self.lines if line.peer.startswith(f"{host}:")]:
            line.cut()

    async def _listen(self, server: Server, host: str, port: int = 0, *, label: object = None, **_: Any) -> Listener:
        listener = server._listen(Listener(Address(host, port), label, [], []))
        self._servers[host, port] = server, listener, current()
        return listener

    async def _connect(self, address: Address, config: Any) -> Line:
        await trio.sleep(0.001)
        server, listener, machine = self._servers.get((address.host, address.port), (None, None, None))
        if server is None or listener is None or server.closing:
            raise ConnectionRefusedError(f"nobody listens on {address}")
        ours, theirs = memory_pair(str(address), "client")
        try:
            with nullcontext() if machine is None else machine.here():
                server.attach(FarEnd(theirs), label=listener.label)
        except (KafkaError, HtpError, Killed) as error:  # it has failed, and closes
            raise ConnectionRefusedError(f"nobody listens on {address} any more") from error
        line = Line(self, ours, str(address))
        self.lines[line] = None
        return line

    @contextmanager
    def installed(self) -> Iterator[None]:
        """All that connects by TCP goes through it in this block."""

        async def listen(server: Server, host: str = "127.0.0.1", port: int = 0, **options: Any) -> Listener:
            return await self._listen(server, host, port, **options)

        with (
            mock.patch.object(Server, "listen_tcp", listen),
            mock.patch.dict(connectors._connectors, tcp=self._connect),
        ):
            yield

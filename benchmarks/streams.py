"""Streams side by side: our channel on each loop, in the clear and with TLS, beside asyncio's own transports.

A peer in a process of its own sends frames of 1 MB (`receive`), takes them (`send`), or sends small ones back (`echo`).
What is compared is the processor time of our side: on a machine with few cores the peer's share would hide the
difference.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import socket
import ssl
import tempfile
import time
from collections import deque
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import anyio
import trio
import uvloop

from benchmarks.harness import alternating, report
from kclient.concurrency import Supervisor
from kclient.net.channel_kinds import open_channel
from kclient.net.frames import FrameAssembler
from kclient.net.streams import SocketStream
from kclient.net.tls import connect_tls
from tests.certificates import Authority

LARGE, LARGE_COUNT = 1024 * 1024, 256
ROOM = 4 * LARGE  # for frames that begin: we trust the peer, as clients trust brokers
SMALL, SMALL_COUNT, AT_ONCE = 100, 20_000, 50

_authority = Authority()


def frame(size: int) -> bytes:
    return size.to_bytes(4, "big") + b"x" * size


def peer(address: tuple[str, int], task: str, context: ssl.SSLContext | None) -> None:
    """The other side: blocking, and the same for all."""
    sock = socket.create_connection(address)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if context is not None:
        sock = context.wrap_socket(sock, server_side=True)
    buffer = bytearray(256 * 1024)
    if task == "receive":
        data = frame(LARGE)
        for _ in range(LARGE_COUNT):
            sock.sendall(data)
    elif task == "send":
        left = LARGE_COUNT * (LARGE + 4)
        while left > 0:
            left -= sock.recv_into(buffer)
        sock.sendall(frame(0))
    else:
        while count := sock.recv_into(buffer):
            sock.sendall(memoryview(buffer)[:count])
    sock.recv(1)


def _peer_process(address: tuple[str, int], task: str, folder: str | None) -> None:
    context = None
    if folder is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(Path(folder) / "localhost.pem")
    with contextlib.suppress(OSError):
        peer(address, task, context)


class Side:
    """What is measured: counts frames, and says when all are there."""

    def __init__(self, task: str, write: Callable[[list[Any]], object]) -> None:
        self.task = task
        self.write = write
        self.left = {"receive": LARGE_COUNT, "send": 1, "echo": SMALL_COUNT}[task]
        self.done = anyio.Event()

    def start(self) -> None:
        if self.task == "send":
            data = b"x" * LARGE
            for _ in range(LARGE_COUNT):
                self.write([LARGE.to_bytes(4, "big"), data])
        elif self.task == "echo":
            for _ in range(AT_ONCE):
                self.write([frame(SMALL)])

    def frames_received(self, frames: list[memoryview]) -> None:
        self.left -= len(frames)
        if self.left <= 0:
            self.done.set()
        elif self.task == "echo":
            for _ in frames:
                self.write([frame(SMALL)])

    def channel_closed(self, cause: BaseException | None) -> None:
        self.done.set()

    def write_drained(self) -> None:
        pass


async def by_channel(sock: socket.socket, task: str, tls: ssl.SSLContext | None) -> None:
    stream = SocketStream(sock) if tls is None else await connect_tls(sock, tls, "localhost", "peer")
    async with Supervisor() as supervisor:
        side = Side(task, lambda parts: channel.write(parts))
        channel = open_channel(stream, side, supervisor, first_room=ROOM)
        side.start()
        await side.done.wait()
        channel.close()
        await channel.wait_closed()


class Buffered(asyncio.BufferedProtocol):
    """The same work by a transport of the loop."""

    def __init__(self, task: str) -> None:
        self.assembler = FrameAssembler(first_room=ROOM)
        self.side = Side(task, self.send)
        self.waiting: deque[Any] = deque()
        self.full = False

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.side.start()

    def send(self, parts: list[Any]) -> None:
        self.waiting.append(parts)
        self.resume_writing_all()

    def resume_writing_all(self) -> None:
        while self.waiting and not self.full:
            self.transport.writelines(self.waiting.popleft())

    def pause_writing(self) -> None:
        self.full = True

    def resume_writing(self) -> None:
        self.full = False
        self.resume_writing_all()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.assembler.target()

    def buffer_updated(self, nbytes: int) -> None:
        self.assembler.received(nbytes)
        if self.assembler.frames:
            self.side.frames_received(self.assembler.take())

    def connection_lost(self, exc: Exception | None) -> None:
        self.side.done.set()


async def by_transport(sock: socket.socket, task: str, tls: ssl.SSLContext | None) -> None:
    name = None if tls is None else "localhost"
    sock.setblocking(False)
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.create_connection(lambda: Buffered(task), sock=sock, ssl=tls, server_hostname=name)
    await protocol.side.done.wait()
    transport.abort()
    await asyncio.sleep(0)


Work = Callable[[socket.socket, str, ssl.SSLContext | None], Coroutine[Any, Any, None]]


def on_uvloop(work: Work, *arguments: Any) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(work(*arguments))


RUNNERS: dict[str, tuple[Callable[..., object], Work]] = {
    "channel, asyncio": (lambda work, *rest: asyncio.run(work(*rest)), by_channel),
    "channel, uvloop": (on_uvloop, by_channel),
    "channel, trio": (trio.run, by_channel),
    "BufferedProtocol, asyncio": (lambda work, *rest: asyncio.run(work(*rest)), by_transport),
    "BufferedProtocol, uvloop": (on_uvloop, by_transport),
}


def measure(name: str, task: str, folder: str | None) -> float:
    """Units (MB, or round trips of small frames) per second of our processor time."""
    run, work = RUNNERS[name]
    with socket.create_server(("127.0.0.1", 0)) as listening:
        process = multiprocessing.get_context("spawn").Process(
            target=_peer_process, args=(listening.getsockname(), task, folder)
        )
        process.start()
        sock = listening.accept()[0]
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    tls = None if folder is None else _authority.client_context()
    before = time.process_time()
    run(work, sock, task, tls)
    seconds = time.process_time() - before
    sock.close()
    process.join(10)
    return (SMALL_COUNT if task == "echo" else LARGE_COUNT) / seconds


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        _authority.issue("localhost").write(Path(folder) / "localhost.pem")
        for secure in (None, folder):
            for task, unit in (("receive", "MB"), ("send", "MB"), ("echo", "frames")):
                contenders = {
                    name: (lambda name=name, task=task, secure=secure: measure(name, task, secure)) for name in RUNNERS
                }
                title = f"{task} {'with TLS' if secure else 'in the clear'}"
                report(title, alternating(contenders), f"{unit} per CPU second", "channel, asyncio")


if __name__ == "__main__":
    main()

"""How clients in this process, and on this machine, find a gateway without a port.

A gateway that runs is entered under its store's address (`memory:NAME`, `embedded:DIRECTORY`). Clients in the process
get a stream in memory if they run on its loop, else a socket pair. The owner of an embedded directory also listens on
a Unix socket in it (`gateway-ID.sock`); other processes that name the directory come in there.

Where several gateways may serve a store, the address of each has a port that stands for its number (`local_port`):
metadata tell it to clients, which come in by the address without one.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import tempfile
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from kclient.concurrency import LoopHandle, Wakeup
from kclient.errors import ClosedError
from kclient.gateway.contexts import IN_PROCESS
from kclient.gateway.rows.gateways import Endpoint
from kclient.htp.brokers import brokers_asked_for
from kclient.htp.errors import LeaseHeldError
from kclient.htp.urls import split_options
from kclient.net.address import Address
from kclient.net.streams import ByteStream, SocketStream, memory_pair, socket_pair
from kclient.records.bounds import INT32_MAX

if TYPE_CHECKING:
    import socket


logger: logging.Logger = logging.getLogger("kclient.gateway")

_SOCKET: Final = "gateway-"
_SUFFIX: Final = ".sock"
"""What the names of Unix sockets in an embedded directory begin and end with; the gateway's number is in between."""
_POINTER: Final = ".path"
"""Where a socket is if the directory's path is too long for one: a file of its name and this, with its path."""
LONGEST_PATH = 100
"""Bytes of a Unix socket's path; the systems' limits are 104 and 108, with the closing zero."""


def local_address(htp: str) -> Address | None:
    """The address under which clients name a store, the same for every spelling; None for other stores.

    Options of the store (`?brokers=3`) are no part of it.
    """
    scheme, _, rest = htp.partition(":")
    if scheme == "memory":
        return Address(brokers_asked_for(rest)[0].removeprefix("//"), 0, scheme)
    if scheme == "embedded":
        return Address(os.path.realpath(split_options(rest)[0]), 0, scheme)
    return None


def local_port(node_id: int) -> int:
    """The port in the address of a gateway, where several may serve its store: another one for each number.

    0, which stands for any, is that of the greatest number only.
    """
    return (node_id + 1) & INT32_MAX


class Served(Protocol):
    """A gateway, as far as it is found by others."""

    async def listen(self, address: str, *, advertise: Address | str | None = None) -> Address:
        """Accept connections on one more address; returns where it listens."""
        ...

    def connect_stream(self, stream: ByteStream, *, advertise: Address) -> None:
        """Serve one stream; `advertise` is the address that its client is told."""
        ...

    def abandon(self) -> None:
        """In a forked child: close the descriptors that it inherited."""
        ...


class LocalGateway:
    """A running gateway, as clients in the process see it."""

    def __init__(self, gateway: Served, address: Address) -> None:
        self._gateway = gateway
        self._loop = LoopHandle()
        self.address = address

    async def connect(self) -> ByteStream:
        """A stream that the gateway serves, for the caller's event loop.

        Raises:
            ClosedError: If the gateway has just been closed.
        """
        name = str(self.address)
        if self._loop.is_current:
            client, server = memory_pair(name, name)
            self._gateway.connect_stream(server, advertise=self.address)
            return client
        left, right = socket_pair()
        stream = SocketStream(left, name)
        try:
            await self._attach(right, name)
        except BaseException:
            stream.close()
            raise
        return stream

    async def _attach(self, sock: socket.socket, name: str) -> None:
        """Have the gateway, in its own loop, serve a socket; wait until it does."""
        outcome: list[BaseException | None] = []
        done = Wakeup()

        def attach() -> None:
            try:
                self._gateway.connect_stream(SocketStream(sock, name), advertise=self.address)
            except BaseException as error:  # noqa: BLE001  (raised by the client's side)
                sock.close()
                outcome.append(error)
            else:
                outcome.append(None)
            done.set()

        if not self._loop.post(attach):
            sock.close()
            raise ClosedError(f"{name}: the event loop of the gateway has ended")
        # a loop that ends right now runs nothing of what was posted to it
        if not await done.wait(_ATTACH_S):
            raise ClosedError(f"{name}: the gateway in this process does not answer")
        if outcome[0] is not None:
            raise outcome[0]

    def abandon(self) -> None:
        """In a forked child: let go of what it inherited."""
        self._gateway.abandon()


_ATTACH_S = 10.0

_running: dict[Address, LocalGateway] = {}
_claimed: dict[Address, LoopHandle] = {}
"""What a gateway in this process serves, is about to serve, or has not closed yet, and in which loop: a store, or its
own part of one that several serve."""
_lock = threading.Lock()


def find_local(address: Address) -> LocalGateway | None:
    """The gateway that runs in this process under that address; of one without a number, any of the store's."""
    with _lock:
        for claimed in _of_store(address):
            if _claimed[claimed].ended:  # its loop was closed, and it was not
                del _claimed[claimed]
                _running.pop(claimed, None)
        if address.port:
            return _running.get(address)
        return next((each for each in _running.values() if store_of(each.address) == address), None)


def is_served(address: Address) -> bool:
    """Whether a gateway in this process serves the store of that address, or is about to."""
    with _lock:
        return any(not _claimed[each].ended for each in _of_store(address))


def store_of(address: Address) -> Address:
    """The address of a gateway's store."""
    return replace(address, port=0)


def _of_store(address: Address) -> list[Address]:
    """What is claimed of the store of an address."""
    store = store_of(address)
    return [each for each in _claimed if store_of(each) == store]


Claims: TypeAlias = dict[Address, LoopHandle]


def claims_on_memory(name: str | None = None) -> Claims:
    """The claims on the store `memory:NAME`, or on all stores in memory."""
    with _lock:
        return {
            address: claim
            for address, claim in _claimed.items()
            if address.scheme == "memory" and name in (None, address.host)
        }


def drop_claims(claims: Claims) -> None:
    """What these gateways had claimed is no more: others may claim the stores at once."""
    with _lock:
        for address, claim in claims.items():
            if _claimed.get(address) is claim:
                del _claimed[address]
                _running.pop(address, None)


def _served(address: Address, node_id: int | None) -> str:
    """Why an address cannot be claimed, and what helps."""
    one, remedy = "a gateway", "close it, or the clients that have started it, first"
    if node_id is not None:
        one, remedy = f"a gateway with node.id={node_id}", f"{remedy}, or give this one another node.id"
    return (
        f"{one} in this process serves {address}: {remedy}. A gateway that is there before them is joined by them, "
        "whether it listens or not"
    )


class Presence:
    """Lets others find one gateway, from `announce` to `withdraw`.

    Args:
        address: Of its store, see `local_address`.
    """

    def __init__(self, address: Address) -> None:
        self._address = address
        self._entry: LocalGateway | None = None
        self._claim: LoopHandle | None = None
        self._temporary: Path | None = None

    @property
    def address(self) -> Address:
        """That of the store; once it has claimed its number, its own."""
        return self._address

    def claim(self, node_id: int | None = None) -> None:
        """The store is this gateway's until `release`; called in its event loop.

        Args:
            node_id: Its number, where several gateways may serve the store: then only that is.

        Raises:
            LeaseHeldError: Another one in this process has it.
        """
        address = self._address if node_id is None else replace(self._address, port=local_port(node_id))
        with _lock:
            claim = _claimed.get(address)
            if claim is not None and not claim.ended:
                raise LeaseHeldError(_served(address, node_id), holder="this process")
            self._address = address
            self._claim = _claimed[address] = LoopHandle()

    def endpoint(self) -> dict[str, Endpoint]:
        """Where clients find it that name the store, for its row; it has claimed its number."""
        return {IN_PROCESS: Endpoint(self._address.broker_host, 0, "PLAINTEXT")}

    def release(self) -> None:
        """Another one may claim the store."""
        with _lock:
            if self._claim is not None and _claimed.get(self._address) is self._claim:
                del _claimed[self._address]
        self._claim = None

    async def announce(self, gateway: Served) -> None:
        """Enter a gateway that has started, under the address that it has claimed; called in its event loop."""
        if self._address.scheme == "embedded":
            await self._listen(gateway, Path(self._address.host))
        self._entry = LocalGateway(gateway, self._address)
        with _lock:
            _running[self._address] = self._entry

    def withdraw(self) -> None:
        """Let nobody find it any more; its Unix socket goes with its server."""
        with _lock:
            if self._entry is not None and _running.get(self._address) is self._entry:
                del _running[self._address]
        self._entry = None
        if self._temporary is not None:
            with contextlib.suppress(OSError):
                (Path(self._address.host) / f"{_socket_of(self._address.port)}{_POINTER}").unlink()
            shutil.rmtree(self._temporary, ignore_errors=True)
            self._temporary = None

    async def _listen(self, gateway: Served, directory: Path) -> None:
        try:
            await gateway.listen(f"unix:{self._place(directory)}", advertise=self._address)
        except OSError as error:
            logger.warning(
                "other processes cannot join %s: no Unix socket can be made in it (%s)", self._address, error
            )

    def _place(self, directory: Path) -> Path:
        """Where to listen: in the directory, or, if that path is too long, in one of our own that a file names."""
        name = _socket_of(self._address.port)
        path, pointer = directory / name, directory / f"{name}{_POINTER}"
        if _fits(path):
            with contextlib.suppress(OSError):
                pointer.unlink()
            return path
        self._temporary = Path(tempfile.mkdtemp(prefix="kclient-"))  # nobody else may enter it
        path = self._temporary / name
        written = directory / f"{name}{_POINTER}.tmp"
        written.write_text(str(path))
        written.replace(pointer)
        return path


def _socket_of(port: int) -> str:
    """The name of the socket of a gateway whose address has this port."""
    return f"{_SOCKET}{(port - 1) & INT32_MAX}{_SUFFIX}"


def find_sockets(address: Address) -> list[Path]:
    """The Unix sockets of the gateways that serve a directory, or of the one of a number.

    Whether anybody listens is another thing.
    """
    directory = Path(address.host)
    try:
        names = sorted({each.name.removesuffix(_POINTER) for each in directory.glob(f"{_SOCKET}*")})
    except OSError:
        return []
    paths = []
    for name in names:
        if not name.endswith(_SUFFIX) or (address.port and name != _socket_of(address.port)):
            continue
        path = directory / name
        if not _fits(path):
            try:
                path = Path((directory / f"{name}{_POINTER}").read_text())
            except OSError:
                continue
        if path.exists():
            paths.append(path)
    return paths


def _fits(path: Path) -> bool:
    return len(os.fsencode(path)) <= LONGEST_PATH


def _after_fork() -> None:
    """The gateways stay with the parent; what the child inherited of them must not keep their connections alive."""
    global _lock
    _lock = threading.Lock()
    entries = list(_running.values())
    _running.clear()
    _claimed.clear()
    for entry in entries:
        with contextlib.suppress(OSError):
            entry.abandon()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

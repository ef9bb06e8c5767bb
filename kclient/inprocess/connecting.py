"""Connect to a gateway by `memory:NAME` or `embedded:DIR`: in this process, in another one, or started for it."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import anyio

from kclient.errors import BrokerConnectionError, ClosedError, ConfigError
from kclient.gateway.local import find_local, find_sockets, is_served, local_address, store_of
from kclient.htp.brokers import brokers_asked_for
from kclient.htp.embedded.directory import is_data_directory
from kclient.htp.errors import LeaseHeldError, LockedError, StorageError, StorageFullError
from kclient.htp.urls import split_options
from kclient.inprocess.hosts import Host, HostState, host_of, start_host
from kclient.net.address import Address
from kclient.net.connectors import connect as connect_address

if TYPE_CHECKING:
    from kclient.net.settings import ConnectionConfig
    from kclient.net.streams import ByteStream

_RETRY_S: Final = 0.05
_GONE: Final = "this gateway is gone, others serve its store"


async def connect(address: Address, config: ConnectionConfig) -> ByteStream:
    """A stream to the gateway over a store, which is started here if nobody runs one.

    Raises:
        ConfigError: If the address has an option of the store's own.
        BrokerConnectionError: If the store belongs to a process that does not answer.
        KafkaError: If the store cannot be opened.
    """
    if address.scheme == "embedded":
        name, options = split_options(address.host)
    else:
        name, brokers = brokers_asked_for(address.host)
        options = {} if brokers is None else {"brokers": str(brokers)}
    if options:
        raise ConfigError(
            f"options of a store ({', '.join(options)}) are given where its gateway is started (Gateway, kclient "
            f"gateway): clients connect to {address.scheme}:{name}"
        )
    store = local_address(str(address))
    assert store is not None, "registered for memory: and embedded: only"
    found = replace(store, port=address.port)
    seconds = config.socket_connection_setup_timeout_ms / 1000
    attempt = _Connecting(found, config, time.monotonic() + seconds)
    try:
        while True:
            stream = await attempt.here() or await attempt.elsewhere()
            if stream is not None:
                return stream
            if not await attempt.others():
                await attempt.start()
    finally:
        attempt.end()


def exists(address: str) -> bool:
    """Whether an address names something that is there: to connect to an `embedded:` directory makes it.

    Args:
        address: As in `bootstrap_servers`; everything but `embedded:` counts as being there.
    """
    found = local_address(address)
    return found is None or found.scheme != "embedded" or is_data_directory(found.host)


class _Connecting:
    """One way to a gateway after the other, until the time is over."""

    def __init__(self, address: Address, config: ConnectionConfig, deadline: float) -> None:
        self._address = address
        self._config = config
        self._deadline = deadline
        self._cause: BaseException | None = None
        self._claimed: Host | None = None

    async def here(self) -> ByteStream | None:
        """To a gateway that runs in this process."""
        local = find_local(self._address)
        if local is None:
            return None
        try:
            return await local.connect()
        except ClosedError as error:
            await self._pause(error)
            return None

    async def others(self) -> bool:
        """Wait for a gateway of the user's own that starts or closes, if there is one: none is started beside it.

        Raises:
            BrokerConnectionError: The gateway that is named by its number is gone, and others serve the store.
        """
        store = store_of(self._address)
        if self._address.port and find_local(store) is not None:
            raise self._too_late(ClosedError(_GONE))
        if host_of(store) is not None or not is_served(store):
            return False
        await self._pause(ClosedError("a gateway in this process starts, or closes"))
        return True

    async def elsewhere(self) -> ByteStream | None:
        """To the process that owns the directory, through the Unix socket in it."""
        if self._address.scheme != "embedded" or (not self._address.port and host_of(self._address) is not None):
            return None
        for path in find_sockets(self._address):
            try:
                return await connect_address(Address(str(path), 0, "unix"), self._config)
            except BrokerConnectionError as error:
                self._cause = error  # left behind by a process that was killed: the lock tells
        if self._address.port and not is_served(self._address) and find_sockets(store_of(self._address)):
            raise self._too_late(ClosedError(_GONE))
        return None

    async def start(self) -> None:
        """Have a gateway started in this process, or wait until the one that is closing is gone."""
        host = start_host(store_of(self._address))
        if host is not self._claimed:
            self.end()
            host.claim()
            self._claimed = host
        if host.state is HostState.RUNNING:  # and yet not found: it has failed, and is about to close
            await self._pause(host.error or ClosedError(f"the gateway of {self._address} is closing"))
            return
        if host.state in (HostState.STARTING, HostState.CLOSING):
            await host.wait_while(host.state, self._left())
        if host.state is HostState.ENDED and host.error is not None:
            await self._failed(host, host.error)
        elif host.state is not HostState.ENDED and self._left() <= 0:
            raise self._too_late(self._cause or TimeoutError(f"the gateway is still {host.state.value}"))

    def end(self) -> None:
        """The attempt is over, or goes on with another host."""
        host, self._claimed = self._claimed, None
        if host is not None:
            host.release()

    async def _failed(self, host: Host, error: BaseException) -> None:
        if not isinstance(error, LockedError | LeaseHeldError):
            if isinstance(error, StorageError) and not isinstance(error, StorageFullError):
                error.retriable = False  # what is in the way of the directory stays there
            # every client that waits for the host gets it; the traceback would grow with each of them
            raise error.with_traceback(None)
        await self._pause(error)  # another process starts, or closes

    async def _pause(self, cause: BaseException) -> None:
        self._cause = cause
        if self._left() <= 0:
            raise self._too_late(cause)
        await anyio.sleep(_RETRY_S)

    def _left(self) -> float:
        return self._deadline - time.monotonic()

    def _too_late(self, cause: BaseException) -> BrokerConnectionError:
        return BrokerConnectionError(f"no connection to {self._address}", attempts=[(str(self._address), cause)])

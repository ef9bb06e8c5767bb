"""Connects to another gateway of the same store, by the nearest way."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kclient.errors import BrokerConnectionError, ClosedError
from kclient.gateway.contexts import IN_PROCESS
from kclient.gateway.local import find_local, find_sockets, local_port
from kclient.net.address import Address
from kclient.net.connection import Connection

if TYPE_CHECKING:
    from kclient.concurrency import Supervisor
    from kclient.gateway.rows.gateways import GatewayRow
    from kclient.net.settings import ConnectionSettings


async def connect_to(
    gateway: GatewayRow, store: Address | None, settings: ConnectionSettings, supervisor: Supervisor
) -> Connection:
    """A connection whose versions are negotiated.

    In memory, if it runs in this process; through its Unix socket, if it serves the same directory of this machine;
    else to the address that it advertises to clients of a listener in the clear.

    Args:
        gateway: The other one.
        store: The address under which clients name the store; None if it has none.
        settings: Of the connection.
        supervisor: Runs its tasks.

    Raises:
        BrokerConnectionError: There is no way, or none that leads there; it tells what was tried.
        KafkaTimeoutError: It has accepted the connection, and does not answer.
    """
    attempts: list[tuple[str, BaseException]] = []
    if store is not None and IN_PROCESS in gateway.endpoints:
        at = replace(store, port=local_port(gateway.node_id))
        local = find_local(at)
        if local is not None:
            try:
                connection = Connection.over(await local.connect(), at, settings, supervisor=supervisor)
            except ClosedError as error:
                attempts.append((str(at), error))
            else:
                try:
                    await connection.negotiate()
                except BaseException:  # cancelled too: it does not stay open
                    connection.close()
                    raise
                return connection
        elif at.scheme == "embedded":
            for path in find_sockets(at):
                try:
                    return await Connection.open(Address(str(path), 0, "unix"), settings, supervisor=supervisor)
                except BrokerConnectionError as error:  # left behind by a process that was killed
                    attempts.append((str(path), error))
    for name, endpoint in sorted(gateway.endpoints.items()):
        if name != IN_PROCESS and endpoint.security_protocol == "PLAINTEXT":
            address = Address(endpoint.host, endpoint.port)
            try:
                return await Connection.open(address, settings, supervisor=supervisor)
            except BrokerConnectionError as error:
                attempts += error.attempts or [(str(address), error)]
    raise BrokerConnectionError(
        f"no connection to the gateway with node.id={gateway.node_id}"
        + ("" if attempts else ": it has no listener in the clear, nor one on this machine"),
        attempts=attempts,
    )

"""Where a client begins: the addresses of `bootstrap.servers`, which all lead to one cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kclient.errors import ConfigError
from kclient.net.connectors import bootstrap_addresses

if TYPE_CHECKING:
    from kclient.cluster.config import ClusterConfig
    from kclient.net.address import Address

_ALONE = frozenset({"memory", "embedded"})
"""Schemes of gateways inside the process: each of them is a cluster of its own."""


def cluster_addresses(config: ClusterConfig) -> list[Address]:
    """The addresses to start from.

    Raises:
        ConfigError: There is none, one is not an address, or they cannot belong to one cluster.
    """
    addresses = bootstrap_addresses(config.bootstrap_servers, config.security_protocol)
    schemes = {address.scheme for address in addresses}
    if len(addresses) > 1 and (len(schemes) > 1 or schemes & _ALONE):
        told = ", ".join(map(str, addresses))
        raise ConfigError(
            f"bootstrap.servers: {told} are not brokers of one cluster; name the brokers of one cluster as "
            "host:port,host:port, or one gateway inside the process alone"
        )
    return addresses

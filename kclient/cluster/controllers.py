"""Metadata of controllers, for clients that talk to these instead of brokers (KIP-919)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import TYPE_CHECKING, Final

from kclient.cluster.versions import version_for
from kclient.errors import UnsupportedEndpointTypeError, UnsupportedVersionError, error_for
from kclient.protocol.messages import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    MetadataResponse,
    MetadataResponseBroker,
)
from kclient.protocol.registry import ApiKey

if TYPE_CHECKING:
    from kclient.net.connection import Connection

CONTROLLERS: Final = 2
"""The `endpoint_type` of DescribeCluster that asks for controllers."""
_FIRST: Final = 1
"""The first version of DescribeCluster that can."""

INSTEAD: Final = "talk to brokers, with bootstrap.servers instead of bootstrap.controllers"

NAMES_CONTROLLERS: Final = "bootstrap.controllers has to name controllers"
"""The remedy where a broker answers."""
NAMES_BROKERS: Final = "bootstrap.servers has to name brokers; bootstrap.controllers of Admin is for controllers"
"""The remedy where a controller answers."""


def check_controller(connection: Connection) -> None:
    """Whether somebody at the other end can tell of controllers.

    Raises:
        UnsupportedVersionError: It is too old, or no controller.
    """
    if version_for(connection, DescribeClusterRequest) < _FIRST:
        raise UnsupportedVersionError(f"{connection.address} does not tell of controllers (Kafka 3.7 does): {INSTEAD}")


def check_broker(connection: Connection) -> None:
    """Whether somebody at the other end can tell of topics.

    Raises:
        UnsupportedVersionError: It is a controller.
    """
    if ApiKey.METADATA not in connection.api_versions:
        raise UnsupportedVersionError(f"{connection.address} does not have the API METADATA: {NAMES_BROKERS}")


async def metadata_of_controllers(
    topics: Collection[str] | None, ask: Callable[[DescribeClusterRequest], Awaitable[DescribeClusterResponse]]
) -> MetadataResponse:
    """The controllers, in the form in which brokers tell of themselves.

    Args:
        topics: What metadata are wanted of; None for all topics.
        ask: Sends the request.

    Raises:
        UnsupportedEndpointTypeError: Topics are wanted.
        KafkaError: What was answered; such as `MismatchedEndpointTypeError` of a broker.
    """
    if topics is None or topics:
        raise UnsupportedEndpointTypeError(f"Controllers know nothing of topics: {INSTEAD}")
    told = await ask(DescribeClusterRequest(include_cluster_authorized_operations=False, endpoint_type=CONTROLLERS))
    if told.error_code:
        error = error_for(told.error_code)
        error.message = f"{told.error_message or error.message} ({NAMES_CONTROLLERS})"
        raise error
    return MetadataResponse(
        brokers=[
            MetadataResponseBroker(node_id=each.broker_id, host=each.host, port=each.port, rack=each.rack)
            for each in told.brokers
        ],
        cluster_id=told.cluster_id,
        controller_id=told.controller_id,
        topics=[],
    )

"""What a client and a broker agree upon before the first request: the versions of the APIs, and who the client is.

Both are conversations over a connection that carries them; what it does with its other requests meanwhile is its own
business.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import anyio.to_thread

from kclient.errors import ErrorCode, SaslAuthenticationError, error_for
from kclient.protocol.message import ApiMessage
from kclient.protocol.messages import ApiVersionsRequest, ApiVersionsResponse
from kclient.protocol.registry import ApiKey
from kclient.version import __version__

if TYPE_CHECKING:
    from kclient.net.address import Address
    from kclient.net.sasl.authentication import ClientAuthentication
    from kclient.net.sasl.login import Login

__all__ = ["Ask", "Negotiated", "authenticate", "negotiate_versions"]

Ask: TypeAlias = Callable[[ApiMessage, int], Awaitable[Any]]
"""Sends a request of a version, and waits for its response."""


class Negotiated(NamedTuple):
    """What a broker tells of itself and its cluster."""

    ranges: dict[int, tuple[int, int]]
    """Its version ranges by api key."""
    features: dict[str, int]
    """The levels of the cluster's finalized features by name (KIP-584); empty where brokers do not tell."""


async def negotiate_versions(ask: Ask, address: Address) -> Negotiated:
    """Ask a broker for its version ranges (KIP-35), and tell it who we are (KIP-511).

    Raises:
        KafkaError: If it refused, besides what `ask` raises.
    """
    version = ApiVersionsRequest.VERSIONS[1]
    answer = await _ask_versions(ask, version)
    if answer.error_code == ErrorCode.UNSUPPORTED_VERSION and version > 0:
        # the broker is older than this request; it names its own range, or else knows version 0 at least
        ranges = {item.api_key: item.max_version for item in answer.api_keys}
        answer = await _ask_versions(ask, min(version, ranges.get(ApiKey.API_VERSIONS, 0)))
    if answer.error_code:
        raise error_for(answer.error_code, f"{address} did not tell its versions")
    return Negotiated(
        {item.api_key: (item.min_version, item.max_version) for item in answer.api_keys},
        {item.name: item.max_version_level for item in answer.finalized_features},
    )


async def _ask_versions(ask: Ask, version: int) -> ApiVersionsResponse:
    request = ApiVersionsRequest(client_software_name="kclient", client_software_version=__version__)
    answer: ApiVersionsResponse = await ask(request, version)
    return answer


async def authenticate(ask: Ask, exchange: ClientAuthentication, login: Login) -> None:
    """Carry an authentication with SASL out to its end.

    Args:
        ask: Of the connection.
        exchange: Decides what is sent next.
        login: What is authenticated with; it is told if the broker refused it.

    Raises:
        AuthenticationError: If the broker refused, besides what `ask` raises.
    """
    outgoing: tuple[ApiMessage, int] | None = exchange.start()
    while outgoing is not None:
        try:
            response = await ask(*outgoing)
            if exchange.is_costly(response):  # the loop goes on meanwhile
                outgoing = await anyio.to_thread.run_sync(exchange.answered, response, abandon_on_cancel=True)
            else:
                outgoing = exchange.answered(response)
        except SaslAuthenticationError:
            login.refused()
            raise
